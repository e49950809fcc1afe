//! Asking cargo: what the workspace holds, and building parts of it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::process;

/// The parts of `cargo metadata` that are used here.
#[derive(Debug, Deserialize)]
pub struct Workspace {
    /// The packages of the workspace.
    pub packages: Vec<Package>,
    /// The root folder of the repository.
    #[serde(rename = "workspace_root")]
    pub root: PathBuf,
    /// Where cargo builds.
    #[serde(rename = "target_directory")]
    pub target_folder: PathBuf,
}

/// One package of the workspace.
#[derive(Debug, Deserialize)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// The path of its manifest.
    pub manifest_path: PathBuf,
    /// What it builds.
    pub targets: Vec<Target>,
    /// What it depends on.
    pub dependencies: Vec<Dependency>,
    /// The free part of its manifest.
    pub metadata: serde_json::Value,
}

/// A dependency as a manifest names it.
#[derive(Debug, Deserialize)]
pub struct Dependency {
    /// The package depended on.
    pub name: String,
    /// `dev`, `build`, or `None` for a normal one.
    pub kind: Option<String>,
}

/// A library, binary, example or test.
#[derive(Clone, Debug, Deserialize)]
pub struct Target {
    /// Its name.
    pub name: String,
    /// `lib`, `bin`, `example`, `test`, `bench` and so on.
    pub kind: Vec<String>,
}

impl Target {
    /// Whether the target is of this kind.
    pub fn is(&self, kind: &str) -> bool {
        self.kind.iter().any(|found| found == kind)
    }
}

impl Workspace {
    /// Reads the workspace that this program was built from.
    pub fn read() -> Result<Self> {
        let mut command = cargo();
        command.args(["metadata", "--format-version=1", "--no-deps", "--offline"]);
        command.current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = process::capture(&mut command)?;
        serde_json::from_slice(&output).map_err(|source| Error::Json {
            program: process::shown(&command),
            source,
        })
    }
}

/// The cargo that runs this program.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.stdin(Stdio::null());
    command
}

/// Has cargo tell what it built.
const JSON: &str = "--message-format=json-render-diagnostics";

/// All tests of the workspace but those in documentation. Cargo chooses the features of a dependency by the packages
/// that are named, so whatever names others builds much again.
pub const ALL_TESTS: [&str; 4] = ["--workspace", "--lib", "--bins", "--tests"];

/// A built test executable.
#[derive(Debug)]
pub struct TestExecutable {
    /// The package.
    pub package: String,
    /// The target in it.
    pub target: Target,
    /// The file.
    pub path: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    executable: Option<PathBuf>,
    #[serde(default)]
    target: Option<Target>,
    #[serde(default)]
    manifest_path: Option<PathBuf>,
}

/// Builds the tests of some packages; of all if none is named, with the same features as `cargo test --workspace`.
pub fn build_tests(workspace: &Workspace, packages: &[String]) -> Result<Vec<TestExecutable>> {
    let mut command = cargo();
    command.args(["test", "--no-run", JSON]);
    if packages.is_empty() {
        command.args(ALL_TESTS);
    }
    for package in packages {
        command.args(["-p", package]);
    }
    let mut executables = Vec::new();
    for message in build(command, &workspace.root)? {
        let (Some(path), Some(target)) = (message.executable, message.target) else {
            continue;
        };
        if target.is("bin") && !is_test_build(&path) {
            continue;
        }
        let package = workspace
            .packages
            .iter()
            .find(|package| Some(&package.manifest_path) == message.manifest_path.as_ref())
            .map(|package| package.name.clone());
        if let Some(package) = package {
            executables.push(TestExecutable {
                package,
                target,
                path,
            });
        }
    }
    Ok(executables)
}

/// Test harnesses lie in `deps`, the binaries that integration tests start do not.
fn is_test_build(path: &Path) -> bool {
    path.parent().is_some_and(|folder| folder.ends_with("deps"))
}

/// Builds all examples of the workspace, so with the features that its tests have, and returns those of one package:
/// their names and executables.
pub fn build_examples(workspace: &Workspace, package: &str) -> Result<Vec<(String, PathBuf)>> {
    let found = workspace.packages.iter().find(|p| p.name == package);
    let manifest = found.map(|package| &package.manifest_path);
    let mut command = cargo();
    command.args(["build", "--workspace", "--examples", JSON]);
    let mut examples: Vec<_> = build(command, &workspace.root)?
        .into_iter()
        .filter(|message| manifest.is_some() && message.manifest_path.as_ref() == manifest)
        .filter_map(|message| Some((message.target?, message.executable?)))
        .filter(|(target, _)| target.is("example"))
        .map(|(target, executable)| (target.name, executable))
        .collect();
    examples.sort();
    Ok(examples)
}

/// Builds the release `smolvm` binary and returns its path.
pub fn build_smolvm(workspace: &Workspace) -> Result<PathBuf> {
    let arguments = ["build", "--release", "-p", "smolvm-cli", "--bin", "smolvm"];
    build_one(workspace, "bin", &arguments, &[])
}

/// Builds one target of `kind` with a cargo command (`build`, or `rustc` with arguments for the
/// compiler) and returns the executable's path.
pub fn build_one(
    workspace: &Workspace,
    kind: &str,
    arguments: &[&str],
    for_compiler: &[&str],
) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(arguments).arg(JSON);
    if !for_compiler.is_empty() {
        command.arg("--").args(for_compiler);
    }
    let shown = process::shown(&command);
    build(command, &workspace.root)?
        .into_iter()
        .filter(|message| {
            message
                .target
                .as_ref()
                .is_some_and(|target| target.is(kind))
        })
        .find_map(|message| message.executable)
        .ok_or_else(|| Error::Output {
            program: shown,
            found: "no executable".to_owned(),
        })
}

fn build(mut command: Command, folder: &Path) -> Result<Vec<Message>> {
    command.current_dir(folder);
    command.stderr(Stdio::inherit());
    let output = command
        .output()
        .map_err(|e| process::start_error(&command, e))?;
    if !output.status.success() {
        return Err(Error::Program {
            program: process::shown(&command),
            status: output.status,
            output: String::new(),
        });
    }
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter(|line| line.starts_with('{'))
        .map(serde_json::from_str::<Message>)
        .filter(|message| {
            message
                .as_ref()
                .map_or(true, |message| message.reason == "compiler-artifact")
        })
        .collect::<std::result::Result<_, _>>()
        .map_err(|source| Error::Json {
            program: process::shown(&command),
            source,
        })
}
