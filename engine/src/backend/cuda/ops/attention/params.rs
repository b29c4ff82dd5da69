//! Parameters of the attention kernels, laid out like the struct in `attention.cuh`.

use bytemuck::{Pod, Zeroable};

use super::super::arguments::TensorArg;
use super::super::visible::VisibleArg;

/// Row of the bias table for each distance, packed eight per word. Covers the distances that have their own rows, and
/// a few more.
pub(super) type NearBiases = [[u8; 8]; 17];

#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
pub(super) struct Params {
    pub(super) q: TensorArg,
    pub(super) k: TensorArg,
    pub(super) v: TensorArg,
    pub(super) y: TensorArg,
    pub(super) biases: TensorArg,
    pub(super) sinks: TensorArg,
    pub(super) selection: TensorArg,
    pub(super) visible: VisibleArg,
    pub(super) scale: f32,
    pub(super) softcap: f32,
    pub(super) max_bias: f32,
    pub(super) causal: i32,
    pub(super) window: i32,
    pub(super) window_size: i32,
    pub(super) compressed_from: i32,
    pub(super) side: i32,
    pub(super) near: NearBiases,
    pub(super) parts: u64,
    pub(super) rounded: u64,
    pub(super) n_parts: i32,
    pub(super) padding: i32,
}
