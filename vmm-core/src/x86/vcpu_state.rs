/// Size in bytes of the saved part of the local APIC's register page.
pub const LAPIC_PAGE_BYTES: usize = 1024;

/// The state of an x86-64 vCPU.
///
/// Load order (backends document theirs against it): CPUID, system registers, XCR0, extended state,
/// MSRs with the TSC first, local APIC after the TSC (its timer counts from it), general
/// registers, debug registers, events, run state last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct X86VcpuState {
    /// General registers, RIP and RFLAGS.
    pub general: GeneralRegisters,
    /// Segments, tables and control registers.
    pub system: SystemRegisters,
    /// XCR0; 0 where the guest has no XSAVE.
    pub xcr0: u64,
    /// x87, SSE and larger state, each XSAVE component by itself, uncompacted. Component 0 is the
    /// 160 bytes of legacy x87 state (with its 32 byte header, MXCSR included), 1 the 256 bytes of
    /// XMM registers, 2 and above as CPUID leaf 0xD sizes them.
    pub xsave: Vec<XsaveComponent>,
    /// The profile's MSRs, `IA32_TSC` among them.
    pub msrs: Vec<Msr>,
    /// Registers of the local APIC, each at its architectural offset (Intel SDM volume 3, 10.4.1).
    pub lapic: Box<[u8; LAPIC_PAGE_BYTES]>,
    /// DR0 to DR7.
    pub debug: DebugRegisters,
    /// What waits to be delivered.
    pub events: PendingEvents,
    /// Whether the vCPU runs, halts or waits to be started.
    pub mp_state: MpState,
}

impl X86VcpuState {
    /// The saved value of an MSR.
    pub fn msr(&self, index: u32) -> Option<u64> {
        self.msrs
            .iter()
            .find(|msr| msr.index == index)
            .map(|msr| msr.value)
    }

    /// Changes the saved value of an MSR; one that is not saved stays so.
    pub fn set_msr(&mut self, index: u32, value: u64) {
        for msr in self.msrs.iter_mut().filter(|msr| msr.index == index) {
            msr.value = value;
        }
    }
}

/// General registers (Intel SDM volume 1, 3.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the registers' own names
pub struct GeneralRegisters {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub rip: u64,
    pub rflags: u64,
}

/// A segment register with its hidden part (Intel SDM volume 3, 3.4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Segment {
    /// The visible selector.
    pub selector: u16,
    /// Base address.
    pub base: u64,
    /// Limit in bytes, after scaling by the granularity bit.
    pub limit: u32,
    /// Type, S, DPL, P (bits 0–7), AVL, L, D/B, G (bits 12–15) as in a descriptor's bytes 5 and 6.
    pub attributes: u16,
    /// The register holds no usable segment.
    pub unusable: bool,
}

impl Segment {
    /// The descriptor type, 4 bits.
    pub fn kind(&self) -> u8 {
        (self.attributes & 0xf) as u8
    }
    /// S: code or data, not a system segment.
    pub fn is_code_or_data(&self) -> bool {
        self.attributes & 0x10 != 0
    }
    /// Descriptor privilege level.
    pub fn dpl(&self) -> u8 {
        (self.attributes >> 5 & 3) as u8
    }
    /// P: the segment is present.
    pub fn present(&self) -> bool {
        self.attributes & 0x80 != 0
    }
    /// AVL: available to software.
    pub fn available(&self) -> bool {
        self.attributes & 0x1000 != 0
    }
    /// L: 64-bit code.
    pub fn long(&self) -> bool {
        self.attributes & 0x2000 != 0
    }
    /// D/B: 32-bit default size.
    pub fn big(&self) -> bool {
        self.attributes & 0x4000 != 0
    }
    /// G: the limit counts in 4 KiB.
    pub fn granular(&self) -> bool {
        self.attributes & 0x8000 != 0
    }
}

/// GDTR or IDTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DescriptorTable {
    /// Linear base address.
    pub base: u64,
    /// Limit in bytes.
    pub limit: u16,
}

/// Segments, descriptor tables and control registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs)] // the registers' own names
pub struct SystemRegisters {
    pub cs: Segment,
    pub ds: Segment,
    pub es: Segment,
    pub fs: Segment,
    pub gs: Segment,
    pub ss: Segment,
    pub tr: Segment,
    pub ldt: Segment,
    pub gdt: DescriptorTable,
    pub idt: DescriptorTable,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub cr8: u64,
    pub efer: u64,
    /// IA32_APIC_BASE.
    pub apic_base: u64,
}

/// One component of extended state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XsaveComponent {
    /// Number of the component: its bit in XCR0.
    pub index: u8,
    /// Its bytes in the standard (uncompacted) layout.
    pub bytes: Vec<u8>,
}

/// A model-specific register and its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Msr {
    /// The register's number.
    pub index: u32,
    /// Its value.
    pub value: u64,
}

/// Debug registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DebugRegisters {
    /// Breakpoint addresses DR0 to DR3.
    pub addresses: [u64; 4],
    /// Status.
    pub dr6: u64,
    /// Control.
    pub dr7: u64,
}

/// What is to be delivered to the guest, or is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingEvents {
    /// An exception on its way.
    pub exception: Option<PendingException>,
    /// An interrupt on its way.
    pub interrupt: Option<PendingInterrupt>,
    /// Interrupts are held back for one instruction.
    pub shadow: InterruptShadow,
    /// An NMI on its way.
    pub nmi_injected: bool,
    /// An NMI waits.
    pub nmi_pending: bool,
    /// NMIs are held back until IRET.
    pub nmi_masked: bool,
    /// Vector of a start-up IPI that waits.
    pub sipi_vector: u8,
}

/// An exception that was raised but not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingException {
    /// Its vector.
    pub vector: u8,
    /// Its error code, if it has one.
    pub error_code: Option<u32>,
    /// True once delivery has begun (it is then delivered again), false while it only waits.
    pub injected: bool,
}

/// An interrupt that was acknowledged but not delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingInterrupt {
    /// Its vector.
    pub vector: u8,
    /// It comes from an INT instruction.
    pub soft: bool,
}

/// Why interrupts are held back for one instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InterruptShadow {
    /// After STI.
    pub sti: bool,
    /// After a load of SS.
    pub mov_ss: bool,
}

/// What a vCPU does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MpState {
    /// Runs instructions.
    #[default]
    Runnable,
    /// An application processor that waits for INIT.
    Uninitialized,
    /// Had INIT, waits for the start-up IPI.
    InitReceived,
    /// Halted until an interrupt.
    Halted,
    /// Had the start-up IPI, has not begun.
    SipiReceived,
}

impl MpState {
    /// The number it is saved as.
    pub fn code(self) -> u8 {
        match self {
            Self::Runnable => 0,
            Self::Uninitialized => 1,
            Self::InitReceived => 2,
            Self::Halted => 3,
            Self::SipiReceived => 4,
        }
    }

    /// The state saved as `code`.
    pub fn from_code(code: u8) -> Option<Self> {
        [
            Self::Runnable,
            Self::Uninitialized,
            Self::InitReceived,
            Self::Halted,
            Self::SipiReceived,
        ]
        .into_iter()
        .find(|state| state.code() == code)
    }
}
