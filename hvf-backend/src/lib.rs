//! vCPUs run by Apple's Hypervisor.framework.
