//! Each layer embedded alone.
