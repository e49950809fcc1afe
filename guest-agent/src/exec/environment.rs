//! The environment that a command starts with.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use agent_protocol::message::ExecRequest;

use super::spawn::StartError;
use super::user::User;
use crate::ready::TOOLS;

/// Where programs are looked for unless the client says otherwise.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Defaults for `user`, then the client's variables, the last of each name. The agent's own tools are in the `PATH` in any case.
pub(crate) fn environment(
    request: &ExecRequest,
    user: &User,
) -> Result<BTreeMap<OsString, OsString>, StartError> {
    let mut variables = BTreeMap::new();
    let mut set = |name: &str, value: &str| variables.insert(name.into(), value.into());
    set("PATH", DEFAULT_PATH);
    set("HOME", &user.home);
    set("USER", &user.name);
    set("LOGNAME", &user.name);
    set("SHELL", &user.shell);
    if request.tty.is_some() {
        set("TERM", "xterm");
    }
    for variable in &request.env {
        // An empty name is passed on, as other runtimes do with an image's `=x`.
        let name = &variable.name;
        if name.contains(&b'=') || name.contains(&0) {
            return Err(StartError::BadVariable {
                name: name.escape_ascii().to_string(),
            });
        }
        let name = OsStr::from_bytes(name).to_owned();
        variables.insert(name, OsString::from_vec(variable.value.to_vec()));
    }
    offer_tools(&mut variables);
    Ok(variables)
}

/// The agent's tools are found as well, last, whatever the client or the image says about other programs.
fn offer_tools(variables: &mut BTreeMap<OsString, OsString>) {
    let Some(path) = variables.get_mut(OsStr::new("PATH")) else {
        return;
    };
    // Empty, it means the working directory; nothing of that is changed.
    if path.is_empty() {
        return;
    }
    let mut places = path.as_bytes().split(|byte| *byte == b':');
    if !places.any(|place| place == TOOLS.as_bytes()) {
        path.push(":");
        path.push(TOOLS);
    }
}
