//! Emulated devices: how they are configured, and their memory.

pub mod config;
pub mod memory;
pub mod order;
