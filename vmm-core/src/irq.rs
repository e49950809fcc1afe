//! Interrupts between devices, interrupt controllers and vCPUs.

use crate::hypervisor::HypervisorError;

/// A message-signalled interrupt: a write of `data` to `address` (Intel SDM volume 3, 10.11).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MsiMessage {
    /// Where the message is written; holds the destination.
    pub address: u64,
    /// What is written; holds vector and delivery mode.
    pub data: u32,
}

/// Takes message-signalled interrupts; callable from any thread.
pub trait MsiSink: Send + Sync {
    /// Delivers one message.
    fn deliver(&self, message: MsiMessage) -> Result<(), HypervisorError>;

    /// Tells the sink which messages are level-triggered interrupts whose end must be reported by
    /// [`crate::exit::ExitHandler::ioapic_eoi`]: the IOAPIC's redirection table, masked or
    /// edge-triggered entries as `None`.
    fn watch_level_messages(&self, messages: &[Option<MsiMessage>]) -> Result<(), HypervisorError>;
}

/// Number of a global system interrupt: an input of the IOAPIC, or an SPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gsi(pub u32);

/// A device's interrupt line; callable from any thread.
pub trait IrqLine: Send + Sync {
    /// Signals one edge: the line goes up and down again.
    fn pulse(&self);
}
