//! Errors of image operations.

use std::io;
use std::path::{Path, PathBuf};

use durable_files::FileError;

use super::ext4::{AttributeError, Ext4Error};
use super::foreign::ForeignFormat;
use super::map::MapError;
use super::tar::TarError;
use super::tree::TreeError;

/// Why an image cannot be imported, built, listed or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The name breaks the rule for names.
    #[error("`{name}` is not a valid image name")]
    BadName {
        /// The name.
        name: String,
    },
    /// An image of that name exists.
    #[error("an image named `{name}` exists already")]
    Exists {
        /// The name.
        name: String,
    },
    /// It is there, whole, but could not be made durable.
    #[error("the image `{name}` is there, but a power loss may take it away")]
    NotDurable {
        /// The name.
        name: String,
        /// What failed.
        #[source]
        source: FileError,
    },
    /// No image of that name.
    #[error("there is no image named `{name}`")]
    NotFound {
        /// The name.
        name: String,
    },
    /// No image at all, or several and none is the default.
    #[error("there is no default image")]
    NoDefault {
        /// The images that exist.
        names: Vec<String>,
    },
    /// The source is nothing that can be imported.
    #[error("{} is not a root directory, a tar archive, a `docker save` archive or an OCI layout", path.display())]
    UnknownSource {
        /// The source.
        path: PathBuf,
        /// What reading it as an archive said.
        #[source]
        source: Option<TarError>,
    },
    /// The source is something else, which cannot be imported as it is.
    #[error("{} is {format}", path.display())]
    Foreign {
        /// The source.
        path: PathBuf,
        /// What it is.
        format: ForeignFormat,
    },
    /// An archive that holds an image layout in a directory.
    #[error("{archive} holds an OCI layout in the directory `{directory}`")]
    NestedLayout {
        /// Path of the archive.
        archive: String,
        /// The directory in it, control characters escaped.
        directory: String,
    },
    /// An image for other machines only, or several.
    #[error("{archive} {}", choice.as_text())]
    Choice {
        /// Path of the archive or directory.
        archive: String,
        /// What there is to choose from.
        choice: Choice,
    },
    /// A file of the host could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// An archive is damaged.
    #[error("the archive {archive} is damaged or incomplete")]
    Archive {
        /// Path of the archive, with the layer in it if it has layers.
        archive: String,
        /// What is wrong.
        #[source]
        source: TarError,
    },
    /// An entry of an archive cannot be taken over.
    #[error("cannot import `{entry}` of {archive}")]
    Entry {
        /// Path of the archive, with the layer in it if it has layers.
        archive: String,
        /// The entry's path, control characters escaped.
        entry: String,
        /// Why not.
        #[source]
        source: EntryError,
    },
    /// The metadata of a `docker save` archive or an OCI layout is bad.
    #[error("{archive}: {what}")]
    Layout {
        /// Path of the archive or directory.
        archive: String,
        /// What is wrong with which part of it.
        what: String,
    },
    /// The tree does not fit a file system.
    #[error("cannot make a file system from {archive}")]
    FileSystem {
        /// The source.
        archive: String,
        /// Why not.
        #[source]
        source: Ext4Error,
    },
    /// A program that `build` needs is missing.
    #[error("`{program}` is not installed")]
    MissingProgram {
        /// The program.
        program: &'static str,
        /// The Debian package that has it.
        package: &'static str,
    },
    /// A package name given to `build` is none.
    #[error("`{package}` is not a Debian package name")]
    BadPackage {
        /// What was given.
        package: String,
    },
    /// mmdebstrap failed.
    #[error("mmdebstrap failed: {message}")]
    Build {
        /// The last lines that it wrote.
        message: String,
    },
    /// A stored image is damaged.
    #[error("the image `{name}` is damaged")]
    Damaged {
        /// The image.
        name: String,
        /// What was found.
        #[source]
        source: MapError,
    },
    /// The description of a stored image does not decode.
    #[error("the image `{name}` is damaged: its image.json is unreadable")]
    BadDescription {
        /// The image.
        name: String,
        /// What was found.
        #[source]
        source: serde_json::Error,
    },
    /// Chunks could not be stored.
    #[error("cannot store the chunks of image `{name}`")]
    Store {
        /// The image.
        name: String,
        /// The failure.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why one entry cannot be taken over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// Its name, kind or target.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Its contents.
    #[error("its contents cannot be read")]
    Content(#[source] io::Error),
    /// Its extended attributes.
    #[error(transparent)]
    Attributes(#[from] AttributeError),
}

impl ImageError {
    /// What the user can do about it, where something can be said.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::BadName { .. } => Some(
                "names have 1 to 63 of a-z, 0-9, `-`, `_` and `.`, and begin with a letter or digit"
                    .into(),
            ),
            Self::Exists { name } => {
                Some(format!("choose another name, or remove it: smolvm image rm {name}"))
            }
            Self::NotFound { .. } => Some("list the images: smolvm image ls".into()),
            Self::NoDefault { names } if names.is_empty() => {
                Some("make one: smolvm image build debian".into())
            }
            Self::NoDefault { names } => {
                Some(format!("name one with --image: {}", names.join(", ")))
            }
            Self::MissingProgram { package, .. } => {
                Some(format!("install it as root: apt-get install {package}"))
            }
            Self::Damaged { name, .. } | Self::BadDescription { name, .. } => Some(format!(
                "remove it and import it again: smolvm image rm {name}"
            )),
            Self::Foreign { path, format } => Some(format.way_out(path)),
            Self::UnknownSource { path, .. } => Some(unknown_hint(path)),
            Self::NestedLayout { archive, directory } => Some(format!(
                "unpack it, and import the directory: smolvm image import NAME {directory} (from {archive})"
            )),
            Self::Choice { choice, .. } => choice.hint(),
            Self::Io(error) => crate::artifact::full_home_hint(error),
            Self::Archive { .. } => Some("fetch or make the archive again".into()),
            Self::Build { .. } => build_hint(),
            _ => None,
        }
    }
}

/// What to do with a source that is nothing known.
fn unknown_hint(path: &Path) -> String {
    let is_stream = std::fs::metadata(path).is_ok_and(|metadata| {
        use std::os::unix::fs::FileTypeExt;
        metadata.file_type().is_fifo() || metadata.file_type().is_char_device()
    });
    let path = path.display();
    if is_stream {
        return format!("give it on standard input: smolvm image import NAME - < {path}");
    }
    "put its files into a directory, as they are to lie in the guest, and import that: \
     smolvm image import NAME DIRECTORY"
        .into()
}

/// Images to choose from, where not exactly one fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The architecture that is needed, as OCI names it.
    pub architecture: &'static str,
    /// What each is called, with its platform and the beginning of its digest.
    pub candidates: Vec<String>,
    /// Whether all of them would do.
    pub all_fit: bool,
}

impl Choice {
    fn as_text(&self) -> String {
        let names = self.candidates.join(", ");
        let architecture = self.architecture;
        match (self.candidates.is_empty(), self.all_fit) {
            (true, _) => "holds no image".into(),
            (_, true) => format!("holds several images for {architecture}: {names}"),
            (_, false) => format!("holds no image for {architecture}, only: {names}"),
        }
    }

    fn hint(&self) -> Option<String> {
        self.all_fit.then(|| {
            "copy one of them into an archive of its own, as with: docker save TAG -o one.tar; or: \
             skopeo copy oci:LAYOUT:TAG oci-archive:one.tar"
                .into()
        })
    }
}

/// An ordinary user's build most often fails for want of user namespaces.
fn build_hint() -> Option<String> {
    (!rustix::process::geteuid().is_root()).then(|| {
        "as an ordinary user mmdebstrap needs the package uidmap and subordinate ids; as root: \
         apt-get install uidmap; usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
            .into()
    })
}
