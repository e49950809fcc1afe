//! What makes a machine itself: made on the host, written by the agent.

use agent_protocol::codec::Bytes;
use agent_protocol::message::{Identity, SshHostKey};
use rustix::rand::{GetRandomFlags, getrandom};
use ssh_key::rand_core::OsRng;
use ssh_key::{Algorithm, EcdsaCurve, LineEnding, PrivateKey};
use thiserror::Error;

use crate::name::MachineName;

/// Bytes of a random seed.
pub(crate) const SEED_BYTES: usize = 64;

/// Why an identity could not be made.
#[derive(Debug, Error)]
pub(crate) enum IdentityError {
    /// The host's random generator failed.
    #[error("the host's random generator failed")]
    Random(#[from] rustix::io::Errno),
    /// A host key could not be made.
    #[error("an SSH host key could not be made")]
    Key(#[from] ssh_key::Error),
}

/// Random bytes from the host.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], IdentityError> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += getrandom(&mut bytes[filled..], GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

/// A new identity for a machine of this name. One that was restored gets another boot id as well: its
/// kernel still has that of the machine that was saved.
pub(crate) fn new_identity(name: &MachineName, restored: bool) -> Result<Identity, IdentityError> {
    let keys = [
        ("ed25519", Algorithm::Ed25519),
        (
            "ecdsa",
            Algorithm::Ecdsa {
                curve: EcdsaCurve::NistP256,
            },
        ),
    ];
    let comment = format!("root@{}", name.hostname());
    let keys: Result<Vec<_>, _> = keys
        .into_iter()
        .map(|(name, algorithm)| host_key(name, algorithm, &comment))
        .collect();
    Ok(Identity {
        hostname: Some(name.hostname()),
        machine_id: Some(random()?.into()),
        boot_id: restored.then(random_uuid).transpose()?.map(Into::into),
        random_seed: Some(Bytes(random::<512>()?.to_vec())),
        ssh_host_keys: keys?,
        forget_dhcp: true,
    })
}

/// A random UUID (RFC 9562, version 4), which is what the kernel's boot id is.
fn random_uuid() -> Result<[u8; 16], IdentityError> {
    let mut id = random::<16>()?;
    id[6] = id[6] & 0x0f | 0x40;
    id[8] = id[8] & 0x3f | 0x80;
    Ok(id)
}

fn host_key(name: &str, algorithm: Algorithm, comment: &str) -> Result<SshHostKey, IdentityError> {
    let mut key = PrivateKey::random(&mut OsRng, algorithm)?;
    key.set_comment(comment);
    let mut public = key.public_key().to_openssh()?;
    public.push('\n');
    Ok(SshHostKey {
        algorithm: name.to_owned(),
        private_key: Bytes(key.to_openssh(LineEnding::LF)?.as_bytes().to_vec()),
        public_key: Bytes(public.into_bytes()),
    })
}
