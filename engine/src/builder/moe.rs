//! Mixture of experts (Shazeer et al., arXiv 1701.06538; routing as in Mixtral, arXiv 2401.04088).

use crate::graph::{TensorId, Unary};

use super::handles::{Experts, Vector};
use super::{BuildError, Builder, MAX_NODES};

/// Mapping from router logits to expert weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gating {
    /// Softmax over all experts, then selection.
    #[default]
    Softmax,
    /// Sigmoid of each logit, then selection.
    Sigmoid,
    /// Selection by logit, then softmax over the selected experts.
    SoftmaxWeight,
    /// Square root of the softplus of each logit, then selection.
    SqrtSoftplus,
    /// The router returns the weights themselves.
    None,
}

impl Gating {
    /// Converts `expert_gating_func`. Unknown codes map to softmax; architectures reject them with `check`.
    pub fn from_code(code: usize) -> Gating {
        match code {
            2 => Gating::Sigmoid,
            3 => Gating::SoftmaxWeight,
            4 => Gating::SqrtSoftplus,
            _ => Gating::Softmax,
        }
    }
}

/// Arguments of [`Builder::moe`].
#[derive(Clone, Copy, Debug)]
pub struct MoeArgs {
    /// Router logits `[n_expert, T]`.
    pub router: TensorId,
    /// Gate projections `[n_embd -> n_ff]` of gated experts.
    pub gate: Option<Experts>,
    /// Up projections `[n_embd -> n_ff]`; required unless `gate_up` is given.
    pub up: Option<Experts>,
    /// Fused gate and up projections `[n_embd -> 2 n_ff]`.
    pub gate_up: Option<Experts>,
    /// Down projections `[n_ff -> n_embd]`.
    pub down: Experts,
    /// Activation function.
    pub act: Unary,
    /// Routing function.
    pub gating: Gating,
    /// Number of experts used per token.
    pub n_used: usize,
    /// Divides the weights of the selected experts by their sum.
    pub norm_weights: bool,
    /// Factor applied to the expert weights.
    pub scale: f32,
    /// Bias added to the weights for selection only, `[n_expert]`.
    pub selection_bias: Option<Vector>,
    /// Scores `[n_expert, T]` used for selection instead of the weights.
    pub selection: Option<TensorId>,
    /// Number of router outputs that share an expert: `gate`, `up`, and `down` have this many times fewer experts. The
    /// weights are also looked up by the divided ids, which matches the reference results.
    pub ids_per_expert: Option<usize>,
    /// Applies the weight to the input of an expert instead of its output.
    pub weigh_input: Option<bool>,
    /// Number of expert groups for group-limited routing (DeepSeek-V3, arXiv 2412.19437).
    pub n_groups: Option<usize>,
    /// Number of groups to select from, ranked by the sum of their two best experts.
    pub n_groups_used: Option<usize>,
    /// Limit before the activation: upper bound of gates, and bound of the magnitude of ups; 0 disables it.
    pub limit: Option<f32>,
    /// Limit after the activation: upper bound of gates, and bound of the magnitude of ups; 0 disables it.
    pub act_limit: Option<f32>,
    /// Soft cap of gates in a SiLU: `softcap(gate) * sigmoid(gate)`.
    pub squash: Option<f32>,
    /// Soft cap of the up projection; 0 disables it.
    pub up_squash: Option<f32>,
    /// Offset added to the up projection after its limit.
    pub up_offset: Option<f32>,
    /// Predetermined experts of each token, i32 `[n_used, T]`; replaces the selection.
    pub ids: Option<TensorId>,
}

/// Lower bound of the weight sum used for normalization: the smallest normal f16, as in training.
const MIN_WEIGHT_SUM: f32 = 6.103_515_6e-5;

/// Limits below this value in a file mean no limit.
const MIN_LIMIT: f32 = 1e-6;
/// Number of best experts whose sum is the score of a group.
const BEST_OF_GROUP: usize = 2;
/// Magnitude larger than any router score.
const FAR_BELOW: f32 = 1e30;

impl Builder<'_> {
    /// Applies a mixture of experts to `x [n_embd, T]`: the output of each token is the weighted sum over its
    /// `n_used` selected experts.
    pub fn moe(&mut self, x: TensorId, args: MoeArgs) -> TensorId {
        let [n_embd, n_tokens, ..] = self.g.tensor(x).ne;
        if args.n_used == 0 {
            self.fail_none_used();
            return x;
        }
        if args.ids.is_some() {
            self.int_rows = None;
        }
        let (ids, weights) = self.route(&args, n_tokens);
        let x3 = self.g.reshape(x, [n_embd, 1, n_tokens, 1]);
        let mut x3 = self.ok(x3, x);
        let weigh_input = args.weigh_input == Some(true);
        if weigh_input {
            let each = self.g.repeat(x3, [n_embd, args.n_used, n_tokens, 1]);
            let each = self.ok(each, x3);
            x3 = self.mul(each, weights);
        }
        let hidden = self.hidden(&args, x3, ids);
        let mut y = self.expert_linear(args.down, hidden, ids);
        if !weigh_input {
            y = self.mul(y, weights);
        }
        self.sum_experts(y, n_embd, n_tokens, args.n_used)
    }

    /// Computes the hidden activations of the selected experts before their down projections: `x3 [n_embd, 1,
    /// T]` to `[n_ff, n_used, T]`.
    fn hidden(&mut self, args: &MoeArgs, x3: TensorId, ids: TensorId) -> TensorId {
        let (gate, up) = if let Some(both) = args.gate_up {
            let both = self.expert_linear(both, x3, ids);
            let width = self.g.tensor(both).ne[0];
            let up = self.slice(both, width / 2, width);
            (Some(self.slice(both, 0, width / 2)), up)
        } else {
            let Some(up) = args.up else {
                self.fail_no_ups();
                return x3;
            };
            let up = self.expert_linear(up, x3, ids);
            (args.gate.map(|gate| self.expert_linear(gate, x3, ids)), up)
        };
        match gate {
            Some(gate) => {
                let (gate, up) = self.limited(args, gate, up);
                self.gated(args, gate, up)
            }
            None => self.unary(args.act, up),
        }
    }

    /// Clamps the gate and up projections to their limits.
    fn limited(&mut self, args: &MoeArgs, mut gate: TensorId, mut up: TensorId) -> (TensorId, TensorId) {
        if let Some(limit) = args.limit.filter(|&limit| limit > MIN_LIMIT) {
            gate = self.clamp(gate, f32::NEG_INFINITY, limit);
            up = self.clamp(up, -limit, limit);
        }
        if let Some(offset) = args.up_offset {
            up = self.shift(up, offset);
        }
        (gate, up)
    }

    /// Computes the activated gates times the ups.
    fn gated(&mut self, args: &MoeArgs, gate: TensorId, up: TensorId) -> TensorId {
        if let Some(squash) = args.squash {
            let up = match args.up_squash {
                Some(squash) if squash > 0.0 => self.softcap(up, squash),
                _ => up,
            };
            let bounded = self.softcap(gate, squash);
            let up = self.mul(bounded, up);
            return self.glu(Unary::Sigmoid, gate, up);
        }
        self.glu_within(args.act, gate, up, args.act_limit)
    }

    /// Computes the activated gates times the ups. Gates are clamped to at most `limit` after the activation,
    /// ups to `-limit..=limit`.
    pub(super) fn glu_within(&mut self, act: Unary, gate: TensorId, up: TensorId, limit: Option<f32>) -> TensorId {
        let Some(limit) = limit.filter(|&limit| limit > MIN_LIMIT) else {
            return self.glu(act, gate, up);
        };
        let gate = self.unary(act, gate);
        let gate = self.clamp(gate, f32::NEG_INFINITY, limit);
        let up = self.clamp(up, -limit, limit);
        self.mul(gate, up)
    }

    /// Group-limited routing: returns the selection scores `[n_expert, T]` with experts outside the best
    /// groups masked.
    fn group_limited(&mut self, args: &MoeArgs, scores: TensorId, n_tokens: usize) -> TensorId {
        let n_expert = self.g.tensor(scores).ne[0];
        let (Some(n_groups), Some(n_used)) = (args.n_groups, args.n_groups_used) else {
            return scores;
        };
        if n_groups <= 1 || n_used >= n_groups {
            return scores;
        }
        let size = n_expert / n_groups;
        let groups = self.reshape(scores, [size, n_groups, n_tokens, 1]);
        let best = self.top_mask(groups, BEST_OF_GROUP.min(size));
        let best = self.mul(groups, best);
        let sums = self.sum_rows(best);
        let sums = self.reshape(sums, [n_groups, n_tokens, 1, 1]);
        let mask = self.top_mask(sums, n_used);
        // The penalty is 0 for selected groups, and far below any score for other groups.
        let penalty = self.g.scale(mask, FAR_BELOW, -FAR_BELOW);
        let mask = self.ok(penalty, mask);
        let mask = self.reshape(mask, [1, n_groups, n_tokens, 1]);
        let masked = self.add(groups, mask);
        self.reshape(masked, [n_expert, n_tokens, 1, 1])
    }

    /// Marks the `k` largest values of each row by 1 and all other values by 0.
    pub fn top_mask(&mut self, x: TensorId, k: usize) -> TensorId {
        let y = self.g.top_mask(x, k);
        self.ok(y, x)
    }

    fn reshape(&mut self, x: TensorId, ne: [usize; 4]) -> TensorId {
        let y = self.g.reshape(x, ne);
        self.ok(y, x)
    }

    /// Returns the selected experts i32 `[n_used, T]` and their weights f32 `[1, n_used, T]`.
    fn route(&mut self, args: &MoeArgs, n_tokens: usize) -> (TensorId, TensorId) {
        let probs = match args.gating {
            Gating::Softmax => self.softmax(args.router),
            Gating::Sigmoid => self.unary(Unary::Sigmoid, args.router),
            Gating::SoftmaxWeight => args.router,
            Gating::None => self.dense(args.router),
            Gating::SqrtSoftplus => {
                let x = self.unary(Unary::Softplus, args.router);
                self.unary(Unary::Sqrt, x)
            }
        };
        let mut ids = args.ids.unwrap_or_else(|| self.selected(args, probs, n_tokens));
        if let Some(by) = args.ids_per_expert.filter(|&by| by != 1) {
            let divided = self.g.int_div(ids, by);
            ids = self.ok(divided, ids);
        }
        let n_expert = self.g.tensor(args.router).ne[0];
        // Treats the probabilities of each token as a table with one element per row, for the row lookup by
        // expert id.
        let table = self.g.reshape(probs, [1, n_expert, n_tokens, 1]);
        let table = self.ok(table, probs);
        let weights = self.g.get_rows(table, ids);
        let weights = self.ok(weights, probs);
        let flat = self.g.reshape(weights, [args.n_used, n_tokens, 1, 1]);
        let mut flat = self.ok(flat, weights);
        if args.gating == Gating::SoftmaxWeight {
            flat = self.softmax(flat);
        }
        if args.norm_weights {
            let sum = self.sum_rows(flat);
            let sum = self.clamp(sum, MIN_WEIGHT_SUM, f32::INFINITY);
            flat = self.div(flat, sum);
        }
        if args.scale != 1.0 && args.scale != 0.0 {
            flat = self.scale(flat, args.scale);
        }
        let weights = self.g.reshape(flat, [1, args.n_used, n_tokens, 1]);
        (ids, self.ok(weights, flat))
    }

    /// Selects the top `n_used` experts i32 `[n_used, T]` by `probs [n_expert, T]` or by `args.selection`.
    fn selected(&mut self, args: &MoeArgs, probs: TensorId, n_tokens: usize) -> TensorId {
        let mut selection = args.selection.unwrap_or(probs);
        if let Some(bias) = args.selection_bias {
            let bias = self.leaf(bias.0);
            selection = self.add(selection, bias);
        }
        let selection = self.group_limited(args, selection, n_tokens);
        let ids = self.g.top_k(selection, args.n_used);
        self.ok(ids, selection)
    }

    fn expert_linear(&mut self, w: Experts, x: TensorId, ids: TensorId) -> TensorId {
        let weight = self.leaf(w.weight);
        let y = self.g.mul_mat_id(weight, x, ids);
        let mut y = self.ok(y, x);
        if let Some(scale) = w.scale {
            // Looks up the factor of each expert in a table [1, n_expert]. The ids are flattened because
            // get_rows takes a list.
            let scale = self.leaf(scale);
            let [_, n_used, n_tokens, _] = self.g.tensor(y).ne;
            let n_expert = self.g.tensor(scale).nelements();
            let table = self.g.reshape(scale, [1, n_expert, 1, 1]);
            let table = self.ok(table, scale);
            let list = self.g.reshape(ids, [n_used * n_tokens, 1, 1, 1]);
            let list = self.ok(list, ids);
            let factors = self.g.get_rows(table, list);
            let factors = self.ok(factors, scale);
            let factors = self.g.reshape(factors, [1, n_used, n_tokens, 1]);
            let factors = self.ok(factors, scale);
            y = self.mul(y, factors);
        }
        y = self.adapt_experts(w.weight, x, ids, y);
        if let Some(bias) = w.bias {
            let bias = self.leaf(bias);
            let z = self.g.add_id(y, bias, ids);
            y = self.ok(z, y);
        }
        y
    }

    /// Sums the heads of `x [d, n, T]` in order: `[d, T]`.
    pub fn sum_heads(&mut self, x: TensorId) -> TensorId {
        let [d, n, n_tokens, _] = self.g.tensor(x).ne;
        self.sum_experts(x, d, n_tokens, n)
    }

    /// Sums `[n_embd, n_used, T]` over the experts in order, so that the result is independent of the number
    /// of threads.
    pub(super) fn sum_experts(&mut self, y: TensorId, n_embd: usize, n_tokens: usize, n_used: usize) -> TensorId {
        let nb = self.g.tensor(y).nb;
        let mut sum: Option<TensorId> = None;
        for i in 0..n_used {
            if !self.goes_on() {
                break;
            }
            let part = self
                .g
                .view(y, [n_embd, n_tokens, 1, 1], [nb[0], nb[2], nb[3], nb[3]], i * nb[1]);
            let part = self.ok(part, y);
            sum = Some(match sum {
                None => part,
                Some(sum) => self.add(sum, part),
            });
        }
        let sum = sum.unwrap_or(y);
        self.dense(sum)
    }

    /// Returns false if the build failed or has too many tensors. Ends loops over sizes of a file.
    pub(super) fn goes_on(&mut self) -> bool {
        let n_nodes = self.g.len();
        if n_nodes > MAX_NODES {
            self.fail(BuildError::TooLarge { n_nodes, n_steps: 1 });
        }
        !self.failed()
    }
}
