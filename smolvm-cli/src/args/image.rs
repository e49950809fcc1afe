//! The group `image`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// The commands of the group.
#[derive(Debug, Subcommand)]
pub(crate) enum ImageCommand {
    /// Import an image from a root directory or an archive
    Import(ImageImportArgs),
    /// Build a Debian image with mmdebstrap
    Build(ImageBuildArgs),
    /// List the images
    #[command(alias = "list")]
    Ls,
    /// Remove an image; machines made from it stay
    Rm {
        /// The image
        name: String,
    },
}

/// `image import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: smolvm image import mine ./root.tar.gz\n          docker save NAME | smolvm image import mine -"
)]
pub(crate) struct ImageImportArgs {
    /// Its name
    pub(crate) name: String,
    /// A root directory, a tar archive (plain, gzip, zstd, xz), a `docker save` archive or an OCI layout; `-` reads an
    /// archive from standard input
    pub(crate) source: PathBuf,
}

/// `image build`.
#[derive(Debug, Args)]
#[command(after_help = "Example: smolvm image build debian --include gcc,make")]
pub(crate) struct ImageBuildArgs {
    /// Its name
    pub(crate) name: String,
    /// Debian packages to add to python3, sqlite3, git, procps, iproute2, openssh-server and the like
    /// (may be repeated)
    #[arg(long, value_name = "PKG,...", value_delimiter = ',')]
    pub(crate) include: Vec<String>,
}
