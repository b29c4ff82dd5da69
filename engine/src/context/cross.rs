//! Memory of the keys and values that cross attention reads. They are computed once for each encoder output.

use std::sync::Arc;

use kernels::GgmlType;

use crate::backend::{Buffer, Device};
use crate::builder::{CrossSlot, CrossSpec, MemorySpecs};
use crate::graph::{BufferId, BufferSlice};

use super::memory::{by_buffer_type, check_type, no_room};
use super::{ContextError, ContextParams};

/// Keys and values of all cross attention calls of a model.
pub(super) struct CrossMemory {
    specs: Vec<CrossSpec>,
    slots: Vec<CrossSlot>,
    /// Number of rows of the encoder output.
    n_rows: usize,
    /// Requested context length, for error messages.
    n_ctx: usize,
    n_bytes: usize,
}

impl CrossMemory {
    /// Computes the layout for a model's cross attention calls. [`CrossMemory::allocate`] allocates the buffers.
    pub fn new(specs: &[CrossSpec], n_ctx: usize, params: &ContextParams) -> Result<CrossMemory, ContextError> {
        for spec in specs {
            let n_head = spec.n_head_kv.max(1);
            check_type(params.type_k, spec.k_row / n_head)?;
            check_type(params.type_v, spec.v_row / n_head)?;
        }
        let kept = MemorySpecs {
            cross: specs.to_vec(),
            ..MemorySpecs::default()
        };
        let (view, _) = params.memory(n_ctx).cache_view(&kept);
        Ok(CrossMemory {
            specs: kept.cross,
            slots: view.cross,
            n_rows: view.n_cross_rows,
            n_ctx,
            n_bytes: 0,
        })
    }

    /// Allocates a buffer per device; `register` assigns its id.
    pub fn allocate(
        &mut self,
        device_of: impl Fn(usize) -> Arc<dyn Device>,
        mut register: impl FnMut(Box<dyn Buffer>) -> BufferId,
    ) -> Result<(), ContextError> {
        for (ty, calls) in by_buffer_type(self.specs.iter().map(|s| device_of(s.layer).buffer_type())) {
            let (align, mut size) = (ty.alignment(), 0usize);
            let mut take = |ty: GgmlType, row: usize| {
                let offset = size.checked_next_multiple_of(align).unwrap_or(usize::MAX);
                // Saturates on overflow; the allocation then fails with an out-of-memory error.
                let bytes = ty.row_bytes(row).unwrap_or(usize::MAX).saturating_mul(self.n_rows);
                size = offset.saturating_add(bytes);
                offset
            };
            let offsets: Vec<_> = (calls.iter())
                .map(|&i| (&self.slots[i], &self.specs[i]))
                .map(|(slot, spec)| (take(slot.type_k, spec.k_row), take(slot.type_v, spec.v_row)))
                .collect();
            let buffer = ty.allocate(size).map_err(|e| no_room(e, self.n_ctx))?;
            let buffer = register(buffer);
            self.n_bytes += size;
            for (&i, (k, v)) in calls.iter().zip(offsets) {
                self.slots[i].k = BufferSlice { buffer, offset: k };
                self.slots[i].v = BufferSlice { buffer, offset: v };
            }
        }
        Ok(())
    }

    /// Returns the location of the keys and values of each call.
    pub fn slots(&self) -> &[CrossSlot] {
        &self.slots
    }

    /// Returns the number of rows of the encoder output that fit.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Returns the size of keys and values in bytes.
    pub fn n_bytes(&self) -> usize {
        self.n_bytes
    }
}
