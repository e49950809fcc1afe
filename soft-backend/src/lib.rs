//! vCPUs run by a software CPU.

pub mod fpu;
pub mod simd;
