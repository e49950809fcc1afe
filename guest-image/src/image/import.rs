//! From a source to a stored image.

use std::fs;
use std::io::Read;
use std::path::Path;

use cas_store::{Capture, CaptureOptions, ChunkId, Store, StoreError, for_all};
use durable_files::{FileError, PublishError, Staging};

use super::config::ImageConfig;
use super::contents::Contents;
use super::debian;
use super::error::ImageError;
use super::ext4::Ext4Image;
use super::library::{COLLECTION, DESCRIPTION, Image, ImageInfo, MAP, PACKS};
use super::map::{CHUNK_BYTES, ImageMap};
use super::{prepare, source};
use crate::artifact;
use crate::artifact::name::valid_name;
use crate::budget::{Budget, Limits};
use crate::progress::{Phase, Progress};

/// Chunks held at a time, 8 MiB of them.
const BATCH_CHUNKS: usize = 128;
/// Directory of the passing store that writes the packs.
const PASSING_STORE: &str = "store";

/// Imports a root directory, a tar archive (plain, gzip, zstd or xz), a
/// `docker save` archive or an OCI layout (directory or archive) under
/// `name`. When this returns, the image is durable.
///
/// # Errors
///
/// [`ImageError::Exists`] if the name is taken: nothing is overwritten. A
/// damaged source is refused by archive and entry, and leaves nothing.
pub fn import(
    home: &Path,
    name: &str,
    source: &Path,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    import_within(home, name, source, Limits::default(), progress)
}

/// As [`import`], with other limits.
///
/// # Errors
///
/// As [`import`]; [`EntryError::Tree`](super::EntryError::Tree) with what ran out.
pub fn import_within(
    home: &Path,
    name: &str,
    source: &Path,
    limits: Limits,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let job = Job::begin(home, name, progress)?;
    let mut contents = Contents::new(job.stage.path(), Budget::new(limits))?;
    let config = source::load(source, job.stage.path(), &mut contents, progress)?;
    job.finish(contents, config, &source.display().to_string())
}

/// Imports an archive from a stream, as [`import`] does from a file. Messages
/// call it `standard input`.
pub fn import_stream(
    home: &Path,
    name: &str,
    input: impl Read + Send,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let job = Job::begin(home, name, progress)?;
    let mut contents = Contents::new(job.stage.path(), Budget::new(Limits::default()))?;
    let path = Path::new(STREAM_NAME);
    let config = source::load_stream(input, path, job.stage.path(), &mut contents, progress)?;
    job.finish(contents, config, STREAM_NAME)
}

/// Builds a Debian image with mmdebstrap and imports it under `name`, with
/// the packages `includes` beside those that every image has.
///
/// # Errors
///
/// [`ImageError::MissingProgram`] names the Debian package to install.
pub fn build(
    home: &Path,
    name: &str,
    includes: &[String],
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let job = Job::begin(home, name, progress)?;
    let archive = debian::build_archive(job.stage.path(), includes, progress)?;
    let mut contents = Contents::new(job.stage.path(), Budget::new(Limits::default()))?;
    let origin = Path::new("mmdebstrap");
    source::load_archive(archive, origin, &mut contents, progress)?;
    prepare::forget_builder(&mut contents);
    job.finish(contents, ImageConfig::default(), "mmdebstrap")
}

/// What messages call a stream.
pub(crate) const STREAM_NAME: &str = "standard input";

/// One image on its way into the library.
struct Job<'a> {
    name: &'a str,
    stage: Staging,
    progress: &'a dyn Progress,
}

impl<'a> Job<'a> {
    fn begin(home: &Path, name: &'a str, progress: &'a dyn Progress) -> Result<Self, ImageError> {
        if !valid_name(name) {
            return Err(ImageError::BadName { name: name.into() });
        }
        let collection = home.join(COLLECTION);
        if fs::symlink_metadata(collection.join(name)).is_ok() {
            return Err(ImageError::Exists { name: name.into() });
        }
        let stage = artifact::stage(&collection)?;
        Ok(Self {
            name,
            stage,
            progress,
        })
    }

    /// Makes the file system, cuts it into chunks and publishes.
    fn finish(
        mut self,
        mut contents: Contents,
        config: ImageConfig,
        origin: &str,
    ) -> Result<Image, ImageError> {
        let refused = |entry: &str| {
            let (archive, entry) = (origin.into(), entry.escape_debug().to_string());
            |source| ImageError::Entry {
                archive,
                entry,
                source,
            }
        };
        prepare::prepare(&mut contents).map_err(refused("/"))?;
        if let Some(dir) = &config.working_dir {
            prepare::make_working_dir(&mut contents, dir).map_err(refused(dir))?;
        }
        let Contents {
            mut tree,
            spool,
            left_out,
        } = contents;
        let image = Ext4Image::new(&mut tree, &spool).map_err(|source| ImageError::FileSystem {
            archive: origin.into(),
            source,
        })?;
        let (map, data_bytes, stored_bytes) = self.store_chunks(&image)?;
        let info = ImageInfo {
            v: 1,
            created: artifact::now(),
            source: origin.into(),
            size_bytes: map.size_bytes(),
            data_bytes,
            stored_bytes,
            config,
            left_out,
        };
        // Serialising a struct of strings and numbers cannot fail but for memory.
        let description = serde_json::to_vec_pretty(&info).map_err(std::io::Error::from);
        for (file, bytes) in [
            (MAP, map.encode().map_err(std::io::Error::other)),
            (DESCRIPTION, description),
        ] {
            let path = self.stage.path().join(file);
            bytes
                .and_then(|bytes| fs::write(&path, bytes))
                .map_err(FileError::at("write", &path))?;
        }
        let name = self.name;
        let dir = self.stage.publish_as(name).map_err(|error| match error {
            PublishError::Taken => ImageError::Exists { name: name.into() },
            PublishError::File(source) => source.into(),
            PublishError::Unknown(source) => ImageError::NotDurable {
                name: name.into(),
                source,
            },
        })?;
        Ok(Image::new(name, dir, info))
    }

    /// Writes the chunks into packs. Returns the map, the non-zero bytes and
    /// what they take on disk.
    fn store_chunks(&self, image: &Ext4Image<'_>) -> Result<(ImageMap, u64, u64), ImageError> {
        let packs = self.stage.path().join(PACKS);
        fs::create_dir(&packs).map_err(FileError::at("make", &packs))?;
        let store_dir = self.stage.path().join(PASSING_STORE);
        let phase = Phase::begin(self.progress, "storing the image", Some(image.size_bytes()));
        let result = write_packs(image, &store_dir, &packs, &phase);
        let stored = result.map_err(|source| ImageError::Store {
            name: self.name.into(),
            source: Box::new(source),
        })?;
        fs::remove_dir_all(&store_dir).map_err(FileError::at("remove", &store_dir))?;
        Ok(stored)
    }
}

/// Puts all chunks of a file system into a store of its own and links the
/// packs into `packs`.
fn write_packs(
    image: &Ext4Image<'_>,
    store_dir: &Path,
    packs: &Path,
    phase: &Phase<'_>,
) -> Result<(ImageMap, u64, u64), ChunkingError> {
    let store = Store::open(store_dir)?;
    let capture = store.begin_capture(CaptureOptions::default())?;
    let (mut ids, mut batch) = (Vec::new(), Batch::default());
    image.for_each_chunk(CHUNK_BYTES, |chunk| -> Result<(), ChunkingError> {
        batch.add(chunk);
        phase.advance(CHUNK_BYTES as u64);
        if batch.is_full() {
            batch.store(&capture, &mut ids)?;
        }
        Ok(())
    })?;
    batch.store(&capture, &mut ids)?;
    let sealed = capture.seal()?;
    sealed.pin_into(packs, ids.iter().filter(|id| !id.is_zero()))?;
    let stats = sealed.stats();
    Ok((ImageMap::new(ids), stats.data_bytes, stats.written_bytes))
}

/// Chunks that are hashed and compressed together, by all processors.
#[derive(Default)]
struct Batch {
    /// Those that came; `None` is all holes. Buffers behind them are kept for the next.
    chunks: Vec<Option<Vec<u8>>>,
    spare: Vec<Vec<u8>>,
}

impl Batch {
    fn add(&mut self, chunk: Option<&[u8]>) {
        let kept = chunk.map(|bytes| {
            let mut buffer = self.spare.pop().unwrap_or_default();
            buffer.clear();
            buffer.extend_from_slice(bytes);
            buffer
        });
        self.chunks.push(kept);
    }

    fn is_full(&self) -> bool {
        self.chunks.len() >= BATCH_CHUNKS
    }

    /// Stores what came and appends its ids.
    fn store(&mut self, capture: &Capture, ids: &mut Vec<ChunkId>) -> Result<(), ChunkingError> {
        let put = |chunk: &Option<Vec<u8>>, _: &mut [u8]| match chunk {
            Some(bytes) => capture.put(bytes),
            None => Ok(ChunkId::ZERO),
        };
        let stored = for_all(&self.chunks, put)
            .map_err(|failures| failures.cause(|e| matches!(e, StoreError::CaptureFailed)))?;
        ids.extend(stored);
        self.spare.extend(self.chunks.drain(..).flatten());
        Ok(())
    }
}

/// Either side of the way from the file system to the packs.
#[derive(Debug, thiserror::Error)]
enum ChunkingError {
    #[error("the file contents cannot be read back")]
    Spool(#[from] std::io::Error),
    #[error(transparent)]
    Store(#[from] StoreError),
}
