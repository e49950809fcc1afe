//! Address translation: TLB, page walks, and loads and stores by linear address.

mod access;
pub(crate) mod tlb;
mod walk;

/// What an access is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Exec,
}
