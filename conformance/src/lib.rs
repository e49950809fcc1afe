//! One test body for every backend.
