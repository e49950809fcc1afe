//! Copy-on-write block layers.
