//! Linear attention: parameters and shapes of the recurrence.

use super::Lanes;

/// Parameters of [`Recurrence::LinearAttention`](super::Recurrence::LinearAttention).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinearAttention {
    /// The result is multiplied by this.
    pub scale: f32,
    /// The delta rule (Schlag et al., arXiv 2102.11174): of a value, only what the state does not yet hold for the key is added.
    pub delta: bool,
    /// Head `h` goes with key head `h % m` instead of `h / (n / m)`.
    pub tiled: bool,
    /// Without an operand for it, the decay of head `h` of `n` is `-slope 2^(-8 (h + 1) / n)`.
    pub slope: f32,
}

impl LinearAttention {
    /// The head of queries and keys, of `m`, that goes with head `h` of the `n` of the values.
    pub fn key_head(&self, h: usize, n: usize, m: usize) -> usize {
        if self.tiled { h % m } else { h / (n / m) }
    }

    /// The decay of head `h` of `n` where there is no operand for it.
    pub fn decay_of(&self, h: usize, n: usize) -> f32 {
        -self.slope * (-8.0 * (h + 1) as f32 / n as f32).exp2()
    }

    /// The lanes for operands of these shapes; `None` if they do not fit.
    pub(super) fn lanes(operands: &[[usize; 4]]) -> Option<Lanes> {
        let &[q, k, v, ref rest @ ..] = operands else {
            return None;
        };
        let ([dk, m, t, _], [dv, n, ..]) = (q, v);
        let fits = q == k && [v[2], v[3], q[3]] == [t, 1, 1] && m > 0 && n.is_multiple_of(m);
        let gates_fit = match *rest {
            [] => true,
            [decay] => decay == [1, n, t, 1] || decay == [dk, n, t, 1],
            [decay, beta] => (decay == [1, n, t, 1] || decay == [dk, n, t, 1]) && beta == [1, n, t, 1],
            _ => false,
        };
        (fits && gates_fit).then_some(Lanes {
            n,
            state: dk.checked_mul(dv)?,
            out: dv,
            ne: v,
        })
    }
}
