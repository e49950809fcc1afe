//! Virtio devices over the MMIO transport.
//!
//! # Model
//!
//! A [`VirtioMmio`] is one slot of the machine: the register block of the transport (virtio 1.2,
//! section 4.2) as a [`crate::bus::BusDevice`], the queues, and the worker threads of one
//! [`VirtioDevice`]: [`Blk`], [`Vsock`], [`Rng`] or [`Balloon`]. Slots, addresses and interrupts of
//! machine model 1 are constants of [`slots`].
//!
//! A new `VirtioMmio` is *quiesced*: its workers take nothing from the queues until
//! [`VirtioMmio::resume`]. [`VirtioMmio::quiesce`] brings it back to rest at a descriptor boundary:
//! every descriptor chain is either untouched in the available ring or complete in the used ring, or
//! is a disk flush that the saved state names. At rest it can be saved and restored by its
//! [`crate::unit::StateUnit`] implementation; a restore recreates offered and accepted features and
//! queue sizes as recorded. [`VirtioMmio::stop`] ends the threads; dropping does the same.
//!
//! # Trust
//!
//! The driver is hostile: bad ring or buffer addresses, loops, over-long chains and register writes
//! in the wrong order make the device ask for a reset (`DEVICE_NEEDS_RESET`), fail the request or are
//! ignored. A device warns of that at most once per second. The crate `virtio-queue` complains each time,
//! by `log`: a program that takes records of that crate in lets its guests fill the log.
//!
//! # Deterministic machines
//!
//! In a machine whose time is a count of instructions ([`crate::schedule`]) a device has no workers:
//! [`VirtioDevice::serve`] is called a fixed number of instructions after the driver's notification,
//! and all its time limits are counts.
//!
//! # Not here
//!
//! Network and console have slots but no devices yet. Bytes on their way to a socket or a sink of
//! the host are not saved.
//!
//! ```
//! use std::sync::Arc;
//! use vmm_core::Gpa;
//! use vmm_core::bus::Bus;
//! use vmm_core::irq::IrqLine;
//! use vmm_core::ram::{GuestRam, MemoryRegion, RamBacking, RamLayout};
//! use vmm_core::unit::StateUnit;
//! use vmm_core::virtio::{Rng, VirtioMmio, slots};
//!
//! struct Line;
//! impl IrqLine for Line {
//!     fn pulse(&self) {} // the IOAPIC's input slots::gsi(slots::RNG)
//! }
//!
//! let region = MemoryRegion { start: Gpa(0), bytes: 2 << 20 };
//! let ram = GuestRam::new(RamLayout::new(vec![region])?, &RamBacking::Anonymous)?;
//! let rng = Arc::new(Rng::from_host()?);
//! let slot = Arc::new(VirtioMmio::new("rng0", slots::RNG, rng, ram, Arc::new(Line))?);
//! let mut mmio = Bus::new();
//! mmio.insert(slots::mmio_base(slots::RNG).0, slots::MMIO_BYTES, slot.clone())?;
//!
//! slot.resume(); // before the vCPUs run
//! slot.quiesce(); // after they have stopped
//! let saved = slot.save()?;
//! slot.restore(&saved)?;
//! slot.stop();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod balloon;
mod blk;
mod device;
mod gate;
mod io;
mod mmio;
mod pace;
mod rng;
mod segments;
pub mod slots;
mod state;
mod vsock;
mod waker;

pub use balloon::{Balloon, BalloonStats};
pub use blk::{Blk, BlkError, MAX_ID_BYTES};
pub use device::{DeviceError, VirtioDevice};
pub use gate::Ticket;
pub use io::{DeviceIo, Taken};
pub use mmio::VirtioMmio;
pub use rng::Rng;
pub use segments::{ChainError, MAX_CHAIN_DESCRIPTORS, Segments};
pub use vsock::{Vsock, VsockError};
