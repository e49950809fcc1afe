//! The vCPU: registers, system state, TLB, and the way an instruction reports what stopped it.

use super::flags::{self, LazyFlags};
use crate::fpu::FpState;
use crate::int::Int;
use crate::mem::RamMap;
use crate::mmu::tlb::{Table, Tlb};
use crate::msr::Msrs;
use crate::segments::{DescTable, Segment};
use vmm_core::x86::CpuidTable;

/// Index of RSP in [`Cpu::regs`].
pub(crate) const RSP: usize = 4;
/// RBP's number in [`Cpu::regs`].
pub(crate) const RBP: usize = 5;
/// Slot of [`Cpu::regs`] that holds the address of the running block's first instruction.
pub(crate) const BLOCK_IP: u8 = 16;
/// Slot of [`Cpu::regs`] that is always zero: "no base", "no index".
pub(crate) const ZERO: u8 = 17;
/// Added to a register number: the second byte of that register (AH, CH, DH, BH).
pub(crate) const HIGH: u8 = 0x40;

/// CR0 bits.
pub(crate) mod cr0 {
    pub(crate) const PE: u64 = 1;
    pub(crate) const MP: u64 = 1 << 1;
    pub(crate) const EM: u64 = 1 << 2;
    pub(crate) const TS: u64 = 1 << 3;
    pub(crate) const ET: u64 = 1 << 4;
    pub(crate) const NE: u64 = 1 << 5;
    pub(crate) const WP: u64 = 1 << 16;
    pub(crate) const AM: u64 = 1 << 18;
    pub(crate) const NW: u64 = 1 << 29;
    pub(crate) const CD: u64 = 1 << 30;
    pub(crate) const PG: u64 = 1 << 31;
    /// Every bit that exists; the others read as zero.
    pub(crate) const ALL: u64 = PE | MP | EM | TS | ET | NE | WP | AM | NW | CD | PG;
}

/// CR4 bits.
pub(crate) mod cr4 {
    pub(crate) const TSD: u64 = 1 << 2;
    pub(crate) const DE: u64 = 1 << 3;
    pub(crate) const PSE: u64 = 1 << 4;
    pub(crate) const PAE: u64 = 1 << 5;
    pub(crate) const PGE: u64 = 1 << 7;
    pub(crate) const OSFXSR: u64 = 1 << 9;
    pub(crate) const UMIP: u64 = 1 << 11;
    pub(crate) const FSGSBASE: u64 = 1 << 16;
    pub(crate) const PCIDE: u64 = 1 << 17;
    pub(crate) const SMEP: u64 = 1 << 20;
    pub(crate) const SMAP: u64 = 1 << 21;
}

/// EFER bits.
pub(crate) mod efer {
    pub(crate) const SCE: u64 = 1;
    pub(crate) const LME: u64 = 1 << 8;
    pub(crate) const LMA: u64 = 1 << 10;
    pub(crate) const NXE: u64 = 1 << 11;
}

/// What an instruction function tells the run loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    /// Go on with the next operation of the block.
    Next,
    /// `rip` is set; the target is the block's first direct successor.
    Link0,
    /// `rip` is set; the target is the block's second direct successor.
    Link1,
    /// `rip` is set to something that is not known beforehand.
    Jump,
    /// As `Jump`; an event may have become deliverable or the mode has changed.
    Check,
}

/// The instruction did not complete; [`Cpu::trap`] says why. Nothing was changed but what the
/// architecture allows (string instructions keep their progress).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trapped;

/// Result of anything that may fault.
pub(crate) type R<T> = Result<T, Trapped>;
/// Result of one instruction.
pub(crate) type Step = R<Flow>;

/// An exception to deliver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    pub(crate) vector: u8,
    pub(crate) error: Option<u32>,
}

/// A device access that the exit handler must answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IoRequest {
    MmioRead { gpa: u64, size: u8 },
    MmioWrite { gpa: u64, size: u8, data: u64 },
    PortIn { port: u16, size: u8 },
    PortOut { port: u16, size: u8, data: u32 },
}

/// Why an instruction did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trap {
    None,
    Exception(Exception),
    /// A trap-class software interrupt: INT n, INT3, INTO, INT1; `next` is the return address.
    SoftInt {
        vector: u8,
        next: u64,
    },
    /// A device access; the instruction is run again once it is answered.
    Io(IoRequest),
    /// A store to a page that holds decoded code; run again once its blocks are dropped.
    CodeWrite {
        gpa: u64,
    },
    /// An access that a watchpoint waits for; run again with what it meets noted.
    Watched,
    /// Memory that it needs cannot be had.
    MemoryLost,
    /// HLT; `next` is the address of the instruction after it.
    Halt {
        next: u64,
    },
}

/// Width of code: what CS says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub(crate) enum Mode {
    Bits16 = 0,
    Bits32 = 1,
    Bits64 = 2,
}

/// One virtual CPU.
pub(crate) struct Cpu {
    /// RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8–R15, then [`BLOCK_IP`] and [`ZERO`]; the rest
    /// pads to a power of two, so that a masked index needs no check.
    pub(crate) regs: [u64; 32],
    pub(crate) rip: u64,
    /// What translated code knows.
    pub(crate) jit: crate::jit::Frame,
    pub(crate) lazy: LazyFlags,
    /// RFLAGS without the six arithmetic flags.
    pub(crate) sysflags: u64,
    /// The TLB's table of the current privilege.
    pub(crate) table: Table,
    pub(crate) tlb: Box<Tlb>,
    pub(crate) mode: Mode,
    pub(crate) cpl: u8,
    /// Set by STI, MOV SS, POP SS: no interrupt before the next instruction has run.
    pub(crate) shadow: bool,
    pub(crate) trap: Trap,
    /// Answered device accesses of the instruction that is being run again.
    pub(crate) replay: Vec<u64>,
    pub(crate) replay_pos: usize,
    pub(crate) seg: [Segment; 6],
    pub(crate) ldtr: Segment,
    pub(crate) tr: Segment,
    pub(crate) gdtr: DescTable,
    pub(crate) idtr: DescTable,
    pub(crate) cr0: u64,
    pub(crate) cr2: u64,
    pub(crate) cr3: u64,
    pub(crate) cr4: u64,
    pub(crate) efer: u64,
    /// Kept for those who have XSAVE, which this processor has not.
    pub(crate) xcr0: u64,
    pub(crate) dr: [u64; 8],
    pub(crate) debug: crate::debug::Debug,
    pub(crate) msr: Msrs,
    pub(crate) cpuid: CpuidTable,
    pub(crate) fp: FpState,
    pub(crate) ram: RamMap,
    /// Highest physical address bit + 1.
    pub(crate) phys_bits: u8,
    /// Recent branch targets.
    pub(crate) jumps: crate::block::JumpTable,
    /// The block cache's epoch that this vCPU has caught up with.
    pub(crate) seen_epoch: u64,
    /// Number of the vCPU, also its APIC id.
    pub(crate) index: usize,
    pub(crate) lapic: vmm_core::x86::lapic::Lapic,
    pub(crate) router: std::sync::Arc<crate::router::Router>,
    pub(crate) clock: vmm_core::x86::pvclock::PvClock,
    pub(crate) mp_state: vmm_core::x86::MpState,
    /// Vector of a start-up IPI that waits.
    pub(crate) sipi_vector: u8,
    /// An event whose delivery had begun when the state was saved.
    pub(crate) injected: Option<crate::exceptions::Event>,
    /// PAUSE was executed: others may have the turn.
    pub(crate) paused: bool,
    /// An NMI waits.
    pub(crate) nmi_pending: bool,
    /// NMIs are held back until IRET.
    pub(crate) nmi_masked: bool,
    pub(crate) time: crate::time::Tsc,
    /// Instructions retired so far.
    pub(crate) retired: u64,
    /// Code pages, shared with the block cache.
    pub(crate) code_pages: crate::invalidate::CodePages,
}

impl Cpu {
    #[inline(always)]
    pub(crate) fn get<T: Int>(&self, r: u8) -> T {
        let v = self.regs[(r & 31) as usize];
        if T::BYTES == 1 {
            T::cut(v >> ((r & HIGH) >> 3))
        } else {
            T::cut(v)
        }
    }

    /// Writes a register: 32-bit writes clear the upper half, smaller ones keep the rest.
    #[inline(always)]
    pub(crate) fn set<T: Int>(&mut self, r: u8, v: T) {
        let slot = &mut self.regs[(r & 31) as usize];
        match T::BYTES {
            1 => {
                let sh = (r & HIGH) >> 3;
                *slot = *slot & !(0xff << sh) | v.u64() << sh;
            }
            2 => *slot = *slot & !0xffff | v.u64(),
            _ => *slot = v.u64(),
        }
    }

    pub(crate) fn rflags(&self) -> u64 {
        self.sysflags | self.lazy.to_bits() | 2
    }

    /// Sets all of RFLAGS; privilege checks are the caller's.
    pub(crate) fn set_rflags(&mut self, f: u64) {
        const KEPT: u64 = flags::TF
            | flags::IF
            | flags::DF
            | flags::IOPL
            | flags::NT
            | flags::RF
            | flags::AC
            | flags::ID;
        self.lazy.set_bits(f);
        self.sysflags = f & KEPT;
        self.update_context();
    }

    #[inline(always)]
    pub(crate) fn flag(&self, bit: u64) -> bool {
        self.sysflags & bit != 0
    }

    pub(crate) fn iopl(&self) -> u8 {
        (self.sysflags >> 12 & 3) as u8
    }

    pub(crate) fn protected(&self) -> bool {
        self.cr0 & cr0::PE != 0
    }

    pub(crate) fn long_mode(&self) -> bool {
        self.efer & efer::LMA != 0
    }

    #[inline(always)]
    pub(crate) fn code64(&self) -> bool {
        self.mode == Mode::Bits64
    }

    /// The mask of instruction pointers in the current code width.
    #[inline(always)]
    pub(crate) fn ip_mask(&self) -> u64 {
        match self.mode {
            Mode::Bits16 => 0xffff,
            Mode::Bits32 => 0xffff_ffff,
            Mode::Bits64 => u64::MAX,
        }
    }

    /// Raises an exception.
    #[cold]
    pub(crate) fn raise(&mut self, vector: u8, error: Option<u32>) -> Trapped {
        self.trap = Trap::Exception(Exception { vector, error });
        Trapped
    }

    /// Invalid opcode.
    #[cold]
    pub(crate) fn ud(&mut self) -> Trapped {
        self.raise(6, None)
    }

    /// General protection.
    #[cold]
    pub(crate) fn gp(&mut self, code: u32) -> Trapped {
        self.raise(13, Some(code))
    }

    /// Stack fault.
    #[cold]
    pub(crate) fn ss_fault(&mut self, code: u32) -> Trapped {
        self.raise(12, Some(code))
    }

    /// Divide error.
    #[cold]
    pub(crate) fn de(&mut self) -> Trapped {
        self.raise(0, None)
    }

    /// An element of a string instruction is complete: its answered accesses are used up.
    #[inline]
    pub(crate) fn forget_replay(&mut self) {
        if !self.replay.is_empty() {
            self.replay.clear();
            self.replay_pos = 0;
        }
    }

    /// #GP(0) unless at privilege level 0.
    pub(crate) fn need_cpl0(&mut self) -> R<()> {
        if self.cpl != 0 {
            Err(self.gp(0))
        } else {
            Ok(())
        }
    }
}

/// Whether an address is canonical with 48 bits.
#[inline(always)]
pub(crate) fn canonical(a: u64) -> bool {
    ((a << 16) as i64 >> 16) as u64 == a
}

impl Cpu {
    /// A vCPU after power-on reset.
    pub(crate) fn new(
        index: u8,
        ram: RamMap,
        code_pages: crate::invalidate::CodePages,
        cpuid: CpuidTable,
        time: crate::time::Tsc,
        router: std::sync::Arc<crate::router::Router>,
    ) -> Self {
        let phys_bits = cpuid
            .get(0x8000_0008, 0)
            .map_or(36, |e| e.eax as u8)
            .clamp(32, 52);
        let mut cpu = Cpu {
            regs: [0; 32],
            rip: 0,
            jit: crate::jit::Frame::default(),
            lazy: LazyFlags::default(),
            sysflags: 0,
            table: Table::SUPERVISOR,
            tlb: Tlb::new(),
            mode: Mode::Bits16,
            cpl: 0,
            shadow: false,
            trap: Trap::None,
            replay: Vec::new(),
            replay_pos: 0,
            seg: [Segment::default(); 6],
            ldtr: Segment::default(),
            tr: Segment::default(),
            gdtr: DescTable::default(),
            idtr: DescTable::default(),
            cr0: 0,
            cr2: 0,
            cr3: 0,
            cr4: 0,
            efer: 0,
            xcr0: 0,
            dr: [0; 8],
            debug: crate::debug::Debug::default(),
            msr: Msrs::reset(index == 0),
            cpuid,
            fp: FpState::default(),
            ram,
            phys_bits,
            jumps: crate::block::JumpTable::new(),
            seen_epoch: 0,
            nmi_pending: false,
            nmi_masked: false,
            index: index.into(),
            lapic: vmm_core::x86::lapic::Lapic::new(index),
            router,
            clock: vmm_core::x86::pvclock::PvClock::default(),
            mp_state: if index == 0 {
                vmm_core::x86::MpState::Runnable
            } else {
                vmm_core::x86::MpState::Uninitialized
            },
            sipi_vector: 0,
            injected: None,
            paused: false,
            time,
            retired: 0,
            code_pages,
        };
        let khz = cpu.time.khz();
        cpu.lapic.timer.set_tsc_khz(khz);
        cpu.publish_address();
        cpu.reset();
        cpu
    }

    /// Power-on and INIT state (Intel SDM volume 3, table 9-1), but for what INIT keeps.
    pub(crate) fn reset(&mut self) {
        self.regs = [0; 32];
        self.regs[2] = 0x600;
        self.rip = 0xfff0;
        self.lazy.set_bits(0);
        self.sysflags = 0;
        self.seg = [Segment::real(0, false); 6];
        self.seg[1] = Segment {
            base: 0xffff_0000,
            ..Segment::real(0xf000, true)
        };
        self.ldtr = Segment {
            attr: 0x82,
            limit: 0xffff,
            ..Segment::default()
        };
        self.tr = Segment {
            attr: 0x8b,
            limit: 0xffff,
            ..Segment::default()
        };
        self.gdtr = DescTable {
            base: 0,
            limit: 0xffff,
        };
        self.idtr = DescTable {
            base: 0,
            limit: 0xffff,
        };
        self.cr0 = cr0::ET | cr0::NW | cr0::CD;
        (self.cr2, self.cr3, self.cr4, self.efer) = (0, 0, 0, 0);
        self.dr = [
            0,
            0,
            0,
            0,
            0,
            0,
            crate::debug::dr6_of(0),
            crate::debug::dr7_of(0),
        ];
        self.restart_debugging();
        self.cpl = 0;
        self.shadow = false;
        self.trap = Trap::None;
        self.replay.clear();
        self.replay_pos = 0;
        self.nmi_pending = false;
        self.nmi_masked = false;
        self.flush_tlb();
        self.update_mode();
    }
}
