use std::fmt;

use vm_memory::GuestAddress;

/// A guest physical address in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Gpa(pub u64);

impl Gpa {
    /// The address `bytes` further on, unless that is outside the 64-bit space.
    pub fn checked_add(self, bytes: u64) -> Option<Self> {
        self.0.checked_add(bytes).map(Self)
    }
}

impl fmt::Display for Gpa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl From<Gpa> for GuestAddress {
    fn from(gpa: Gpa) -> Self {
        GuestAddress(gpa.0)
    }
}

impl From<GuestAddress> for Gpa {
    fn from(address: GuestAddress) -> Self {
        Gpa(address.0)
    }
}

/// Position of a vCPU in its machine, from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuIndex(pub u8);

impl fmt::Display for VcpuIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "vcpu{}", self.0)
    }
}
