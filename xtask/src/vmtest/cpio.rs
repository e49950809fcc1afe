//! A writer for the `newc` cpio format that Linux reads as an initramfs
//! (kernel documentation: "initramfs buffer format").

/// A cpio archive that grows in memory.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    next_inode: u32,
}

const FOLDER: u32 = 0o040_755;
const EXECUTABLE: u32 = 0o100_755;
const FILE: u32 = 0o100_644;
const TRAILER: &str = "TRAILER!!!";

impl Archive {
    /// Adds a folder (mode 0755, owned by root).
    pub fn folder(&mut self, path: &str) {
        self.entry(path, FOLDER, &[]);
    }

    /// Adds a file that can be executed (mode 0755, owned by root).
    pub fn executable(&mut self, path: &str, content: &[u8]) {
        self.entry(path, EXECUTABLE, content);
    }

    /// Adds a plain file (mode 0644, owned by root).
    pub fn file(&mut self, path: &str, content: &[u8]) {
        self.entry(path, FILE, content);
    }

    /// Ends the archive and returns its bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.next_inode = 0;
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    fn entry(&mut self, path: &str, mode: u32, content: &[u8]) {
        let size = u32::try_from(content.len()).expect("an initramfs file is below 4 GiB");
        let name_size = u32::try_from(path.len() + 1).expect("a path is short");
        let fields = [
            self.next_inode,
            mode,
            0, // uid
            0, // gid
            1, // links
            0, // mtime
            size,
            0, // device numbers of the file system
            0,
            0, // device numbers of the node
            0,
            name_size,
            0, // checksum, unused in this variant
        ];
        self.next_inode += 1;
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes
                .extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(path.as_bytes());
        self.bytes.push(0);
        self.align();
        self.bytes.extend_from_slice(content);
        self.align();
    }

    fn align(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_aligned_and_end_with_the_trailer() {
        let mut archive = Archive::default();
        archive.folder("bin");
        archive.executable("bin/a", b"hello");
        let bytes = archive.finish();
        assert_eq!(bytes.len() % 4, 0);
        assert_eq!(&bytes[..6], b"070701");
        // Header (110) + "bin\0" = 114, padded to 116; the second header starts there.
        assert_eq!(&bytes[116..122], b"070701");
        // Its name starts after 110 bytes, its content at the next multiple of four.
        assert_eq!(&bytes[226..232], b"bin/a\0");
        assert_eq!(&bytes[232..237], b"hello");
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.trim_end_matches('\0').ends_with(TRAILER));
    }
}
