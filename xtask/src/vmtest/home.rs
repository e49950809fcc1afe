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

/// The same of the image `debian-dev`: what tests of the software CPU compile, compute and run.
const DEV_IMAGE_PACKAGES: &str = include_str!("debian-dev-packages");

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
    process::run(
        Command::new(smolvm)
            .args(["kernel", "import"])
            .arg(&kernel.package)
            .env("SMOLVM_HOME", folder),
    )?;
    import(smolvm, "debian", IMAGE_PACKAGES, cache_folder, folder)?;
    fs::write(&stamp, identity).map_err(Error::file("write", &stamp))
}

/// Adds the image `debian-dev` to a home.
pub fn add_dev_image(smolvm: &Path, cache_folder: &Path, home: &Path) -> Result<()> {
    import(smolvm, "debian-dev", DEV_IMAGE_PACKAGES, cache_folder, home)
}

fn import(smolvm: &Path, name: &str, packages: &str, cache: &Path, home: &Path) -> Result<()> {
    let archive = image_archive(cache, name, packages)?;
    process::run(
        Command::new(smolvm)
            .args(["image", "import", name])
            .arg(&archive)
            .env("SMOLVM_HOME", home),
    )
}

/// An image's tar archive, made once: another binary imports the same one.
fn image_archive(cache_folder: &Path, name: &str, packages: &str) -> Result<PathBuf> {
    let file = format!("image-{name}-bookworm-v1.tar");
    cache::entry(cache_folder, &file, |path| {
        output::note(format_args!(
            "making the image `{name}` with mmdebstrap (once)"
        ));
        let packages: Vec<&str> = packages.lines().collect();
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
