//! Machines, checkpoints and history for embedders.

mod artifact;
pub mod image;
pub mod kernel;
pub mod progress;
