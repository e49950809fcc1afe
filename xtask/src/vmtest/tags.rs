//! Which tests of the workspace run in the emulated host: packages say so in their manifests.
//!
//! ```toml
//! [package.metadata.vmtest]
//! tests = ["lib", "vcpu"]          # unit tests and integration tests, run as an ordinary user
//! root-tests = ["smoke"]           # those that run as root
//! scripts = "tests/scenarios"      # a folder of shell scripts, each one test
//! scripts-without-kvm = "tests/x"  # the same, run by a user who may not open /dev/kvm
//! long = ["killed"]                # tests and scripts that take minutes in the emulated host
//! long-everywhere = ["save"]       # those that take minutes on this host itself, too
//! smolvm = true                    # needs the binary, a kernel and the image `debian`
//! ```

use std::path::PathBuf;

use serde::Deserialize;

use crate::cargo::{Package, Workspace};
use crate::error::{Error, Result};

/// What a manifest's section says.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct Section {
    /// Targets whose tests run as an ordinary user; `lib` for the unit tests.
    pub tests: Vec<String>,
    /// Targets whose tests run as root.
    pub root_tests: Vec<String>,
    /// Folder of scripts, relative to the package.
    pub scripts: Option<PathBuf>,
    /// Folder of scripts, relative to the package, for a user who may not open `/dev/kvm`.
    pub scripts_without_kvm: Option<PathBuf>,
    /// Names of tests and scripts that take minutes there.
    pub long: Vec<String>,
    /// Names of those that take minutes on this host itself, too.
    pub long_everywhere: Vec<String>,
    /// Whether `$SMOLVM` and a prepared `$SMOLVM_HOME` are needed.
    pub smolvm: bool,
}

/// Where a test or a script takes minutes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Long {
    /// Nowhere.
    Nowhere,
    /// In the emulated host.
    Emulated,
    /// There, and on this host itself.
    Everywhere,
}

impl Section {
    /// Where the test or script of this name takes minutes.
    pub fn long(&self, name: &str) -> Long {
        let has = |list: &[String]| list.iter().any(|listed| listed == name);
        match (has(&self.long_everywhere), has(&self.long)) {
            (true, _) => Long::Everywhere,
            (false, true) => Long::Emulated,
            (false, false) => Long::Nowhere,
        }
    }
}

/// A package with its section.
pub struct Tagged<'a> {
    /// The package.
    pub package: &'a Package,
    /// Its section.
    pub section: Section,
}

/// The tagged packages, or those of them that are named.
pub fn read<'a>(workspace: &'a Workspace, named: &[String]) -> Result<Vec<Tagged<'a>>> {
    let mut tagged = Vec::new();
    for package in &workspace.packages {
        if !named.is_empty() && !named.contains(&package.name) {
            continue;
        }
        if let Some(section) = section(package)? {
            tagged.push(Tagged { package, section });
        }
    }
    let missing = |name: &&String| !tagged.iter().any(|found| found.package.name == **name);
    match named.iter().find(missing) {
        Some(name) => Err(Error::NotTagged(name.clone())),
        None => Ok(tagged),
    }
}

fn section(package: &Package) -> Result<Option<Section>> {
    let Some(value) = package.metadata.get("vmtest") else {
        return Ok(None);
    };
    let problem = |problem: String| Error::Tag {
        package: package.name.clone(),
        problem,
    };
    let section: Section =
        serde_json::from_value(value.clone()).map_err(|error| problem(error.to_string()))?;
    for name in section.tests.iter().chain(&section.root_tests) {
        let known = package.targets.iter().any(|target| {
            (name == "lib" && target.is("lib")) || (target.name == *name && target.is("test"))
        });
        if !known {
            return Err(problem(format!("no test target {name}")));
        }
    }
    for (list, listed) in [
        ("long", &section.long),
        ("long-everywhere", &section.long_everywhere),
    ] {
        if let Some(name) = listed.iter().find(|name| !names(package, &section, name)) {
            return Err(problem(format!(
                "`{list}` has {name}, no test and no script"
            )));
        }
    }
    Ok(Some(section))
}

/// Whether the section has a test or script of this name.
fn names(package: &Package, section: &Section, name: &str) -> bool {
    let is_test = |list: &[String]| list.iter().any(|listed| listed == name);
    let folders = section.scripts.iter().chain(&section.scripts_without_kvm);
    let folder_of = |folder: &PathBuf| package.manifest_path.with_file_name("").join(folder);
    is_test(&section.tests)
        || is_test(&section.root_tests)
        || folders
            .map(folder_of)
            .any(|folder| folder.join(format!("{name}.sh")).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_as_long_must_be_there() {
        let workspace = Workspace::read().unwrap();
        let tagged = read(&workspace, &[]).unwrap();
        let found = tagged
            .iter()
            .find(|found| found.package.name == "smolvm-cli")
            .unwrap();
        assert!(names(found.package, &found.section, "agent-loop"));
        assert!(names(found.package, &found.section, "permission"));
        assert!(!names(found.package, &found.section, "agent-lop"));
    }

    #[test]
    fn what_is_long_on_this_host_is_long_in_the_emulated_one() {
        let section = Section {
            long: vec!["there".to_owned()],
            long_everywhere: vec!["both".to_owned()],
            ..Section::default()
        };
        assert_eq!(section.long("there"), Long::Emulated);
        assert_eq!(section.long("both"), Long::Everywhere);
        assert_eq!(section.long("neither"), Long::Nowhere);
    }
}
