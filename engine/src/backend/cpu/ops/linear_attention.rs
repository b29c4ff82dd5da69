//! Linear attention. A lane is a head; its state is a matrix with one row of values per key channel.

use kernels::rows;

use super::lane_step::LaneStep;
use crate::backend::cpu::scratch::take;
use crate::backend::cpu::view::Source;
use crate::graph::LinearAttention;

/// Returns the scratch memory in floats for heads of these sizes.
pub(super) fn scratch_size(dk: usize, dv: usize) -> usize {
    2 * dk + 2 * dv
}

/// Operands of [`crate::graph::Recurrence::LinearAttention`].
pub(super) struct Heads<'a> {
    p: LinearAttention,
    q: Source<'a>,
    k: Source<'a>,
    v: Source<'a>,
    decay: Option<Source<'a>>,
    beta: Option<Source<'a>>,
    /// Key head size, number of key heads, value head size, number of value heads.
    dk: usize,
    m: usize,
    dv: usize,
    n: usize,
}

impl<'a> Heads<'a> {
    pub(super) fn new(
        p: LinearAttention,
        [q, k, v]: [Source<'a>; 3],
        [decay, beta]: [Option<Source<'a>>; 2],
    ) -> Heads<'a> {
        let ([dk, m, ..], [dv, n, ..]) = (q.ne(), v.ne());
        Heads {
            p,
            q,
            k,
            v,
            decay,
            beta,
            dk,
            m,
            dv,
            n,
        }
    }

    pub(super) fn step(&self, step: LaneStep<'_>) {
        let &Heads { dk, dv, .. } = self;
        let heads = step.state.chunks_exact_mut(dk * dv).zip(step.out.chunks_exact_mut(dv));
        for ((state, y), head) in heads.zip(step.lanes) {
            self.head(step.t, head, state, y, step.scratch);
        }
    }

    /// Processes one token of one head: `S = diag(e^decay) S + k d^T`, `y = scale S^T q`.
    fn head(&self, t: usize, head: usize, state: &mut [f32], y: &mut [f32], mut scratch: &mut [f32]) {
        let &Heads { dk, m, dv, n, .. } = self;
        let key_head = t * m + self.p.key_head(head, n, m);
        let (q, k) = (self.q.floats(key_head * dk, dk), self.k.floats(key_head * dk, dk));
        let (kept, factors) = (take(&mut scratch, dk), take(&mut scratch, dk));
        let (d, known) = (take(&mut scratch, dv), take(&mut scratch, dv));
        let at = t * n + head;
        self.keep(at, head, kept);

        d.copy_from_slice(self.v.floats(at * dv, dv));
        if self.p.delta {
            rows::mul(k, kept, factors);
            known.fill(0.0);
            rows::axpy_rows(factors, state, dv, known);
            rows::axpy(-1.0, known, d);
        }
        if let Some(beta) = &self.beta {
            rows::scale_in_place(d, beta.floats(at, 1)[0], 0.0);
        }
        rows::scale_add_outer(kept, k, d, state);

        rows::scale(q, self.p.scale, 0.0, factors);
        y.fill(0.0);
        rows::axpy_rows(factors, state, dv, y);
    }

    /// Computes the factor `e^decay` for each row of the state.
    fn keep(&self, at: usize, head: usize, kept: &mut [f32]) {
        match &self.decay {
            Some(decay) if decay.ne()[0] == self.dk => {
                kept.copy_from_slice(decay.floats(at * self.dk, self.dk));
                rows::exp_in_place(kept);
            }
            Some(decay) => kept.fill(decay.floats(at, 1)[0].exp()),
            None => kept.fill(self.p.decay_of(head, self.n).exp()),
        }
    }
}
