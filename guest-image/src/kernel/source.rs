//! Where a kernel and its modules come from.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use durable_files::FileError;

use super::bzimage::{self, MAX_VMLINUX_BYTES};
use super::error::KernelError;
use super::modules::{self, ModuleSource};
use super::package;
use crate::artifact::decompress::{Bounded, Compression};
use crate::budget::{Budget, Limits};
use crate::image::contents::Contents;
use crate::image::tree::NodeId;
use crate::progress::Progress;

/// Largest module, packed or not.
const MAX_MODULE_BYTES: u64 = 64 << 20;
/// Memory held for the modules and the files of a package.
const MEMORY_BYTES: u64 = 256 << 20;
/// Largest list of built-in modules.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Most files in a module directory.
const MAX_MODULE_FILES: usize = 100_000;
/// Where modules lie, with and without merged `/usr`.
const MODULE_DIRS: [&str; 2] = ["lib/modules", "usr/lib/modules"];
/// What kernel images are called in `/boot`.
const IMAGE_PREFIX: &str = "vmlinuz-";

/// What a kernel is imported from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelSource {
    /// A Debian kernel package (`linux-image-*.deb`).
    Package(PathBuf),
    /// A directory with `boot/vmlinuz-VERSION` and `lib/modules/VERSION`.
    Root(PathBuf),
    /// A bzImage or an ELF vmlinux, and the directory of its modules
    /// (`.../lib/modules/VERSION`); `None` for a kernel that has everything
    /// built in.
    Image {
        /// The image.
        image: PathBuf,
        /// Its modules.
        modules: Option<PathBuf>,
    },
}

impl KernelSource {
    /// Tells what `path` is. For an image, modules are looked for where a
    /// distribution has them: `../lib/modules/VERSION`.
    ///
    /// # Errors
    ///
    /// [`KernelError::Io`] if it cannot be read; [`KernelError::NoKernel`] for
    /// a bzImage whose modules are not found.
    pub fn detect(path: &Path) -> Result<Self, KernelError> {
        let metadata = fs::metadata(path).map_err(FileError::at("read", path))?;
        if metadata.is_dir() {
            return Ok(Self::Root(path.into()));
        }
        let image = read_host(path, MAX_VMLINUX_BYTES)?;
        if package::is_package(&image) {
            return Ok(Self::Package(path.into()));
        }
        let Some(version) = bzimage::version(&image).filter(|_| !super::elf::is_elf(&image)) else {
            return Ok(Self::Image {
                image: path.into(),
                modules: None,
            });
        };
        let absolute = path.canonicalize().map_err(FileError::at("read", path))?;
        let root = absolute
            .parent()
            .and_then(Path::parent)
            .unwrap_or(Path::new("/"));
        let places = MODULE_DIRS.iter().map(|dir| root.join(dir).join(&version));
        match places.into_iter().find(|dir| dir.is_dir()) {
            Some(modules) => Ok(Self::Image {
                image: path.into(),
                modules: Some(modules),
            }),
            None => Err(KernelError::NoKernel {
                path: path.into(),
                what: format!(
                    "its modules are not in {}",
                    root.join("lib/modules").display()
                ),
            }),
        }
    }
}

/// A kernel image with its modules, opened.
pub(super) struct KernelFiles {
    /// The version that names the module directory.
    pub(super) version: String,
    /// Where the image comes from, for messages.
    pub(super) image_name: String,
    /// bzImage or ELF.
    pub(super) image: Vec<u8>,
    built_in: BTreeSet<String>,
    modules: BTreeMap<String, Place>,
    /// The unpacked package that `Place::Package` points into.
    package: Option<Contents>,
    budget: Arc<Budget>,
}

/// A module's file.
enum Place {
    Host(PathBuf),
    Package(NodeId, String),
}

impl KernelFiles {
    /// Opens a source; a package is unpacked into a temporary file in
    /// `scratch`.
    pub(super) fn open(
        source: &KernelSource,
        scratch: &Path,
        progress: &dyn Progress,
    ) -> Result<Self, KernelError> {
        match source {
            KernelSource::Package(path) => {
                let budget = Budget::new(Limits::default().with_memory_bytes(MEMORY_BYTES));
                let contents = package::unpack(path, scratch, budget, progress)?;
                Self::from_package(path, contents)
            }
            KernelSource::Root(root) => Self::from_root(root),
            KernelSource::Image { image, modules } => Self::from_image(image, modules.as_deref()),
        }
    }

    fn from_package(path: &Path, contents: Contents) -> Result<Self, KernelError> {
        let tree = &contents.tree;
        let names = |dir: &str| -> Vec<String> {
            let children = tree.lookup(dir.as_bytes()).and_then(|id| tree.children(id));
            let names = children.into_iter().flatten().map(|(name, _)| name.clone());
            names
                .filter_map(|name| String::from_utf8(name).ok())
                .collect()
        };
        let (version, modules_dir) = choose(path, &names)?;
        let image_name = format!("boot/{IMAGE_PREFIX}{version}");
        let read = |name: &str, most| {
            let id = tree.lookup(name.as_bytes());
            let bytes = id.map_or(Ok(None), |id| contents.read_file(id, most));
            bytes.map_err(FileError::at("unpack", path))
        };
        let image = read(&image_name, MAX_VMLINUX_BYTES)?.ok_or_else(|| KernelError::NoKernel {
            path: path.into(),
            what: format!("{image_name} is missing or too large"),
        })?;
        let list = read(&format!("{modules_dir}/modules.builtin"), MAX_LIST_BYTES)?;
        let files = tree_files(&contents, &modules_dir);
        Ok(Self {
            version,
            image_name: format!("{image_name} of {}", path.display()),
            image,
            built_in: modules::built_in_names(&String::from_utf8_lossy(&list.unwrap_or_default())),
            modules: modules::index(files.into_iter()),
            budget: Arc::clone(contents.tree.budget()),
            package: Some(contents),
        })
    }

    fn from_root(root: &Path) -> Result<Self, KernelError> {
        let names = |dir: &str| -> Vec<String> {
            // Absent directories are as good as empty ones here.
            let entries = fs::read_dir(root.join(dir)).into_iter().flatten();
            entries
                .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
                .collect()
        };
        let (version, modules_dir) = choose(root, &names)?;
        let image = root.join(format!("boot/{IMAGE_PREFIX}{version}"));
        Self::from_image(&image, Some(&root.join(modules_dir)))
    }

    fn from_image(path: &Path, modules_dir: Option<&Path>) -> Result<Self, KernelError> {
        let image = read_host(path, MAX_VMLINUX_BYTES)?;
        let dir_name = modules_dir
            .and_then(Path::file_name)
            .map(|name| name.to_string_lossy());
        let version = dir_name
            .map(String::from)
            .or_else(|| bzimage::version(&image));
        let (built_in, modules) = match modules_dir {
            None => (BTreeSet::new(), BTreeMap::new()),
            Some(dir) => {
                let list = read_host(&dir.join("modules.builtin"), MAX_LIST_BYTES)?;
                let built_in = modules::built_in_names(&String::from_utf8_lossy(&list));
                (built_in, modules::index(host_files(dir)?.into_iter()))
            }
        };
        Ok(Self {
            version: version.unwrap_or_else(|| "unknown".into()),
            image_name: path.display().to_string(),
            image,
            built_in,
            modules,
            package: None,
            budget: Budget::new(Limits::default().with_memory_bytes(MEMORY_BYTES)),
        })
    }

    /// Whether the source came with a list of modules at all.
    pub(super) fn has_modules(&self) -> bool {
        !self.modules.is_empty() || !self.built_in.is_empty()
    }
}

impl ModuleSource for KernelFiles {
    type Error = KernelError;

    fn is_built_in(&self, name: &str) -> bool {
        self.built_in.contains(name)
    }

    fn object(&self, name: &str) -> Result<Option<Vec<u8>>, KernelError> {
        let (packed, file) = match (self.modules.get(name), &self.package) {
            (Some(Place::Host(path)), _) => (
                read_host(path, MAX_MODULE_BYTES)?,
                path.display().to_string(),
            ),
            (Some(Place::Package(id, path)), Some(contents)) => {
                let bytes = contents.read_file(*id, MAX_MODULE_BYTES);
                let bytes = bytes.map_err(FileError::at("unpack", Path::new(path)))?;
                let what = "it is no file or too large";
                let bad = || KernelError::BadModule {
                    module: path.clone(),
                    what,
                };
                (bytes.ok_or_else(bad)?, path.clone())
            }
            _ => return Ok(None),
        };
        let object = unpack_module(&packed, Path::new(&file))?;
        // All are held, and once more in the archive that is made of them.
        self.budget
            .hold(2 * object.len())
            .map_err(|source| KernelError::TooMuch {
                module: file,
                source,
            })?;
        Ok(Some(object))
    }
}

/// The version for which there is both an image and a module directory, and
/// that directory.
fn choose(
    path: &Path,
    names: &dyn Fn(&str) -> Vec<String>,
) -> Result<(String, String), KernelError> {
    let images: BTreeSet<String> = names("boot")
        .into_iter()
        .filter_map(|name| Some(name.strip_prefix(IMAGE_PREFIX)?.to_string()))
        .collect();
    let mut found: Vec<(String, String)> = Vec::new();
    for dir in MODULE_DIRS {
        for version in names(dir) {
            if images.contains(&version) && !found.iter().any(|(v, _)| *v == version) {
                let modules_dir = format!("{dir}/{version}");
                found.push((version, modules_dir));
            }
        }
    }
    if found.len() > 1 {
        let versions = found.into_iter().map(|(version, _)| version).collect();
        return Err(KernelError::SeveralKernels {
            path: path.into(),
            versions,
        });
    }
    found.pop().ok_or_else(|| KernelError::NoKernel {
        path: path.into(),
        what: "it has no boot/vmlinuz-VERSION with lib/modules/VERSION".into(),
    })
}

/// Regular files below a directory of an unpacked package.
fn tree_files(contents: &Contents, dir: &str) -> Vec<(String, Place)> {
    let tree = &contents.tree;
    let mut files = Vec::new();
    let mut todo: Vec<(NodeId, String)> = tree
        .lookup(dir.as_bytes())
        .map(|id| (id, dir.to_string()))
        .into_iter()
        .collect();
    while let Some((id, path)) = todo.pop() {
        for (name, child) in tree.children(id).into_iter().flatten() {
            let Ok(name) = std::str::from_utf8(name) else {
                continue;
            };
            let child_path = format!("{path}/{name}");
            if tree.children(*child).is_some() {
                todo.push((*child, child_path));
            } else {
                files.push((name.to_string(), Place::Package(*child, child_path)));
            }
        }
    }
    files
}

/// Regular files below a host directory; links are not followed.
fn host_files(dir: &Path) -> Result<Vec<(String, Place)>, KernelError> {
    let mut files = Vec::new();
    let mut todo = vec![dir.to_path_buf()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).map_err(FileError::at("list", &dir))? {
            let entry = entry.map_err(FileError::at("list", &dir))?;
            let kind = entry
                .file_type()
                .map_err(FileError::at("read", &entry.path()))?;
            if files.len() + todo.len() > MAX_MODULE_FILES {
                let what = "its module directory has more than 100000 files".into();
                return Err(KernelError::NoKernel { path: dir, what });
            }
            if kind.is_dir() {
                todo.push(entry.path());
            } else if kind.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                files.push((name, Place::Host(entry.path())));
            }
        }
    }
    Ok(files)
}

fn unpack_module(packed: &[u8], path: &Path) -> Result<Vec<u8>, KernelError> {
    let mut out = Vec::new();
    let reader = Compression::detect(packed).reader(packed);
    reader
        .and_then(|reader| Bounded::new(reader, MAX_MODULE_BYTES).read_to_end(&mut out))
        .map_err(FileError::at("unpack", path))?;
    Ok(out)
}

/// Reads a host file of at most `most` bytes.
fn read_host(path: &Path, most: u64) -> Result<Vec<u8>, KernelError> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(FileError::at("open", path))?;
    Bounded::new(file, most)
        .read_to_end(&mut bytes)
        .map_err(FileError::at("read", path))?;
    Ok(bytes)
}
