//! Recurrences, token by token and lane by lane.

use super::array::{Array, Ints};
use super::linear_attention::linear_attention;
use super::ops::{IndexOutOfRange, row_number};
use crate::graph::{MAX_SRC, Recurrence};

/// Returns the result, of shape `ne`, and updates `states`.
pub(super) fn recur(
    recurrence: Recurrence,
    states: &mut Array,
    (from, to): (&Ints, &Ints),
    operands: &[Option<&Array>; MAX_SRC],
    ne: [usize; 4],
) -> Result<Array, IndexOutOfRange> {
    let mut out = states.derive(ne, |_| 0.0);
    let (row, n_cells) = (states.ne[0], states.ne[1]);
    let width = out.data.len() / from.data.len().max(1);
    let op = |i: usize| operands[i].expect("the rules checked the number of operands");
    for (t, (&from, &to)) in from.data.iter().zip(&*to.data).enumerate() {
        let to = row_number(to, n_cells)? * row;
        if from < 0 {
            states.data[to..to + row].fill(0.0);
        } else {
            let from = row_number(from, n_cells)? * row;
            states.data.copy_within(from..from + row, to);
        }
        let state = &mut states.data[to..to + row];
        let y = &mut out.data[t * width..(t + 1) * width];
        match recurrence {
            Recurrence::ShortConv { dilation } => short_conv(dilation, t, state, y, op(0), op(1)),
            Recurrence::LinearAttention(p) => {
                linear_attention(p, t, state, y, [op(0), op(1), op(2)], [operands[3], operands[4]])
            }
            Recurrence::SsmScan => ssm_scan(t, state, y, [op(0), op(1), op(2), op(3), op(4)]),
            Recurrence::TokenShift => token_shift(t, state, y, op(0)),
            Recurrence::Wkv6 => wkv6(t, state, y, [op(0), op(1), op(2), op(3), op(4)]),
            Recurrence::Wkv7 => wkv7(t, state, y, [op(0), op(1), op(2), op(3), op(4), op(5)]),
            Recurrence::Compress { overlap } => compress(overlap, t, state, y, [op(0), op(1), op(2)]),
        }
    }
    Ok(out)
}

fn short_conv(dilation: usize, t: usize, state: &mut [f32], y: &mut [f32], x: &Array, weight: &Array) {
    let past = weight.ne[0] - 1;
    for (c, (s, y)) in state.chunks_exact_mut(past * dilation).zip(y).enumerate() {
        let now = x.at([c, t, 0, 0]);
        let before: f64 = (0..past)
            .map(|j| f64::from(s[j * dilation]) * weight.at([j, c, 0, 0]))
            .sum();
        *y = (before + now * weight.at([past, c, 0, 0])) as f32;
        s.rotate_left(1);
        s[past * dilation - 1] = now as f32;
    }
}

fn token_shift(t: usize, state: &mut [f32], y: &mut [f32], x: &Array) {
    y.copy_from_slice(state);
    for (c, s) in state.iter_mut().enumerate() {
        *s = x.at([c, t, 0, 0]) as f32;
    }
}

fn wkv6(t: usize, state: &mut [f32], y: &mut [f32], [r, k, v, w, u]: [&Array; 5]) {
    let d = r.ne[0];
    for (head, s) in state.chunks_exact_mut(d * d).enumerate() {
        for (i, s) in s.chunks_exact_mut(d).enumerate() {
            let (v, mut sum) = (v.at([i, head, t, 0]), 0.0);
            for (j, s) in s.iter_mut().enumerate() {
                let at = [j, head, t, 0];
                let (before, kv) = (f64::from(*s), k.at(at) * v);
                sum += r.at(at) * (before + u.at([j, head, 0, 0]) * kv);
                *s = (w.at(at) * before + kv) as f32;
            }
            y[head * d + i] = sum as f32;
        }
    }
}

fn wkv7(t: usize, state: &mut [f32], y: &mut [f32], [r, w, k, v, a, b]: [&Array; 6]) {
    let d = r.ne[0];
    for (head, s) in state.chunks_exact_mut(d * d).enumerate() {
        for (i, s) in s.chunks_exact_mut(d).enumerate() {
            let v = v.at([i, head, t, 0]);
            let held: f64 = (0..d).map(|l| a.at([l, head, t, 0]) * f64::from(s[l])).sum();
            let mut sum = 0.0;
            for (j, s) in s.iter_mut().enumerate() {
                let at = [j, head, t, 0];
                *s = (w.at(at) * f64::from(*s) + k.at(at) * v + b.at(at) * held) as f32;
                sum += r.at(at) * f64::from(*s);
            }
            y[head * d + i] = sum as f32;
        }
    }
}

fn compress(overlap: bool, t: usize, state: &mut [f32], y: &mut [f32], [x, gate, places]: [&Array; 3]) {
    let (n_channels, n) = (y.len(), places.ne[1]);
    let size = state.len() / n_channels;
    for (c, (s, y)) in state.chunks_exact_mut(size).zip(y).enumerate() {
        let (count, means) = s.split_at_mut(1);
        let (own, next) = means.split_at_mut(3);
        if count[0] as usize >= n {
            own.fill(0.0);
            own[..next.len()].copy_from_slice(next);
            next.fill(0.0);
            count[0] = 0.0;
        }
        let place = count[0] as usize;
        let score = |c: usize| gate.at([c, t, 0, 0]) + places.at([c, place, 0, 0]);
        if overlap {
            take_in(next, score(c), x.at([c, t, 0, 0]));
        }
        let c = if overlap { n_channels + c } else { c };
        take_in(own, score(c), x.at([c, t, 0, 0]));
        count[0] += 1.0;
        *y = own[2] / own[1];
    }
}

/// Adds a value to a mean: the maximum score, the sum of `exp(score - max)`, and the sum of `value * exp(score - max)`.
fn take_in(mean: &mut [f32], score: f64, x: f64) {
    let [max, sum, values] = std::array::from_fn(|i| f64::from(mean[i]));
    let (new_max, before) = match sum {
        0.0 => (score, 0.0),
        _ => (score.max(max), (max - score.max(max)).exp()),
    };
    let now = (score - new_max).exp();
    mean.copy_from_slice(&[new_max, sum * before + now, values * before + x * now].map(|x| x as f32));
}

fn ssm_scan(t: usize, state: &mut [f32], y: &mut [f32], [x, dt, a, b, c]: [&Array; 5]) {
    let [p, h, ..] = x.ne;
    let (n, group) = (b.ne[0], h / b.ne[1]);
    for (head, s) in state.chunks_exact_mut(n * p).enumerate() {
        let dt = dt.at([head, t, 0, 0]);
        for (i, s) in s.chunks_exact_mut(n).enumerate() {
            let dx = dt * x.at([i, head, t, 0]);
            let mut sum = 0.0;
            for (j, s) in s.iter_mut().enumerate() {
                let decay = (dt * a.at_repeated([j, head, 0, 0])).exp();
                let at = [j, head / group, t, 0];
                *s = (f64::from(*s) * decay + dx * b.at(at)) as f32;
                sum += f64::from(*s) * c.at(at);
            }
            y[head * p + i] = sum as f32;
        }
    }
}
