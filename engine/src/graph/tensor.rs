//! Tensor descriptions: type, shape, strides, op, and location, without data.

use std::fmt;

use kernels::GgmlType;

use super::{Layout, Op};

/// Maximum number of operands of an op.
pub const MAX_SRC: usize = 12;

/// Index of a tensor in its [`Graph`](super::Graph).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TensorId(pub u32);

impl TensorId {
    /// Returns the index into per-tensor tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Id of a buffer in a [`MemoryMap`](crate::backend::MemoryMap).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// Location of a tensor: a buffer and a byte offset.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BufferSlice {
    /// Buffer that contains the tensor.
    pub buffer: BufferId,
    /// Offset in bytes from the start of the buffer.
    pub offset: usize,
}

/// Tensor name without heap allocation: a base such as `attn_norm` and an optional layer index.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Name {
    /// Name of the value in the architecture file.
    pub base: &'static str,
    /// Layer index, if the value belongs to a layer.
    pub layer: Option<u32>,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(il) => write!(f, "{}-{il}", self.base),
            None => f.write_str(self.base),
        }
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Roles of a tensor for the allocator and scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Flags {
    /// Filled by the caller before each compute; allocated first, and its memory is not reused.
    pub input: bool,
    /// Read by the caller after compute; its memory is not reused within the graph.
    pub output: bool,
    /// Model weight; the scheduler places ops near their weights.
    pub weight: bool,
    /// Output of a layer, for observers.
    pub layer_output: bool,
}

/// Node or leaf of a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Element type.
    pub ty: GgmlType,
    /// Elements per dimension, innermost first; unused dimensions are 1.
    pub ne: [usize; 4],
    /// Strides in bytes per dimension. `nb[0]` is the size of an element or, for quantized types, of a block.
    pub nb: [usize; 4],
    /// Row layout; views inherit it from their owner.
    pub layout: Layout,
    /// Operation that computes the tensor; [`Op::None`] for leaves.
    pub op: Op,
    /// Operands of `op`, contiguous from index 0.
    pub src: [Option<TensorId>; MAX_SRC],
    /// Views only: the tensor that owns the memory (never itself a view) and the byte offset in it.
    pub view: Option<(TensorId, usize)>,
    /// Roles of the tensor for the allocator and scheduler.
    pub flags: Flags,
    /// Tensor name for messages, plans, and eval callbacks.
    pub name: Name,
    /// Location in memory. Weights and caches have a buffer when the graph is built; the scheduler assigns all other
    /// buffers.
    pub home: Option<BufferSlice>,
}

impl Tensor {
    /// Creates a contiguous leaf. `ne[0]` must be a multiple of the block size of `ty`.
    pub fn new(ty: GgmlType, ne: [usize; 4], name: Name) -> Tensor {
        Tensor {
            ty,
            ne,
            nb: contiguous_strides(ty, ne),
            layout: Layout::Plain,
            op: Op::None,
            src: [None; MAX_SRC],
            view: None,
            flags: Flags::default(),
            name,
            home: None,
        }
    }

    /// Returns the number of elements.
    pub fn nelements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Returns the number of rows, the product of all dimensions except the first.
    pub fn nrows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Returns the extent in bytes from the first to past the last element, including gaps of strided views;
    /// `usize::MAX` on overflow.
    pub fn nbytes(&self) -> usize {
        self.checked_nbytes().unwrap_or(usize::MAX)
    }

    /// Returns the extent in bytes like [`Tensor::nbytes`], or `None` on overflow. All size computations are
    /// based on this function.
    pub fn checked_nbytes(&self) -> Option<usize> {
        if self.ne.contains(&0) {
            return Some(0);
        }
        if !self.layout.is_plain() && self.view.is_none() {
            let n_rows = self.ne[1..].iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
            return Some(self.layout.byte_range(self.ty, self.ne[0], 0..n_rows)?.end);
        }
        // The last block counts with its own size, because the blocks of a permuted tensor may have gaps or overlap.
        let mut bytes = (self.ne[0] / self.ty.block_size())
            .saturating_sub(1)
            .checked_mul(self.nb[0])?
            .checked_add(self.ty.block_bytes())?
            .checked_add(self.ty.row_header())?;
        for d in 1..4 {
            bytes = bytes.checked_add((self.ne[d] - 1).checked_mul(self.nb[d])?)?;
        }
        isize::try_from(bytes).ok()?;
        Some(bytes)
    }

    /// Returns the size of a row in bytes.
    pub fn row_bytes(&self) -> usize {
        self.ne[0] / self.ty.block_size() * self.nb[0] + self.ty.row_header()
    }

    /// Returns true if the elements are dense and in order.
    pub fn is_contiguous(&self) -> bool {
        self.nb == contiguous_strides(self.ty, self.ne) || self.contiguous_ignoring_unit_dims()
    }

    /// Returns true if each row is dense, regardless of the strides between rows.
    pub fn has_dense_rows(&self) -> bool {
        self.ne[0] <= self.ty.block_size() || self.nb[0] == self.ty.block_bytes()
    }

    /// Like [`is_contiguous`](Tensor::is_contiguous), but ignores the strides of dimensions of size 1, which
    /// are never used.
    fn contiguous_ignoring_unit_dims(&self) -> bool {
        let want = contiguous_strides(self.ty, self.ne);
        (0..4).all(|d| self.ne[d] == 1 || self.nb[d] == want[d])
    }

    /// Iterates over the operands of the node.
    pub fn sources(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.src.iter().map_while(|s| *s)
    }

    /// Returns operand `i`.
    ///
    /// # Panics
    /// Panics if the op has fewer operands, which is a bug in the builder of the op.
    pub fn source(&self, i: usize) -> TensorId {
        self.src[i].unwrap_or_else(|| panic!("{}: {:?} has no operand {i}", self.name, self.op))
    }
}

/// Returns the strides of a dense tensor.
pub fn contiguous_strides(ty: GgmlType, ne: [usize; 4]) -> [usize; 4] {
    let mut nb = [ty.block_bytes(); 4];
    nb[1] = (ne[0] / ty.block_size())
        .saturating_mul(ty.block_bytes())
        .saturating_add(ty.row_header());
    nb[2] = nb[1].saturating_mul(ne[1]);
    nb[3] = nb[2].saturating_mul(ne[2]);
    nb
}

/// Returns the size in bytes of a dense tensor; `usize::MAX` on overflow.
pub fn dense_bytes(ty: GgmlType, ne: [usize; 4], layout: Layout) -> usize {
    let tensor = Tensor {
        layout,
        ..Tensor::new(ty, ne, Name::default())
    };
    tensor.nbytes()
}
