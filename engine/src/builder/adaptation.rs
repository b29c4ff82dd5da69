//! Active adapters of a context: LoRA terms and control vectors.

use kernels::GgmlType;

use crate::graph::BufferSlice;

use super::handles::WeightId;

/// Adapter tensor in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterLeaf {
    /// Element type.
    pub ty: GgmlType,
    /// Shape, innermost dimension first.
    pub ne: [usize; 4],
    /// Location of the data.
    pub home: BufferSlice,
}

/// Use of a weight that a LoRA term applies to; embedding tables need a different form than matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptedUse {
    /// Matmul: `a [n_in, rank]`, `b [rank, n_out]`, both with a third dimension for experts.
    Product,
    /// Row lookup: `a [rank, rows]`, `b [rank, n]`.
    Rows,
}

/// LoRA term `scale * B A` of a weight (Hu et al., arXiv 2106.09685).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankTerm {
    /// Adapted weight.
    pub weight: WeightId,
    /// Operations to which the adapter applies.
    pub applies_to: AdaptedUse,
    /// LoRA A: input side of a matrix, row side of a table.
    pub a: AdapterLeaf,
    /// LoRA factor B (output side).
    pub b: AdapterLeaf,
    /// Factor applied to `B A`.
    pub scale: f32,
    /// Row of [`Inputs::adapter_scales`](super::Inputs::adapter_scales) with an additional factor per token;
    /// used if sequences have different scales.
    pub per_token: Option<usize>,
}

/// Active adapters of a context, in the form that graphs need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adaptation {
    terms: Vec<LowRankTerm>,
    directions: Vec<Option<AdapterLeaf>>,
    /// Number of rows in [`Inputs::adapter_scales`](super::Inputs::adapter_scales).
    pub(super) n_scales: usize,
}

impl Adaptation {
    /// No adapters.
    pub const NONE: &'static Adaptation = &Adaptation {
        terms: Vec::new(),
        directions: Vec::new(),
        n_scales: 0,
    };

    /// Creates an adaptation from terms (several terms of a weight apply in the given order) and directions
    /// f32 `[n_embd]` by layer.
    pub fn new(mut terms: Vec<LowRankTerm>, directions: Vec<Option<AdapterLeaf>>) -> Adaptation {
        terms.sort_by_key(|t| t.weight);
        let n_scales = terms
            .iter()
            .filter_map(|t| t.per_token)
            .max()
            .map_or(0, |last| last + 1);
        Adaptation {
            terms,
            directions,
            n_scales,
        }
    }

    /// Returns the terms of a weight.
    pub(super) fn terms_of(&self, weight: WeightId) -> &[LowRankTerm] {
        let start = self.terms.partition_point(|t| t.weight < weight);
        let n = self.terms[start..].iter().take_while(|t| t.weight == weight).count();
        &self.terms[start..start + n]
    }

    pub(super) fn direction(&self, layer: u32) -> Option<AdapterLeaf> {
        *self.directions.get(layer as usize)?
    }
}
