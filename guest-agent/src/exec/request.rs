//! From a request to a plan that can be started: names resolved, defaults filled in.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use agent_protocol::message::{ExecRequest, TtySize};

use super::environment::environment;
use super::spawn::StartError;
use super::user::{Accounts, User};

/// All that is needed to start a command.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) program: OsString,
    /// What the program sees as its own name.
    pub(crate) name: OsString,
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: BTreeMap<OsString, OsString>,
    pub(crate) directory: PathBuf,
    pub(crate) user: User,
    /// Whether to leave the agent's own user.
    pub(crate) change_user: bool,
    pub(crate) tty: Option<TtySize>,
    pub(crate) stdin: bool,
}

/// Resolves `request` against this system's files.
pub(crate) fn prepare(request: &ExecRequest) -> Result<Plan, StartError> {
    let accounts =
        Accounts::load(Path::new("/etc")).map_err(|source| StartError::Accounts { source })?;
    let user = match &request.user {
        None => accounts.by_uid(rustix::process::geteuid().as_raw()),
        Some(text) => accounts
            .find(text)
            .ok_or_else(|| StartError::NoUser { user: text.clone() })?,
    };
    let environment = environment(request, &user)?;
    let directory = directory(request, &user)?;
    let mut argv = request
        .argv
        .iter()
        .map(|arg| OsString::from_vec(arg.to_vec()));
    let (program, name) = match argv.next() {
        Some(program) => (program.clone(), program),
        None => login_shell(&user),
    };
    if program.is_empty() {
        return Err(StartError::NotFound {
            program: String::new(),
        });
    }
    Ok(Plan {
        program,
        name,
        arguments: argv.collect(),
        environment,
        directory,
        user,
        change_user: request.user.is_some(),
        tty: request.tty,
        stdin: request.stdin && !request.detach,
    })
}

/// A login shell's name begins with a dash.
fn login_shell(user: &User) -> (OsString, OsString) {
    let base = user.shell.rsplit('/').next().unwrap_or("sh");
    (user.shell.clone().into(), format!("-{base}").into())
}

fn directory(request: &ExecRequest, user: &User) -> Result<PathBuf, StartError> {
    let Some(asked) = request.directory.as_deref() else {
        let home = Path::new(&user.home);
        return Ok(if home.is_dir() { home } else { Path::new("/") }.to_owned());
    };
    let path = Path::new("/").join(OsStr::from_bytes(asked));
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err(StartError::NotDirectory { path }),
        Err(error) if error.kind() == ErrorKind::NotFound && request.make_directory => {
            match std::fs::create_dir_all(&path) {
                Ok(()) => Ok(path),
                Err(source) => Err(StartError::MakeDirectory { path, source }),
            }
        }
        Err(source) => Err(StartError::Directory { path, source }),
    }
}
