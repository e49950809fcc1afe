//! The state of one vCPU and what every instruction needs of it.

pub(crate) mod flags;
pub(crate) mod state;

pub(crate) use state::{Cpu, Exception, Flow, IoRequest, Mode, R, Step, Trap, Trapped};
