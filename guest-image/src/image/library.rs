//! The images of a home.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use cas_store::PackSet;
use durable_files::FileError;
use serde::{Deserialize, Serialize};

use super::config::ImageConfig;
use super::error::ImageError;
use super::left_out::LeftOut;
use super::map::{ImageMap, MapError};
use crate::artifact;
use crate::artifact::decompress::Bounded;
use crate::artifact::name::valid_name;

/// The name of the image that machines get by default.
pub const DEFAULT_NAME: &str = "debian";

pub(crate) const COLLECTION: &str = "images";
pub(crate) const DESCRIPTION: &str = "image.json";
pub(crate) const MAP: &str = "map";
pub(crate) const PACKS: &str = "packs";
/// Largest `image.json`.
const MAX_DESCRIPTION_BYTES: u64 = 8 << 20;

/// What `image.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageInfo {
    /// Version of this description, 1.
    pub v: u32,
    /// When the image was imported, UTC.
    pub created: String,
    /// What it was imported from.
    pub source: String,
    /// Size of its disk; machines may have a larger one.
    pub size_bytes: u64,
    /// Bytes of it that are not zero.
    pub data_bytes: u64,
    /// Bytes that its packs take.
    pub stored_bytes: u64,
    /// How it is to be used.
    pub config: ImageConfig,
    /// What of its source is not in it.
    #[serde(default)]
    pub left_out: LeftOut,
}

/// An image of a home.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    dir: PathBuf,
    info: ImageInfo,
}

impl Image {
    pub(crate) fn new(name: &str, dir: PathBuf, info: ImageInfo) -> Self {
        Self {
            name: name.into(),
            dir,
            info,
        }
    }

    /// The image of that name.
    pub fn open(home: &Path, name: &str) -> Result<Self, ImageError> {
        let dir = home.join(COLLECTION).join(name);
        if !valid_name(name) || !dir.is_dir() {
            return Err(ImageError::NotFound { name: name.into() });
        }
        let text = read_bounded(&dir.join(DESCRIPTION), MAX_DESCRIPTION_BYTES)?;
        let info = serde_json::from_slice(&text).map_err(|source| ImageError::BadDescription {
            name: name.into(),
            source,
        })?;
        Ok(Self {
            name: name.into(),
            dir,
            info,
        })
    }

    /// The image that machines get when none is named: the one called
    /// [`DEFAULT_NAME`], or the only one.
    pub fn default_of(home: &Path) -> Result<Self, ImageError> {
        let names = names(home)?;
        match names.as_slice() {
            [only] => Self::open(home, only),
            _ if names.iter().any(|name| name == DEFAULT_NAME) => Self::open(home, DEFAULT_NAME),
            _ => Err(ImageError::NoDefault { names }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known about it.
    pub fn info(&self) -> &ImageInfo {
        &self.info
    }

    /// Which chunks its disk consists of, verified.
    pub fn map(&self) -> Result<ImageMap, ImageError> {
        let damaged = |source| ImageError::Damaged {
            name: self.name.clone(),
            source,
        };
        let bytes = read_bounded(&self.dir.join(MAP), ImageMap::MAX_ENCODED_BYTES)?;
        let map = ImageMap::decode(&bytes).map_err(damaged)?;
        if map.size_bytes() != self.info.size_bytes {
            return Err(damaged(MapError::Size));
        }
        Ok(map)
    }

    /// The directory of its packs, to be linked into a machine.
    pub fn packs_dir(&self) -> PathBuf {
        self.dir.join(PACKS)
    }

    /// A reader of its chunks.
    pub fn chunks(&self) -> PackSet {
        PackSet::open([self.packs_dir()])
    }
}

/// All images, sorted by name. Changes nothing.
///
/// # Errors
///
/// The first image that is damaged; [`names`] and [`Image::open`] list the
/// others.
pub fn list(home: &Path) -> Result<Vec<Image>, ImageError> {
    names(home)?
        .iter()
        .map(|name| Image::open(home, name))
        .collect()
}

/// Removes an image, durably. Machines made from it have their own links to
/// its data.
pub fn remove(home: &Path, name: &str) -> Result<(), ImageError> {
    let collection = home.join(COLLECTION);
    if valid_name(name) && artifact::remove(&collection, name)? {
        return Ok(());
    }
    Err(ImageError::NotFound { name: name.into() })
}

/// The names of all images, sorted, also of damaged ones. Changes nothing.
pub fn names(home: &Path) -> Result<Vec<String>, ImageError> {
    Ok(artifact::names_in(&home.join(COLLECTION))?)
}

fn read_bounded(path: &Path, most: u64) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(FileError::at("open", path))?;
    let expected = file
        .metadata()
        .map_or(0, |metadata: fs::Metadata| metadata.len().min(most));
    bytes.reserve(usize::try_from(expected).unwrap_or(0));
    Bounded::new(file, most)
        .read_to_end(&mut bytes)
        .map_err(FileError::at("read", path))?;
    Ok(bytes)
}
