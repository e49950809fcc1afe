//! Debian packages: an `ar` archive around a compressed tar. Spec: deb(5).

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;

use durable_files::FileError;

use super::error::KernelError;
use crate::artifact::decompress::{Bounded, Compression};
use crate::budget::Budget;
use crate::image::contents::{Contents, Whiteouts};
use crate::progress::{Phase, Progress};

const MAGIC: &[u8; 8] = b"!<arch>\n";
const HEADER_BYTES: usize = 60;
/// Most members looked at before the data.
const MAX_MEMBERS: usize = 16;
/// Largest unpacked package.
const MAX_UNPACKED_BYTES: u64 = 8 << 30;

/// Whether the file begins like a Debian package.
pub(super) fn is_package(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}

/// Unpacks the files of a package; contents are spooled in `scratch`.
pub(super) fn unpack(
    path: &Path,
    scratch: &Path,
    budget: Arc<Budget>,
    progress: &dyn Progress,
) -> Result<Contents, KernelError> {
    let mut file = BufReader::new(File::open(path).map_err(FileError::at("open", path))?);
    let size = find_data(&mut file, path)?;
    let mut data = BufReader::new(file.take(size));
    let head = data.fill_buf().map_err(FileError::at("read", path))?;
    let compression = Compression::detect(head);
    let unpack = |source| KernelError::Unpack {
        path: path.into(),
        source: Box::new(source),
    };
    let reader = compression
        .reader(data)
        .map_err(FileError::at("unpack", path))?;
    let reader = Bounded::new(reader, MAX_UNPACKED_BYTES);
    let mut contents = Contents::new(scratch, budget).map_err(unpack)?;
    let phase = Phase::begin(progress, "unpacking the kernel package", None);
    let name = path.display().to_string();
    contents
        .add_tar(BufReader::new(reader), &name, Whiteouts::Keep, &phase)
        .map_err(unpack)?;
    Ok(contents)
}

/// Moves to the member `data.tar.*` and returns its size.
fn find_data(file: &mut impl Read, path: &Path) -> Result<u64, KernelError> {
    let bad = |what| KernelError::BadPackage {
        path: path.into(),
        what,
    };
    let cut = |_| bad("it is cut off");
    let mut magic = [0; MAGIC.len()];
    file.read_exact(&mut magic).map_err(cut)?;
    if magic != *MAGIC {
        return Err(bad("it does not begin like one"));
    }
    for _ in 0..MAX_MEMBERS {
        let mut header = [0; HEADER_BYTES];
        file.read_exact(&mut header).map_err(cut)?;
        if header[58..] != *b"`\n" {
            return Err(bad("a member has no header"));
        }
        let size = std::str::from_utf8(&header[48..58])
            .ok()
            .and_then(|s| s.trim().parse().ok());
        let size: u64 = size.ok_or_else(|| bad("a member has no size"))?;
        if header.starts_with(b"data.tar") {
            return Ok(size);
        }
        let padded = size.saturating_add(size % 2);
        let skipped = io::copy(&mut file.take(padded), &mut io::sink()).map_err(cut)?;
        if skipped < padded {
            return Err(bad("it is cut off"));
        }
    }
    Err(bad("it has no data.tar"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_named() {
        let path = Path::new("x.deb");
        let find = |bytes: &[u8]| find_data(&mut &bytes[..], path);
        let member = |name: &str, size: &str| {
            format!(
                "{name:<16}{:<12}{:<6}{:<6}{:<8}{size:<10}`\n",
                0, 0, 0, 100644
            )
        };
        let good = format!(
            "!<arch>\n{}a\n{}",
            member("debian-binary", "1"),
            member("data.tar", "7")
        );
        assert_eq!(find(good.as_bytes()).unwrap(), 7);
        for bytes in [
            "",
            "!<arch>\n",
            "PK\x03\x04aaaaaaaa",
            &good[..70],
            &member("x", "y"),
        ] {
            assert!(matches!(
                find(bytes.as_bytes()),
                Err(KernelError::BadPackage { .. })
            ));
        }
    }
}
