//! The initramfs: a cpio archive in the "newc" form, the same bytes for the
//! same contents. Spec: Linux `Documentation/driver-api/early-userspace/buffer-format.rst`.

const MAGIC: &[u8] = b"070701";
const TRAILER: &str = "TRAILER!!!";
/// What archives are padded to as a whole.
const BLOCK_BYTES: usize = 512;

const S_IFDIR: u32 = 0o040_000;
const S_IFCHR: u32 = 0o020_000;
const S_IFREG: u32 = 0o100_000;

/// Builds an archive entry by entry.
#[derive(Debug, Default)]
pub(super) struct Cpio {
    bytes: Vec<u8>,
    inode: u32,
}

impl Cpio {
    /// Adds a directory, mode 0755.
    pub(super) fn directory(&mut self, path: &str) {
        self.entry(path, S_IFDIR | 0o755, 2, (0, 0), &[]);
    }

    /// Adds a character device, mode 0600.
    pub(super) fn character_device(&mut self, path: &str, major: u32, minor: u32) {
        self.entry(path, S_IFCHR | 0o600, 1, (major, minor), &[]);
    }

    /// Adds a regular file.
    pub(super) fn file(&mut self, path: &str, mode: u32, content: &[u8]) {
        self.entry(path, S_IFREG | mode, 1, (0, 0), content);
    }

    /// The entries without trailer, to be continued with [`Cpio::resume`].
    pub(super) fn into_entries(self) -> Vec<u8> {
        self.bytes
    }

    /// Goes on behind entries made earlier. Inode numbers begin anew, which
    /// is right since no entry has several links.
    pub(super) fn resume(entries: Vec<u8>) -> Self {
        Self {
            bytes: entries,
            inode: 0,
        }
    }

    /// Ends the archive.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.inode = 0;
        self.header(TRAILER, 0, 1, (0, 0), 0, 0);
        self.bytes
            .resize(self.bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, links: u32, device: (u32, u32), content: &[u8]) {
        self.inode += 1;
        self.header(path, mode, links, device, content.len() as u32, self.inode);
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn header(
        &mut self,
        path: &str,
        mode: u32,
        links: u32,
        device: (u32, u32),
        size: u32,
        inode: u32,
    ) {
        self.bytes.extend_from_slice(MAGIC);
        let name_bytes = path.len() as u32 + 1;
        let (major, minor) = device;
        // inode, mode, uid, gid, links, mtime, size, device, special, name, sum
        let fields = [
            inode, mode, 0, 0, links, 0, size, 0, 0, major, minor, name_bytes, 0,
        ];
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08X}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}
