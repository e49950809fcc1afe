//! vCPUs run by a software CPU.

mod backend;
mod block;
mod cpu;
mod decode;
mod exceptions;
pub mod fpu;
mod int;
mod invalidate;
mod lapic;
mod local;
mod mem;
mod mmu;
mod msr;
mod ops;
mod pvclock;
mod run;
mod segments;
pub mod simd;
mod time;

pub use backend::{SoftHypervisor, SoftOptions, open, probe};
