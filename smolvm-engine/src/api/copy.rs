//! Files and trees between this host and a machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use agent_protocol::client::ClientError;
use agent_protocol::message::{CopyReport, Owner};

use crate::api::{Engine, EngineError};
use crate::name::MachineName;
use crate::progress::{Phase, Progress};

/// Who owns what is copied into a machine.
const ROOT: Owner = Owner { uid: 0, gid: 0 };

impl Engine {
    /// Copies the file or tree at `source` here into a machine: into `target` if that is a directory
    /// there, else as it. Everything made belongs to root; modes, times, links and holes are kept. What
    /// was there keeps owner and mode; what is neither a file, a link nor a directory is not replaced, but a
    /// single file that is copied to a named pipe or a character device is written to it.
    ///
    /// It is given up between two pieces when `progress` [says so](Progress::is_stopped); what is complete
    /// stays.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`], [`EngineError::Copy`]. What could be copied only in part is in
    /// the report and no error.
    pub fn copy_in(
        &self,
        name: &MachineName,
        source: &Path,
        target: &OsStr,
        progress: &dyn Progress,
    ) -> Result<CopyReport, EngineError> {
        let agent = self.connect_agent(name)?;
        let phase = Phase::begin(progress, &format!("copying to {name}"), None);
        let mut advance = |bytes| phase.go_on(bytes);
        agent
            .copy_in(source, target.as_bytes(), Some(ROOT), &mut advance)
            .map_err(copy_error(name))
    }

    /// Copies the file or tree at `source` in a machine to this host: into `target` if that is a
    /// directory, under the last name of `source`, else as it. Everything made belongs to the caller;
    /// modes are masked with the umask, devices are left out. What was there is treated as by
    /// [`Engine::copy_in`], and so is a stop.
    ///
    /// # Errors
    ///
    /// As [`Engine::copy_in`].
    pub fn copy_out(
        &self,
        name: &MachineName,
        source: &OsStr,
        target: &Path,
        progress: &dyn Progress,
    ) -> Result<CopyReport, EngineError> {
        let agent = self.connect_agent(name)?;
        let phase = Phase::begin(progress, &format!("copying from {name}"), None);
        agent
            .copy_out(source.as_bytes(), target, &mut |bytes| phase.go_on(bytes))
            .map_err(copy_error(name))
    }
}

fn copy_error(name: &MachineName) -> impl FnOnce(ClientError) -> EngineError + use<> {
    let name = name.clone();
    move |source| EngineError::Copy { name, source }
}
