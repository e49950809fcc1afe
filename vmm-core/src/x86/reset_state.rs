use super::msr_list::msr;
use super::vcpu_state::{
    DebugRegisters, DescriptorTable, GeneralRegisters, LAPIC_PAGE_BYTES, MpState, Msr,
    PendingEvents, Segment, SystemRegisters, X86VcpuState, XsaveComponent,
};
use super::{LAPIC_BASE, lapic_register};

/// Length in bytes of the legacy x87 part of the XSAVE area, header included.
pub const XSAVE_X87_BYTES: usize = 160;
/// Length in bytes of the XMM registers in the XSAVE area.
pub const XSAVE_SSE_BYTES: usize = 256;

impl X86VcpuState {
    /// The state of vCPU `apic_id` after power-on (Intel SDM volume 3, table 9-1), with the PAT, the
    /// MTRR default type (write-back, enabled) and fast strings as firmware leaves them. vCPU 0 is
    /// runnable, the others wait for INIT.
    pub fn reset(apic_id: u8) -> Self {
        let code = Segment {
            selector: 0xf000,
            base: 0xffff_0000,
            limit: 0xffff,
            attributes: 0x9b,
            unusable: false,
        };
        let data = Segment {
            limit: 0xffff,
            attributes: 0x93,
            ..Segment::default()
        };
        let table = DescriptorTable {
            base: 0,
            limit: 0xffff,
        };
        // Enabled; the boot processor says so.
        let apic_base = LAPIC_BASE.0 | 1 << 11 | if apic_id == 0 { 1 << 8 } else { 0 };
        let system = SystemRegisters {
            cs: code,
            ds: data,
            es: data,
            fs: data,
            gs: data,
            ss: data,
            tr: Segment {
                limit: 0xffff,
                attributes: 0x8b,
                ..Segment::default()
            },
            ldt: Segment {
                limit: 0xffff,
                attributes: 0x82,
                ..Segment::default()
            },
            gdt: table,
            idt: table,
            cr0: 0x6000_0010,
            apic_base,
            ..SystemRegisters::default()
        };
        let general = GeneralRegisters {
            rip: 0xfff0,
            rflags: 2,
            ..GeneralRegisters::default()
        };
        Self {
            general,
            system,
            xcr0: 1,
            xsave: initial_xsave(),
            msrs: initial_msrs(),
            lapic: initial_lapic(apic_id),
            debug: DebugRegisters {
                dr6: 0xffff_0ff0,
                dr7: 0x400,
                ..DebugRegisters::default()
            },
            events: PendingEvents::default(),
            mp_state: if apic_id == 0 {
                MpState::Runnable
            } else {
                MpState::Uninitialized
            },
        }
    }
}

fn initial_xsave() -> Vec<XsaveComponent> {
    let mut x87 = vec![0; XSAVE_X87_BYTES];
    x87[..2].copy_from_slice(&0x037f_u16.to_le_bytes());
    x87[24..28].copy_from_slice(&0x1f80_u32.to_le_bytes());
    vec![
        XsaveComponent {
            index: 0,
            bytes: x87,
        },
        XsaveComponent {
            index: 1,
            bytes: vec![0; XSAVE_SSE_BYTES],
        },
    ]
}

fn initial_msrs() -> Vec<Msr> {
    [
        (msr::TSC, 0),
        (msr::MISC_ENABLE, 1),
        (msr::PAT, 0x0007_0406_0007_0406),
        (msr::MTRR_DEF_TYPE, 1 << 11 | 6),
    ]
    .map(|(index, value)| Msr { index, value })
    .to_vec()
}

fn initial_lapic(apic_id: u8) -> Box<[u8; LAPIC_PAGE_BYTES]> {
    let mut page = Box::new([0; LAPIC_PAGE_BYTES]);
    let mut set = |offset: usize, value: u32| {
        page[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
    };
    set(lapic_register::ID, u32::from(apic_id) << 24);
    set(lapic_register::VERSION, 0x0005_0014);
    set(lapic_register::DESTINATION_FORMAT, 0xffff_ffff);
    set(lapic_register::SPURIOUS, 0xff);
    for entry in lapic_register::LOCAL_VECTORS {
        set(entry, 1 << 16);
    }
    page
}
