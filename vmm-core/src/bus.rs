//! Address decoding for port and memory-mapped accesses.

use std::sync::Arc;

use thiserror::Error;

/// A device's register block on a bus. Called from any vCPU thread.
pub trait BusDevice: Send + Sync {
    /// Reads `data.len()` bytes at `offset` of the block.
    fn read(&self, offset: u64, data: &mut [u8]);

    /// Writes `data` at `offset` of the block.
    fn write(&self, offset: u64, data: &[u8]);
}

/// Two register blocks overlap, or one is empty.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("the {length} byte register block at {start:#x} is empty or overlaps another one")]
pub struct BusOverlap {
    /// First address of the block.
    pub start: u64,
    /// Its length in bytes.
    pub length: u64,
}

/// The register blocks of one address space; fixed once the machine is built.
#[derive(Default, Clone)]
pub struct Bus {
    blocks: Vec<Block>,
}

#[derive(Clone)]
struct Block {
    start: u64,
    length: u64,
    device: Arc<dyn BusDevice>,
}

impl Bus {
    /// A bus without devices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a register block.
    pub fn insert(
        &mut self,
        start: u64,
        length: u64,
        device: Arc<dyn BusDevice>,
    ) -> Result<(), BusOverlap> {
        let overlap = BusOverlap { start, length };
        let end = start.checked_add(length).ok_or(overlap.clone())?;
        let at = self.blocks.partition_point(|block| block.start < start);
        let before_ends = at
            .checked_sub(1)
            .map_or(0, |i| self.blocks[i].start + self.blocks[i].length);
        let after_starts = self.blocks.get(at).map_or(u64::MAX, |block| block.start);
        if length == 0 || before_ends > start || after_starts < end {
            return Err(overlap);
        }
        self.blocks.insert(
            at,
            Block {
                start,
                length,
                device,
            },
        );
        Ok(())
    }

    /// Reads; what no device answers is all ones.
    pub fn read(&self, address: u64, data: &mut [u8]) {
        match self.find(address, data.len()) {
            Some((block, offset)) => block.device.read(offset, data),
            None => data.fill(0xff),
        }
    }

    /// Writes; what no device takes is dropped.
    pub fn write(&self, address: u64, data: &[u8]) {
        if let Some((block, offset)) = self.find(address, data.len()) {
            block.device.write(offset, data);
        }
    }

    fn find(&self, address: u64, length: usize) -> Option<(&Block, u64)> {
        let at = self
            .blocks
            .partition_point(|block| block.start <= address)
            .checked_sub(1)?;
        let block = &self.blocks[at];
        let offset = address - block.start;
        let end = offset.checked_add(length as u64)?;
        (end <= block.length).then_some((block, offset))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[derive(Default)]
    struct Recorder(Mutex<Vec<(u64, usize)>>);

    impl BusDevice for Recorder {
        fn read(&self, offset: u64, data: &mut [u8]) {
            data.fill(offset as u8);
        }

        fn write(&self, offset: u64, data: &[u8]) {
            self.0.lock().unwrap().push((offset, data.len()));
        }
    }

    #[test]
    fn accesses_reach_the_device_at_their_offset() {
        let device = Arc::new(Recorder::default());
        let mut bus = Bus::new();
        bus.insert(0x100, 0x10, device.clone()).unwrap();
        bus.insert(0x200, 0x10, Arc::new(Recorder::default()))
            .unwrap();
        bus.write(0x10c, &[0; 4]);
        bus.write(0x10d, &[0; 4]);
        bus.write(0xff, &[0; 1]);
        assert_eq!(
            *device.0.lock().unwrap(),
            [(0xc, 4)],
            "an access across the end is dropped"
        );
        let mut data = [0; 2];
        bus.read(0x103, &mut data);
        assert_eq!(data, [3, 3]);
        bus.read(0x110, &mut data);
        assert_eq!(data, [0xff, 0xff]);
    }

    #[test]
    fn overlaps_are_refused() {
        let device: Arc<dyn BusDevice> = Arc::new(Recorder::default());
        let mut bus = Bus::new();
        bus.insert(0x100, 0x10, device.clone()).unwrap();
        for (start, length) in [
            (0x10f, 1),
            (0xf8, 9),
            (0x100, 0x10),
            (0x90, 0x100),
            (0x200, 0),
        ] {
            assert!(
                bus.insert(start, length, device.clone()).is_err(),
                "{start:#x}+{length:#x}"
            );
        }
        bus.insert(0x110, 1, device.clone()).unwrap();
        bus.insert(0xf8, 8, device).unwrap();
    }
}
