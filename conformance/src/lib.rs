//! One test body for every backend.
//!
//! # Model
//!
//! A body is a public function over a trait: [`hypervisor`]'s take any
//! [`vmm_core::hypervisor::Hypervisor`], [`block`]'s any disk. Who implements the trait runs all of them
//! by one macro, which makes a thin `#[test]` of each: [`hypervisor_suite!`](crate::hypervisor_suite),
//! [`block_suite!`](crate::block_suite).
//! Guests are a few instructions of machine code, written as bytes with their disassembly beside
//! them; [`guest`] makes VMs around them.
//!
//! # Errors
//!
//! Bodies panic, as tests do. What a host cannot run is said by [`skip`].
//!
//! # What is not here
//!
//! Single instructions (the backends test those against the host's CPU) and whole operating systems.
//!
//! ```
//! use conformance::guest::{TestVm, start};
//!
//! /// mov eax, 42 / out 0xe0, eax / out 0xf4, al / hlt
//! const CODE: &[u8] = &[0xb8, 42, 0, 0, 0, 0xe7, 0xe0, 0xe6, 0xf4, 0xf4];
//!
//! fn answers(hypervisor: &dyn vmm_core::hypervisor::Hypervisor) {
//!     let vm = TestVm::new(hypervisor, 1);
//!     vm.place(start::CODE, CODE);
//!     let mut vcpu = vm.bind(0);
//!     vcpu.load(&start::protected_mode());
//!     assert_eq!(vcpu.run_until_done(), [42]);
//! }
//! # answers(&soft_backend::open(Default::default()).unwrap());
//! ```

pub mod block;
pub mod guest;
pub mod hypervisor;
pub mod skip;
