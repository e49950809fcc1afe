//! Reading: from the data region, as zeroes, or from below.

use super::{Below, Overlay};
use crate::error::DiskError;
use crate::granule::{GRANULE_BYTES, GRANULE_LEN, Source, State, is_zero, touching};

impl Overlay {
    /// Fills `buf`, asking `below` for what the overlay does not hold. Beyond the overlay's own
    /// size everything is below.
    pub(crate) fn read(
        &self,
        offset_bytes: u64,
        buf: &mut [u8],
        below: Below<'_>,
    ) -> Result<(), DiskError> {
        let mut at = offset_bytes;
        let mut rest = buf;
        while !rest.is_empty() {
            let granules = touching(at, rest.len() as u64);
            let (state, run_end) = self.map.run(granules);
            let len = (run_end * GRANULE_BYTES - at).min(rest.len() as u64) as usize;
            let (part, after) = rest.split_at_mut(len);
            match state.source() {
                Source::Below => below(at, part)?,
                Source::Zero => part.fill(0),
                Source::Data => self.read_data(at, part)?,
                Source::Unverified => self.read_unverified(at, part, below)?,
            }
            at += len as u64;
            rest = after;
        }
        Ok(())
    }

    /// Reads the data region.
    pub(super) fn read_data(&self, offset_bytes: u64, buf: &mut [u8]) -> Result<(), DiskError> {
        self.file
            .read_at(self.data_offset(offset_bytes), buf)
            .map_err(|source| DiskError::Read {
                offset_bytes,
                source,
            })
    }

    /// Reads granules of which only the data region says whether they are here.
    fn read_unverified(
        &self,
        offset_bytes: u64,
        buf: &mut [u8],
        below: Below<'_>,
    ) -> Result<(), DiskError> {
        let mut granule_bytes = [0; GRANULE_LEN];
        let mut at = offset_bytes;
        let mut rest = buf;
        while !rest.is_empty() {
            let granule = at / GRANULE_BYTES;
            let within = (at % GRANULE_BYTES) as usize;
            let len = (GRANULE_LEN - within).min(rest.len());
            let (part, after) = rest.split_at_mut(len);
            self.read_data(granule * GRANULE_BYTES, &mut granule_bytes)?;
            if is_zero(&granule_bytes) {
                below(at, part)?;
            } else {
                self.map
                    .replace(granule, State::Unverified, State::Tentative);
                part.copy_from_slice(&granule_bytes[within..within + len]);
            }
            at += len as u64;
            rest = after;
        }
        Ok(())
    }
}
