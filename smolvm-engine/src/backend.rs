//! Which backends this host has.

use serde::{Deserialize, Serialize};
use thiserror::Error;
use vmm_core::hypervisor::{Hypervisor, HypervisorError, X86Capabilities};

use crate::home::Home;
use crate::machine::{Backend, replace_file};

/// Why no backend can run a machine here.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BackendError {
    /// The backend asked for is not usable.
    #[error(transparent)]
    Unusable(#[from] HypervisorError),
    /// None is.
    #[error("no backend can run a machine on this host: {}", reasons.join("; "))]
    None {
        /// Why not, one by one.
        reasons: Vec<String>,
    },
}

/// The backends in the order in which `auto` tries them.
pub(crate) const PREFERENCE: [Backend; 3] = [Backend::Kvm, Backend::Hvf, Backend::Soft];

/// Asks a backend whether it can run kernels here; `Auto`: whether any can, else why the first of them cannot.
pub fn probe(backend: Backend) -> Result<(), HypervisorError> {
    match backend {
        Backend::Kvm => kvm_backend::probe(),
        Backend::Hvf => hvf_backend::probe(),
        Backend::Soft => soft_backend::probe(),
        Backend::Auto => any_usable(PREFERENCE, probe),
    }
}

/// Asks one backend after the other until one is usable. The first one's reason is that of all.
fn any_usable<E>(
    [first, others @ ..]: [Backend; 3],
    ask: impl Fn(Backend) -> Result<(), E>,
) -> Result<(), E> {
    others.into_iter().fold(ask(first), |asked, backend| {
        asked.or_else(|reason| ask(backend).map_err(|_| reason))
    })
}

/// Opens a backend; `Auto` the first that is usable.
pub(crate) fn open(backend: Backend) -> Result<Box<dyn Hypervisor>, BackendError> {
    open_with(backend, soft_backend::SoftOptions::default())
}

/// As [`open`], with how the software CPU works.
fn open_with(
    backend: Backend,
    options: soft_backend::SoftOptions,
) -> Result<Box<dyn Hypervisor>, BackendError> {
    match backend {
        Backend::Kvm => Ok(kvm_backend::open()?),
        Backend::Hvf => Ok(hvf_backend::open()?),
        Backend::Soft => Ok(Box::new(soft_backend::open(options)?)),
        Backend::Auto => open_with(choose_now()?.backend, options),
    }
}

/// Opens what a machine runs on; with `deterministic`, time is the software CPU's count of instructions.
pub(crate) fn open_for(
    backend: Backend,
    interpret: bool,
    deterministic: bool,
) -> Result<Box<dyn Hypervisor>, BackendError> {
    let mut options = soft_backend::SoftOptions::default().with_deterministic(deterministic);
    if interpret {
        options = options.with_translate_after(None);
    }
    let backend = if deterministic {
        Backend::Soft
    } else {
        backend
    };
    open_with(backend, options)
}

/// Opens the software CPU for a machine whose time is the count of instructions.
pub(crate) fn open_deterministic() -> Result<Box<dyn Hypervisor>, BackendError> {
    open_for(Backend::Soft, false, true)
}

/// With the software CPU, by its name: whether code that runs often is translated here.
pub(crate) fn translates(backend: &str, interpret: bool) -> Option<bool> {
    (backend == Backend::Soft.name()).then(|| !interpret && soft_backend::translates())
}

/// The verdict on one backend, as kept in the cache.
#[derive(Debug, Serialize, Deserialize)]
struct CachedChoice {
    /// The boot of the host that it holds for.
    boot_id: String,
    backend: Backend,
}

/// Turns `Auto` into the best usable backend; the answer is kept per boot of the host. Asked for by
/// name, a backend is probed when it is opened.
pub(crate) fn choose(wanted: Backend, home: &Home) -> Result<Backend, BackendError> {
    if wanted != Backend::Auto {
        return Ok(wanted);
    }
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let path = home.cache().join("backend.json");
    let cached: Option<CachedChoice> = std::fs::read(&path)
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok());
    if let Some(cached) = cached.filter(|c| !boot_id.is_empty() && c.boot_id == boot_id) {
        // What permissions allow may change at any time: opening is cheap and asked again.
        if cached.backend != Backend::Kvm || kvm_backend::open().is_ok() {
            return Ok(cached.backend);
        }
    }
    let Choice {
        backend,
        passed_over,
    } = choose_now()?;
    // Only a backend that never gets better within a boot is kept; the cache is an optimisation.
    if !passed_over.iter().any(may_change)
        && let Ok(bytes) = serde_json::to_vec(&CachedChoice { boot_id, backend })
    {
        let kept = crate::home::make_private_dir(&home.cache()).is_ok()
            && replace_file(&path, &bytes).is_ok();
        tracing::debug!(%backend, kept, "backend chosen");
    }
    Ok(backend)
}

/// The best usable backend, and why those before it are not.
struct Choice {
    backend: Backend,
    passed_over: Vec<HypervisorError>,
}

fn choose_now() -> Result<Choice, BackendError> {
    let mut passed_over = Vec::new();
    for backend in PREFERENCE {
        match probe(backend) {
            Ok(()) => {
                return Ok(Choice {
                    backend,
                    passed_over,
                });
            }
            Err(error) => passed_over.push(error),
        }
    }
    Err(BackendError::None {
        reasons: passed_over.iter().map(ToString::to_string).collect(),
    })
}

/// Whether the host may answer otherwise before its next boot.
fn may_change(reason: &HypervisorError) -> bool {
    matches!(reason, HypervisorError::NotPermitted { .. })
}

/// Refuses a backend asked for by name that this user cannot open, before anything is started.
pub(crate) fn check_named(wanted: Backend) -> Result<(), BackendError> {
    match wanted {
        Backend::Kvm => Ok(kvm_backend::open().map(drop)?),
        Backend::Auto | Backend::Hvf | Backend::Soft => Ok(()),
    }
}

/// Why a machine that takes what there is runs on something slower than KVM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotKvm {
    /// What is missing.
    pub reason: String,
    /// What the user can do about it.
    pub hint: Option<String>,
}

impl NotKvm {
    pub(crate) fn of(wanted: Backend, used: &str) -> Option<Self> {
        if wanted != Backend::Auto || used == Backend::Kvm.name() {
            return None;
        }
        kvm_backend::open()
            .err()
            .filter(may_change)
            .map(|error| Self {
                reason: error.to_string(),
                hint: mend(&error),
            })
    }
}

/// What makes a backend usable that is not, as far as the error tells.
pub(crate) fn mend(error: &HypervisorError) -> Option<String> {
    match error {
        HypervisorError::NotPermitted { .. } => {
            let command = "sudo usermod -aG kvm $(id -un)";
            Some(format!("join the group kvm, then log in again: {command}"))
        }
        _ => None,
    }
}

/// vCPUs of a machine that does not say how many it wants.
pub(crate) fn default_vcpus(backend: Backend) -> u8 {
    if backend == Backend::Soft { 1 } else { 2 }
}

/// CPU profile of a machine that does not say which one it wants: the richest that restores
/// elsewhere and that this host has.
pub(crate) fn default_profile(hypervisor: &dyn Hypervisor) -> &'static str {
    use vmm_core::x86::{CpuProfile, build_profile};
    let Some(x86) = &hypervisor.capabilities().x86 else {
        return CpuProfile::V1.name();
    };
    [CpuProfile::V3, CpuProfile::V2]
        .into_iter()
        .find(|profile| build_profile(*profile, &x86.cpuid).is_ok())
        .unwrap_or(CpuProfile::V1)
        .name()
}
/// Host and guest may differ by so many parts per million in the rate of their TSCs.
const TSC_TOLERANCE_PPM: u64 = 250;

/// A guest whose clock would run wrong here.
#[derive(Debug, thiserror::Error)]
#[error("its TSC runs at {guest_khz} kHz, this host's at {host_khz} kHz without scaling")]
pub(crate) struct TscMismatch {
    guest_khz: u32,
    host_khz: u32,
}

/// Whether a guest with a TSC of this rate can run here.
pub(crate) fn check_tsc(guest_khz: u32, host: &X86Capabilities) -> Result<(), TscMismatch> {
    let host_khz = host.tsc_khz;
    let difference = u64::from(guest_khz.abs_diff(host_khz));
    let tolerance = u64::from(host_khz) * TSC_TOLERANCE_PPM / 1_000_000;
    match difference > tolerance && !host.tsc_scaling {
        true => Err(TscMismatch {
            guest_khz,
            host_khz,
        }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_usable_exactly_when_a_backend_is() {
        let among = |usable: &[Backend]| {
            any_usable(PREFERENCE, |backend| {
                usable.contains(&backend).then_some(()).ok_or(backend)
            })
        };
        assert_eq!(among(&[]), Err(PREFERENCE[0]));
        for backend in PREFERENCE {
            assert_eq!(among(&[backend]), Ok(()));
        }
    }
}
