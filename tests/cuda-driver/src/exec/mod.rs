//! Interpreter of kernels: grids, blocks, and warps of 32 lanes.

pub mod access;
pub mod block;
pub mod bulk;
pub mod compare;
pub mod convert;
pub mod env;
pub mod exchange;
pub mod fault;
pub mod float;
pub mod grid;
pub mod half;
pub mod inst;
pub mod int;
pub mod lanes;
pub mod latency;
pub mod matrix;
pub mod mbarrier;
pub mod products;
pub mod running;
pub mod scalar;
pub mod shared;
pub mod timing;
pub mod touched;
pub mod vector_clocks;
pub mod warp;
