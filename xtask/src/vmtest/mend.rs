//! Takes two instructions out of QEMU: two faults of it that guests under KVM die of (`target/i386/tcg`, in 10.0 as in the
//! newest source that was read).
//!
//! **An interrupt twice.** To hand an interrupt to a guest, `helper_vmrun` (`system/svm_helper.c`) notes it as the processor's
//! pending exception and delivers it at once, but lets the note stand until the guest's next exit. When the processor has to leave
//! its loop before that, and not for an interrupt, the note is taken for an exception still to be raised: the guest gets the
//! interrupt a second time, even with interrupts disabled. Its kernel then waits for a lock that it holds itself, panics or
//! triple faults. The processor leaves its loop so when another one wants to be alone (for an atomic access over a page's border, or
//! to drop all translations), and with all processors in one thread at every change of turns.
//!
//! **Flags of the first processor.** `cpu_clear_ignne` (`system/fpu_helper.c`), part of every FXRSTOR and XRSTOR of any processor, clears
//! a bit in the *first* processor's `hflags2`, read and written back without a lock from the thread of the processor that runs. What
//! the first processor changes there meanwhile is lost: that it left a guest (nested paging stays on, so that the host's own
//! page tables fault as if they were a guest's, and the host's registers end up as the guest's), or that interrupts
//! are held back. The bit stands for an FPU error that MS-DOS acknowledged at port F0h, so that nothing is lost with the instruction.
//!
//! What takes them out is as narrow as can be: each must be the only one of its kind in its function, the first before the
//! only call of `do_interrupt_x86_hardirq`.

use std::ops::Range;

use object::{Object, ObjectSection, ObjectSymbol};
use thiserror::Error;

/// Where the interrupt is noted.
const ENTRY: &str = "helper_vmrun";
/// What delivers the interrupt.
const DELIVERY: &str = "do_interrupt_x86_hardirq";
/// How many bytes before the call the note is looked for.
const REACH: usize = 64;
/// Where the first processor's flags are changed.
const FOREIGN: &str = "cpu_clear_ignne";
/// The mask that clears `HF2_IGNNE_MASK`, as in the instruction.
const ALL_BUT_IGNNE: [u8; 4] = (!(1_u32 << 7)).to_le_bytes();
/// Length of `and dword [register + 32 bits], 32 bits`.
const CLEAR_BYTES: usize = 10;
/// No operation, in one byte.
const NO_OPERATION: u8 = 0x90;

/// Why a QEMU cannot be mended.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum MendError {
    /// It is no executable that can be read.
    #[error("not an executable: {0}")]
    NotExecutable(String),
    /// It does not name what is looked for.
    #[error("it has no symbol {0}")]
    NoSymbol(&'static str),
    /// A function lies outside of the file.
    #[error("{0} is not in the file")]
    NotInFile(&'static str),
    /// What is looked for is not there exactly once.
    #[error("{found} {what}")]
    NotOne {
        /// What, and of which function.
        what: &'static str,
        /// How many there are.
        found: usize,
    },
}

/// Mends the bytes of a QEMU's program file: each of the two faults by itself, as a later QEMU may have only one.
/// Says why the other was not found, if so.
///
/// # Errors
///
/// Why the first was not found, if neither was; the bytes are as they were.
pub fn mend(program: &mut [u8]) -> Result<Option<MendError>, MendError> {
    let missing = match [find_note(program), find_clear(program)] {
        [Err(error), Err(_)] => return Err(error),
        [Ok(note), Ok(clear)] => {
            take_out(program, note);
            take_out(program, clear);
            None
        }
        [Ok(one), Err(error)] | [Err(error), Ok(one)] => {
            take_out(program, one);
            Some(error)
        }
    };
    Ok(missing)
}

fn take_out(program: &mut [u8], instruction: Range<usize>) {
    program[instruction].fill(NO_OPERATION);
}

/// Where in the file `helper_vmrun` notes the interrupt.
fn find_note(program: &[u8]) -> Result<Range<usize>, MendError> {
    let symbols = Symbols::parse(program)?;
    let (function, delivery) = (symbols.function(ENTRY)?, symbols.address(DELIVERY)?);
    let code = function.code(program)?;
    let found = calls(code, function.address, delivery);
    let call = only(found, "calls of the delivery in helper_vmrun")?;
    let from = call.saturating_sub(REACH);
    let (at, length) = only(
        stores(&code[from..call]),
        "notes before the delivery in helper_vmrun",
    )?;
    let begin = function.begin + from + at;
    Ok(begin..begin + length)
}

/// Where in the file `cpu_clear_ignne` changes the first processor's flags.
fn find_clear(program: &[u8]) -> Result<Range<usize>, MendError> {
    let function = Symbols::parse(program)?.function(FOREIGN)?;
    let found = clears(function.code(program)?);
    let begin = function.begin + only(found, "changes of flags in cpu_clear_ignne")?;
    Ok(begin..begin + CLEAR_BYTES)
}

/// What a program file names.
struct Symbols<'a>(object::File<'a>);

/// A function of a program file.
struct Function {
    name: &'static str,
    address: u64,
    /// Offset of its first byte in the file.
    begin: usize,
    bytes: usize,
}

impl<'a> Symbols<'a> {
    fn parse(program: &'a [u8]) -> Result<Self, MendError> {
        let parsed = object::File::parse(program);
        parsed
            .map(Self)
            .map_err(|error| MendError::NotExecutable(error.to_string()))
    }

    fn symbol(&self, name: &'static str) -> Result<object::Symbol<'a, '_>, MendError> {
        let named = |symbol: &object::Symbol| symbol.name() == Ok(name) && symbol.address() != 0;
        let found = self.0.dynamic_symbols().find(named);
        found.ok_or(MendError::NoSymbol(name))
    }

    fn address(&self, name: &'static str) -> Result<u64, MendError> {
        Ok(self.symbol(name)?.address())
    }

    fn function(&self, name: &'static str) -> Result<Function, MendError> {
        let symbol = self.symbol(name)?;
        let within = |section: &object::Section| {
            let offset = symbol.address().checked_sub(section.address())?;
            let (begin, bytes) = section.file_range()?;
            begin.checked_add(offset).filter(|_| offset < bytes)
        };
        let begin = self.0.sections().find_map(|section| within(&section));
        let begin = begin.and_then(|begin| usize::try_from(begin).ok());
        Ok(Function {
            name,
            address: symbol.address(),
            begin: begin.ok_or(MendError::NotInFile(name))?,
            bytes: usize::try_from(symbol.size()).map_err(|_| MendError::NotInFile(name))?,
        })
    }
}

impl Function {
    /// Its bytes.
    fn code<'a>(&self, program: &'a [u8]) -> Result<&'a [u8], MendError> {
        let end = self.begin.saturating_add(self.bytes);
        program
            .get(self.begin..end)
            .ok_or(MendError::NotInFile(self.name))
    }
}

/// Offsets of the direct calls (`e8`, relative to their end) that lead to `target`, in code at `address`.
fn calls(code: &[u8], address: u64, target: u64) -> Vec<usize> {
    let is_call = |window: &[u8], at: usize| {
        let [0xe8, distance @ ..] = window else {
            return false;
        };
        let distance = distance.try_into().map_or(0, i32::from_le_bytes);
        let end = address.wrapping_add(at as u64 + 5);
        end.wrapping_add_signed(distance.into()) == target
    };
    let windows = code.windows(5).enumerate();
    windows
        .filter_map(|(at, window)| is_call(window, at).then_some(at))
        .collect()
}

/// Offset and length of each `mov dword [register - distance], register`: what the processor's common state is
/// written with, which lies before the x86 part that the register points to.
fn stores(code: &[u8]) -> Vec<(usize, usize)> {
    let is_store = |window: &[u8]| {
        let &[0x89, mode, ref distance @ ..] = window else {
            return false;
        };
        let distance = distance.try_into().map_or(0, i32::from_le_bytes);
        // Displacement of 32 bits, no index.
        mode >> 6 == 2 && mode & 7 != 4 && (-0x1_0000..0).contains(&distance)
    };
    let windows = code.windows(6).enumerate();
    windows
        .filter(|(_, window)| is_store(window))
        .map(
            |(at, _)| match at.checked_sub(1).map(|before| code[before]) {
                // A prefix for one of the upper eight registers belongs to it.
                Some(0x41 | 0x44 | 0x45) => (at - 1, 7),
                _ => (at, 6),
            },
        )
        .collect()
}

/// Offset of each `and dword [register + distance], !HF2_IGNNE_MASK`.
fn clears(code: &[u8]) -> Vec<usize> {
    let is_clear = |window: &[u8]| {
        let &[0x81, mode, _, _, _, _, ref mask @ ..] = window else {
            return false;
        };
        // Displacement of 32 bits, operation 4, no index.
        mode >> 3 == 0b10_100 && mode & 7 != 4 && mask == ALL_BUT_IGNNE
    };
    let windows = code.windows(CLEAR_BYTES).enumerate();
    windows
        .filter_map(|(at, window)| is_clear(window).then_some(at))
        .collect()
}

fn only<T>(found: Vec<T>, what: &'static str) -> Result<T, MendError> {
    let count = found.len();
    let mut found = found.into_iter();
    match (found.next(), count) {
        (Some(one), 1) => Ok(one),
        _ => Err(MendError::NotOne { what, found: count }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a compiler writes it: note, two other stores, the call.
    const CODE: [u8; 30] = [
        0x89, 0xb3, 0x10, 0xd7, 0xff, 0xff, // mov [rbx-0x28f0],esi
        0xc7, 0x83, 0xe4, 0x33, 0, 0, 0, 0, 0, 0, // mov dword [rbx+0x33e4],0
        0x44, 0x89, 0xab, 0xe0, 0x33, 0, 0, // mov [rbx+0x33e0],r13d
        0x90, 0x90, 0xe8, 0xfb, 0xff, 0xff, 0xff, // call, at 0x19
    ];

    #[test]
    fn the_note_is_told_from_other_stores() {
        assert_eq!(stores(&CODE), [(0, 6)]);
        let mut upper = CODE;
        upper[15..17].copy_from_slice(&[0x44, 0x89]);
        upper[17..22].copy_from_slice(&[0xab, 0x10, 0xd7, 0xff, 0xff]);
        assert_eq!(stores(&upper), [(0, 6), (15, 7)]);
    }

    #[test]
    fn the_call_is_known_by_where_it_leads() {
        assert_eq!(calls(&CODE, 0x1000, 0x1000 + 0x19), [0x19]);
        assert!(calls(&CODE, 0x1000, 0x1000 + 0x1a).is_empty());
    }

    #[test]
    fn the_change_of_flags_is_told_from_others() {
        #[rustfmt::skip]
        let mut code = [
            0x81, 0xa0, 0x74, 0x2c, 0, 0, 0x7f, 0xff, 0xff, 0xff, // and dword [rax+0x2c74],~0x80
            0x81, 0x88, 0x74, 0x2c, 0, 0, 0x7f, 0xff, 0xff, 0xff, // or, the same
            0x81, 0xa0, 0x74, 0x2c, 0, 0, 0xbf, 0xff, 0xff, 0xff, // another bit
        ];
        assert_eq!(clears(&code), [0]);
        code[26] = 0x7f;
        assert_eq!(clears(&code), [0, 20]);
    }

    #[test]
    fn anything_but_one_is_refused() {
        assert_eq!(only(vec![7], "x"), Ok(7));
        for found in [vec![], vec![1, 2]] {
            let count = found.len();
            assert_eq!(
                only(found, "x"),
                Err(MendError::NotOne {
                    what: "x",
                    found: count
                })
            );
        }
    }

    #[test]
    fn other_programs_are_refused() {
        let own = std::env::current_exe().unwrap();
        let mut bytes = std::fs::read(own).unwrap();
        assert_eq!(mend(&mut bytes), Err(MendError::NoSymbol(ENTRY)));
        assert!(matches!(
            mend(&mut [0; 100]),
            Err(MendError::NotExecutable(_))
        ));
        bytes.truncate(3000);
        assert!(mend(&mut bytes).is_err());
    }
}
