//! Which modules go into the initramfs, and in which order they are loaded.

use std::collections::{BTreeMap, BTreeSet};

use super::elf;

/// Modules that every machine needs, unless they are built in.
const REQUIRED: [&str; 4] = [
    "virtio_mmio",
    "virtio_blk",
    "ext4",
    "vmw_vsock_virtio_transport",
];
/// Modules loaded where they exist, before the required ones: ext4 takes its
/// checksums from the crypto layer by an alias that no dependency names.
const FIRST: [&str; 1] = ["crc32c_generic"];
/// Modules loaded where they exist, after the required ones.
const LAST: [&str; 3] = ["virtio_rng", "virtio_balloon", "virtio_net"];
/// Deepest chain of dependencies.
const MAX_DEPTH: usize = 32;

/// One module that is to be loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Module {
    /// Name with `_` for `-`, without suffix.
    pub(super) name: String,
    /// The uncompressed object.
    pub(super) object: Vec<u8>,
}

/// Where modules are found.
pub(super) trait ModuleSource {
    /// Why reading fails.
    type Error;
    /// Whether the kernel has this module built in.
    fn is_built_in(&self, name: &str) -> bool;
    /// The uncompressed object; `None` if there is no such module.
    fn object(&self, name: &str) -> Result<Option<Vec<u8>>, Self::Error>;
}

/// Why no load order can be given.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SelectError<E> {
    Source(E),
    Missing(String),
    Bad { module: String, what: &'static str },
}

/// The modules to load, each after those it depends on.
pub(super) fn select<S: ModuleSource>(source: &S) -> Result<Vec<Module>, SelectError<S::Error>> {
    let mut selection = Selection {
        source,
        seen: BTreeSet::new(),
        modules: Vec::new(),
    };
    for (names, required) in [
        (&FIRST[..], false),
        (&REQUIRED[..], true),
        (&LAST[..], false),
    ] {
        for name in names {
            selection.add(name, required, 0)?;
        }
    }
    Ok(selection.modules)
}

/// A module's name from its file name or from a dependency list.
pub(super) fn canonical_name(file_name: &str) -> Option<String> {
    let stem = file_name
        .split_once(".ko")
        .map_or(file_name, |(stem, _)| stem);
    let valid = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'-';
    (!stem.is_empty() && stem.len() < 64 && stem.bytes().all(valid)).then(|| stem.replace('-', "_"))
}

/// The names in `modules.builtin`, a list of paths.
pub(super) fn built_in_names(list: &str) -> BTreeSet<String> {
    let file_names = list
        .lines()
        .filter_map(|line| line.trim().rsplit('/').next());
    file_names.filter_map(canonical_name).collect()
}

/// Modules by name, from the paths of module files.
pub(super) fn index<T>(files: impl Iterator<Item = (String, T)>) -> BTreeMap<String, T> {
    let is_module = |name: &str| {
        [".ko", ".ko.xz", ".ko.zst", ".ko.gz"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    files
        .filter(|(file_name, _)| is_module(file_name))
        .filter_map(|(file_name, place)| Some((canonical_name(&file_name)?, place)))
        .collect()
}

struct Selection<'a, S> {
    source: &'a S,
    seen: BTreeSet<String>,
    modules: Vec<Module>,
}

impl<S: ModuleSource> Selection<'_, S> {
    fn add(
        &mut self,
        name: &str,
        required: bool,
        depth: usize,
    ) -> Result<(), SelectError<S::Error>> {
        if depth > MAX_DEPTH {
            let what = "its dependencies never end";
            return Err(SelectError::Bad {
                module: name.into(),
                what,
            });
        }
        if self.source.is_built_in(name) || !self.seen.insert(name.into()) {
            return Ok(());
        }
        let Some(object) = self.source.object(name).map_err(SelectError::Source)? else {
            return if required {
                Err(SelectError::Missing(name.into()))
            } else {
                Ok(())
            };
        };
        let Some(dependencies) = dependencies(&object) else {
            let what = "it is not an x86-64 kernel module";
            return Err(SelectError::Bad {
                module: name.into(),
                what,
            });
        };
        for (dependency, required) in dependencies {
            self.add(&dependency, required, depth + 1)?;
        }
        self.modules.push(Module {
            name: name.into(),
            object,
        });
        Ok(())
    }
}

/// The modules that an object names: those it links with, and those it would
/// like to have before it (these are optional).
fn dependencies(object: &[u8]) -> Option<Vec<(String, bool)>> {
    let mut found = Vec::new();
    for entry in elf::module_info(object)? {
        let Ok(entry) = std::str::from_utf8(entry) else {
            continue;
        };
        if let Some(list) = entry.strip_prefix("depends=") {
            found.extend(
                list.split(',')
                    .filter_map(canonical_name)
                    .map(|name| (name, true)),
            );
        } else if let Some(list) = entry.strip_prefix("softdep=pre:") {
            let names = list.split_whitespace().take_while(|word| *word != "post:");
            found.extend(names.filter_map(canonical_name).map(|name| (name, false)));
        }
    }
    Some(found)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A relocatable x86-64 object with nothing but `.modinfo`.
    pub(in crate::kernel) fn module_object(info: &str) -> Vec<u8> {
        let names = b"\0.modinfo\0.shstrtab\0";
        let info = info.as_bytes();
        let mut out = vec![0; 64];
        out[..6].copy_from_slice(b"\x7fELF\x02\x01");
        out[16..20].copy_from_slice(&[1, 0, 62, 0]);
        out.extend_from_slice(info);
        out.extend_from_slice(names);
        let table_at = out.len() as u64;
        out[40..48].copy_from_slice(&table_at.to_le_bytes());
        out[58..64].copy_from_slice(&[64, 0, 3, 0, 2, 0]);
        for (name, at, len) in [
            (0u32, 0, 0),
            (1, 64, info.len()),
            (10, 64 + info.len(), names.len()),
        ] {
            let mut header = [0; 64];
            header[..4].copy_from_slice(&name.to_le_bytes());
            header[24..32].copy_from_slice(&(at as u64).to_le_bytes());
            header[32..40].copy_from_slice(&(len as u64).to_le_bytes());
            out.extend_from_slice(&header);
        }
        out
    }

    struct Fake(BTreeMap<&'static str, &'static str>);

    impl ModuleSource for Fake {
        type Error = ();
        fn is_built_in(&self, name: &str) -> bool {
            name == "ext4"
        }
        fn object(&self, name: &str) -> Result<Option<Vec<u8>>, ()> {
            Ok(self.0.get(name).map(|info| module_object(info)))
        }
    }

    fn names(modules: Vec<Module>) -> Vec<String> {
        modules.into_iter().map(|module| module.name).collect()
    }

    #[test]
    fn dependencies_come_first_and_once() {
        let mut fake = Fake(BTreeMap::from([
            ("virtio", "license=GPL\0depends=\0"),
            ("virtio_ring", "depends=virtio\0"),
            ("virtio_mmio", "depends=virtio,virtio-ring\0"),
            (
                "virtio_blk",
                "softdep=pre: crc32c post: z\0depends=virtio_ring\0",
            ),
            ("vmw_vsock_virtio_transport", "depends=vsock\0"),
            ("vsock", "depends=\0"),
        ]));
        assert_eq!(
            names(select(&fake).unwrap()),
            [
                "virtio",
                "virtio_ring",
                "virtio_mmio",
                "virtio_blk",
                "vsock",
                "vmw_vsock_virtio_transport"
            ]
        );
        fake.0.remove("vsock");
        assert_eq!(select(&fake), Err(SelectError::Missing("vsock".into())));
    }

    #[test]
    fn a_circle_ends() {
        let fake = Fake(BTreeMap::from([
            ("virtio_mmio", "depends=virtio_blk\0"),
            ("virtio_blk", "depends=virtio_mmio\0"),
            ("vmw_vsock_virtio_transport", "\0"),
        ]));
        assert_eq!(select(&fake).unwrap().len(), 3);
    }

    #[test]
    fn reads_lists_and_file_names() {
        let list = "kernel/fs/ext4/ext4.ko\nkernel/drivers/char/hw_random/virtio-rng.ko\n";
        assert_eq!(Vec::from_iter(built_in_names(list)), ["ext4", "virtio_rng"]);
        let files = ["a-b.ko.xz", "c.ko", "d.txt", "../e.ko"].map(|f| (f.to_string(), ()));
        assert_eq!(
            Vec::from_iter(index(files.into_iter()).into_keys()),
            ["a_b", "c"]
        );
    }
}
