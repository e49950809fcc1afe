//! A machine that was made for one process ends with it.

use std::sync::Arc;

use super::shared::Shared;
use crate::error_chain::chain;

/// Ends the machine once the process that it was made for is gone, however that ended.
pub(super) fn follow(shared: &Arc<Shared>) {
    let for_thread = shared.clone();
    let spawned = std::thread::Builder::new()
        .name("owner".to_owned())
        .spawn(move || match for_thread.dir.wait_for_owner() {
            Ok(()) => {
                tracing::info!("the process that the machine was made for is gone");
                for_thread.quit_vmm();
            }
            Err(error) => {
                tracing::error!(error = %chain(&error), "the machine goes on without its owner");
            }
        });
    if let Err(error) = spawned {
        tracing::error!(%error, "the machine goes on without its owner");
    }
}
