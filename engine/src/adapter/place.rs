//! Memory for adapters: each tensor goes to the buffer type of the weight it is added to.

use std::sync::Arc;

use kernels::GgmlType;

use crate::backend::{BackendError, Buffer, BufferType, Stored, same_buffer_type};
use crate::graph::Layout;

/// A tensor that lies in one of several buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlacedLeaf {
    pub ty: GgmlType,
    /// Shape, innermost first.
    pub ne: [usize; 4],
    /// Index of the buffer.
    pub buffer: usize,
    /// First byte in it.
    pub offset: usize,
}

/// A tensor to be placed: buffer type, type, shape and bytes.
pub(crate) struct ToPlace<'a> {
    pub memory: Arc<dyn BufferType>,
    pub ty: GgmlType,
    pub ne: [usize; 4],
    pub data: &'a [u8],
}

/// Placed tensors.
pub(crate) struct Placed {
    /// In the order in which they were given.
    pub leafs: Vec<PlacedLeaf>,
    /// One for each kind of memory.
    pub buffers: Vec<Arc<dyn Buffer>>,
}

/// Makes one buffer for each kind of memory and copies the tensors there.
pub(crate) fn place(tensors: &[ToPlace<'_>]) -> Result<Placed, BackendError> {
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
        buffers[leaf.buffer].set_tensor(&stored, 0..stored.n_rows(), t.data)?;
    }
    let buffers = buffers.into_iter().map(Arc::from).collect();
    Ok(Placed { leafs, buffers })
}
