//! A tensor as a description: type, shape, strides, how it is computed and where its bytes live. No data inside.

use std::fmt;

use kernels::GgmlType;

use super::{Layout, Op};

/// Most sources an op can have.
pub const MAX_SRC: usize = 12;

/// Index of a tensor in its [`Graph`](super::Graph).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct TensorId(pub u32);

impl TensorId {
    /// The index into per-tensor tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Identifies a buffer of a [`MemoryMap`](crate::backend::MemoryMap).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct BufferId(pub u32);

/// The memory of a tensor: `offset` bytes into a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Home {
    /// The buffer.
    pub buffer: BufferId,
    /// Bytes from the start of the buffer.
    pub offset: usize,
}

/// A tensor's name without heap memory: a base such as `attn_norm` and, inside a layer, its number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Name {
    /// Name of the value as written in the architecture file.
    pub base: &'static str,
    /// Layer number, if the value belongs to a layer.
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

/// What role a tensor plays for the allocator and the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Flags {
    /// Filled by the caller before each compute: allocated before all else and never overlapped.
    pub input: bool,
    /// Read by the caller after compute: its memory is never reused within the graph.
    pub output: bool,
    /// A weight of the model: the scheduler places ops near their weights.
    pub weight: bool,
}

/// One node or leaf of a graph.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// Element type.
    pub ty: GgmlType,
    /// Elements per dimension, innermost first; unused dimensions are 1.
    pub ne: [usize; 4],
    /// Bytes between neighbours per dimension. `nb[0]` is the size of an element, or of a block for quantized types.
    pub nb: [usize; 4],
    /// Arrangement of the rows; views take it over from their owner.
    pub layout: Layout,
    /// How it is computed; [`Op::None`] for leafs.
    pub op: Op,
    /// Operands of `op`, filled from the front.
    pub src: [Option<TensorId>; MAX_SRC],
    /// For views: the tensor that owns the memory (never itself a view) and the byte offset into it.
    pub view: Option<(TensorId, usize)>,
    /// Roles.
    pub flags: Flags,
    /// For messages, plans and eval callbacks.
    pub name: Name,
    /// Set for tensors that exist before the graph (weights, caches); for all others the scheduler's allocation sets it.
    pub home: Option<Home>,
}

impl Tensor {
    /// A contiguous leaf of the given type and shape. `ne[0]` must be whole blocks of `ty`.
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

    /// Number of elements.
    pub fn nelements(&self) -> usize {
        self.ne.iter().product()
    }

    /// Number of rows: elements beyond the first dimension.
    pub fn nrows(&self) -> usize {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Bytes from the first element to one past the last, including the gaps of strided views; `usize::MAX` if they do not fit the
    /// address space.
    pub fn nbytes(&self) -> usize {
        self.checked_nbytes().unwrap_or(usize::MAX)
    }

    /// [`Tensor::nbytes`], or `None` if they do not fit the address space. This is the one definition of a tensor's size.
    pub fn checked_nbytes(&self) -> Option<usize> {
        if self.ne.contains(&0) {
            return Some(0);
        }
        if !self.layout.is_plain() && self.view.is_none() {
            let n_rows = self.ne[1..].iter().try_fold(1usize, |n, &d| n.checked_mul(d))?;
            return Some(self.layout.byte_range(self.ty, self.ne[0], 0..n_rows)?.end);
        }
        // The last block counts by its size: in a permuted tensor blocks are further apart, or overlap.
        let mut bytes = (self.ne[0] / self.ty.block_size())
            .saturating_sub(1)
            .checked_mul(self.nb[0])?
            .checked_add(self.ty.block_bytes())?;
        for d in 1..4 {
            bytes = bytes.checked_add((self.ne[d] - 1).checked_mul(self.nb[d])?)?;
        }
        isize::try_from(bytes).ok()?;
        Some(bytes)
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.ne[0] / self.ty.block_size() * self.nb[0]
    }

    /// True if elements follow one another without gaps or permutation.
    pub fn is_contiguous(&self) -> bool {
        self.nb == contiguous_strides(self.ty, self.ne) || self.contiguous_ignoring_unit_dims()
    }

    /// True if each row is dense, whatever the strides between rows.
    pub fn has_dense_rows(&self) -> bool {
        self.ne[0] <= self.ty.block_size() || self.nb[0] == self.ty.block_bytes()
    }

    /// A stride of a dimension of size 1 is never used, so it cannot make a tensor non-contiguous.
    fn contiguous_ignoring_unit_dims(&self) -> bool {
        let want = contiguous_strides(self.ty, self.ne);
        (0..4).all(|d| self.ne[d] == 1 || self.nb[d] == want[d])
    }

    /// The operands, in order.
    pub fn sources(&self) -> impl Iterator<Item = TensorId> + '_ {
        self.src.iter().map_while(|s| *s)
    }

    /// Operand `i`; panics if the op has fewer, which is a bug in the op's builder.
    pub fn source(&self, i: usize) -> TensorId {
        self.src[i].unwrap_or_else(|| panic!("{}: {:?} has no operand {i}", self.name, self.op))
    }
}

/// Strides of a dense tensor of this type and shape.
pub fn contiguous_strides(ty: GgmlType, ne: [usize; 4]) -> [usize; 4] {
    let mut nb = [ty.block_bytes(); 4];
    nb[1] = (ne[0] / ty.block_size()).saturating_mul(ty.block_bytes());
    nb[2] = nb[1].saturating_mul(ne[1]);
    nb[3] = nb[2].saturating_mul(ne[2]);
    nb
}

/// Bytes of a dense tensor of this type, shape and layout; `usize::MAX` if they do not fit the address space.
pub fn dense_bytes(ty: GgmlType, ne: [usize; 4], layout: Layout) -> usize {
    let tensor = Tensor {
        layout,
        ..Tensor::new(ty, ne, Name::default())
    };
    tensor.nbytes()
}
