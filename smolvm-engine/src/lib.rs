//! Machines, checkpoints and history for embedders.
