//! The agent in the guest: runs commands, copies files and does what the engine asks.
//!
//! # Model
//!
//! [`init`] is PID 1: it finds the root disk, mounts what a Linux system needs, and keeps a child
//! alive that is the agent proper, so that no fault of the agent ends the machine. The [`agent`]
//! serves connections of `agent-protocol`: commands and copies each on a thread of its own, control calls
//! on threads that are always there, so that whatever commands use up the machine can be saved and
//! stopped. [`ready`] holds what waits until the machine is branched. Nothing of it needs to be PID 1: the tests serve socket pairs in an ordinary process.
//!
//! # Errors
//!
//! A call that fails is answered with what was tried and why. What goes wrong without a caller is
//! written to the console, which is the machine's log.
//!
//! # Not here
//!
//! The protocol and its limits (`agent-protocol`), network configuration, services: the image's own
//! init is not run.
//!
//! # Example
//!
//! ```
//! use agent_protocol::client::Connection;
//! use guest_agent::agent::{Agent, Config};
//! use std::os::unix::net::UnixStream;
//!
//! let log = Box::new(std::io::sink());
//! let agent = Agent::new(Config { owns_machine: false, log, numbers: None })?;
//! let (ours, theirs) = UnixStream::pair()?;
//! agent.accept(theirs.into());
//! let mut client = Connection::open(&ours, &ours)?;
//! client.ping()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg(target_os = "linux")]

pub mod agent;
mod control;
mod copy;
mod door;
mod exec;
pub mod init;
pub mod ready;
mod room;
mod session;
mod sys;
