//! The 512-byte FXSAVE image (Intel SDM volume 1, 10.5; AMD APM volume 2, 11.4).

use super::f80::F80;
use super::{FpState, MXCSR_MASK, ReservedMxcsr};

/// Bytes of an FXSAVE image.
pub const FXSAVE_BYTES: usize = 512;

/// How much of the state an FXSAVE or FXRSTOR moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FxLayout {
    /// REX.W form: 64-bit pointers without selectors.
    pub wide_pointers: bool,
    /// XMM registers moved: 16 in 64-bit mode, 8 elsewhere.
    pub xmm_count: usize,
}

impl FxLayout {
    /// Everything, as FXSAVE64 in 64-bit mode.
    pub const FULL: Self = Self {
        wide_pointers: true,
        xmm_count: 16,
    };
}

const ST_OFFSET: usize = 32;
const XMM_OFFSET: usize = 160;

impl FpState {
    /// Writes the image of FXSAVE; bytes 416 to 511 and unsaved XMM slots are left as they are.
    pub fn fxsave(&self, image: &mut [u8; FXSAVE_BYTES], layout: FxLayout) {
        let x = &self.x87;
        let mut put = |at: usize, bytes: &[u8]| image[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, &x.fcw.to_le_bytes());
        put(2, &self.status_word().to_le_bytes());
        put(4, &[x.in_use, 0]);
        put(6, &x.fop.to_le_bytes());
        if layout.wide_pointers {
            put(8, &x.fip.to_le_bytes());
            put(16, &x.fdp.to_le_bytes());
        } else {
            put(8, &(x.fip as u32).to_le_bytes());
            put(12, &u32::from(x.fcs).to_le_bytes());
            put(16, &(x.fdp as u32).to_le_bytes());
            put(20, &u32::from(x.fds).to_le_bytes());
        }
        put(24, &self.mxcsr.to_le_bytes());
        put(28, &MXCSR_MASK.to_le_bytes());
        for i in 0..8 {
            let register = x.regs[(usize::from(x.top) + i) & 7];
            put(ST_OFFSET + 16 * i, &register.to_bits().to_le_bytes());
        }
        for (i, value) in self.xmm.iter().enumerate().take(layout.xmm_count) {
            put(XMM_OFFSET + 16 * i, &value.to_le_bytes());
        }
    }

    /// Loads an FXSAVE image.
    ///
    /// # Errors
    /// MXCSR has a reserved bit set; nothing is changed.
    pub fn fxrstor(
        &mut self,
        image: &[u8; FXSAVE_BYTES],
        layout: FxLayout,
    ) -> Result<(), ReservedMxcsr> {
        let le = |at: usize, len: usize| {
            let mut bytes = [0; 16];
            bytes[..len].copy_from_slice(&image[at..at + len]);
            u128::from_le_bytes(bytes)
        };
        self.set_mxcsr(le(24, 4) as u32)?;
        let x = &mut self.x87;
        x.set_control(le(0, 2) as u16);
        x.set_status(le(2, 2) as u16);
        x.in_use = image[4];
        x.fop = le(6, 2) as u16 & 0x7ff;
        let pointer = if layout.wide_pointers { 8 } else { 4 };
        x.fip = le(8, pointer) as u64;
        x.fdp = le(16, pointer) as u64;
        if !layout.wide_pointers {
            x.fcs = le(12, 2) as u16;
            x.fds = le(20, 2) as u16;
        }
        for i in 0..8 {
            let register = (usize::from(x.top) + i) & 7;
            x.regs[register] = F80::from_bits(le(ST_OFFSET + 16 * i, 10));
        }
        for (i, value) in self.xmm.iter_mut().enumerate().take(layout.xmm_count) {
            *value = le(XMM_OFFSET + 16 * i, 16);
        }
        Ok(())
    }
}
