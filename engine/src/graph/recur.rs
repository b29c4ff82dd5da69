//! Recurrences: ops with a state per sequence, and their shapes.

use super::{Lanes, LinearAttention};

/// Function that [`Op::Recur`](super::Op::Recur) applies to each token, from its operands and the state of
/// its sequence. States are f32; `s` is the state of a lane (a channel or head). Lanes are independent.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Recurrence {
    /// Causal convolution of each channel: `x [c, T]`, `weight [k, c]` -> `[c, T]`.
    ///
    /// The state of a channel is its last `(k - 1) dilation` inputs, oldest first. The kernel applies to
    /// every `dilation`th input, counted back from the current token.
    ShortConv {
        /// Distance in tokens between taps of the kernel; nonzero.
        dilation: usize,
    },
    /// Selective scan (Mamba; Gu and Dao, arXiv 2312.00752). With heads and scalar decays: Mamba-2 (Dao and
    /// Gu, arXiv 2405.21060).
    ///
    /// `x [p, h, T]`, `dt [h, T]`, `a [n or 1, h]`, `b [n, g, T]`, `c [n, g, T]` -> `[p, h, T]`; a group
    /// serves `h / g` heads. State `[n, p]` of a head: `s[j, i] = s[j, i] exp(dt a[j]) + dt x[i] b[j]`, then
    /// `y[i] = sum_j s[j, i] c[j]`.
    SsmScan,
    /// Token shift: returns `x [c, T]` of the previous token, or zeros for the first.
    TokenShift,
    /// RWKV-6 time mixing with decays by channel and token (Peng et al., arXiv 2404.05892).
    ///
    /// `r`, `k`, `v`, `w [d, h, T]`, `u [d, h]` -> `[d, h, T]`. State `[d, d]` of a head: `y[i] = sum_j r[j]
    /// (s[j, i] + u[j] k[j] v[i])`, then `s[j, i] = w[j] s[j, i] + k[j] v[i]`.
    Wkv6,
    /// RWKV-7 time mixing by a generalized delta rule (Peng et al., arXiv 2503.14456).
    ///
    /// `r`, `w`, `k`, `v`, `a`, `b [d, h, T]` -> `[d, h, T]`. State `[d, d]` of a head: `s[j, i] = w[j] s[j,
    /// i] + k[j] v[i] + b[j] sum_l a[l] s[l, i]`, then `y[i] = sum_j r[j] s[j, i]`.
    Wkv7,
    /// Linear attention: each value head has a state matrix `s [dv, dk]` that decays and is updated by the
    /// outer product of value and key.
    ///
    /// Covers the gated delta rule (arXiv 2412.06464) and Kimi delta attention, which has a decay per key channel
    /// (arXiv 2510.26692). Lightning attention has a constant decay (arXiv 2401.04658).
    ///
    /// `q`, `k [dk, m, T]`, `v [dv, n, T]`, optional `decay [1 or dk, n, T]`, optional `beta [1, n, T]` ->
    /// `[dv, n, T]`.
    ///
    /// `s[j, i] *= exp(decay[i])`; `d[j] = beta v[j]`, or `d[j] = beta (v[j] - sum_i s[j, i] k[i])` with the
    /// delta rule; `s[j, i] += k[i] d[j]`, then `y[j] = scale sum_i s[j, i] q[i]`.
    LinearAttention(LinearAttention),
    /// KV compression: a compressed vector for each group of `n` tokens, as a softmax-weighted mean per
    /// channel. `x`, `gate [w, T]`, `position_bias [w, n]` -> `[c, T]`.
    ///
    /// Token `p` of a group has the score `gate + position_bias[p]`. The output is the mean of the group's `x` so far,
    /// weighted by the softmax of the scores. It is complete at the last token of the group.
    ///
    /// With `overlap`, `w` is `2 c`. The mean covers the last `c` channels of the group's own tokens and the first `c`
    /// channels of the previous group's tokens. Otherwise `w` is `c`.
    ///
    /// The state of a channel is the number of tokens in the group, the maximum score, the sum of `e^(score - max)`,
    /// and the weighted sum of `x`. With `overlap`, the last three values are stored twice: for this group, and for the
    /// next group.
    Compress {
        /// Whether each group also covers the preceding group.
        overlap: bool,
    },
}

impl Recurrence {
    /// Returns a short name for plans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Recurrence::ShortConv { .. } => "short_conv",
            Recurrence::SsmScan => "ssm_scan",
            Recurrence::TokenShift => "token_shift",
            Recurrence::Wkv6 => "wkv6",
            Recurrence::Wkv7 => "wkv7",
            Recurrence::LinearAttention(_) => "linear_attention",
            Recurrence::Compress { .. } => "compress",
        }
    }

    /// Describes the operands after states and cells, for error messages.
    pub fn takes(self) -> &'static str {
        match self {
            Recurrence::ShortConv { .. } => "x [c, T] and weight [k, c] with k > 1",
            Recurrence::SsmScan => {
                "x [p, h, T], dt [h, T], a [n or 1, h], b [n, g, T] and c [n, g, T] with h a multiple of g"
            }
            Recurrence::TokenShift => "x [c, T]",
            Recurrence::Wkv6 => "r, k, v, and w [d, h, T] and u [d, h]",
            Recurrence::Wkv7 => "r, w, k, v, a, and b [d, h, T]",
            Recurrence::LinearAttention(_) => {
                "q and k [dk, m, T], v [dv, n, T] with n a multiple of m, decay [1 or dk, n, T] and beta [1, n, T]"
            }
            Recurrence::Compress { .. } => "x and gate [w, T] and position_bias [w, n], with w even if groups overlap",
        }
    }

    /// Returns the lanes for these operand shapes; `None` if the shapes do not match.
    pub fn lanes(self, operands: &[[usize; 4]]) -> Option<Lanes> {
        let lanes = match (self, operands) {
            (Recurrence::ShortConv { dilation }, &[x @ [c, _, 1, 1], [k, wc, 1, 1]]) if wc == c && k > 1 => Lanes {
                n: c,
                state: (k - 1).checked_mul(dilation)?,
                out: 1,
                ne: x,
            },
            (Recurrence::SsmScan, &[x @ [p, h, t, 1], dt, a, b @ [n, g, bt, 1], c]) => {
                let fits = dt == [h, t, 1, 1] && (a == [n, h, 1, 1] || a == [1, h, 1, 1]) && b == c && bt == t;
                if !fits || g == 0 || !h.is_multiple_of(g) {
                    return None;
                }
                Lanes {
                    n: h,
                    state: n.checked_mul(p)?,
                    out: p,
                    ne: x,
                }
            }
            (Recurrence::TokenShift, &[x @ [c, _, 1, 1]]) => Lanes {
                n: c,
                state: 1,
                out: 1,
                ne: x,
            },
            (Recurrence::Wkv6, &[r @ [d, h, _, 1], k, v, w, u]) if [k, v, w] == [r; 3] && u == [d, h, 1, 1] => {
                square(r)?
            }
            (Recurrence::Wkv7, &[r @ [_, _, _, 1], w, k, v, a, b]) if [w, k, v, a, b] == [r; 5] => square(r)?,
            (Recurrence::LinearAttention(_), operands) => LinearAttention::lanes(operands)?,
            (Recurrence::Compress { overlap }, &[x @ [w, t, 1, 1], gate, [wp, n, 1, 1]]) => {
                let n_means = 1 + usize::from(overlap);
                if gate != x || wp != w || n == 0 || !w.is_multiple_of(n_means) {
                    return None;
                }
                Lanes {
                    n: w / n_means,
                    state: 1 + 3 * n_means,
                    out: 1,
                    ne: [w / n_means, t, 1, 1],
                }
            }
            _ => return None,
        };
        lanes.n.checked_mul(lanes.state).filter(|&row| row > 0)?;
        Some(lanes)
    }
}

/// Returns lanes with a square state matrix, for operands `[d, h, T]`.
fn square(ne: [usize; 4]) -> Option<Lanes> {
    let [d, h, ..] = ne;
    Some(Lanes {
        n: h,
        state: d.checked_mul(d)?,
        out: d,
        ne,
    })
}
