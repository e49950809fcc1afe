//! Interrupt messages between local APICs, the IOAPIC and devices (Intel SDM volume 3, 11.6).

/// What is sent to a local APIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// An interrupt.
    Fixed {
        /// Its vector.
        vector: u8,
        /// Whether it is level-triggered.
        level: bool,
    },
    /// An interrupt for one of those addressed.
    LowestPriority {
        /// Its vector.
        vector: u8,
        /// Whether it is level-triggered.
        level: bool,
    },
    /// A non-maskable interrupt.
    Nmi,
    /// Reset, then wait for a start-up.
    Init,
    /// Start at this page of the first MiB.
    StartUp(u8),
}

impl Message {
    /// From a delivery mode; `None` for modes that the machine does not have (SMI, ExtINT).
    pub fn new(mode: u8, vector: u8, level: bool) -> Option<Self> {
        match mode {
            0 => Some(Message::Fixed { vector, level }),
            1 => Some(Message::LowestPriority { vector, level }),
            4 => Some(Message::Nmi),
            5 => Some(Message::Init),
            6 => Some(Message::StartUp(vector)),
            _ => None,
        }
    }
}

/// To whom a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// Those of this address.
    Of {
        /// The address.
        id: u8,
        /// Whether it is logical, else it is an APIC id.
        logical: bool,
    },
    /// The sender alone.
    Itself,
    /// All, the sender included.
    All,
    /// All but the sender.
    Others,
}
