//! Inodes: what a file is, but for its name.

use super::bytes::{le16, le32};
use super::{DiskReader, FileSystem, FileSystemError};

/// The root directory's number.
pub(super) const ROOT: u32 = 2;
/// Longest target of a symbolic link in bytes.
pub const MAX_TARGET_BYTES: u64 = 4096;

/// Length of what an inode holds of its file: the top of its extents, or a short target.
pub(super) const INLINE_BYTES: usize = 60;

mod flag {
    pub(super) const ENCRYPTED: u32 = 0x800;
    pub(super) const EXTENTS: u32 = 0x8_0000;
    pub(super) const INLINE_DATA: u32 = 0x1000_0000;
}

/// A point in time, in the guest's clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Seconds since 1970.
    pub seconds: i64,
    /// Nanoseconds, below 10^9.
    pub nanos: u32,
}

/// What kind of file it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharacterDevice {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Its major number.
        major: u32,
        /// Its minor number.
        minor: u32,
    },
}

/// An inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inode {
    /// Its number.
    pub number: u32,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Names that it has.
    pub links: u32,
    /// Length of its data, holes included.
    pub size_bytes: u64,
    /// When its data was changed last.
    pub modified: Time,
    /// When it was changed last in any way.
    pub changed: Time,
    flags: u32,
    inline: [u8; INLINE_BYTES],
}

impl Inode {
    /// Decodes an inode of at least 128 bytes.
    pub(super) fn decode(number: u32, bytes: &[u8]) -> Result<Self, FileSystemError> {
        let damaged = |what| FileSystemError::damaged(what);
        let mode = u32::from(le16(bytes, 0x00));
        let links = u32::from(le16(bytes, 0x1a));
        if links == 0 {
            return Err(damaged("a name of a file that is not there"));
        }
        let inline = bytes.get(0x28..0x28 + INLINE_BYTES);
        let inline: [u8; INLINE_BYTES] = inline
            .and_then(|inline| inline.try_into().ok())
            .ok_or_else(|| damaged("the size of its inodes"))?;
        let kind = kind_of(mode, &inline).ok_or_else(|| damaged("the kind of a file"))?;
        let extra = if bytes.len() > 0x82 {
            usize::from(le16(bytes, 0x80))
        } else {
            0
        };
        let end = bytes.len().min(0x80 + extra);
        let time = |at: usize, extra_at: usize| {
            let extra = if extra_at + 4 <= end {
                le32(bytes, extra_at)
            } else {
                0
            };
            let seconds = i64::from(le32(bytes, at).cast_signed());
            Time {
                seconds: seconds + (i64::from(extra & 3) << 32),
                // The field can hold more than a second.
                nanos: (extra >> 2).min(999_999_999),
            }
        };
        let high = |at: usize| u32::from(le16(bytes, at)) << 16;
        let size_bytes = u64::from(le32(bytes, 0x6c)) << 32 | u64::from(le32(bytes, 0x04));
        if i64::try_from(size_bytes).is_err() {
            return Err(damaged("the size of a file"));
        }
        Ok(Self {
            number,
            kind,
            mode: mode & 0o7777,
            uid: high(0x78) | u32::from(le16(bytes, 0x02)),
            gid: high(0x7a) | u32::from(le16(bytes, 0x18)),
            links,
            size_bytes,
            modified: time(0x10, 0x88),
            changed: time(0x0c, 0x84),
            flags: le32(bytes, 0x20),
            inline,
        })
    }

    /// The top of its extents.
    pub(super) fn extents_root(&self) -> Result<&[u8; INLINE_BYTES], FileSystemError> {
        if self.flags & flag::ENCRYPTED != 0 {
            return Err(FileSystemError::unsupported("an encrypted file"));
        }
        if self.flags & flag::INLINE_DATA != 0 {
            return Err(FileSystemError::unsupported("a file inside its inode"));
        }
        if self.flags & flag::EXTENTS == 0 {
            return Err(FileSystemError::unsupported("a file without extents"));
        }
        Ok(&self.inline)
    }

    /// What it is on the disk, but for its times and names: two inodes of which this is equal have the same data where the
    /// disk is the same.
    #[must_use]
    pub fn has_same_data_as(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.size_bytes == other.size_bytes
            && self.flags == other.flags
            && self.inline == other.inline
    }
}

fn kind_of(mode: u32, inline: &[u8; INLINE_BYTES]) -> Option<Kind> {
    let (major, minor) = device_of(inline);
    Some(match mode >> 12 {
        0x1 => Kind::Fifo,
        0x2 => Kind::CharacterDevice { major, minor },
        0x4 => Kind::Directory,
        0x6 => Kind::BlockDevice { major, minor },
        0x8 => Kind::File,
        0xa => Kind::Symlink,
        0xc => Kind::Socket,
        _ => return None,
    })
}

/// A device's numbers: in the old form of 16 bits, or in the new one behind it.
fn device_of(inline: &[u8; INLINE_BYTES]) -> (u32, u32) {
    match (le32(inline, 0), le32(inline, 4)) {
        (0, new) => (
            (new & 0xf_ff00) >> 8,
            (new & 0xff) | ((new >> 12) & 0xf_ff00),
        ),
        (old, _) => ((old >> 8) & 0xff, old & 0xff),
    }
}

impl<D: DiskReader> FileSystem<D> {
    /// The target of a symbolic link: any bytes but none and NUL.
    ///
    /// # Errors
    /// It is none, or too long.
    pub fn target(&self, link: &Inode) -> Result<Vec<u8>, FileSystemError> {
        let wrong = || FileSystemError::damaged("the target of a symbolic link");
        if link.kind != Kind::Symlink || !(1..=MAX_TARGET_BYTES).contains(&link.size_bytes) {
            return Err(wrong());
        }
        let mut target = vec![0; link.size_bytes as usize];
        let is_short = target.len() < INLINE_BYTES && link.flags & flag::EXTENTS == 0;
        if is_short && link.flags & (flag::ENCRYPTED | flag::INLINE_DATA) == 0 {
            target.copy_from_slice(&link.inline[..link.size_bytes as usize]);
        } else {
            for extent in self.extents(link)? {
                let extent = extent?;
                // An extent ends where the file does.
                let within = extent.offset_bytes as usize..extent.end_bytes() as usize;
                self.read(&extent, 0, &mut target[within])?;
            }
        }
        match target.contains(&0) {
            true => Err(wrong()),
            false => Ok(target),
        }
    }
}

#[cfg(test)]
impl Inode {
    /// The same inode with other extents, of which four fit.
    pub(super) fn set_extents_root(&mut self, node: &[u8]) {
        self.inline.copy_from_slice(node);
        self.inline[2..4].copy_from_slice(&4u16.to_le_bytes());
    }
}
