//! [`X86VcpuState`] as numbered fields.

use snapshot_format::FieldError;
use snapshot_format::fields::{FieldReader, FieldWriter};

use super::vcpu_state::{
    DebugRegisters, DescriptorTable, GeneralRegisters, InterruptShadow, LAPIC_PAGE_BYTES, MpState,
    Msr, PendingEvents, PendingException, PendingInterrupt, Segment, SystemRegisters, X86VcpuState,
    XsaveComponent,
};

/// Most MSRs one vCPU may save.
const MAX_MSRS: usize = 1024;
/// Most XSAVE components: bits of XCR0.
const MAX_COMPONENTS: usize = 63;
/// Largest XSAVE component in bytes (AMX tile data has 8 KiB).
const MAX_COMPONENT_BYTES: usize = 64 << 10;

mod field {
    pub(super) const GENERAL: u16 = 1;
    pub(super) const SYSTEM: u16 = 2;
    pub(super) const XCR0: u16 = 3;
    pub(super) const XSAVE: u16 = 4;
    pub(super) const MSR: u16 = 5;
    pub(super) const LAPIC: u16 = 6;
    pub(super) const DEBUG: u16 = 7;
    pub(super) const EVENTS: u16 = 8;
    pub(super) const MP_STATE: u16 = 9;
}

impl X86VcpuState {
    /// The record kind.
    pub const KIND: &'static str = "x86-vcpu";
    /// The newest layout.
    pub const VERSION: u32 = 1;

    /// The state as numbered fields.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = FieldWriter::new();
        writer
            .nested(field::GENERAL, |w| write_general(w, &self.general))
            .nested(field::SYSTEM, |w| write_system(w, &self.system))
            .u64(field::XCR0, self.xcr0);
        for component in &self.xsave {
            writer.nested(field::XSAVE, |w| {
                w.u32(1, component.index.into()).bytes(2, &component.bytes);
            });
        }
        for msr in &self.msrs {
            writer.nested(field::MSR, |w| {
                w.u32(1, msr.index).u64(2, msr.value);
            });
        }
        writer
            .bytes(field::LAPIC, &self.lapic[..])
            .nested(field::DEBUG, |w| {
                for address in self.debug.addresses {
                    w.u64(1, address);
                }
                w.u64(2, self.debug.dr6).u64(3, self.debug.dr7);
            })
            .nested(field::EVENTS, |w| write_events(w, &self.events))
            .u32(field::MP_STATE, self.mp_state.code().into());
        writer.finish()
    }

    /// Reads what [`encode`](Self::encode) wrote. Values are bounded, not judged: backends do that.
    pub fn decode(bytes: &[u8]) -> Result<Self, FieldError> {
        let fields = FieldReader::parse(bytes)?;
        let mp_code = fields.u8(field::MP_STATE)?;
        Ok(Self {
            general: read_general(&fields.nested(field::GENERAL)?)?,
            system: read_system(&fields.nested(field::SYSTEM)?)?,
            xcr0: fields.u64(field::XCR0)?,
            xsave: read_list(&fields, field::XSAVE, MAX_COMPONENTS, |component| {
                Ok(XsaveComponent {
                    index: component.u8(1)?,
                    bytes: component.bytes(2, MAX_COMPONENT_BYTES)?.to_vec(),
                })
            })?,
            msrs: read_list(&fields, field::MSR, MAX_MSRS, |msr| {
                Ok(Msr {
                    index: msr.u32(1)?,
                    value: msr.u64(2)?,
                })
            })?,
            lapic: Box::new(fields.array::<LAPIC_PAGE_BYTES>(field::LAPIC)?),
            debug: read_debug(&fields.nested(field::DEBUG)?)?,
            events: read_events(&fields.nested(field::EVENTS)?)?,
            mp_state: MpState::from_code(mp_code).ok_or(FieldError::Invalid {
                number: field::MP_STATE,
                value: mp_code.into(),
            })?,
        })
    }
}

fn read_list<T>(
    fields: &FieldReader<'_>,
    number: u16,
    limit: usize,
    read: impl Fn(&FieldReader<'_>) -> Result<T, FieldError>,
) -> Result<Vec<T>, FieldError> {
    if fields.all(number).count() > limit {
        return Err(FieldError::TooManyFields);
    }
    fields
        .all(number)
        .map(|bytes| read(&FieldReader::parse(bytes)?))
        .collect()
}

/// The general registers in the order of their field numbers, from 1.
fn general_list(registers: &mut GeneralRegisters) -> [&mut u64; 18] {
    let GeneralRegisters {
        rax,
        rbx,
        rcx,
        rdx,
        rsi,
        rdi,
        rsp,
        rbp,
        r8,
        r9,
        r10,
        r11,
        r12,
        r13,
        r14,
        r15,
        rip,
        rflags,
    } = registers;
    [
        rax, rbx, rcx, rdx, rsi, rdi, rsp, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rip, rflags,
    ]
}

fn write_general(writer: &mut FieldWriter, registers: &GeneralRegisters) {
    for (number, value) in (1..).zip(general_list(&mut registers.clone())) {
        writer.u64(number, *value);
    }
}

fn read_general(fields: &FieldReader<'_>) -> Result<GeneralRegisters, FieldError> {
    let mut registers = GeneralRegisters::default();
    for (number, value) in (1..).zip(general_list(&mut registers)) {
        *value = fields.u64(number)?;
    }
    Ok(registers)
}

/// The segments in the order of their field numbers, from 1.
fn segment_list(system: &mut SystemRegisters) -> [&mut Segment; 8] {
    let SystemRegisters {
        cs,
        ds,
        es,
        fs,
        gs,
        ss,
        tr,
        ldt,
        ..
    } = system;
    [cs, ds, es, fs, gs, ss, tr, ldt]
}

/// The control registers in the order of their field numbers, from 21.
fn control_list(system: &mut SystemRegisters) -> [&mut u64; 7] {
    let SystemRegisters {
        cr0,
        cr2,
        cr3,
        cr4,
        cr8,
        efer,
        apic_base,
        ..
    } = system;
    [cr0, cr2, cr3, cr4, cr8, efer, apic_base]
}

fn write_system(writer: &mut FieldWriter, system: &SystemRegisters) {
    let mut system = *system;
    for (number, segment) in (1..).zip(segment_list(&mut system)) {
        writer.nested(number, |w| {
            w.u32(1, segment.selector.into())
                .u64(2, segment.base)
                .u32(3, segment.limit)
                .u32(4, segment.attributes.into())
                .bool(5, segment.unusable);
        });
    }
    for (number, table) in [(11, system.gdt), (12, system.idt)] {
        writer.nested(number, |w| {
            w.u64(1, table.base).u32(2, table.limit.into());
        });
    }
    for (number, value) in (21..).zip(control_list(&mut system)) {
        writer.u64(number, *value);
    }
}

fn read_system(fields: &FieldReader<'_>) -> Result<SystemRegisters, FieldError> {
    let mut system = SystemRegisters::default();
    for (number, segment) in (1..).zip(segment_list(&mut system)) {
        let parts = fields.nested(number)?;
        *segment = Segment {
            selector: parts.u16(1)?,
            base: parts.u64(2)?,
            limit: parts.u32(3)?,
            attributes: parts.u16(4)?,
            unusable: parts.bool(5)?,
        };
    }
    let table = |number| {
        let parts = fields.nested(number)?;
        Ok(DescriptorTable {
            base: parts.u64(1)?,
            limit: parts.u16(2)?,
        })
    };
    system.gdt = table(11)?;
    system.idt = table(12)?;
    for (number, value) in (21..).zip(control_list(&mut system)) {
        *value = fields.u64(number)?;
    }
    Ok(system)
}

fn read_debug(fields: &FieldReader<'_>) -> Result<DebugRegisters, FieldError> {
    let list = read_integers(fields, 1)?;
    let addresses = list
        .try_into()
        .map_err(|_| FieldError::Missing { number: 1 })?;
    Ok(DebugRegisters {
        addresses,
        dr6: fields.u64(2)?,
        dr7: fields.u64(3)?,
    })
}

fn read_integers(fields: &FieldReader<'_>, number: u16) -> Result<Vec<u64>, FieldError> {
    let widen = |value: &[u8]| {
        let mut raw = [0; 8];
        raw.get_mut(..value.len())
            .ok_or(FieldError::TooLong {
                number,
                length: value.len(),
                limit: 8,
            })?
            .copy_from_slice(value);
        Ok(u64::from_le_bytes(raw))
    };
    fields.all(number).map(widen).collect()
}

fn write_events(writer: &mut FieldWriter, events: &PendingEvents) {
    if let Some(exception) = events.exception {
        writer.nested(1, |w| {
            w.u32(1, exception.vector.into())
                .bool(3, exception.injected);
            if let Some(code) = exception.error_code {
                w.u32(2, code);
            }
        });
    }
    if let Some(interrupt) = events.interrupt {
        writer.nested(2, |w| {
            w.u32(1, interrupt.vector.into()).bool(2, interrupt.soft);
        });
    }
    writer
        .bool(3, events.shadow.sti)
        .bool(4, events.shadow.mov_ss)
        .bool(5, events.nmi_injected)
        .bool(6, events.nmi_pending)
        .bool(7, events.nmi_masked)
        .u32(8, events.sipi_vector.into());
}

fn read_events(fields: &FieldReader<'_>) -> Result<PendingEvents, FieldError> {
    let exception = fields
        .get(1)
        .map(|bytes| {
            let parts = FieldReader::parse(bytes)?;
            Ok(PendingException {
                vector: parts.u8(1)?,
                error_code: parts.get(2).map(|_| parts.u32(2)).transpose()?,
                injected: parts.bool(3)?,
            })
        })
        .transpose()?;
    let interrupt = fields
        .get(2)
        .map(|bytes| {
            let parts = FieldReader::parse(bytes)?;
            Ok(PendingInterrupt {
                vector: parts.u8(1)?,
                soft: parts.bool(2)?,
            })
        })
        .transpose()?;
    Ok(PendingEvents {
        exception,
        interrupt,
        shadow: InterruptShadow {
            sti: fields.bool(3)?,
            mov_ss: fields.bool(4)?,
        },
        nmi_injected: fields.bool(5)?,
        nmi_pending: fields.bool(6)?,
        nmi_masked: fields.bool(7)?,
        sipi_vector: fields.u8(8)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> X86VcpuState {
        let segment = Segment {
            selector: 0x10,
            base: 0xffff_8880_0000_0000,
            limit: 0xffff_ffff,
            attributes: 0xa09b,
            unusable: false,
        };
        let mut lapic = Box::new([0; LAPIC_PAGE_BYTES]);
        lapic[0x20] = 3;
        X86VcpuState {
            general: GeneralRegisters {
                rax: 1,
                rip: u64::MAX,
                rflags: 2,
                ..Default::default()
            },
            system: SystemRegisters {
                cs: segment,
                cr3: 0x1000,
                efer: 0xd01,
                ..Default::default()
            },
            xcr0: 7,
            xsave: vec![XsaveComponent {
                index: 2,
                bytes: vec![5; 256],
            }],
            msrs: vec![
                Msr {
                    index: 0x10,
                    value: 99,
                },
                Msr {
                    index: 0xc000_0082,
                    value: 1,
                },
            ],
            lapic,
            debug: DebugRegisters {
                addresses: [1, 2, 0, 4],
                dr6: 0xffff_0ff0,
                dr7: 0x400,
            },
            events: PendingEvents {
                exception: Some(PendingException {
                    vector: 14,
                    error_code: Some(0),
                    injected: true,
                }),
                interrupt: Some(PendingInterrupt {
                    vector: 32,
                    soft: false,
                }),
                nmi_masked: true,
                ..Default::default()
            },
            mp_state: MpState::Halted,
        }
    }

    #[test]
    fn a_state_survives_its_encoding() {
        let state = state();
        assert_eq!(X86VcpuState::decode(&state.encode()), Ok(state));
    }

    #[test]
    fn damage_is_an_error_never_a_panic() {
        let bytes = state().encode();
        for cut in 0..bytes.len() {
            // A cut at a field boundary loses whole fields, of which all but integers are required.
            assert!(X86VcpuState::decode(&bytes[..cut]).is_err() || cut > bytes.len() - 8);
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0xff;
            let _ = X86VcpuState::decode(&damaged);
        }
    }
}
