//! An op as a value: operands with types, shapes, strides, and contents.

use engine::graph::{Graph, Op, TensorId};
use kernels::GgmlType;

/// An op with its operands.
#[derive(Clone, Debug)]
pub struct Case {
    pub op: Op,
    pub operands: Vec<Operand>,
    /// Shape of the result, for ops that take one.
    pub ne: [usize; 4],
    /// Maximum normalized mean squared error compared to the reference.
    pub limit: f64,
}

/// An operand. Its contents are derived from the seed of the case and the operand's index.
#[derive(Clone, Debug)]
pub struct Operand {
    pub ty: GgmlType,
    pub ne: [usize; 4],
    pub layout: Layout,
    pub data: Data,
}

/// Memory layout of an operand.
#[derive(Clone, Copy, Debug)]
pub enum Layout {
    Dense,
    /// Stored with permuted dimensions: dimension `i` of the stored tensor is dimension `order[i]` of the
    /// operand.
    Permuted([usize; 4]),
    /// Part of a larger tensor, with this margin before and after it in each dimension (in blocks of 32
    /// elements for dimension 0).
    Part(usize),
    /// Weights in the preferred layout of the device.
    AsWeights,
    /// The first elements of the rows of an earlier operand, given its index.
    FirstOf(usize),
}

/// Contents of an operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Floats uniformly distributed over a range.
    Uniform(f32, f32),
    /// Random integers below a limit.
    Below(usize),
    /// Distinct random integers below a limit.
    Distinct(usize),
    /// A fixed list of integers.
    Ints(Vec<i64>),
}

impl Case {
    pub fn new(op: Op, operands: &[Operand]) -> Case {
        Case {
            op,
            operands: operands.to_vec(),
            ne: [0; 4],
            limit: 1e-11,
        }
    }

    /// Sets the shape of the result.
    pub fn into_shape(mut self, ne: [usize; 4]) -> Case {
        self.ne = ne;
        self
    }

    /// Sets the maximum error.
    pub fn within(mut self, limit: f64) -> Case {
        self.limit = limit;
        self
    }

    /// Appends the op's node with the public op functions.
    pub fn build(&self, g: &mut Graph, src: &[TensorId]) -> TensorId {
        let visible = || {
            self.op
                .visible_cells()
                .expect("only ops with visible cells reach this function")
                .map(|i| src[i])
        };
        let node = match self.op {
            Op::None | Op::Reshape | Op::View | Op::Permute => panic!("{:?} computes nothing", self.op),
            Op::GetRows => g.get_rows(src[0], src[1]),
            Op::SetRows => g.set_rows(src[1], src[0], src[2]),
            Op::MulMat => g.mul_mat(src[0], src[1]),
            Op::MulMatId => g.mul_mat_id(src[0], src[1], src[2]),
            Op::Add => g.add(src[0], src[1]),
            Op::Sub => g.sub(src[0], src[1]),
            Op::Mul => g.mul(src[0], src[1]),
            Op::Div => g.div(src[0], src[1]),
            Op::AddId => g.add_id(src[0], src[1], src[2]),
            Op::Scale { scale, bias } => g.scale(src[0], scale, bias),
            Op::Unary(f) => g.unary(f, src[0]),
            Op::Glu(f) => g.glu(f, src[0], src[1]),
            Op::RmsNorm { eps } => g.rms_norm(src[0], src.get(1).copied(), eps),
            Op::Norm { eps } => g.norm(src[0], eps),
            Op::L2Norm { eps } => g.l2_norm(src[0], eps),
            Op::Sinkhorn { n, iterations, eps } => g.sinkhorn(src[0], n, iterations, eps),
            Op::Rope(p) => g.rope(src[0], src[1], src.get(2).copied(), p),
            Op::Attention(p) => g.attention(p, p.operands().map(|i| src[i])),
            Op::IndexScores => g.index_scores(src[0], src[1], visible(), src.get(8).copied()),
            Op::SelectBlocks(blocks) => g.select_blocks(blocks, src[0], visible()),
            Op::RecentCells { n } => g.recent_cells(n, visible()),
            Op::ShiftPositions { back, n_axes } => g.shift_positions(src[0], back, n_axes),
            Op::SoftMax { scale } => g.soft_max(src[0], scale),
            Op::TopK { k } => g.top_k(src[0], k),
            Op::TopMask { k } => g.top_mask(src[0], k),
            Op::IntDiv { by } => g.int_div(src[0], by),
            Op::Cast => g.cast(src[0]),
            Op::NgramHash(hash) => g.ngram_hash(src[0], hash),
            Op::AttentionTemperature { scale, length, offset } => {
                g.attention_temperature(src[0], scale, length, offset)
            }
            Op::SumRows => g.sum_rows(src[0]),
            Op::Concat { dim } => g.concat(src[0], src[1], usize::from(dim)),
            Op::Repeat => g.repeat(src[0], self.ne),
            Op::Clamp { min, max } => g.clamp(src[0], min, max),
            Op::Recur(r) => g.recur(r, src),
            Op::Cont => g.cont(src[0], self.ne),
        };
        node.unwrap_or_else(|e| panic!("{self:?}: {e}"))
    }
}

impl Operand {
    pub fn new(ty: GgmlType, ne: [usize; 4], data: Data) -> Operand {
        Operand {
            ty,
            ne,
            layout: Layout::Dense,
            data,
        }
    }

    pub fn permuted(mut self, order: [usize; 4]) -> Operand {
        self.layout = Layout::Permuted(order);
        self
    }

    pub fn part(mut self, margin: usize) -> Operand {
        self.layout = Layout::Part(margin);
        self
    }

    pub fn first_of(mut self, operand: usize) -> Operand {
        self.layout = Layout::FirstOf(operand);
        self
    }

    pub fn into_weights(mut self) -> Operand {
        self.layout = Layout::AsWeights;
        self
    }
}

/// Returns floats in -1..1.
pub fn floats(ne: [usize; 4]) -> Operand {
    floats_in(-1.0, 1.0, ne)
}

pub fn floats_in(low: f32, high: f32, ne: [usize; 4]) -> Operand {
    Operand::new(GgmlType::F32, ne, Data::Uniform(low, high))
}

/// Returns weights of some type, approximately in -1..1.
pub fn weights(ty: GgmlType, ne: [usize; 4]) -> Operand {
    Operand::new(ty, ne, Data::Uniform(-1.0, 1.0))
}

/// Returns i32 values below `n`.
pub fn ids(n: usize, ne: [usize; 4]) -> Operand {
    Operand::new(GgmlType::I32, ne, Data::Below(n))
}

/// Returns a list of the given i32 values.
pub fn i32s(values: impl IntoIterator<Item = i64>) -> Operand {
    list(GgmlType::I32, values.into_iter().collect())
}

/// Returns a list of the given i64 values.
pub fn i64s(values: impl IntoIterator<Item = i64>) -> Operand {
    list(GgmlType::I64, values.into_iter().collect())
}

fn list(ty: GgmlType, values: Vec<i64>) -> Operand {
    Operand::new(ty, [values.len(), 1, 1, 1], Data::Ints(values))
}
