//! Recurrent layers: ops with a state per sequence.

use kernels::GgmlType;

use crate::graph::{Flags, Name, Recurrence, TensorId, Unary};

use super::Builder;
use super::caches::{Cache, StateSpec};
use super::handles::Vector;

/// Arguments of [`Builder::mamba2`].
#[derive(Clone, Copy, Debug)]
pub struct Mamba2Args {
    /// Width of z (the gate) and x (`d_inner`).
    pub inner: usize,
    /// State elements per element of x (`d_state`).
    pub n_state: usize,
    /// Number of head groups that share B and C.
    pub n_group: usize,
    /// Convolution kernels over x, B, and C: `[k, inner + 2 * n_group * n_state]`.
    pub conv: Vector,
    /// Bias of the convolution.
    pub conv_bias: Option<Vector>,
    /// Bias of dt, with one element per head.
    pub dt_bias: Vector,
    /// State matrix A, `[1, h]`.
    pub a: Vector,
    /// D: factor of the skip connection around the scan, one element per head.
    pub d: Vector,
    /// Weights of the group norm, `[inner / n_group, n_group]`; `None` disables the norm.
    pub norm: Option<Vector>,
    /// Epsilon of the output norm.
    pub eps: f32,
}

impl Builder<'_> {
    /// Applies the Mamba-2 mixer (Dao and Gu, arXiv 2405.21060) between the input and output projections. `x [2 * inner
    /// + 2 * n_group * n_state + h, T]` contains z, x, B, C, and dt; the output is `[inner, T]`.
    ///
    /// x, B, and C pass through the short convolution and x through the scan. The result is gated and normalized by
    /// group.
    pub fn mamba2(&mut self, x: TensorId, args: Mamba2Args) -> TensorId {
        let Mamba2Args { inner, n_group, .. } = args;
        let a = self.leaf(args.a.0);
        let n_head = self.g.tensor(a).nelements();
        let bc = n_group.saturating_mul(args.n_state);
        let end = inner.saturating_mul(2).saturating_add(bc.saturating_mul(2));
        let conv = self.slice(x, inner, end);
        let conv = self.short_conv(conv, args.conv, args.conv_bias);
        let conv = self.unary(Unary::Silu, conv);
        let steps = self.slice(x, end, end.saturating_add(n_head));
        let bias = self.leaf(args.dt_bias.0);
        let steps = self.add(steps, bias);
        let steps = self.unary(Unary::Softplus, steps);
        let values = self.slice(conv, 0, inner);
        let values = self.heads(values, n_head);
        let enter = self.slice(conv, inner, inner.saturating_add(bc));
        let enter = self.heads(enter, n_group);
        let leave = self.slice(conv, inner.saturating_add(bc), end.saturating_sub(inner));
        let leave = self.heads(leave, n_group);
        let y = self.ssm_scan(values, steps, args.a, enter, leave, Some(args.d));
        let y = self.merge(y);
        let gate = self.slice(x, 0, inner);
        let y = self.glu(Unary::Silu, gate, y);
        let Some(norm) = args.norm else { return y };
        let groups = self.heads(y, n_group);
        let groups = self.rms_norm(groups, None, args.eps);
        let norm = self.leaf(norm.0);
        let groups = self.mul(groups, norm);
        self.merge(groups)
    }

    /// Appends a recurrence over its operands, with states in the memory of the layer; see
    /// [`Op::Recur`](crate::graph::Op::Recur).
    pub fn recur(&mut self, recurrence: Recurrence, operands: &[TensorId]) -> TensorId {
        const MAX_OPERANDS: usize = crate::graph::MAX_SRC - 3;
        let (mut src, mut ne) = ([operands[0]; MAX_OPERANDS + 3], [[0; 4]; MAX_OPERANDS]);
        for (i, &operand) in operands.iter().enumerate() {
            src[3 + i] = self.dense_floats(operand);
            ne[i] = self.g.tensor(operand).ne;
        }
        let n = operands.len();
        // Invalid operands are rejected, with a name, when the op is created.
        let row = recurrence.lanes(&ne[..n]).map_or(1, |lanes| lanes.row());
        src[0] = self.state(row);
        (src[1], src[2]) = self.state_cells();
        let y = self.g.recur(recurrence, &src[..3 + n]);
        self.ok(y, operands[0])
    }

    /// Applies a causal convolution to each channel of `x [c, T]` with `weight [k, c]` or `[k, 1, c]`, plus
    /// the bias: `[c, T]`.
    pub fn short_conv(&mut self, x: TensorId, weight: Vector, bias: Option<Vector>) -> TensorId {
        let y = self.dilated_conv(x, weight, 1);
        match bias {
            Some(bias) => {
                let bias = self.leaf(bias.0);
                self.add(y, bias)
            }
            None => y,
        }
    }

    /// Like [`Builder::short_conv`], with a dilation and without a bias.
    pub fn dilated_conv(&mut self, x: TensorId, weight: Vector, dilation: usize) -> TensorId {
        let mut weight = self.leaf(weight.0);
        if let [k, 1, c, 1] = self.g.tensor(weight).ne {
            let flat = self.g.reshape(weight, [k, c, 1, 1]);
            weight = self.ok(flat, x);
        }
        self.recur(Recurrence::ShortConv { dilation }, &[x, weight])
    }

    /// Applies a selective scan to `x [p, h, T]`, `dt [h, T]`, `a [n or 1, h]` or `[h]`, `b`, `c [n, g, T]`:
    /// `[p, h, T]`. Optional `d` (one element per head) adds `d x` to the output. See
    /// [`Recurrence::SsmScan`].
    pub fn ssm_scan(
        &mut self,
        x: TensorId,
        dt: TensorId,
        a: Vector,
        b: TensorId,
        c: TensorId,
        d: Option<Vector>,
    ) -> TensorId {
        let (mut a, h) = (self.leaf(a.0), self.g.tensor(x).ne[1]);
        if self.g.tensor(a).ne == [h, 1, 1, 1] {
            // The decays are stored as a list, one per head.
            let row = self.g.reshape(a, [1, h, 1, 1]);
            a = self.ok(row, a);
        }
        let y = self.recur(Recurrence::SsmScan, &[x, dt, a, b, c]);
        let Some(d) = d else { return y };
        let d = self.leaf(d.0);
        let d = self.g.reshape(d, [1, h, 1, 1]);
        let d = self.ok(d, x);
        let direct = self.mul(x, d);
        self.add(y, direct)
    }

    /// Returns `x [c, T]` of the previous token, or zeros for the first token of a sequence: `[c, T]`.
    pub fn token_shift(&mut self, x: TensorId) -> TensorId {
        self.recur(Recurrence::TokenShift, &[x])
    }

    /// Compresses groups of tokens: `x`, `gate [w, T]`, and `position_bias [w, n]` to `[width, T]`. Groups overlap if
    /// `w` is twice the width. See [`Recurrence::Compress`].
    pub fn compress(&mut self, x: TensorId, gate: TensorId, position_bias: Vector, width: usize) -> TensorId {
        let overlap = self.g.tensor(x).ne[0] != width;
        let position_bias = self.leaf(position_bias.0);
        self.recur(Recurrence::Compress { overlap }, &[x, gate, position_bias])
    }

    /// Applies RWKV-6 time mixing: `r`, `k`, `v`, `w [d, h, T]`, `u [d, h]` -> `[d, h, T]`; see
    /// [`Recurrence::Wkv6`].
    pub fn wkv6(&mut self, r: TensorId, k: TensorId, v: TensorId, w: TensorId, u: Vector) -> TensorId {
        let u = self.leaf(u.0);
        self.recur(Recurrence::Wkv6, &[r, k, v, w, u])
    }

    /// Applies RWKV-7 time mixing: `[d, h, T]` each -> `[d, h, T]`; see [`Recurrence::Wkv7`].
    pub fn wkv7(&mut self, r: TensorId, w: TensorId, k: TensorId, v: TensorId, a: TensorId, b: TensorId) -> TensorId {
        self.recur(Recurrence::Wkv7, &[r, w, k, v, a, b])
    }

    /// Returns the states f32 `[row, n_cells]` of the next recurrent op; a placeholder in a probe.
    fn state(&mut self, row: usize) -> TensorId {
        let slot = self.n_states;
        self.n_states += 1;
        let (n_cells, home) = match &mut self.cache {
            Cache::Probe(specs) => {
                specs.states.push(StateSpec {
                    layer: self.layer.unwrap_or(0) as usize,
                    row,
                });
                (1, None)
            }
            Cache::Cells(view) => (view.n_state_cells, view.states.get(slot).map(|s| s.home)),
            Cache::Batch => {
                self.fail_no_memory();
                (1, None)
            }
        };
        let name = Name {
            base: "state",
            layer: self.layer,
        };
        match home {
            Some(home) => {
                let ne = [row, n_cells, 1, 1];
                self.g.external(GgmlType::F32, ne, name, home, Flags::default())
            }
            None => self.g.input(GgmlType::F32, [row, n_cells, 1, 1], "state"),
        }
    }

    /// Returns the inputs of the state cells that each token reads from and writes to, i32 `[T]`.
    fn state_cells(&mut self) -> (TensorId, TensorId) {
        let ne = [self.params.n_tokens, 1, 1, 1];
        let g = &mut *self.g;
        *self.inputs.states.get_or_insert_with(|| {
            let from = g.input(GgmlType::I32, ne, "state_from");
            (from, g.input(GgmlType::I32, ne, "state_to"))
        })
    }

    /// Returns `x` if contiguous f32, else a contiguous f32 copy.
    fn dense_floats(&mut self, x: TensorId) -> TensorId {
        let t = self.g.tensor(x);
        if t.ty == GgmlType::F32 && t.is_contiguous() {
            return x;
        }
        let ne = t.ne;
        let y = self.g.cont(x, ne);
        self.ok(y, x)
    }
}
