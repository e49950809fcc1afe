//! `$SMOLVM_HOME` for the emulated host: a kernel and the image `debian`, made by smolvm itself.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::kernel::Kernel;
use super::root;
use crate::error::{Error, Result};
use crate::{cache, output, process};

/// Packages of the image `debian` besides Debian's essential ones, one a line; `scripts/setup`
/// builds its image with the same.
const IMAGE_PACKAGES: &str = include_str!("../../../scripts/debian-image-packages");

/// The same of the image `debian-dev`: what tests of the software CPU compile, compute and run.
const DEV_IMAGE_PACKAGES: &str = include_str!("debian-dev-packages");

/// Adds what Debian's packages of it lack.
const DEV_IMAGE_HOOK: &str = include_str!("add-sqlite-tests.sh");

/// An image that tests use.
struct TestImage {
    name: &'static str,
    /// Changes with what is in it besides the packages' own changes.
    version: u32,
    packages: &'static str,
    /// Shell script that works on the root directory `$1` at the end.
    hook: Option<&'static str>,
}

const IMAGE: TestImage = TestImage {
    name: "debian",
    version: 1,
    packages: IMAGE_PACKAGES,
    hook: None,
};

const DEV_IMAGE: TestImage = TestImage {
    name: "debian-dev",
    version: 2,
    packages: DEV_IMAGE_PACKAGES,
    hook: Some(DEV_IMAGE_HOOK),
};

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
    import(smolvm, &IMAGE, cache_folder, folder)?;
    fs::write(&stamp, identity).map_err(Error::file("write", &stamp))
}

/// Adds the image `debian-dev` to a home.
pub fn add_dev_image(smolvm: &Path, cache_folder: &Path, home: &Path) -> Result<()> {
    import(smolvm, &DEV_IMAGE, cache_folder, home)
}

fn import(smolvm: &Path, image: &TestImage, cache: &Path, home: &Path) -> Result<()> {
    let archive = image_archive(cache, image)?;
    process::run(
        Command::new(smolvm)
            .args(["image", "import", image.name])
            .arg(&archive)
            .env("SMOLVM_HOME", home),
    )
}

/// An image's tar archive, made once: another binary imports the same one.
fn image_archive(cache_folder: &Path, image: &TestImage) -> Result<PathBuf> {
    let TestImage { name, version, .. } = image;
    let file = format!("image-{name}-bookworm-v{version}.tar");
    cache::entry(cache_folder, &file, |path| {
        output::note(format_args!(
            "making the image `{name}` with mmdebstrap (once)"
        ));
        let packages: Vec<&str> = image.packages.lines().collect();
        let mut command = root::mmdebstrap(&packages.join(","));
        if let Some(hook) = image.hook {
            // mmdebstrap gives the root directory as the first argument of a shell's script.
            command.arg(format!("--customize-hook={hook}"));
        }
        command.arg("bookworm").arg(path);
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
