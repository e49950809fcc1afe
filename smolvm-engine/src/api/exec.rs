//! Commands in a machine.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use agent_protocol::client::{self, TimedStream};
use agent_protocol::codec::Bytes;
use agent_protocol::message::{EnvVar, ExecRequest, TtySize};

use crate::api::{Engine, EngineError};
use crate::machine::MachineSpec;
use crate::name::MachineName;

/// What a guest has beyond a command's time to end it and to say so. Its agent needs two seconds until it
/// kills the command, and two more until it gives up one that its kernel does not let go; the rest is for
/// a guest that has much to do.
const OVERTIME: Duration = Duration::from_secs(12);

/// How to run a command in a machine.
#[derive(Debug, Clone, Default)]
pub struct ExecOptions {
    /// Program and arguments; empty: the user's login shell.
    pub argv: Vec<OsString>,
    /// Variables on top of the machine's own.
    pub environment: Vec<(String, String)>,
    /// Directory to start in; `None`: the machine's.
    pub directory: Option<String>,
    /// `NAME`, `UID`, `NAME:GROUP` or `UID:GID`; `None`: root.
    pub user: Option<String>,
    /// Whether stdin follows; otherwise it is empty.
    pub stdin: bool,
    /// Run it on a terminal of this size.
    pub tty: Option<TtySize>,
    /// End it after this time. A guest that does not say within some seconds that it has done so is not
    /// waited for: [`ClientError::Late`](client::ClientError::Late).
    pub timeout: Option<Duration>,
    /// Only start it: its output goes to the machine's log.
    pub detach: bool,
}

/// A command that runs in a machine.
pub type ExecSession = client::ExecSession<TimedStream, TimedStream>;
/// The input side of a command that runs in a machine.
pub type ExecWriter = client::ExecWriter<TimedStream>;

impl Engine {
    /// Starts a command in a running machine.
    ///
    /// # Errors
    ///
    /// [`EngineError::WrongState`] where the machine does not run;
    /// [`EngineError::CommandNotStarted`], also where its time was over first.
    ///
    /// ```no_run
    /// use smolvm_engine::{Engine, EngineOptions, ExecOptions};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::open(EngineOptions::from_environment()?)?;
    /// let options = ExecOptions {
    ///     argv: vec!["uname".into(), "-r".into()],
    ///     ..ExecOptions::default()
    /// };
    /// let session = engine.exec(&"agent".parse()?, options)?;
    /// let mut release = Vec::new();
    /// let outcome = session.run(None::<&[u8]>, &mut release, &mut std::io::sink())?;
    /// assert_eq!(outcome.exit_code(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn exec(
        &self,
        name: &MachineName,
        options: ExecOptions,
    ) -> Result<ExecSession, EngineError> {
        let spec = self.read(name)?.spec;
        let agent = match options.timeout {
            None => self.connect_agent(name)?,
            Some(timeout) => {
                let patience = timeout.saturating_add(OVERTIME);
                let (agent, deadline) = self.connect_agent_within(name, patience)?;
                deadline.set_with_patience(timeout, OVERTIME);
                agent
            }
        };
        agent
            .exec(exec_request(spec, options))
            .map_err(|source| EngineError::CommandNotStarted {
                name: name.clone(),
                source,
            })
    }
}

/// What is asked of the agent: the machine's defaults, then what this command wants.
pub(crate) fn exec_request(spec: MachineSpec, options: ExecOptions) -> ExecRequest {
    let mut environment = spec.environment;
    environment.extend(options.environment);
    let bytes = |text: &str| Bytes::from(text);
    ExecRequest {
        // Other runtimes make an image's directory when no layer has it. One that is asked for must be there.
        make_directory: options.directory.is_none(),
        argv: options
            .argv
            .iter()
            .map(|argument| Bytes::from(argument.as_bytes()))
            .collect(),
        env: environment
            .iter()
            .map(|(name, value)| EnvVar {
                name: bytes(name),
                value: bytes(value),
            })
            .collect(),
        directory: options
            .directory
            .or(spec.working_directory)
            .as_deref()
            .map(bytes),
        user: options.user,
        stdin: options.stdin,
        tty: options.tty,
        timeout_ms: options
            .timeout
            .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        detach: options.detach,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_overrides_its_machine() {
        let spec = MachineSpec {
            environment: [("A", "machine"), ("B", "machine")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            working_directory: Some("/srv".to_owned()),
            ..MachineSpec::default()
        };
        let plain = exec_request(spec.clone(), ExecOptions::default());
        assert_eq!(plain.directory, Some(Bytes::from("/srv")));
        assert!(plain.make_directory);
        assert_eq!(plain.env.len(), 2);
        let own = exec_request(
            spec,
            ExecOptions {
                environment: vec![("B".to_owned(), "command".to_owned())],
                directory: Some("/tmp".to_owned()),
                timeout: Some(Duration::from_secs(2)),
                ..ExecOptions::default()
            },
        );
        assert_eq!(own.directory, Some(Bytes::from("/tmp")));
        assert!(!own.make_directory);
        assert_eq!(own.timeout_ms, Some(2000));
        let value = |name: &str| own.env.iter().find(|v| v.name == Bytes::from(name));
        assert_eq!(value("A").unwrap().value, Bytes::from("machine"));
        assert_eq!(value("B").unwrap().value, Bytes::from("command"));
    }
}
