//! Durable, deduplicated chunks in sealed packs.
