//! RWKV time mixing. A lane is a head; its state has one row of keys per value channel.

use kernels::recurrent;

use super::lane_step::LaneStep;
use crate::backend::cpu::view::Source;

/// Operands of [`crate::graph::Recurrence::Wkv6`]: receptance, keys, values, decays, and the bonus of the
/// current token.
pub(super) struct Wkv6<'a>(pub(super) [Source<'a>; 5]);

impl Wkv6<'_> {
    pub(super) fn step(&self, step: LaneStep<'_>) {
        let [r, k, v, w, u] = &self.0;
        let [d, h, ..] = r.ne();
        let heads = step.state.chunks_exact_mut(d * d).zip(step.out.chunks_exact_mut(d));
        for ((state, y), head) in heads.zip(step.lanes) {
            let at = (step.t * h + head) * d;
            let [r, k, v, w] = [r, k, v, w].map(|x| x.floats(at, d));
            let u = u.floats(head * d, d);
            let bonus: f32 = r.iter().zip(u).zip(k).map(|((r, u), k)| r * u * k).sum();
            recurrent::wkv6([r, w, k, v], bonus, state, y);
        }
    }
}

/// Operands of [`crate::graph::Recurrence::Wkv7`]: receptance, decays, keys, values, and the removal and
/// replacement vectors `a` and `b`.
pub(super) struct Wkv7<'a>(pub(super) [Source<'a>; 6]);

impl Wkv7<'_> {
    pub(super) fn step(&self, step: LaneStep<'_>) {
        let [d, h, ..] = self.0[0].ne();
        let heads = step.state.chunks_exact_mut(d * d).zip(step.out.chunks_exact_mut(d));
        for ((state, y), head) in heads.zip(step.lanes) {
            let at = (step.t * h + head) * d;
            recurrent::wkv7(self.0.each_ref().map(|x| x.floats(at, d)), state, y);
        }
    }
}
