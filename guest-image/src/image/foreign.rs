//! Files that users have and that are no archive of files: recognised by their
//! magic numbers, to be refused by name with the way out.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::import::STREAM_NAME;

/// A format that cannot be imported as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignFormat {
    /// A raw image of a file system, such as `rootfs.ext4`.
    FileSystem(&'static str),
    /// A raw disk with a partition table.
    Partitions,
    /// A disk image of a virtual machine, by the name that QEMU has for it.
    VirtualDisk(&'static str),
    /// A squashfs file system.
    Squashfs,
    /// An archive that is no tar archive; with the program that unpacks it.
    Archive(&'static str, &'static str),
    /// A compression that is not supported; with the program that undoes it.
    Compressed(&'static str, &'static str),
    /// A package of a distribution; with the program that unpacks it.
    Package(&'static str, &'static str),
    /// A program, or a kernel.
    Executable,
    /// Nothing but zero bytes.
    Zeros,
}

/// Magic numbers: offset, bytes, format. The first that fits counts.
const MAGICS: &[(u64, &[u8], ForeignFormat)] = {
    use ForeignFormat::{
        Archive, Compressed, Executable, FileSystem, Package, Partitions, Squashfs, VirtualDisk,
    };
    &[
        (0x438, &[0x53, 0xef], FileSystem("an ext4")),
        (0x10040, b"_BHRfS_M", FileSystem("a btrfs")),
        (0, b"XFSB", FileSystem("an XFS")),
        (0x400, &[0xe2, 0xe1, 0xf5, 0xe0], FileSystem("an EROFS")),
        (0x400, &[0x10, 0x20, 0xf5, 0xf2], FileSystem("an F2FS")),
        (0x8001, b"CD001", FileSystem("an ISO 9660")),
        (0x52, b"FAT32   ", FileSystem("a FAT")),
        (0x36, b"FAT1", FileSystem("a FAT")),
        (0, b"hsqs", Squashfs),
        (0x200, b"EFI PART", Partitions),
        (0, b"QFI\xfb", VirtualDisk("qcow2")),
        (0, b"KDMV", VirtualDisk("vmdk")),
        (0, b"# Disk DescriptorFile", VirtualDisk("vmdk")),
        (0, b"vhdxfile", VirtualDisk("vhdx")),
        (0, b"conectix", VirtualDisk("vpc")),
        (0x40, &[0x7f, 0x10, 0xda, 0xbe], VirtualDisk("vdi")),
        (0, b"PK\x03\x04", Archive("zip", "unzip")),
        (0, b"PK\x05\x06", Archive("zip", "unzip")),
        (0, b"7z\xbc\xaf\x27\x1c", Archive("7z", "7z x")),
        (0, b"Rar!\x1a\x07", Archive("RAR", "unrar x")),
        (0, b"070701", Archive("cpio", "cpio -id")),
        (0, b"070702", Archive("cpio", "cpio -id")),
        (0, b"070707", Archive("cpio", "cpio -id")),
        (0, &[0xc7, 0x71], Archive("cpio", "cpio -id")),
        (0, b"BZh", Compressed("bzip2", "bunzip2")),
        (0, b"LZIP", Compressed("lzip", "lzip -d")),
        (0, &[0x04, 0x22, 0x4d, 0x18], Compressed("LZ4", "lz4 -d")),
        (0, &[0x1f, 0x9d], Compressed("compress", "uncompress")),
        (0, &[0x89, 0x4c, 0x5a, 0x4f], Compressed("lzop", "lzop -d")),
        (0, &[0x5d, 0, 0], Compressed("LZMA", "xz --format=lzma -d")),
        (0, b"!<arch>\n", Package("Debian package", "dpkg-deb -x")),
        (
            0,
            &[0xed, 0xab, 0xee, 0xdb],
            Package("RPM package", "rpm2cpio"),
        ),
        (0, b"\x7fELF", Executable),
        (0x202, b"HdrS", Executable),
        // Last: a boot sector also begins what has a better name.
        (0x1fe, &[0x55, 0xaa], Partitions),
    ]
};
/// Bytes compared at a time when looking for zeros only.
const PIECE_BYTES: usize = 1 << 18;
/// A file that is zeros up to here is called zeros.
const MOST_ZEROS_BYTES: u64 = 64 << 20;

impl ForeignFormat {
    /// What `file` is, if it is nothing that can be imported. Its position does
    /// not move.
    pub(crate) fn recognise(file: &File) -> io::Result<Option<Self>> {
        // A tar archive may begin with any name, but its header has a sum.
        if begins_archive(file)? {
            return Ok(None);
        }
        for (offset, magic, format) in MAGICS {
            if has_magic(file, *offset, magic)? {
                return Ok(Some(*format));
            }
        }
        Ok(is_zeros(file)?.then_some(Self::Zeros))
    }

    /// How its files get into an image; `path` is where it is.
    pub(crate) fn way_out(self, path: &Path) -> String {
        let path = match path.display().to_string() {
            stream if stream == STREAM_NAME => "FILE".into(),
            path => path,
        };
        match self {
            Self::FileSystem(_) => {
                format!(
                    "as root: mount -o ro,loop {path} /mnt && smolvm image import NAME /mnt; umount /mnt"
                )
            }
            Self::Partitions => format!(
                "as root: losetup -rPf --show {path}, mount the partition that it shows on /mnt, then: smolvm image import NAME /mnt"
            ),
            Self::VirtualDisk(_) => {
                format!(
                    "virt-tar-out -a {path} / - | smolvm image import NAME - (Debian package guestfs-tools)"
                )
            }
            Self::Squashfs => format!(
                "as root: unsquashfs -d root {path} && smolvm image import NAME root (Debian package squashfs-tools)"
            ),
            Self::Archive(_, program) => {
                format!(
                    "unpack it into an empty directory with {program}, then: smolvm image import NAME DIRECTORY"
                )
            }
            Self::Compressed(_, program) => {
                format!("{program} < {path} | smolvm image import NAME -")
            }
            Self::Package(_, program) => format!(
                "if it is a kernel: smolvm kernel import NAME {path}; else unpack it into a directory with {program} and import that"
            ),
            Self::Executable => format!("if it is a kernel: smolvm kernel import NAME {path}"),
            Self::Zeros => {
                "make it again from a directory: tar -C DIRECTORY -c . | smolvm image import NAME -"
                    .to_owned()
            }
        }
    }
}

impl fmt::Display for ForeignFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FileSystem(name) => write!(f, "a raw image of {name} file system"),
            Self::Partitions => f.write_str("a raw disk with partitions"),
            Self::VirtualDisk(name) => write!(f, "a {name} disk image"),
            Self::Squashfs => f.write_str("a squashfs file system"),
            Self::Archive(name, _) => write!(f, "a {name} archive"),
            Self::Compressed(name, _) => write!(f, "compressed by {name}, which is not supported"),
            Self::Package(name, _) => write!(f, "a {name}"),
            Self::Executable => f.write_str("a program or a kernel"),
            Self::Zeros => f.write_str("nothing but zero bytes, an archive without any file"),
        }
    }
}

/// Whether the first record is a tar header.
fn begins_archive(file: &File) -> io::Result<bool> {
    let mut record = [0; 512];
    match file.read_exact_at(&mut record, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        result => result.map(|()| super::tar::is_header(&record)),
    }
}

fn has_magic(file: &File, offset: u64, magic: &[u8]) -> io::Result<bool> {
    let mut found = [0; 32];
    let found = &mut found[..magic.len()];
    match file.read_exact_at(found, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        result => result.map(|()| found == magic),
    }
}

/// Whether a file that is not empty begins with many zeros and nothing else.
fn is_zeros(file: &File) -> io::Result<bool> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < MOST_ZEROS_BYTES {
        match file.read_at(&mut piece, at) {
            Ok(0) => break,
            Ok(n) if piece[..n].iter().any(|byte| *byte != 0) => return Ok(false),
            Ok(n) => at += n as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(at > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn recognise(offset: u64, magic: &[u8]) -> Option<ForeignFormat> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![1; 0x11000]).unwrap();
        file.write_all_at(magic, offset).unwrap();
        ForeignFormat::recognise(&file).unwrap()
    }

    #[test]
    fn each_format_is_told_by_its_magic_and_has_a_way_out() {
        for (offset, magic, format) in MAGICS {
            assert_eq!(recognise(*offset, magic), Some(*format));
            assert!(format.way_out(Path::new("FILE")).contains("smolvm "));
        }
        assert_eq!(recognise(0, b"none of them"), None);
    }

    #[test]
    fn zeros_are_told_and_nothing_is_not_zeros() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(ForeignFormat::recognise(&file).unwrap(), None);
        file.set_len(10240).unwrap();
        let zeros = Some(ForeignFormat::Zeros);
        assert_eq!(ForeignFormat::recognise(&file).unwrap(), zeros);
        file.write_all_at(b"x", 10000).unwrap();
        assert_eq!(ForeignFormat::recognise(&file).unwrap(), None);
    }
}
