//! Hypervisor abstraction and machine model.
