//! What the engine and the agent in the guest say to each other, and the client's side of it.
//!
//! # Model
//!
//! The agent listens on vsock port [`AGENT_PORT`]. One connection is one session: a [`hello`] each
//! way, then one [`message::Request`] from the client, which decides what the connection is:
//!
//! - **exec**: a command with its streams, see [`client::ExecSession`];
//! - **copy in, copy out**: one [`tree`] of files as a stream;
//! - **control**: calls that are answered one by one (ping, sync, power off, clock, identity, …).
//!
//! Everything after the hello is [`frame`]s of at most [`frame::MAX_FRAME_BYTES`], each one message
//! in the encoding of [`codec`]. All of it works over any `Read` and `Write`.
//!
//! The end of a connection while the machine runs means that the client is gone: the agent ends
//! the command. A reset of the transport (the guest was restored or copied) does not.
//!
//! # Errors
//!
//! Each layer has its own enum; [`client::ClientError`] holds them all. Nothing that arrives can
//! panic, loop or take more memory than one frame, whichever side is hostile.
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

/// The vsock port on which the agent listens in the guest.
pub const AGENT_PORT: u32 = 10_240;
