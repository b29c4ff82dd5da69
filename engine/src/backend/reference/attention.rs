//! Attention as its definition reads: all scores of a query, their softmax, the weighted sum of the values.

use super::array::{Array, Ints};
use super::ops::dot;
use crate::graph::{Attention, Window};

/// The operands of [`crate::graph::Op::Attention`].
pub(super) struct Operands {
    pub(super) q: Array,
    pub(super) k: Array,
    pub(super) v: Array,
    pub(super) cell_pos: Ints,
    pub(super) cell_seqs: Ints,
    pub(super) query_pos: Ints,
    pub(super) query_seq: Ints,
    pub(super) sinks: Option<Array>,
}

pub(super) fn attention(o: &Operands, p: &Attention) -> Array {
    let [_, n_head, n_tokens, _] = o.q.ne;
    let [_, n_head_kv, n_kv, _] = o.k.ne;
    let dv = o.v.ne[0];
    let mut data = Vec::with_capacity(dv * n_head * n_tokens);
    for t in 0..n_tokens {
        let position = o.query_pos.data[t];
        let visible: Vec<usize> = (0..n_kv).filter(|&j| is_visible(o, p, t, j)).collect();
        for h in 0..n_head {
            let h_kv = h / (n_head / n_head_kv);
            let score = |&j: &usize| {
                let distance = (position - o.cell_pos.data[j]).abs() as f64;
                let raw = dot(o.q.row([0, h, t, 0]), o.k.row([0, h_kv, j, 0])) * f64::from(p.scale);
                let capped = match f64::from(p.softcap) {
                    0.0 => raw,
                    cap => cap * (raw / cap).tanh(),
                };
                capped - alibi_slope(p.max_bias, h, n_head) * distance
            };
            let scores: Vec<f64> = visible.iter().map(score).collect();
            let sink = o.sinks.as_ref().map(|s| s.at([h, 0, 0, 0]));
            let weights = softmax_with_sink(&scores, sink);
            data.extend((0..dv).map(|i| {
                let terms = visible.iter().zip(&weights).map(|(&j, w)| w * o.v.at([i, h_kv, j, 0]));
                terms.sum::<f64>() as f32
            }));
        }
    }
    Array {
        ne: [dv, n_head, n_tokens, 1],
        data,
    }
}

/// Does query `i` see the key in cell `j`?
fn is_visible(o: &Operands, p: &Attention, i: usize, j: usize) -> bool {
    let (q_pos, k_pos) = (o.query_pos.data[i], o.cell_pos.data[j]);
    let seq = o.query_seq.data[i];
    let shares_sequence = (0..64).contains(&seq) && o.cell_seqs.data[j] >> seq & 1 == 1;
    let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let in_window = match p.window {
        Window::None => true,
        Window::Standard(n) => q_pos - k_pos < size(n),
        Window::Chunked(n) => k_pos >= q_pos / size(n) * size(n),
        Window::Symmetric(n) => (q_pos - k_pos).abs() <= size(n / 2),
    };
    k_pos >= 0 && shares_sequence && (!p.causal || k_pos <= q_pos) && in_window
}

/// ALiBi's slope of head `h`: a geometric series over the largest power of two of heads, the rest in between.
fn alibi_slope(max_bias: f32, h: usize, n_head: usize) -> f64 {
    if max_bias == 0.0 {
        return 0.0;
    }
    let power = 1 << n_head.ilog2();
    let exponent = if h < power {
        f64::from(max_bias) * (h + 1) as f64 / power as f64
    } else {
        f64::from(max_bias) / 2.0 * (2 * (h - power) + 1) as f64 / power as f64
    };
    (-exponent).exp2()
}

/// A sink takes its share of the softmax but has no value.
fn softmax_with_sink(scores: &[f64], sink: Option<f64>) -> Vec<f64> {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum = exps.iter().sum::<f64>() + sink.map_or(0.0, |s| (s - max).exp());
    exps.iter().map(|e| e / sum).collect()
}
