//! CPU backend: a thread pool that executes graphs together, with the compute routines of the `kernels`
//! crate.
//!
//! Modules, from the lowest layer up:
//! - [`topology`] (cores, caches, and NUMA nodes), [`affinity`] (CPUs of a thread), [`numa`] (placement of threads and
//!   weights), [`groups`] (threads with a common cache), [`homes`] (nodes of threads),
//! - [`sync`], [`futex`], [`arrivals`], [`phases`] (barriers and work stealing), [`pool`] (threads), [`queue`] (chunks
//!   of work),
//! - [`scratch`], [`barriers`] (memory conflicts), [`view`] (operands as slices), [`activations`] (quantized
//!   operands), [`interleaved`] (weight layout), [`weight_prefetch`],
//! - [`plan`] (nodes ready to run), [`ops`] (one module per family of ops),
//! - [`fuse`] (fusion of nodes), [`planner`], [`compute`] (execution of a plan), [`device`].

mod activations;
mod affinity;
mod arrivals;
#[cfg(test)]
mod barrier_tests;
mod barriers;
mod compute;
mod device;
mod error;
mod fuse;
mod futex;
mod groups;
mod homes;
mod interleaved;
mod numa;
mod ops;
mod phases;
mod plan;
mod planner;
mod pool;
mod queue;
mod scratch;
mod sync;
mod topology;
mod view;
mod weight_prefetch;

pub use self::device::{CpuDevice, CpuRegistry};
pub use self::numa::{NumaMode, default_threads, is_distributed, set_numa};
pub use self::pool::ThreadPool;
pub use self::topology::{Cpu, Topology};
