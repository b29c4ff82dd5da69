//! Memory of adapters: each tensor is allocated in the buffer type of its weight.

use std::borrow::Cow;
use std::sync::Arc;

use kernels::GgmlType;

use crate::backend::{BackendError, Buffer, BufferType, Stored, same_buffer_type};
use crate::graph::Layout;

/// Location of an adapter tensor in one of several buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedLeaf {
    pub ty: GgmlType,
    /// Shape, innermost dimension first.
    pub ne: [usize; 4],
    /// Index of the buffer.
    pub buffer: usize,
    /// Byte offset of the tensor in the buffer.
    pub offset: usize,
}

/// Tensor to be stored in a buffer.
pub(crate) struct PendingLeaf<'a> {
    pub memory: Arc<dyn BufferType>,
    pub ty: GgmlType,
    pub ne: [usize; 4],
    pub data: Cow<'a, [u8]>,
}

/// Result of [`place`].
pub(crate) struct PlacedLeaves {
    /// Stored tensors in input order.
    pub leafs: Vec<PlacedLeaf>,
    /// Buffers, one per buffer type.
    pub buffers: Vec<Arc<dyn Buffer>>,
}

/// Allocates one buffer per buffer type and copies the tensors.
pub(crate) fn place(tensors: &[PendingLeaf<'_>]) -> Result<PlacedLeaves, BackendError> {
    let mut kinds: Vec<(Arc<dyn BufferType>, usize)> = Vec::new();
    let mut leafs = Vec::with_capacity(tensors.len());
    for t in tensors {
        let known = kinds.iter().position(|(kind, _)| same_buffer_type(&**kind, &*t.memory));
        let buffer = known.unwrap_or_else(|| {
            kinds.push((t.memory.clone(), 0));
            kinds.len() - 1
        });
        let (kind, size) = &mut kinds[buffer];
        let offset = size.next_multiple_of(kind.alignment());
        *size = offset + t.data.len();
        leafs.push(PlacedLeaf {
            ty: t.ty,
            ne: t.ne,
            buffer,
            offset,
        });
    }
    let mut buffers = kinds
        .iter()
        .map(|(kind, size)| kind.allocate(*size))
        .collect::<Result<Vec<_>, _>>()?;
    for (t, leaf) in tensors.iter().zip(&leafs) {
        let stored = Stored {
            ty: t.ty,
            ne: t.ne,
            layout: Layout::Plain,
            offset: leaf.offset,
        };
        buffers[leaf.buffer].set_tensor(&stored, 0..stored.n_rows(), &t.data)?;
    }
    let buffers = buffers.into_iter().map(Arc::from).collect();
    Ok(PlacedLeaves { leafs, buffers })
}
