//! vCPUs run by a software CPU.
