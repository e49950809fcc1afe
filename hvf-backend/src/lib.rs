//! vCPUs run by Apple's Hypervisor.framework.
//!
//! This version has the probe only: it says that the backend is not built yet. The traits that it will
//! implement are [`vmm_core::hypervisor`]'s; they are type-checked for its target.
//!
//! ```
//! assert!(hvf_backend::probe().is_err());
//! ```

use vmm_core::hypervisor::{Hypervisor, HypervisorError};

/// Name of the backend.
pub const NAME: &str = "hvf";

/// Says why the framework cannot be used.
pub fn probe() -> Result<(), HypervisorError> {
    Err(unavailable())
}

/// Opens the framework.
pub fn open() -> Result<Box<dyn Hypervisor>, HypervisorError> {
    Err(unavailable())
}

fn unavailable() -> HypervisorError {
    let reason = if cfg!(target_os = "macos") {
        "support for Hypervisor.framework is not built yet"
    } else {
        "Hypervisor.framework is on macOS only"
    };
    HypervisorError::Unavailable {
        backend: NAME,
        reason: reason.to_owned(),
    }
}
