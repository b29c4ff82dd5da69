//! Adapters in the graph: LoRA terms added to products, control vectors added at the end of layers.
//!
//! Architecture files do not know of it: the builder's own methods for products, embeddings and layer ends look here.

use kernels::GgmlType;

use crate::graph::{Flags, Home, Name, TensorId};

use super::Builder;
use super::handles::WeightId;

/// A tensor of an adapter, placed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterLeaf {
    /// Element type.
    pub ty: GgmlType,
    /// Shape, innermost first.
    pub ne: [usize; 4],
    /// Where its bytes lie.
    pub home: Home,
}

/// Which use of a weight a LoRA term is for: embedding tables are adapted in another form than matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdaptedUse {
    /// The weight is multiplied with activations: `a [n_in, rank]`, `b [rank, n_out]`, both with a third dimension for experts.
    Product,
    /// Rows of the weight are read: `a [rank, rows]`, `b [rank, n]`.
    Rows,
}

/// `scale * B A`, to be added to a weight (Hu et al., arXiv 2106.09685).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LowRankTerm {
    /// The weight.
    pub weight: WeightId,
    /// How it is used.
    pub applies_to: AdaptedUse,
    /// LoRA A, on the input side (or, for a table, the row side).
    pub a: AdapterLeaf,
    /// LoRA B, on the output side.
    pub b: AdapterLeaf,
    /// Factor on `B A`.
    pub scale: f32,
    /// Row of [`Inputs::adapter_scales`](super::Inputs::adapter_scales) with a further factor for each token, if sequences differ in it.
    pub per_token: Option<usize>,
}

/// All adapters of a context, as its graphs apply them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Adaptation {
    terms: Vec<LowRankTerm>,
    directions: Vec<Option<AdapterLeaf>>,
    /// Rows of factors by token.
    n_scales: usize,
}

impl Adaptation {
    /// No adapters.
    pub const NONE: &'static Adaptation = &Adaptation {
        terms: Vec::new(),
        directions: Vec::new(),
        n_scales: 0,
    };

    /// These terms, several to a weight in the order given, and f32 `[n_embd]` directions by layer.
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

    /// The terms of a weight.
    fn terms_of(&self, weight: WeightId) -> &[LowRankTerm] {
        let start = self.terms.partition_point(|t| t.weight < weight);
        let n = self.terms[start..].iter().take_while(|t| t.weight == weight).count();
        &self.terms[start..start + n]
    }

    fn direction(&self, layer: u32) -> Option<AdapterLeaf> {
        *self.directions.get(layer as usize)?
    }
}

impl<'a> Builder<'a> {
    /// Builds graphs with these adapters.
    pub fn adapted(mut self, adaptation: &'a Adaptation) -> Builder<'a> {
        self.adaptation = adaptation;
        self.inputs.adapter_scales.resize(adaptation.n_scales, None);
        self
    }

    /// `y = W x`, plus the terms of `W`: `[n_out, …]`.
    pub(super) fn adapt_product(&mut self, weight: WeightId, x: TensorId, y: TensorId) -> TensorId {
        self.add_terms(weight, AdaptedUse::Product, y, |b, a| {
            let ax = b.g.mul_mat(a, x);
            b.ok(ax, x)
        })
    }

    /// `y` = the experts' products chosen by `ids`, plus the terms of each: `[n_out, n_used, T]`.
    pub(super) fn adapt_experts(&mut self, weight: WeightId, x: TensorId, ids: TensorId, y: TensorId) -> TensorId {
        let adaptation = self.adaptation;
        let mut y = y;
        for term in adaptation.terms_of(weight) {
            let (a, b) = self.factors(term);
            let ax = self.g.mul_mat_id(a, x, ids);
            let ax = self.ok(ax, x);
            let ax = self.scaled(ax, term);
            let bax = self.g.mul_mat_id(b, ax, ids);
            let bax = self.ok(bax, y);
            y = self.add(y, bax);
        }
        y
    }

    /// `x` = rows of the table for the tokens, plus the rows of its terms: `[n_embd, T]`.
    pub(super) fn adapt_rows(&mut self, table: WeightId, tokens: TensorId, x: TensorId) -> TensorId {
        self.add_terms(table, AdaptedUse::Rows, x, |b, a| {
            let rows = b.g.get_rows(a, tokens);
            b.ok(rows, tokens)
        })
    }

    /// A layer's result plus the layer's direction.
    pub(super) fn add_direction(&mut self, x: TensorId) -> TensorId {
        let direction = self.layer.and_then(|il| self.adaptation.direction(il));
        let Some(direction) = direction else { return x };
        let direction = self.adapter_leaf(&direction, "direction");
        self.add(x, direction)
    }

    /// `y + Σ scale * B (inner A)` over the terms of a weight in one use.
    fn add_terms(
        &mut self,
        weight: WeightId,
        applies_to: AdaptedUse,
        y: TensorId,
        inner: impl Fn(&mut Self, TensorId) -> TensorId,
    ) -> TensorId {
        let adaptation = self.adaptation;
        let terms = adaptation.terms_of(weight).iter();
        terms.filter(|t| t.applies_to == applies_to).fold(y, |y, term| {
            let (a, b) = self.factors(term);
            let low = inner(self, a);
            let low = self.scaled(low, term);
            let delta = self.g.mul_mat(b, low);
            let delta = self.ok(delta, y);
            self.add(y, delta)
        })
    }

    fn factors(&mut self, term: &LowRankTerm) -> (TensorId, TensorId) {
        (
            self.adapter_leaf(&term.a, "lora_a"),
            self.adapter_leaf(&term.b, "lora_b"),
        )
    }

    /// Applied to the rank-sized intermediate, where it costs least.
    fn scaled(&mut self, x: TensorId, term: &LowRankTerm) -> TensorId {
        let x = if term.scale == 1.0 {
            x
        } else {
            self.scale(x, term.scale)
        };
        match term.per_token {
            None => x,
            Some(row) => {
                let scales = self.scales_like(row, x);
                self.mul(x, scales)
            }
        }
    }

    /// A row of factors, one for each token, in the dimension that counts tokens in `x`: the second, or, with heads or experts, the third.
    fn scales_like(&mut self, row: usize, x: TensorId) -> TensorId {
        let n = self.params.n_tokens;
        let g = &mut *self.g;
        let scales = *self.inputs.adapter_scales[row]
            .get_or_insert_with(|| g.input(GgmlType::F32, [1, n, 1, 1], "adapter_scales"));
        if g.tensor(x).ne[2] == 1 {
            return scales;
        }
        let y = g.reshape(scales, [1, 1, n, 1]);
        self.ok(y, scales)
    }

    fn adapter_leaf(&mut self, leaf: &AdapterLeaf, base: &'static str) -> TensorId {
        let name = Name {
            base,
            layer: self.layer,
        };
        let flags = Flags {
            weight: true,
            ..Flags::default()
        };
        self.g.external(leaf.ty, leaf.ne, name, leaf.home, flags)
    }
}
