//! `$SMOLVM_HOME` for the emulated host: a kernel and the image `debian`, made by smolvm itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::kernel::Kernel;
use crate::error::{Error, Result};
use crate::{cache, output, process};

/// Packages of the image `debian` besides Debian's essential ones, one a line; `scripts/setup`
/// builds its image with the same.
const IMAGE_PACKAGES: &str = include_str!("../../../scripts/debian-image-packages");

/// Makes `folder` a home that this smolvm can use; what is there already is kept as long as the
/// binary is the same.
pub fn prepare(smolvm: &Path, kernel: &Kernel, cache_folder: &Path, folder: &Path) -> Result<()> {
    let stamp = folder.with_extension("stamp");
    let identity = identity(smolvm)?;
    if folder.is_dir() && fs::read_to_string(&stamp).is_ok_and(|found| found == identity) {
        return Ok(());
    }
    output::note("preparing a home with kernel and image for this smolvm");
    cache::remove(&stamp)?;
    cache::remove(folder)?;
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    let archive = image_archive(cache_folder)?;
    process::run(
        Command::new(smolvm)
            .args(["kernel", "import"])
            .arg(&kernel.package)
            .env("SMOLVM_HOME", folder),
    )?;
    process::run(
        Command::new(smolvm)
            .args(["image", "import", "debian"])
            .arg(&archive)
            .env("SMOLVM_HOME", folder),
    )?;
    fs::write(&stamp, identity).map_err(Error::file("write", &stamp))
}

/// The image's tar archive, made once: another binary imports the same one.
fn image_archive(cache_folder: &Path) -> Result<PathBuf> {
    cache::entry(cache_folder, "image-debian-bookworm-v1.tar", |path| {
        output::note("making the image `debian` with mmdebstrap (once)");
        let packages: Vec<&str> = IMAGE_PACKAGES.lines().collect();
        let mut command = Command::new("mmdebstrap");
        command
            .args([
                "--quiet",
                "--mode=auto",
                "--variant=essential",
                "--format=tar",
            ])
            .arg(format!("--include={}", packages.join(",")))
            .arg("bookworm")
            .arg(path);
        process::capture(&mut command).map(drop)
    })
}

/// Changes whenever the binary does.
fn identity(smolvm: &Path) -> Result<String> {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(&fs::read(smolvm).map_err(Error::file("read", smolvm))?);
    Ok(format!("{:016x}", hasher.finish()))
}
