//! Errors of kernel operations.

use std::io;
use std::path::PathBuf;

use durable_files::FileError;

use crate::budget::BudgetError;
use crate::image::ImageError;

/// Why a kernel cannot be imported, listed or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The name breaks the rule for names.
    #[error("`{name}` is not a valid kernel name")]
    BadName {
        /// The name.
        name: String,
    },
    /// A kernel of that name exists.
    #[error("a kernel named `{name}` exists already")]
    Exists {
        /// The name.
        name: String,
    },
    /// It is there, whole, but could not be made durable.
    #[error("the kernel `{name}` is there, but a power loss may take it away")]
    NotDurable {
        /// The name.
        name: String,
        /// What failed.
        #[source]
        source: FileError,
    },
    /// No kernel of that name.
    #[error("there is no kernel named `{name}`")]
    NotFound {
        /// The name.
        name: String,
    },
    /// No kernel at all, or several and none is named `default`.
    #[error("there is no default kernel")]
    NoDefault {
        /// The kernels that exist.
        names: Vec<String>,
    },
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] FileError),
    /// A Debian package cannot be unpacked.
    #[error("{} is damaged or not a Debian package: {what}", path.display())]
    BadPackage {
        /// The package.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The archive in a Debian package cannot be unpacked.
    #[error("cannot unpack {}", path.display())]
    Unpack {
        /// The package.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<ImageError>,
    },
    /// A kernel was not found where it should be.
    #[error("no kernel in {}: {what}", path.display())]
    NoKernel {
        /// The source.
        path: PathBuf,
        /// What was looked for.
        what: String,
    },
    /// A source with several kernels.
    #[error("{} holds several kernels: {}", path.display(), versions.join(", "))]
    SeveralKernels {
        /// The source.
        path: PathBuf,
        /// Their versions.
        versions: Vec<String>,
    },
    /// The kernel image is none that can be booted.
    #[error("{image} cannot be booted")]
    BadImage {
        /// The image's path.
        image: String,
        /// Why not.
        #[source]
        source: ImageFormatError,
    },
    /// A module that machines need is neither built in nor present.
    #[error("kernel {version} has no module `{module}`, and it is not built in")]
    MissingModule {
        /// The kernel's version.
        version: String,
        /// The module.
        module: String,
    },
    /// A module file is damaged.
    #[error("the module {module} is damaged: {what}")]
    BadModule {
        /// The module's file.
        module: String,
        /// What is wrong.
        what: &'static str,
    },
    /// The modules that a machine would load need too much memory.
    #[error("cannot take the module {module}, with those that it depends on")]
    TooMuch {
        /// The module that was one too many.
        module: String,
        /// The limit.
        #[source]
        source: BudgetError,
    },
    /// A stored kernel differs from what was imported.
    #[error("the kernel `{name}` is damaged: {what}")]
    Damaged {
        /// The kernel.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A program that fetching needs is missing.
    #[error("`{program}` is not installed")]
    MissingProgram {
        /// The program.
        program: &'static str,
    },
    /// The kernel package could not be fetched.
    #[error("cannot fetch {package}: {message}")]
    Fetch {
        /// The package.
        package: String,
        /// What apt said.
        message: String,
    },
}

/// Why a file is not a kernel that can be booted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImageFormatError {
    /// Neither bzImage nor ELF.
    #[error("it is neither a bzImage nor an ELF file")]
    Unknown,
    /// A boot protocol older than 2.08 does not say where its payload is.
    #[error("its boot protocol is older than 2.08")]
    OldProtocol,
    /// A field points outside of the file.
    #[error("it is cut off or damaged")]
    Truncated,
    /// The payload's compression is not supported.
    #[error("its compression is not gzip, LZ4, xz or zstd")]
    Compression,
    /// The payload does not unpack.
    #[error("it does not unpack")]
    Unpack(#[source] io::Error),
    /// Not an x86-64 executable.
    #[error("it is not an x86-64 ELF executable")]
    NotX86,
    /// No way to enter it.
    #[error("it has neither a PVH note nor a 64-bit entry point")]
    NoEntry,
}

impl KernelError {
    /// What the user can do about it, where something can be said.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::BadName { .. } => Some(
                "names have 1 to 63 of a-z, 0-9, `-`, `_` and `.`, and begin with a letter or digit"
                    .into(),
            ),
            Self::Exists { .. } => Some("choose another name".into()),
            Self::NotFound { .. } => Some("list the kernels: smolvm kernel ls".into()),
            Self::NoDefault { names } if names.is_empty() => {
                Some("import one: smolvm kernel import default".into())
            }
            Self::NoDefault { names } => {
                Some(format!("name one with --kernel: {}", names.join(", ")))
            }
            Self::NoKernel { .. } | Self::BadImage { .. } | Self::MissingModule { .. } => Some(
                "import Debian's kernel instead: smolvm kernel import default".into(),
            ),
            Self::SeveralKernels { path, versions } => versions.last().map(|version| {
                let image = path.join(format!("boot/vmlinuz-{version}"));
                format!("name one of them: smolvm kernel import NAME {}", image.display())
            }),
            Self::Damaged { .. } => {
                Some("import it again under another name: smolvm kernel import NAME".into())
            }
            Self::MissingProgram { .. } => Some(
                "give a kernel package that was fetched elsewhere: smolvm kernel import default FILE.deb"
                    .into(),
            ),
            Self::Fetch { .. } => Some("refresh the package lists as root: apt-get update".into()),
            Self::Io(error) => crate::artifact::full_home_hint(error),
            _ => None,
        }
    }
}
