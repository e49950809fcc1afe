//! Takes one instruction out of QEMU.
//!
//! To hand an interrupt to a guest, `helper_vmrun` (`target/i386/tcg/system/svm_helper.c`, in 10.0 as in
//! the newest source that was read) notes it as the processor's pending exception and delivers it at once, but lets the note stand
//! until the guest's next exit. When the processor has to leave its loop before that, and not for
//! an interrupt, the note is taken for an exception still to be raised: the guest gets the interrupt a second time, even with
//! interrupts disabled. Its kernel then waits for a lock that it holds itself, panics or triple faults. The processor leaves
//! its loop so when another one wants to be alone (for an atomic access over a page's border, or to drop all
//! translations), and with all processors in one thread at every change of turns.
//!
//! What takes the instruction out is as narrow as can be: it must be the only one of its kind, in that function,
//! before the only call of `do_interrupt_x86_hardirq`.

use object::{Object, ObjectSection, ObjectSymbol};
use thiserror::Error;

/// Where the wrong instruction is.
const FUNCTION: &str = "helper_vmrun";
/// What delivers the interrupt.
const DELIVERY: &str = "do_interrupt_x86_hardirq";
/// How many bytes before the call the instruction is looked for.
const REACH: usize = 64;
/// No operation, in six and in seven bytes (AMD64 manual volume 3, NOP).
const NO_OPERATION: [&[u8]; 2] = [
    &[0x66, 0x0f, 0x1f, 0x44, 0, 0],
    &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
];

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
    #[error("{found} {what} in {FUNCTION}")]
    NotOne {
        /// What.
        what: &'static str,
        /// How many there are.
        found: usize,
    },
}

/// Mends the bytes of a QEMU's program file.
pub fn mend(program: &mut [u8]) -> Result<(), MendError> {
    let function = find(program)?;
    let end = function.begin.saturating_add(function.bytes);
    let code = program
        .get(function.begin..end)
        .ok_or(MendError::NotInFile(FUNCTION))?;
    let call = only(calls(code, &function), "calls of the delivery")?;
    let from = call.saturating_sub(REACH);
    let (at, length) = only(stores(&code[from..call]), "notes before the delivery")?;
    let begin = function.begin + from + at;
    program[begin..begin + length].copy_from_slice(NO_OPERATION[length - 6]);
    Ok(())
}

/// The function with the wrong instruction.
struct Function {
    address: u64,
    /// Offset of its first byte in the file.
    begin: usize,
    bytes: usize,
    /// Address of what delivers the interrupt.
    delivery: u64,
}

fn find(program: &[u8]) -> Result<Function, MendError> {
    let file = object::File::parse(program)
        .map_err(|error| MendError::NotExecutable(error.to_string()))?;
    let symbol = |name: &'static str| {
        let named = |symbol: &object::Symbol| symbol.name() == Ok(name) && symbol.address() != 0;
        let found = file.dynamic_symbols().find(named);
        found.ok_or(MendError::NoSymbol(name))
    };
    let (function, delivery) = (symbol(FUNCTION)?, symbol(DELIVERY)?);
    let within = |section: &object::Section| {
        let offset = function.address().checked_sub(section.address())?;
        let (begin, bytes) = section.file_range()?;
        begin.checked_add(offset).filter(|_| offset < bytes)
    };
    let begin = file.sections().find_map(|section| within(&section));
    let begin = begin.and_then(|begin| usize::try_from(begin).ok());
    Ok(Function {
        address: function.address(),
        begin: begin.ok_or(MendError::NotInFile(FUNCTION))?,
        bytes: usize::try_from(function.size()).map_err(|_| MendError::NotInFile(FUNCTION))?,
        delivery: delivery.address(),
    })
}

/// Offsets of the direct calls (`e8`, relative to their end) of the delivery.
fn calls(code: &[u8], function: &Function) -> Vec<usize> {
    let is_call = |window: &[u8], at: usize| {
        let [0xe8, distance @ ..] = window else {
            return false;
        };
        let distance = distance.try_into().map_or(0, i32::from_le_bytes);
        let end = function.address.wrapping_add(at as u64 + 5);
        end.wrapping_add_signed(distance.into()) == function.delivery
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
        let mut function = Function {
            address: 0x1000,
            begin: 0,
            bytes: CODE.len(),
            delivery: 0x1000 + 0x19,
        };
        assert_eq!(calls(&CODE, &function), [0x19]);
        function.delivery += 1;
        assert!(calls(&CODE, &function).is_empty());
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
        assert_eq!(mend(&mut bytes), Err(MendError::NoSymbol(FUNCTION)));
        assert!(matches!(
            mend(&mut [0; 100]),
            Err(MendError::NotExecutable(_))
        ));
        bytes.truncate(3000);
        assert!(mend(&mut bytes).is_err());
    }
}
