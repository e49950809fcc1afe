//! Memory type range registers (Intel SDM volume 3, 12.11).
//!
//! Caching is not modelled, all memory is write-back: the registers are values that a guest may read
//! and write. They refuse what KVM's refuse, so that what was saved here loads there.

/// IA32_MTRRCAP, which cannot be written.
const CAP: u32 = 0xfe;
/// Eight variable ranges, fixed ranges, write combining.
const CAP_VALUE: u64 = 0x508;
/// IA32_MTRR_DEF_TYPE: type, fixed ranges on, all on.
const DEF_TYPE: u32 = 0x2ff;
const DEF_TYPE_BITS: u64 = 0xcff;
/// Bits 8 to 11 of a range's base are reserved.
const BASE_RESERVED: u64 = 0xf00;
/// Bits 0 to 10 of a range's mask are reserved.
const MASK_RESERVED: u64 = 0x7ff;
const VARIABLE: usize = 16;
const FIXED: usize = 11;

/// The registers of a vCPU; all are 0 after power-on.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mtrrs {
    def_type: u64,
    /// Base and mask of each range in turn.
    variable: [u64; VARIABLE],
    fixed: [u64; FIXED],
}

/// Uncached, write-combining, write-through, write-protected, write-back.
fn is_type(v: u8) -> bool {
    matches!(v, 0 | 1 | 4 | 5 | 6)
}

/// The place of a register among the fixed ranges: one of 64 KiB pieces, two of 16, eight of 4.
fn fixed_slot(number: u32) -> Option<usize> {
    Some(match number {
        0x250 => 0,
        0x258 | 0x259 => number as usize - 0x258 + 1,
        0x268..=0x26f => number as usize - 0x268 + 3,
        _ => return None,
    })
}

impl Mtrrs {
    /// The value of a register; `None`: this is none of them.
    pub(crate) fn read(&self, number: u32) -> Option<u64> {
        match number {
            CAP => Some(CAP_VALUE),
            DEF_TYPE => Some(self.def_type),
            0x200..=0x20f => self.variable.get(number as usize - 0x200).copied(),
            _ => self.fixed.get(fixed_slot(number)?).copied(),
        }
    }

    /// Writes a register; `None`: this is none of them, or it does not take the value.
    pub(crate) fn write(&mut self, number: u32, v: u64, phys_bits: u8) -> Option<()> {
        let is_base = number.is_multiple_of(2);
        let (slot, valid) = match number {
            DEF_TYPE => (
                &mut self.def_type,
                v & !DEF_TYPE_BITS == 0 && is_type(v as u8),
            ),
            0x200..=0x20f => {
                let low = if is_base {
                    BASE_RESERVED
                } else {
                    MASK_RESERVED
                };
                let reserved = low | !0 << phys_bits;
                (
                    self.variable.get_mut(number as usize - 0x200)?,
                    v & reserved == 0 && (!is_base || is_type(v as u8)),
                )
            }
            _ => (
                self.fixed.get_mut(fixed_slot(number)?)?,
                v.to_le_bytes().into_iter().all(is_type),
            ),
        };
        *slot = valid.then_some(v)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BITS: u8 = 40;

    #[test]
    fn each_register_keeps_its_own_value() {
        let numbers = (0x200..=0x20f)
            .chain([0x250, 0x258, 0x259])
            .chain(0x268..=0x26f)
            .chain([DEF_TYPE]);
        let mut mtrrs = Mtrrs::default();
        let value = |number: u32| match number {
            DEF_TYPE => 0xc06,
            0x200..=0x20f if number.is_multiple_of(2) => (u64::from(number & 0xf) << 12) | 6,
            0x201..=0x20f => u64::from(number & 0xf) << 12,
            // A type in each byte, one that stands for the register.
            _ => (0..8).fold(0, |v, n| {
                v | [0, 1, 4, 5, 6][(number as usize + n) % 5] << (8 * n)
            }),
        };
        for number in numbers.clone() {
            mtrrs.write(number, value(number), BITS).unwrap();
        }
        for number in numbers {
            assert_eq!(mtrrs.read(number), Some(value(number)), "{number:#x}");
        }
        assert_eq!(mtrrs.read(CAP), Some(CAP_VALUE));
    }

    #[test]
    fn what_a_processor_refuses_is_refused_and_changes_nothing() {
        let mut mtrrs = Mtrrs::default();
        for (number, value) in [
            (CAP, CAP_VALUE),
            (DEF_TYPE, 0x1006),
            (DEF_TYPE, 2),
            (0x200, 7),
            (0x200, 0x106),
            (0x200, 1 << BITS),
            (0x201, 0x400),
            (0x201, 1 << BITS),
            (0x250, 2),
            (0x26f, 7 << 56),
            (0x210, 0),
            (0x251, 0),
            (0x25a, 0),
            (0x270, 0),
        ] {
            assert_eq!(mtrrs.write(number, value, BITS), None, "{number:#x}");
        }
        let read = |number| mtrrs.read(number);
        assert_eq!(
            [DEF_TYPE, 0x200, 0x201, 0x250, 0x26f].map(read),
            [Some(0); 5]
        );
        assert_eq!([0x210, 0x251, 0x25a, 0x270].map(read), [None; 4]);
    }
}
