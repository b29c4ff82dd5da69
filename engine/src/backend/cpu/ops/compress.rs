//! KV compression of groups of tokens: a running softmax-weighted mean per channel. See
//! [`Recurrence::Compress`].
//!
//! [`Recurrence::Compress`]: crate::graph::Recurrence::Compress

use super::lane_step::LaneStep;
use crate::backend::cpu::view::Source;

/// Size of a mean in floats: the maximum score, the sum of `exp(score - max)`, and the sum of
/// `value * exp(score - max)`.
const MEAN: usize = 3;

pub(super) struct Compress<'a> {
    x: Source<'a>,
    gate: Source<'a>,
    places: Source<'a>,
    overlap: bool,
}

impl<'a> Compress<'a> {
    pub(super) fn new([x, gate, places]: [Source<'a>; 3], overlap: bool) -> Self {
        Compress {
            x,
            gate,
            places,
            overlap,
        }
    }

    pub(super) fn step(&self, step: LaneStep<'_>) {
        if self.overlap {
            self.channels::<{ 1 + 2 * MEAN }>(step);
        } else {
            self.channels::<{ 1 + MEAN }>(step);
        }
    }

    /// Adds a token to the states of some channels, `STATE` floats per channel.
    fn channels<const STATE: usize>(&self, step: LaneStep<'_>) {
        let [width, n, ..] = self.places.ne();
        let (first, n_lanes) = (step.lanes.start, step.lanes.len());
        // All channels have seen the same number of tokens.
        let seen = step.state[0] as usize;
        let place = if seen < n { seen } else { 0 };
        let part = |from: usize| {
            (
                self.x.floats(step.t * width + from, n_lanes),
                self.gate.floats(step.t * width + from, n_lanes),
                self.places.floats(place * width + from, n_lanes),
            )
        };
        let states = step.state.as_chunks_mut::<STATE>().0;
        for state in states.iter_mut() {
            if seen >= n {
                // If groups overlap, the next group starts with the tokens of this group that it shares.
                let (own, next) = state[1..].split_at_mut(MEAN);
                own.fill(0.0);
                own[..next.len()].copy_from_slice(next);
                next.fill(0.0);
            }
            state[0] = (place + 1) as f32;
        }
        let mut take_in = |from: usize, mean: usize| {
            let (x, gate, places) = part(from);
            let values = x.iter().zip(gate.iter().zip(places));
            for (state, (&x, (gate, place))) in states.iter_mut().zip(values) {
                add(&mut state[mean..mean + MEAN], gate + place, x);
            }
        };
        if self.overlap {
            take_in(first, 1 + MEAN);
            take_in(width / 2 + first, 1);
        } else {
            take_in(first, 1);
        }
        for (y, state) in step.out.iter_mut().zip(states) {
            *y = state[3] / state[2];
        }
    }
}

/// Adds a value to an online softmax mean.
fn add(mean: &mut [f32], score: f32, x: f32) {
    let [max, sum, values] = mean else { return };
    if *sum == 0.0 {
        (*max, *sum, *values) = (score, 1.0, x);
    } else if score <= *max {
        let weight = (score - *max).exp();
        *sum += weight;
        *values += weight * x;
    } else {
        let before = (*max - score).exp();
        (*max, *sum, *values) = (score, *sum * before + 1.0, *values * before + x);
    }
}
