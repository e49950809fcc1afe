//! Reading whatever an image can be imported from.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::path::Path;

use durable_files::FileError;

use super::blobs::Blobs;
use super::config::ImageConfig;
use super::contents::{Contents, Whiteouts};
use super::error::ImageError;
use super::layers::{self, MAX_UNPACKED_BYTES};
use crate::artifact::decompress::{Bounded, Compression};
use crate::progress::{Phase, Progress};

/// Reads the directory or archive at `path` into `contents`; `scratch` is a
/// directory for temporary files.
pub(crate) fn load(
    path: &Path,
    scratch: &Path,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<ImageConfig, ImageError> {
    let metadata = fs::metadata(path).map_err(FileError::at("read", path))?;
    if metadata.is_dir() {
        let blobs = Blobs::Directory(path.into());
        if blobs.contains("oci-layout") && layers::is_layered(&blobs) {
            return layers::load(&blobs, contents, progress);
        }
        let phase = Phase::begin(progress, "reading the directory", None);
        contents.add_directory(path, &phase)?;
        return Ok(ImageConfig::default());
    }
    if !metadata.is_file() {
        return Err(ImageError::UnknownSource {
            path: path.into(),
            source: None,
        });
    }
    let file = File::open(path).map_err(FileError::at("open", path))?;
    let file = decompress(file, path, scratch, progress)?;
    load_archive(file, path, contents, progress)
}

/// Reads an uncompressed archive, which messages call `path`.
pub(crate) fn load_archive(
    file: File,
    path: &Path,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<ImageConfig, ImageError> {
    let mut again = file.try_clone().map_err(FileError::at("read", path))?;
    let size = again.metadata().map_err(FileError::at("read", path))?.len();
    let damaged = |source| match &source {
        super::tar::TarError::Header { offset: 0, .. } => ImageError::UnknownSource {
            path: path.into(),
            source: Some(source),
        },
        _ => ImageError::Archive {
            archive: path.display().to_string(),
            source,
        },
    };
    if size == 0 {
        return Err(ImageError::UnknownSource {
            path: path.into(),
            source: None,
        });
    }
    let blobs = Blobs::index(file, path).map_err(damaged)?;
    if layers::is_layered(&blobs) {
        return layers::load(&blobs, contents, progress);
    }
    again.rewind().map_err(FileError::at("read", path))?;
    let phase = Phase::begin(progress, "importing the archive", Some(size));
    let input = BufReader::with_capacity(1 << 18, again);
    contents.add_tar(input, &path.display().to_string(), Whiteouts::Keep, &phase)?;
    Ok(ImageConfig::default())
}

/// The plain bytes of a file, in a temporary file if it is compressed: they
/// are read twice.
fn decompress(
    file: File,
    path: &Path,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<File, ImageError> {
    let mut input = BufReader::with_capacity(1 << 18, file);
    let head = input.fill_buf().map_err(FileError::at("read", path))?;
    let compression = Compression::detect(head);
    if compression == Compression::None {
        let mut file = input.into_inner();
        file.rewind().map_err(FileError::at("read", path))?;
        return Ok(file);
    }
    let reader = compression
        .reader(input)
        .map_err(FileError::at("unpack", path))?;
    let mut reader = Bounded::new(reader, MAX_UNPACKED_BYTES);
    let mut out =
        tempfile::tempfile_in(scratch).map_err(FileError::at("make a file in", scratch))?;
    let phase = Phase::begin(progress, "unpacking", None);
    let mut buffer = vec![0; 1 << 18];
    loop {
        let n = match reader.read(&mut buffer) {
            Ok(0) => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other.map_err(FileError::at("unpack", path))?,
        };
        out.write_all(&buffer[..n])
            .map_err(FileError::at("write to", scratch))?;
        phase.advance(n as u64);
    }
    out.rewind().map_err(FileError::at("read", scratch))?;
    Ok(out)
}
