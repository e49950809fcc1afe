//! What makes a machine itself, and what became of the attempt to write it.

use minicbor::{Decode, Encode};

use crate::codec::{Bytes, Id, bounded_list};

/// Most SSH host keys of one identity.
pub const MAX_SSH_HOST_KEYS: usize = 16;

/// What makes a machine itself. A field that is `None` or empty is left as it is.
#[derive(Debug, Clone, PartialEq, Eq, Default, Encode, Decode)]
#[cbor(map)]
pub struct Identity {
    /// New host name: kernel, `/etc/hostname`, `/etc/hosts`.
    #[n(0)]
    pub hostname: Option<String>,
    /// New machine id, for `/etc/machine-id` and the D-Bus copy.
    #[n(1)]
    pub machine_id: Option<Id>,
    /// New boot id, shown in place of the kernel's.
    #[n(2)]
    pub boot_id: Option<Id>,
    /// New contents of random-seed files that exist.
    #[n(3)]
    pub random_seed: Option<Bytes>,
    /// New SSH host keys; all others are removed. Empty: left alone.
    #[cbor(n(4), default, decode_with = "bounded_list::<_, _, MAX_SSH_HOST_KEYS>")]
    pub ssh_host_keys: Vec<SshHostKey>,
    /// Forget DHCP leases and client ids.
    #[cbor(n(5), default)]
    pub forget_dhcp: bool,
}

/// One SSH host key, as files under `/etc/ssh`.
#[derive(Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct SshHostKey {
    /// `ed25519`, `ecdsa` or `rsa`.
    #[n(0)]
    pub algorithm: String,
    /// Contents of `ssh_host_ALGORITHM_key`.
    #[n(1)]
    pub private_key: Bytes,
    /// Contents of `ssh_host_ALGORITHM_key.pub`.
    #[n(2)]
    pub public_key: Bytes,
}

impl std::fmt::Debug for SshHostKey {
    // The private key must not reach a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshHostKey")
            .field("algorithm", &self.algorithm)
            .field("public_key", &self.public_key)
            .finish_non_exhaustive()
    }
}

/// One step of a call that has several.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
#[cbor(map)]
pub struct StepReport {
    /// What was to be set, such as `machine id`.
    #[n(0)]
    pub step: String,
    /// What became of it.
    #[n(1)]
    pub outcome: StepOutcome,
    /// Why it is not [`StepOutcome::Done`]; else empty.
    #[cbor(n(2), default)]
    pub reason: String,
}

/// What became of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
#[cbor(index_only)]
pub enum StepOutcome {
    /// Done, durably.
    #[n(1)]
    Done,
    /// It holds until the next boot: the guest's disk did not take it.
    #[n(2)]
    UntilBoot,
    /// Not done: the machine still has what it had.
    #[n(3)]
    Failed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_keys_stay_out_of_logs() {
        let key = SshHostKey {
            algorithm: "ed25519".into(),
            private_key: Bytes::from("SECRET"),
            public_key: Bytes::from("public"),
        };
        assert!(!format!("{key:?}").contains("SECRET"));
    }
}
