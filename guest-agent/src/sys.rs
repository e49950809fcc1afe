//! System calls that have no safe wrapper elsewhere, each in a small module of its own.

pub(crate) mod ext4;
pub(crate) mod network;
pub(crate) mod process;
pub(crate) mod random;
pub(crate) mod signal;
pub(crate) mod vsock;
