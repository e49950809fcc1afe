//! What the engine and the agent in the guest say to each other, and the client's side of it.
//!
//! # Model
//!
//! The agent listens on vsock port [`AGENT_PORT`]. One connection is one session: a [`hello`] each
//! way, then one [`message::Request`] from the client, which decides what the connection is:
//!
//! - **exec**: a command with its streams, see [`client::ExecSession`];
//! - **copy in, copy out**: one [`tree`] of files as a stream;
//! - **log**: the output of detached commands, see [`client::LogReader`];
//! - **control**: calls that are answered one by one (ping, sync, power off, clock, identity, …).
//!
//! Everything after the hello is [`frame`]s, each one message or a run of raw bytes in the encoding
//! of [`codec`], which also says how version 1 may grow. All of it works over any `Read` and `Write`.
//!
//! The end of a connection while the machine runs means that the client is gone: the agent ends
//! the command. A reset of the transport (the guest was restored or copied) does not.
//!
//! # Errors
//!
//! Each layer has its own enum; [`client::ClientError`] holds them all. Nothing that arrives can
//! panic, loop or take memory out of proportion to one frame, whichever side is hostile. The other
//! side's words are made [`harmless`](words::harmless) before a caller sees them.
//!
//! # Not here
//!
//! Sockets and how one reaches the guest (the engine), running commands (guest-agent).
//!
//! # Example
//!
//! ```
//! use agent_protocol::client::Connection;
//! use agent_protocol::frame::{read_message, write_message};
//! use agent_protocol::hello::welcome;
//! use agent_protocol::message::{Reply, Request};
//! use std::os::unix::net::UnixStream;
//!
//! let (ours, theirs) = UnixStream::pair()?;
//! // A guest that only answers one ping.
//! let guest = std::thread::spawn(move || {
//!     let (mut reader, mut writer) = (&theirs, &theirs);
//!     welcome(&mut reader, &mut writer).unwrap();
//!     assert_eq!(read_message::<Request>(&mut reader).unwrap(), Request::Ping);
//!     write_message(&mut writer, &Reply::Ok).unwrap();
//! });
//! let mut agent = Connection::open(&ours, &ours)?;
//! agent.ping()?;
//! guest.join().unwrap();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod client;
pub mod codec;
pub mod frame;
pub mod fuzz;
pub mod hello;
pub mod message;
pub mod tree;
pub mod words;

/// The vsock port on which the agent listens in the guest. Below 1024, so that no unprivileged process
/// of the guest takes it while the agent is away (`LAST_RESERVED_PORT`, `vsock(7)`).
pub const AGENT_PORT: u32 = 1_000;
