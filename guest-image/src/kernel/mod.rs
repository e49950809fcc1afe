//! Kernels: what machines boot, imported once and kept under a name.
//!
//! # Model
//!
//! A kernel lives in `$SMOLVM_HOME/kernels/NAME/`: `vmlinux` (the ELF kernel,
//! unpacked on the host), `modules.cpio` (the modules that machines need, in
//! load order) and `kernel.json`. The initramfs of a machine is composed when
//! the machine is made, from those modules and the guest agent of the day:
//! [`Kernel::initramfs`].
//!
//! Inside, the initramfs has `/init` (the agent), `/modules/NAME.ko`,
//! `/modules/order` (file names in load order, one per line) and
//! `/dev/console`. Modules and their dependencies are found from the modules'
//! own information, since kernel packages carry no `modules.dep`.
//!
//! # Errors
//!
//! [`KernelError`]; its [`hint`](KernelError::hint) is the next command to
//! type. An import appears whole and durable, or not at all.
//!
//! # Not here
//!
//! Loading the kernel into a guest (`vmm-core`), the agent itself.
//!
//! # Example
//!
//! ```no_run
//! use guest_image::kernel::{self, KernelSource};
//! use guest_image::progress::Silent;
//! # fn main() -> Result<(), kernel::KernelError> {
//! let home = std::path::Path::new("/tmp/home");
//! let source = KernelSource::detect("linux-image-cloud.deb".as_ref())?;
//! let kernel = kernel::import(home, "default", &source, &Silent)?;
//! let initramfs = kernel.initramfs(b"the agent's ELF file")?;
//! # Ok(()) }
//! ```

mod bzimage;
mod cpio;
mod elf;
mod error;
mod fetch;
mod modules;
mod package;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use durable_files::{FileError, PublishError};
use serde::{Deserialize, Serialize};

pub use elf::Entry;
pub use error::{ImageFormatError, KernelError};
pub use fetch::fetch_debian;
pub use source::KernelSource;

use crate::artifact;
use crate::artifact::name::valid_name;
use crate::progress::{Phase, Progress};
use cpio::Cpio;
use modules::{Module, SelectError};
use source::KernelFiles;

/// The name of the kernel that machines get by default.
pub const DEFAULT_NAME: &str = "default";
/// The command line that an imported kernel gets. `reboot=acpi`: on hardware-reduced ACPI kernels
/// otherwise reset through EFI, which is not there, and end in a jump to a BIOS, which is not there
/// either. `cryptomgr.notests` leaves out self-tests that take half of the boot.
pub const DEFAULT_CMDLINE: &str = "console=ttyS0 panic=-1 reboot=acpi cryptomgr.notests";

const COLLECTION: &str = "kernels";
const VMLINUX: &str = "vmlinux";
const MODULES: &str = "modules.cpio";
const DESCRIPTION: &str = "kernel.json";
/// Largest `kernel.json`.
const MAX_DESCRIPTION_BYTES: u64 = 1 << 20;

/// What `kernel.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// Version of this description, 1.
    pub v: u32,
    /// The kernel's version, as in `lib/modules/VERSION`.
    pub version: String,
    /// How it is entered.
    pub entry: Entry,
    /// Size of `vmlinux` in bytes.
    pub size_bytes: u64,
    /// BLAKE3 of `vmlinux` in hex.
    pub vmlinux_blake3: String,
    /// BLAKE3 of `modules.cpio` in hex.
    pub modules_blake3: String,
    /// The modules in load order.
    pub modules: Vec<String>,
    /// The command line to begin with.
    pub cmdline: String,
    /// Where it was imported from.
    pub source: String,
    /// When it was imported, UTC.
    pub created: String,
}

/// An imported kernel.
#[derive(Debug, Clone)]
pub struct Kernel {
    name: String,
    dir: PathBuf,
    info: KernelInfo,
}

/// Imports a kernel under `name` and returns it, durable.
///
/// # Errors
///
/// [`KernelError::Exists`] if the name is taken (nothing is overwritten), and
/// whatever is wrong with the source.
pub fn import(
    home: &Path,
    name: &str,
    source: &KernelSource,
    progress: &dyn Progress,
) -> Result<Kernel, KernelError> {
    let collection = home.join(COLLECTION);
    if !valid_name(name) {
        return Err(KernelError::BadName { name: name.into() });
    }
    if collection.join(name).exists() {
        return Err(KernelError::Exists { name: name.into() });
    }
    let mut stage = artifact::stage(&collection)?;
    let files = KernelFiles::open(source, stage.path(), progress)?;
    let info = write_files(stage.path(), files, source, progress)?;
    let dir = stage.publish_as(name).map_err(|error| match error {
        PublishError::Taken => KernelError::Exists { name: name.into() },
        PublishError::File(source) => source.into(),
        PublishError::Unknown(source) => KernelError::NotDurable {
            name: name.into(),
            source,
        },
    })?;
    Ok(Kernel {
        name: name.into(),
        dir,
        info,
    })
}

/// Fetches Debian's cloud kernel with apt and imports it; what `smolvm kernel
/// import NAME` does without a source.
pub fn import_debian(
    home: &Path,
    name: &str,
    progress: &dyn Progress,
) -> Result<Kernel, KernelError> {
    let scratch =
        tempfile::tempdir().map_err(FileError::at("make a directory in", &std::env::temp_dir()))?;
    let package = fetch_debian(scratch.path(), progress)?;
    import(home, name, &KernelSource::Package(package), progress)
}

/// All imported kernels, sorted by name. Changes nothing.
///
/// # Errors
///
/// The first kernel that is damaged; [`names`] and [`Kernel::open`] list the
/// others.
pub fn list(home: &Path) -> Result<Vec<Kernel>, KernelError> {
    names(home)?
        .iter()
        .map(|name| Kernel::open(home, name))
        .collect()
}

/// Removes a kernel. Machines made with it have their own copy.
pub fn remove(home: &Path, name: &str) -> Result<(), KernelError> {
    let collection = home.join(COLLECTION);
    if valid_name(name) && artifact::remove(&collection, name)? {
        return Ok(());
    }
    Err(KernelError::NotFound { name: name.into() })
}

/// The names of all kernels, sorted, also of damaged ones. Changes nothing.
pub fn names(home: &Path) -> Result<Vec<String>, KernelError> {
    Ok(artifact::names_in(&home.join(COLLECTION))?)
}

impl Kernel {
    /// The kernel of that name.
    pub fn open(home: &Path, name: &str) -> Result<Self, KernelError> {
        let dir = home.join(COLLECTION).join(name);
        if !valid_name(name) || !dir.is_dir() {
            return Err(KernelError::NotFound { name: name.into() });
        }
        let path = dir.join(DESCRIPTION);
        let damaged = |what: String| KernelError::Damaged {
            name: name.into(),
            what,
        };
        let size = fs::metadata(&path)
            .map_err(|e| damaged(format!("{DESCRIPTION}: {e}")))?
            .len();
        if size > MAX_DESCRIPTION_BYTES {
            return Err(damaged(format!("{DESCRIPTION} is too large")));
        }
        let text = fs::read(&path).map_err(FileError::at("read", &path))?;
        let info: KernelInfo = serde_json::from_slice(&text)
            .map_err(|error| damaged(format!("{DESCRIPTION}: {error}")))?;
        Ok(Self {
            name: name.into(),
            dir,
            info,
        })
    }

    /// The kernel that machines get when none is named: the one called
    /// [`DEFAULT_NAME`], or the only one.
    pub fn default_of(home: &Path) -> Result<Self, KernelError> {
        let names = names(home)?;
        match names.as_slice() {
            [only] => Self::open(home, only),
            _ if names.iter().any(|name| name == DEFAULT_NAME) => Self::open(home, DEFAULT_NAME),
            _ => Err(KernelError::NoDefault { names }),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is known about it.
    pub fn info(&self) -> &KernelInfo {
        &self.info
    }

    /// The path of the ELF kernel, for copying or linking. Its bytes are not
    /// verified; [`Kernel::vmlinux`] does that.
    pub fn vmlinux_path(&self) -> PathBuf {
        self.dir.join(VMLINUX)
    }

    /// The ELF kernel, verified.
    pub fn vmlinux(&self) -> Result<Vec<u8>, KernelError> {
        self.read_verified(VMLINUX, &self.info.vmlinux_blake3)
    }

    /// The initramfs of a new machine: `agent` as `/init`, and the modules.
    /// The same agent gives the same bytes.
    pub fn initramfs(&self, agent: &[u8]) -> Result<Vec<u8>, KernelError> {
        let entries = self.read_verified(MODULES, &self.info.modules_blake3)?;
        let mut cpio = Cpio::resume(entries);
        cpio.file("init", 0o755, agent);
        Ok(cpio.finish())
    }

    fn read_verified(&self, file: &str, expected: &str) -> Result<Vec<u8>, KernelError> {
        let path = self.dir.join(file);
        let bytes = fs::read(&path).map_err(FileError::at("read", &path))?;
        if blake3::hash(&bytes).to_hex().as_str() != expected {
            let what = format!("{file} is not what was imported");
            return Err(KernelError::Damaged {
                name: self.name.clone(),
                what,
            });
        }
        Ok(bytes)
    }
}

/// Writes the files of a kernel into `dir`.
fn write_files(
    dir: &Path,
    mut files: KernelFiles,
    source: &KernelSource,
    progress: &dyn Progress,
) -> Result<KernelInfo, KernelError> {
    let phase = Phase::begin(progress, "unpacking the kernel", None);
    let image = files.image_name.clone();
    let bad = |source| KernelError::BadImage {
        image: image.clone(),
        source,
    };
    let vmlinux = bzimage::unpack(std::mem::take(&mut files.image)).map_err(bad)?;
    let entry = elf::kernel_entry(&vmlinux).map_err(bad)?;
    phase.advance(vmlinux.len() as u64);
    let modules = if files.has_modules() {
        select_modules(&files)?
    } else {
        Vec::new()
    };
    let pack = modules_cpio(&modules);
    let info = KernelInfo {
        v: 1,
        version: files.version.clone(),
        entry,
        size_bytes: vmlinux.len() as u64,
        vmlinux_blake3: blake3::hash(&vmlinux).to_hex().to_string(),
        modules_blake3: blake3::hash(&pack).to_hex().to_string(),
        modules: modules.into_iter().map(|module| module.name).collect(),
        cmdline: DEFAULT_CMDLINE.into(),
        source: match source {
            KernelSource::Package(path) | KernelSource::Root(path) => path.display().to_string(),
            KernelSource::Image { image, .. } => image.display().to_string(),
        },
        created: artifact::now(),
    };
    // Serialising a struct of strings and numbers cannot fail but for memory.
    let description = serde_json::to_vec_pretty(&info).map_err(std::io::Error::from);
    for (name, bytes) in [
        (VMLINUX, Ok(vmlinux)),
        (MODULES, Ok(pack)),
        (DESCRIPTION, description),
    ] {
        let path = dir.join(name);
        bytes
            .and_then(|bytes| fs::write(&path, bytes))
            .map_err(FileError::at("write", &path))?;
    }
    Ok(info)
}

fn select_modules(files: &KernelFiles) -> Result<Vec<Module>, KernelError> {
    modules::select(files).map_err(|error| match error {
        SelectError::Source(error) => error,
        SelectError::Missing(module) => KernelError::MissingModule {
            version: files.version.clone(),
            module,
        },
        SelectError::Bad { module, what } => KernelError::BadModule { module, what },
    })
}

/// The part of the initramfs that does not change with the agent.
fn modules_cpio(modules: &[Module]) -> Vec<u8> {
    let mut cpio = Cpio::default();
    cpio.directory("dev");
    cpio.character_device("dev/console", 5, 1);
    cpio.directory("modules");
    let mut order = String::new();
    for module in modules {
        cpio.file(
            &format!("modules/{}.ko", module.name),
            0o644,
            &module.object,
        );
        order += &format!("{}.ko\n", module.name);
    }
    cpio.file("modules/order", 0o644, order.as_bytes());
    cpio.into_entries()
}

#[cfg(test)]
mod tests;
