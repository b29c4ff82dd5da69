//! Linear attention: parameters and shapes of the recurrence.

use super::Lanes;

/// Parameters of [`Recurrence::LinearAttention`](super::Recurrence::LinearAttention).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinearAttention {
    /// The result is multiplied by this.
    pub scale: f32,
    /// The delta rule (Schlag et al., arXiv 2102.11174): the value that the state already returns for the key is subtracted before the update.
    pub delta: bool,
    /// Value head `h` uses key head `h % m` instead of `h / (n / m)`.
    pub tiled: bool,
    /// Without a decay operand, head `h` of `n` decays by the constant `-slope 2^(-8 (h + 1) / n)` (ALiBi slopes).
    pub slope: f32,
}

impl LinearAttention {
    /// The query and key head (of `m`) that value head `h` (of `n`) uses.
    pub fn key_head(&self, h: usize, n: usize, m: usize) -> usize {
        if self.tiled { h % m } else { h / (n / m) }
    }

    /// The constant decay of head `h` of `n`, used without a decay operand.
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
