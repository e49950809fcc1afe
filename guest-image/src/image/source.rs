//! Reading whatever an image can be imported from.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use durable_files::FileError;

use super::blobs::Blobs;
use super::config::ImageConfig;
use super::contents::{Contents, Whiteouts};
use super::error::ImageError;
use super::foreign::ForeignFormat;
use super::{layers, manifest};
use crate::artifact::decompress::Compression;
use crate::progress::{Phase, Progress};

/// Bytes read at a time.
const BUFFER_BYTES: usize = 1 << 18;

/// Reads the directory or archive at `path` into `contents`; `scratch` is a
/// directory for temporary files.
pub(crate) fn load(
    path: &Path,
    scratch: &Path,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<ImageConfig, ImageError> {
    // What was a file may be a pipe by now: opening does not wait for a writer.
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.map_err(FileError::at("open", path))?;
    let metadata = file.metadata().map_err(FileError::at("read", path))?;
    if metadata.is_dir() {
        let blobs = Blobs::Directory(path.into());
        if let Some(layout) = manifest::detect(&blobs)? {
            return layers::load(&blobs, layout, contents, progress);
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
    refuse_foreign(&file, path)?;
    let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
    let file = match compression(&mut input, path)? {
        Compression::None => {
            let mut file = input.into_inner();
            file.rewind().map_err(FileError::at("read", path))?;
            file
        }
        compression => {
            let reader = compression
                .reader(input)
                .map_err(FileError::at("unpack", path))?;
            let budget = contents.tree.budget();
            let file = to_file(budget.meter(reader), path, scratch, progress)?;
            refuse_foreign(&file, path)?;
            file
        }
    };
    load_archive(file, path, contents, progress)
}

/// Reads an archive from a stream, which messages call `path`.
pub(crate) fn load_stream(
    input: impl Read + Send,
    path: &Path,
    scratch: &Path,
    contents: &mut Contents,
    progress: &dyn Progress,
) -> Result<ImageConfig, ImageError> {
    let mut input = BufReader::with_capacity(BUFFER_BYTES, input);
    let reader = match compression(&mut input, path)? {
        // Of a compression that is not known, the bytes say which it is.
        Compression::None | Compression::Bzip2 => Box::new(input),
        compression => compression
            .reader(input)
            .map_err(FileError::at("unpack", path))?,
    };
    let budget = contents.tree.budget();
    let file = to_file(budget.meter(reader), path, scratch, progress)?;
    refuse_foreign(&file, path)?;
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
    if size == 0 {
        return Err(ImageError::UnknownSource {
            path: path.into(),
            source: None,
        });
    }
    let blobs = Blobs::index(file, path, contents.tree.budget())?;
    if let Some(layout) = manifest::detect(&blobs)? {
        return layers::load(&blobs, layout, contents, progress);
    }
    if let Some(directory) = blobs.nested_layout() {
        return Err(ImageError::NestedLayout {
            archive: blobs.label(),
            directory: directory.escape_debug().to_string(),
        });
    }
    again.rewind().map_err(FileError::at("read", path))?;
    let phase = Phase::begin(progress, "importing the archive", Some(size));
    let input = BufReader::with_capacity(BUFFER_BYTES, again);
    let entries = contents.add_tar(input, &path.display().to_string(), Whiteouts::Keep, &phase)?;
    if entries == 0 {
        // Whatever it is, it only begins like the end of an archive.
        return Err(ImageError::UnknownSource {
            path: path.into(),
            source: None,
        });
    }
    Ok(ImageConfig::default())
}

fn refuse_foreign(file: &File, path: &Path) -> Result<(), ImageError> {
    match ForeignFormat::recognise(file).map_err(FileError::at("read", path))? {
        Some(format) => Err(ImageError::Foreign {
            path: path.into(),
            format,
        }),
        None => Ok(()),
    }
}

fn compression(input: &mut impl BufRead, path: &Path) -> Result<Compression, ImageError> {
    loop {
        match input.fill_buf() {
            Ok(head) => return Ok(Compression::detect(head)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(FileError::at("read", path)(error).into()),
        }
    }
}

/// What comes from `reader` as a file without a name, since it is read twice.
fn to_file(
    mut reader: impl Read,
    path: &Path,
    scratch: &Path,
    progress: &dyn Progress,
) -> Result<File, ImageError> {
    let mut out =
        tempfile::tempfile_in(scratch).map_err(FileError::at("make a file in", scratch))?;
    let phase = Phase::begin(progress, "unpacking", None);
    let mut buffer = vec![0; BUFFER_BYTES];
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
