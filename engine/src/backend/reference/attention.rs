//! Attention by its definition: all scores of a query, their softmax, and the weighted sum of the values.

use super::array::{Array, Ints};
use super::ops::dot;
use super::visible::Visible;
use crate::graph::{Attention, Buckets, Window};

/// The operands of [`crate::graph::Op::Attention`].
pub(super) struct Operands {
    pub(super) q: Array,
    pub(super) k: Array,
    pub(super) v: Array,
    pub(super) visible: Visible,
    pub(super) sinks: Option<Array>,
    pub(super) biases: Option<Array>,
    pub(super) selection: Option<Ints>,
}

pub(super) fn attention(o: &Operands, p: &Attention) -> Array {
    let [_, n_head, n_tokens, _] = o.q.ne;
    let [_, n_head_kv, n_kv, _] = o.k.ne;
    let dv = o.v.ne[0];
    let scratch = o.q.data.scratch();
    // Scores of one head of one query, later replaced by weights.
    let mut weights = scratch.take(n_kv);
    let mut data = scratch.take(dv * n_head * n_tokens);
    for (n, out) in data.chunks_exact_mut(dv.max(1)).enumerate() {
        let (h, t) = (n % n_head, n / n_head);
        let h_kv = h / (n_head / n_head_kv);
        for (j, score) in weights.iter_mut().enumerate() {
            *score = if is_visible(o, p, [h_kv, t, j]) {
                score_of(o, p, [h, h_kv, t, j])
            } else {
                f64::NEG_INFINITY
            };
        }
        softmax_with_sink(&mut weights, o.sinks.as_ref().map(|s| s.at([h, 0, 0, 0])));
        for (i, x) in out.iter_mut().enumerate() {
            // Masked values may be anything, including NaN, so they are skipped instead of multiplied by
            // zero.
            let seen = weights.iter().enumerate().filter(|(_, w)| **w != 0.0);
            *x = seen.map(|(j, w)| w * o.v.at([i, h_kv, j, 0])).sum::<f64>() as f32;
        }
    }
    Array {
        ne: [dv, n_head, n_tokens, 1],
        data,
    }
}

/// Returns the score of head `h` of query `t` for the key of KV head `h_kv` in cell `j`.
fn score_of(o: &Operands, p: &Attention, [h, h_kv, t, j]: [usize; 4]) -> f64 {
    let raw = dot(o.q.row([0, h, t, 0]), o.k.row([0, h_kv, j, 0])) * f64::from(p.scale);
    let capped = match f64::from(p.softcap) {
        0.0 => raw,
        cap => cap * (raw / cap).tanh(),
    };
    let ahead = o.visible.cell_pos.data[j] - o.visible.pos.data[t];
    let bias = o.biases.as_ref().map_or(0.0, |table| {
        let row = bucket(p.buckets, table.ne[1], ahead);
        table.at([h, row, 0, 0])
    });
    capped + bias - alibi_slope(p.max_bias, h, o.q.ne[1]) * ahead.abs() as f64
}

/// Returns the row of a table of `n` biases for a key `ahead` positions after the query (negative: before).
fn bucket(buckets: Buckets, n: usize, ahead: i64) -> usize {
    let side = buckets.side(n);
    let distance = |d: i64| usize::try_from(d).unwrap_or(0);
    match buckets {
        Buckets::Around if ahead > 0 => side + Buckets::near(side, distance(ahead)),
        _ => Buckets::near(side, distance(-ahead)),
    }
}

/// Returns true if query `i` sees the key of KV head `h_kv` in cell `j`.
fn is_visible(o: &Operands, p: &Attention, [h_kv, i, j]: [usize; 3]) -> bool {
    let (q_pos, k_pos) = (o.visible.pos.data[i], o.visible.cell_pos.data[j]);
    let size = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    let entry = match p.compressed_from {
        None => Some(j),
        Some(first) => j.checked_sub(first),
    };
    let single = p.compressed_from.is_none_or(|first| j < first);
    let in_window = match p.window {
        _ if !single => true,
        Window::None | Window::Compressed(_) => true,
        Window::Sliding(n) => q_pos - k_pos < size(n),
        Window::Chunked(n) => k_pos / size(n) == q_pos / size(n),
        Window::Symmetric(n) => (q_pos - k_pos).abs() <= size(n / 2),
    };
    let selected = o.selection.as_ref().zip(entry).is_none_or(|(s, entry)| {
        let lists = if s.ne[2] == o.visible.pos.ne[0] { s.ne[1] } else { 1 };
        let list = i * lists + h_kv % lists;
        s.data[list * s.ne[0]..(list + 1) * s.ne[0]].contains(&(entry as i64))
    });
    o.visible.lists(i, j) && (!p.causal || k_pos <= q_pos) && in_window && selected
}

/// Returns the ALiBi slope of head `h`. The slopes form a geometric series over the largest power of two of
/// heads; the remaining heads interpolate.
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

/// Converts scores to weights. A score of minus infinity gets weight 0. A sink takes part in the
/// normalization but has no value.
fn softmax_with_sink(scores: &mut [f64], sink: Option<f64>) {
    let max = scores.iter().copied().chain(sink).fold(f64::NEG_INFINITY, f64::max);
    if max == f64::NEG_INFINITY {
        return scores.fill(0.0);
    }
    let sum: f64 = scores.iter().copied().chain(sink).map(|s| (s - max).exp()).sum();
    scores.iter_mut().for_each(|s| *s = (*s - max).exp() / sum);
}
