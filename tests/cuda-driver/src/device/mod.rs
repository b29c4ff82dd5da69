//! Emulated devices: configuration, memory, and ordering of work.

pub mod config;
pub mod memory;
pub mod order;
