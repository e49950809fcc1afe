//! Frames between the engine and the guest agent.
