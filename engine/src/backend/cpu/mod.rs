//! CPU backend: a thread pool that executes graphs together, with the compute routines of the `kernels`
//! crate.
//!
//! Modules, from the lowest layer up:
//! - [`futex`], [`phases`] (barriers and work stealing), [`pool`] (threads), [`queue`] (chunks of work),
//! - [`scratch`], [`barriers`] (memory conflicts), [`view`] (operands as slices), [`activations`] (quantized
//!   operands), [`interleaved`] (weight layout), [`weight_prefetch`],
//! - [`plan`] (nodes ready to run), [`ops`] (one module per family of ops),
//! - [`fuse`] (fusion of nodes), [`planner`], [`compute`] (execution of a plan), [`device`].

mod activations;
mod barriers;
mod compute;
mod device;
mod error;
mod fuse;
mod futex;
mod interleaved;
mod ops;
mod phases;
mod plan;
mod planner;
mod pool;
mod queue;
mod scratch;
mod view;
mod weight_prefetch;

pub use self::device::{CpuDevice, CpuRegistry};
pub use self::pool::ThreadPool;
