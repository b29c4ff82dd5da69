//! The CPU.
mod gate;
mod pool;
