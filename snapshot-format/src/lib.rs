//! The bytes of a saved point: records, ids, lineage.
