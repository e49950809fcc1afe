//! Debian's cloud kernel: the package, its image and its modules.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result};
use crate::{cache, process};

/// The metapackage whose first dependency is the current kernel package.
const METAPACKAGE: &str = "linux-image-cloud-amd64";

/// An unpacked kernel package in the cache.
pub struct Kernel {
    /// The package file.
    pub package: PathBuf,
    /// The bootable image.
    pub image: PathBuf,
    modules: BTreeMap<String, PathBuf>,
}

impl Kernel {
    /// Finds the kernel in the cache, or downloads and unpacks it there; needs no privilege.
    pub fn fetch(cache_folder: &Path) -> Result<Self> {
        if let Some(found) = newest(cache_folder)? {
            return Self::open(&found);
        }
        let name = package_name()?;
        let folder = cache::entry(cache_folder, &name, |folder| download(&name, folder))?;
        Self::open(&folder)
    }

    fn open(folder: &Path) -> Result<Self> {
        let image = one_file(&folder.join("root/boot"), "vmlinuz-", "")?;
        let package = one_file(folder, "linux-image-", ".deb")?;
        let mut modules = BTreeMap::new();
        collect_modules(&folder.join("root/lib/modules"), &mut modules)?;
        Ok(Self {
            package,
            image,
            modules,
        })
    }

    /// The modules `wanted` and all that they depend on, each after its dependencies.
    ///
    /// Returns names with the uncompressed module bytes.
    pub fn modules_in_order(&self, wanted: &[&str]) -> Result<Vec<(String, Vec<u8>)>> {
        let mut ordered = Vec::new();
        for name in wanted {
            self.add_module(name, &mut ordered, 0)?;
        }
        Ok(ordered)
    }

    fn add_module(
        &self,
        name: &str,
        ordered: &mut Vec<(String, Vec<u8>)>,
        depth: usize,
    ) -> Result<()> {
        let name = name.replace('-', "_");
        if ordered.iter().any(|(known, _)| *known == name) {
            return Ok(());
        }
        let module_error = |problem: &str| Error::Module {
            module: name.clone(),
            problem: problem.to_owned(),
        };
        // Dependencies of real modules are a few levels deep; a cycle would never end.
        if depth > 16 {
            return Err(module_error("its dependencies go round in a circle"));
        }
        let path = self
            .modules
            .get(&name)
            .ok_or_else(|| module_error("not in the kernel package"))?;
        let bytes = uncompressed(path)?;
        for dependency in dependencies(&bytes).ok_or_else(|| module_error("has no modinfo"))? {
            self.add_module(&dependency, ordered, depth + 1)?;
        }
        ordered.push((name, bytes));
        Ok(())
    }
}

/// The newest kernel package already unpacked in the cache; a download is never repeated unasked.
fn newest(cache_folder: &Path) -> Result<Option<PathBuf>> {
    let mut found: Option<(std::time::SystemTime, PathBuf)> = None;
    for entry in fs::read_dir(cache_folder).map_err(Error::file("read", cache_folder))? {
        let entry = entry.map_err(Error::file("read", cache_folder))?;
        let path = entry.path();
        if !entry
            .file_name()
            .to_string_lossy()
            .starts_with("linux-image-")
            || !path.is_dir()
        {
            continue;
        }
        let time = entry
            .metadata()
            .and_then(|metadata| metadata.modified())
            .map_err(Error::file("read", &path))?;
        if found.as_ref().is_none_or(|(known, _)| time > *known) {
            found = Some((time, path));
        }
    }
    Ok(found.map(|(_, path)| path))
}

fn package_name() -> Result<String> {
    let mut command = Command::new("apt-cache");
    command.args(["depends", "--important", METAPACKAGE]);
    let output = process::capture(&mut command)?;
    let text = String::from_utf8_lossy(&output);
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .map(str::trim)
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .ok_or_else(|| Error::Output {
            program: format!("{} (run apt-get update?)", process::shown(&command)),
            found: text.trim().to_owned(),
        })
}

fn download(name: &str, folder: &Path) -> Result<()> {
    crate::output::note(format_args!("downloading {name}"));
    fs::create_dir_all(folder).map_err(Error::file("create", folder))?;
    process::capture(
        Command::new("apt-get")
            .args(["download", name])
            .current_dir(folder),
    )?;
    let package = one_file(folder, "linux-image-", ".deb")?;
    process::capture(
        Command::new("dpkg")
            .arg("-x")
            .arg(&package)
            .arg(folder.join("root")),
    )?;
    Ok(())
}

fn one_file(folder: &Path, prefix: &str, suffix: &str) -> Result<PathBuf> {
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let entry = entry.map_err(Error::file("read", folder))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(prefix) && name.ends_with(suffix) {
            return Ok(entry.path());
        }
    }
    let missing = folder.join(format!("{prefix}*{suffix}"));
    Err(Error::file("find", &missing)(
        std::io::ErrorKind::NotFound.into(),
    ))
}

/// Collects `name -> path` of all modules below a folder; names with `_` as the kernel has them.
fn collect_modules(folder: &Path, modules: &mut BTreeMap<String, PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder).map_err(Error::file("read", folder))? {
        let entry = entry.map_err(Error::file("read", folder))?;
        let path = entry.path();
        let kind = entry.file_type().map_err(Error::file("read", &path))?;
        if kind.is_dir() {
            collect_modules(&path, modules)?;
        } else if let Some((name, "" | ".xz" | ".zst")) =
            entry.file_name().to_string_lossy().split_once(".ko")
        {
            modules.insert(name.replace('-', "_"), path);
        }
    }
    Ok(())
}

fn uncompressed(path: &Path) -> Result<Vec<u8>> {
    let program = match path.extension().and_then(|extension| extension.to_str()) {
        Some("xz") => "xz",
        Some("zst") => "zstd",
        _ => return fs::read(path).map_err(Error::file("read", path)),
    };
    process::capture(Command::new(program).arg("-dc").arg(path))
}

/// The `depends=` entry of a module's `.modinfo`; `None` if there is none.
fn dependencies(module: &[u8]) -> Option<Vec<String>> {
    const KEY: &[u8] = b"\0depends=";
    let start = module.windows(KEY.len()).position(|bytes| bytes == KEY)? + KEY.len();
    let length = module[start..].iter().position(|byte| *byte == 0)?;
    let list = std::str::from_utf8(&module[start..start + length]).ok()?;
    Some(
        list.split(',')
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel_of(modules: &[(&str, &str)]) -> (tempfile::TempDir, Kernel) {
        let folder = tempfile::tempdir().unwrap();
        let mut map = BTreeMap::new();
        for (name, depends) in modules {
            let path = folder.path().join(format!("{name}.ko"));
            fs::write(
                &path,
                format!("ELF\0license=GPL\0depends={depends}\0name=x\0"),
            )
            .unwrap();
            map.insert(name.replace('-', "_"), path);
        }
        let kernel = Kernel {
            package: PathBuf::new(),
            image: PathBuf::new(),
            modules: map,
        };
        (folder, kernel)
    }

    #[test]
    fn modules_follow_their_dependencies_once() {
        let (_folder, kernel) = kernel_of(&[
            ("kvm-amd", "kvm,ccp"),
            ("kvm", "irqbypass"),
            ("irqbypass", ""),
            ("ccp", "irqbypass"),
        ]);
        let ordered = kernel.modules_in_order(&["irqbypass", "kvm-amd"]).unwrap();
        let names: Vec<&str> = ordered.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["irqbypass", "kvm", "ccp", "kvm_amd"]);
    }

    #[test]
    fn a_missing_module_and_a_circle_are_errors() {
        let (_folder, kernel) = kernel_of(&[("a", "b"), ("b", "a"), ("c", "gone")]);
        let circle = kernel.modules_in_order(&["a"]).unwrap_err().to_string();
        assert!(circle.contains("circle"), "{circle}");
        let missing = kernel.modules_in_order(&["c"]).unwrap_err().to_string();
        assert!(missing.contains("gone"), "{missing}");
    }
}
