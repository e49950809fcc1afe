//! Machines of smolvm's that a bench makes and removes.

use std::path::Path;
use std::time::{Duration, Instant};

use smolvm_engine::{Engine, EngineError, ExecOptions, MachineName};

use crate::BenchError;

/// What `work` gives, and how long it took.
pub(crate) fn timed<T>(
    work: impl FnOnce() -> Result<T, EngineError>,
) -> Result<(T, Duration), BenchError> {
    let begin = Instant::now();
    let value = work()?;
    Ok((value, begin.elapsed()))
}

/// A machine that is deleted when dropped, if it was made.
pub(crate) struct Machine<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) name: MachineName,
}

impl<'a> Machine<'a> {
    /// A machine to be made, whose name tells the part that it has in a round.
    pub(crate) fn named(engine: &'a Engine, part: &str, number: usize) -> Result<Self, BenchError> {
        let text = format!("bench-{}-{part}-{number}", std::process::id());
        let name = text.parse().map_err(EngineError::from)?;
        Ok(Self { engine, name })
    }

    /// Runs a shell command and returns what it printed.
    pub(crate) fn sh(&self, command: &str) -> Result<String, BenchError> {
        let options = ExecOptions {
            argv: vec!["sh".into(), "-c".into(), command.into()],
            ..ExecOptions::default()
        };
        let session = self.engine.exec(&self.name, options)?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let outcome = session.run(None::<&[u8]>, &mut out, &mut err)?;
        if outcome.exit_code() == 0 {
            return Ok(String::from_utf8_lossy(&out).trim().to_owned());
        }
        Err(BenchError::Failed {
            command: command.to_owned(),
            code: outcome.exit_code(),
            output: String::from_utf8_lossy(&err).trim().to_owned(),
        })
    }
}

impl Drop for Machine<'_> {
    fn drop(&mut self) {
        // It may not have been made; what is left otherwise shows in `smolvm machine ls`.
        let _ = self.engine.delete(&self.name, true);
    }
}

/// Where stores and checkpoints of a bench go: on the home's file system, but not in it.
pub(crate) fn beside(home: &Path) -> &Path {
    home.parent().unwrap_or(home)
}
