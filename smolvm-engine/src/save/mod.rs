//! Saving: memory and disk of a moment into the store, and the record that names them.

pub(crate) mod chunk_sink;
pub(crate) mod disk_capture;
pub(crate) mod maps;
pub(crate) mod record;
