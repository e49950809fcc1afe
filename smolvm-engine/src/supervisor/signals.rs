//! Signals that ask a supervisor to end, as a host does that shuts down.

use std::sync::Arc;
use std::time::Duration;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::serve::stop;
use super::shared::Shared;

/// How long the guest may take to end by itself.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// Stops the machine, as `stop` does, when this process is told to end.
pub(super) fn stop_when_told(shared: &Arc<Shared>) {
    let shared = shared.clone();
    let waiting = Signals::new([SIGTERM, SIGINT, SIGHUP]).and_then(|mut signals| {
        std::thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if let Some(signal) = signals.forever().next() {
                    tracing::info!(signal, "the machine is stopped because of a signal");
                    stop(&shared, STOP_TIMEOUT);
                }
            })
    });
    if let Err(error) = waiting {
        tracing::warn!(%error, "signals end this process at once");
    }
}
