//! Linear attention by its definition, token by token.

use super::array::Array;
use crate::graph::LinearAttention;

/// Processes token `t` for all heads. The last argument holds the decay and the beta.
pub(super) fn linear_attention(
    p: LinearAttention,
    t: usize,
    state: &mut [f32],
    y: &mut [f32],
    [q, k, v]: [&Array; 3],
    [decay, beta]: [Option<&Array>; 2],
) {
    let ([dk, m, ..], [dv, n, ..]) = (q.ne, v.ne);
    for (h, (s, y)) in state.chunks_exact_mut(dk * dv).zip(y.chunks_exact_mut(dv)).enumerate() {
        let key_head = p.key_head(h, n, m);
        let kept = |i: usize| match decay {
            Some(decay) => decay.at([i % decay.ne[0], h, t, 0]).exp(),
            None => f64::from(p.decay_of(h, n)).exp(),
        };
        for (j, y) in y.iter_mut().enumerate() {
            let k = |i: usize| k.at([i, key_head, t, 0]);
            let before = |s: &[f32], i: usize| f64::from(s[i * dv + j]) * kept(i);
            let mut d = v.at([j, h, t, 0]);
            if p.delta {
                d -= (0..dk).map(|i| before(s, i) * k(i)).sum::<f64>();
            }
            d *= beta.map_or(1.0, |beta| beta.at([0, h, t, 0]));
            let mut sum = 0.0;
            for i in 0..dk {
                let now = before(s, i) + k(i) * d;
                sum += now * q.at([i, key_head, t, 0]);
                s[i * dv + j] = now as f32;
            }
            *y = (sum * f64::from(p.scale)) as f32;
        }
    }
}
