//! The project's disks behave as every disk must.

/// Layers of the copy-on-write disk over a raw file.
mod layered_disk {
    use std::io;

    use cow_disk::{Base, BlockDevice, LayeredDisk, Overlay};
    use vmm_core::host_side::BlockBackend;

    const DISK_BYTES: u64 = 2 << 20;

    struct Layered(LayeredDisk);

    impl BlockBackend for Layered {
        fn size_bytes(&self) -> u64 {
            self.0.size_bytes()
        }

        fn read_only(&self) -> bool {
            false
        }

        fn read_at(&self, offset_bytes: u64, buffer: &mut [u8]) -> io::Result<()> {
            let done = self.0.read_at(offset_bytes, buffer);
            done.map_err(io::Error::other)
        }

        fn write_at(&self, offset_bytes: u64, data: &[u8]) -> io::Result<()> {
            let done = self.0.write_at(offset_bytes, data);
            done.map_err(io::Error::other)
        }

        fn flush(&self) -> io::Result<()> {
            self.0.flush().map_err(io::Error::other)
        }

        fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
            let done = self.0.discard(offset_bytes, length_bytes);
            done.map_err(io::Error::other)
        }

        fn write_zeroes(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
            let done = self.0.write_zeroes(offset_bytes, length_bytes);
            done.map_err(io::Error::other)
        }
    }

    fn make() -> Box<dyn BlockBackend> {
        let base = tempfile::tempfile().unwrap();
        base.set_len(DISK_BYTES).unwrap();
        let base = Base::file(base).unwrap();
        let overlay = || Overlay::create(tempfile::tempfile().unwrap(), DISK_BYTES).unwrap();
        let disk = LayeredDisk::new(base, Vec::new(), overlay()).unwrap();
        // One sealed layer below the top.
        disk.freeze(overlay()).unwrap();
        Box::new(Layered(disk))
    }

    conformance::block_suite!(make);
}

/// The disk that other tests use.
mod memory_disk {
    use vmm_core::host_side::BlockBackend;
    use vmm_core::testing::MemoryDisk;

    fn make() -> Box<dyn BlockBackend> {
        Box::new(MemoryDisk::new(1 << 20, false))
    }

    conformance::block_suite!(make);
}
