//! Resources of a device that its backends share.

use std::sync::Arc;

use super::buffer::CudaBufferType;
use super::context::Context;
use super::gpu::Gpu;
use super::library::Library;

/// Context, kernels, and memory of a device in use.
pub(super) struct DeviceState {
    pub(super) context: Arc<Context>,
    pub(super) library: Library,
    pub(super) gpu: Gpu,
    pub(super) buffer_type: Arc<CudaBufferType>,
}
