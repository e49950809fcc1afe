//! vCPUs run by Linux KVM.
