//! Parameters and shapes of linear attention.

use super::lanes::Lanes;

/// Parameters of [`Recurrence::LinearAttention`](super::Recurrence::LinearAttention).
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LinearAttention {
    /// Factor applied to the output.
    pub scale: f32,
    /// Delta rule (Schlag et al., arXiv 2102.11174): subtracts the value that the state returns for the key
    /// before the update.
    pub delta: bool,
    /// Value head `h` uses key head `h % m` instead of `h / (n / m)`.
    pub tiled: bool,
    /// Constant decay, used without a decay operand: head `h` of `n` decays by `-slope 2^(-8 (h + 1) / n)`
    /// (ALiBi slopes).
    pub slope: f32,
}

impl LinearAttention {
    /// Returns the query and key head (of `m`) that value head `h` (of `n`) uses.
    pub fn key_head(&self, h: usize, n: usize, m: usize) -> usize {
        if self.tiled { h % m } else { h / (n / m) }
    }

    /// Returns the constant decay of head `h` of `n`, used without a decay operand.
    pub fn decay_of(&self, h: usize, n: usize) -> f32 {
        -self.slope * (-8.0 * (h + 1) as f32 / n as f32).exp2()
    }

    /// Returns the lanes for these operand shapes; `None` if the shapes do not match.
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
        if !fits || !gates_fit {
            return None;
        }
        Some(Lanes {
            n,
            state: dk.checked_mul(dv)?,
            out: dv,
            ne: v,
        })
    }
}
