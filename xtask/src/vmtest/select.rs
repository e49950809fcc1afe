//! What of the workspace runs in the emulated host: test executables and scripts.

use std::fs;
use std::path::{Path, PathBuf};

use super::report::Kind;
use super::tags::{self, Long, Tagged};
use crate::cargo::{self, TestExecutable, Workspace};
use crate::error::{Error, Result};

/// Who runs something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Account {
    /// An ordinary user, in group kvm.
    User,
    /// The same user, but not in group kvm.
    Outsider,
    /// The superuser.
    Root,
}

/// One executable or script.
#[derive(Clone, Debug)]
pub struct Item {
    /// The name to show.
    pub name: String,
    /// The file.
    pub path: PathBuf,
    /// How it tells its result.
    pub kind: Kind,
    /// Who runs it.
    pub account: Account,
    /// Whether it needs `$SMOLVM` and a prepared `$SMOLVM_HOME`.
    pub smolvm: bool,
    /// Where it takes minutes.
    pub long: Long,
}

/// Builds and lists what the tagged packages (or those of them that are named) run; scripts are
/// listed if their name contains the filter, executables filter for themselves.
pub fn select(
    workspace: &Workspace,
    packages: &[String],
    filter: Option<&str>,
) -> Result<Vec<Item>> {
    let tagged = tags::read(workspace, packages)?;
    let has_tests = tagged
        .iter()
        .any(|found| !found.section.tests.is_empty() || !found.section.root_tests.is_empty());
    let executables = match has_tests {
        true => cargo::build_tests(workspace, packages)?,
        false => Vec::new(),
    };
    let mut items = Vec::new();
    for found in &tagged {
        for executable in &executables {
            if executable.package == found.package.name {
                add_tests(found, executable, &mut items);
            }
        }
        for (folder, account) in [
            (&found.section.scripts, Account::User),
            (&found.section.scripts_without_kvm, Account::Outsider),
        ] {
            if let Some(folder) = folder {
                add_scripts(found, folder, account, filter, &mut items)?;
            }
        }
    }
    Ok(items)
}

fn add_tests(found: &Tagged<'_>, executable: &TestExecutable, items: &mut Vec<Item>) {
    let target = if executable.target.is("test") {
        executable.target.name.as_str()
    } else if executable.target.is("lib") {
        "lib"
    } else {
        return;
    };
    for (list, account) in [
        (&found.section.tests, Account::User),
        (&found.section.root_tests, Account::Root),
    ] {
        if list.iter().any(|listed| listed == target) {
            items.push(Item {
                name: format!("{}::{target}", found.package.name),
                path: executable.path.clone(),
                kind: Kind::Harness,
                account,
                smolvm: found.section.smolvm,
                long: found.section.long(target),
            });
        }
    }
}

fn add_scripts(
    found: &Tagged<'_>,
    folder: &Path,
    account: Account,
    filter: Option<&str>,
    items: &mut Vec<Item>,
) -> Result<()> {
    let folder = found.package.manifest_path.with_file_name("").join(folder);
    let mut scripts = Vec::new();
    for entry in fs::read_dir(&folder).map_err(Error::file("read", &folder))? {
        let path = entry.map_err(Error::file("read", &folder))?.path();
        if path.extension().is_some_and(|extension| extension == "sh") {
            scripts.push(path);
        }
    }
    scripts.sort();
    for path in scripts {
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let name = format!("{}::script::{stem}", found.package.name);
        if filter.is_none_or(|filter| name.contains(filter)) {
            items.push(Item {
                name,
                path,
                kind: Kind::Script,
                account,
                smolvm: found.section.smolvm,
                long: found.section.long(&stem),
            });
        }
    }
    Ok(())
}
