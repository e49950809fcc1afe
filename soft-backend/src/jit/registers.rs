//! Where the guest's registers are while translated code runs.
//!
//! Eleven live in host registers, RCX, RBX, RBP, RSI, RDI, R12 and R13 under their own names. RAX and RDX are
//! scratch, since flags and products go through them. R9, R10, R11, R14 and R15, which programs use least, stay
//! in the vCPU, as XMM registers do: a call of the interpreter then has eleven registers to store and to load,
//! not 32.

use iced_x86::Register;

use super::asm::Reg;

/// Host registers of the guest's, by number.
const HOST: [Option<Reg>; 16] = [
    Some(8),
    Some(1),
    Some(9),
    Some(3),
    Some(10),
    Some(5),
    Some(6),
    Some(7),
    Some(11),
    None,
    None,
    None,
    Some(12),
    Some(13),
    None,
    None,
];

/// The host register of a guest register, unless that stays in the vCPU.
pub(super) fn host(guest: u8) -> Option<Reg> {
    HOST[usize::from(guest & 15)]
}

/// All guest registers in host registers, with these.
pub(super) fn pinned() -> impl Iterator<Item = (u8, Reg)> {
    (0..16).filter_map(|g| host(g).map(|h| (g, h)))
}

/// The guest register that a general register is part of; `None` for AH, CH, DH and BH.
pub(super) fn guest(r: Register) -> Option<u8> {
    let high = matches!(r, Register::AH | Register::CH | Register::DH | Register::BH);
    (r.is_gpr() && !high).then(|| (r.full_register() as u32 - Register::RAX as u32) as u8)
}

/// The guest register whose second byte a register is.
pub(super) fn high(r: Register) -> Option<u8> {
    match r {
        Register::AH => Some(0),
        Register::CH => Some(1),
        Register::DH => Some(2),
        Register::BH => Some(3),
        _ => None,
    }
}

/// A host register in a width.
pub(super) fn named(number: Reg, bytes: usize) -> Register {
    const BYTES: [Register; 16] = [
        Register::AL,
        Register::CL,
        Register::DL,
        Register::BL,
        Register::SPL,
        Register::BPL,
        Register::SIL,
        Register::DIL,
        Register::R8L,
        Register::R9L,
        Register::R10L,
        Register::R11L,
        Register::R12L,
        Register::R13L,
        Register::R14L,
        Register::R15L,
    ];
    let n = u32::from(number & 15);
    match bytes {
        1 => BYTES[n as usize],
        2 => Register::AX + n,
        4 => Register::EAX + n,
        _ => Register::RAX + n,
    }
}
