//! Memory images of FNSTENV, FLDENV, FNSAVE and FRSTOR (Intel SDM volume 1, 8.1.10).

use crate::fpu::f80::{Class, F80};
use crate::fpu::{FpState, X87};

/// Bytes of the environment with a 16-bit operand size.
pub const ENV16_BYTES: usize = 14;
/// Bytes of the environment with a 32-bit operand size.
pub const ENV32_BYTES: usize = 28;

/// Layout of an environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EnvFormat {
    /// 16-bit operand size (14 bytes), else 28 bytes.
    pub small: bool,
    /// Real or virtual-8086 mode: linear addresses instead of selector and offset.
    pub real: bool,
}

impl EnvFormat {
    /// Bytes of the environment.
    #[must_use]
    pub fn env_bytes(self) -> usize {
        if self.small { ENV16_BYTES } else { ENV32_BYTES }
    }

    /// Bytes of environment and registers.
    #[must_use]
    pub fn save_bytes(self) -> usize {
        self.env_bytes() + 80
    }
}

impl X87 {
    /// The full tag word: 00 valid, 01 zero, 10 special, 11 empty.
    #[must_use]
    pub fn tag_word(&self) -> u16 {
        (0..8).fold(0, |tags, i| {
            let tag = if self.in_use >> i & 1 == 0 {
                3
            } else {
                match self.regs[i].class() {
                    Class::Normal => 0,
                    Class::Zero => 1,
                    _ => 2,
                }
            };
            tags | tag << (2 * i)
        })
    }

    fn set_tag_word(&mut self, tags: u16) {
        self.in_use = (0..8).fold(0, |used, i| {
            used | (u8::from((tags >> (2 * i)) & 3 != 3) << i)
        });
    }
}

impl FpState {
    /// Bytes of FNSTENV in an array whose first [`EnvFormat::env_bytes`] count.
    #[must_use]
    pub fn store_env(&self, format: EnvFormat) -> [u8; ENV32_BYTES] {
        let x = &self.x87;
        let (ip, dp) = (x.fip as u32, x.fdp as u32);
        let head = [x.fcw, self.status_word(), x.tag_word()];
        let mut out = [0; ENV32_BYTES];
        if format.small {
            let tail = if format.real {
                let high = |address: u32| ((address >> 16 & 0xf) << 12) as u16;
                [ip as u16, high(ip) | x.fop, dp as u16, high(dp)]
            } else {
                [ip as u16, x.fcs, dp as u16, x.fds]
            };
            for (slot, word) in out.chunks_exact_mut(2).zip(head.into_iter().chain(tail)) {
                slot.copy_from_slice(&word.to_le_bytes());
            }
        } else {
            let tail = if format.real {
                let high = |address: u32| (address >> 16) << 12;
                let low = |address: u32| address & 0xffff | 0xffff_0000;
                [low(ip), high(ip) | u32::from(x.fop), low(dp), high(dp)]
            } else {
                let selector = u32::from(x.fcs) | u32::from(x.fop) << 16;
                [ip, selector, dp, u32::from(x.fds) | 0xffff_0000]
            };
            let head = head.map(|word| u32::from(word) | 0xffff_0000);
            for (slot, word) in out.chunks_exact_mut(4).zip(head.into_iter().chain(tail)) {
                slot.copy_from_slice(&word.to_le_bytes());
            }
        }
        out
    }

    /// FLDENV from the first [`EnvFormat::env_bytes`] of `image`.
    pub fn load_env(&mut self, image: &[u8; ENV32_BYTES], format: EnvFormat) {
        let step = if format.small { 2 } else { 4 };
        let word = |n: usize| u16::from_le_bytes([image[n * step], image[n * step + 1]]);
        let dword = |n: usize| {
            u32::from(word(n))
                | if format.small {
                    0
                } else {
                    u32::from(image[n * 4 + 2]) << 16 | u32::from(image[n * 4 + 3]) << 24
                }
        };
        let x = &mut self.x87;
        x.set_control(word(0));
        x.set_status(word(1));
        x.set_tag_word(word(2));
        if format.real {
            let high = |n: usize| u64::from(dword(n) >> 12) << 16;
            x.fip = u64::from(word(3)) | high(4);
            x.fop = word(4) & 0x7ff;
            x.fdp = u64::from(word(5)) | high(6);
        } else {
            x.fip = u64::from(dword(3));
            x.fcs = word(4);
            x.fdp = u64::from(dword(5));
            x.fds = word(6);
            if !format.small {
                x.fop = (dword(4) >> 16) as u16 & 0x7ff;
            }
        }
    }

    /// Bytes of FNSAVE in an array whose first [`EnvFormat::save_bytes`] count.
    #[must_use]
    pub fn save(&self, format: EnvFormat) -> [u8; ENV32_BYTES + 80] {
        let mut out = [0; ENV32_BYTES + 80];
        out[..ENV32_BYTES].copy_from_slice(&self.store_env(format));
        for i in 0..8 {
            let register = self.x87.regs[(usize::from(self.x87.top) + i) & 7];
            let at = format.env_bytes() + 10 * i;
            out[at..at + 10].copy_from_slice(&register.to_bits().to_le_bytes()[..10]);
        }
        out
    }

    /// FRSTOR from the first [`EnvFormat::save_bytes`] of `image`.
    pub fn restore(&mut self, image: &[u8; ENV32_BYTES + 80], format: EnvFormat) {
        let mut env = [0; ENV32_BYTES];
        env.copy_from_slice(&image[..ENV32_BYTES]);
        self.load_env(&env, format);
        for i in 0..8 {
            let mut bits = [0; 16];
            let at = format.env_bytes() + 10 * i;
            bits[..10].copy_from_slice(&image[at..at + 10]);
            let register = (usize::from(self.x87.top) + i) & 7;
            self.x87.regs[register] = F80::from_bits(u128::from_le_bytes(bits));
        }
    }
}
