//! Adapters in graphs: LoRA terms added to matmuls, and control vectors added to the outputs of layers.
//!
//! Architecture files need no support for adapters; the builder's matmul, embedding, and layer methods add the terms.

use kernels::GgmlType;

use crate::graph::{Flags, Name, TensorId};

use super::Builder;
use super::adaptation::{Adaptation, AdaptedUse, AdapterLeaf, LowRankTerm};
use super::handles::WeightId;

impl<'a> Builder<'a> {
    /// Sets the adapters that the graph applies.
    pub fn adapted(mut self, adaptation: &'a Adaptation) -> Builder<'a> {
        self.adaptation = adaptation;
        self.inputs.adapter_scales.resize(adaptation.n_scales, None);
        self
    }

    /// Adds the LoRA terms of `W` to `y = W x`: `[n_out, …]`.
    pub(super) fn adapt_matmul(&mut self, weight: WeightId, x: TensorId, y: TensorId) -> TensorId {
        self.add_terms(weight, AdaptedUse::Product, y, |b, a| {
            let ax = b.g.mul_mat(a, x);
            b.ok(ax, x)
        })
    }

    /// Adds the LoRA terms of each selected expert to `y`: `[n_out, n_used, T]`.
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

    /// Adds the LoRA terms of a table to the rows `x` looked up for the tokens: `[n_embd, T]`.
    pub(super) fn adapt_rows(&mut self, table: WeightId, tokens: TensorId, x: TensorId) -> TensorId {
        self.add_terms(table, AdaptedUse::Rows, x, |b, a| {
            let rows = b.g.get_rows(a, tokens);
            b.ok(rows, tokens)
        })
    }

    /// Adds the control vector of the layer to its output.
    pub(super) fn add_direction(&mut self, x: TensorId) -> TensorId {
        let direction = self.layer.and_then(|il| self.adaptation.direction(il));
        let Some(direction) = direction else { return x };
        let direction = self.adapter_leaf(&direction, "direction");
        self.add(x, direction)
    }

    /// Returns `y + Σ scale * B (inner A)` over the terms of a weight for one use.
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

    /// Applies the scale to the intermediate of size `rank`, where it is cheapest.
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

    /// Returns a row of per-token factors, shaped to broadcast over `x`: tokens are in dimension 1 or, with
    /// heads or experts, in dimension 2.
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
