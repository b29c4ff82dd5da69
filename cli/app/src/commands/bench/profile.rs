//! Time per op of a benchmark test.

use std::time::Duration;

use engine::backend::{Activity, OpTime, Profile};
use serde::Serialize;

/// Time spent on one op.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpShare {
    /// Op, with the weight type for matmuls; an activity between graph runs; or [`REST`].
    pub op: String,
    /// Number of times that the op ran.
    pub n: u64,
    /// Total time of the op in seconds.
    pub seconds: f64,
    /// Fraction of the time of all repetitions, from 0 to 1.
    pub share: f64,
}

impl OpShare {
    /// Returns a line below a row of a table.
    pub fn line(&self) -> String {
        let (share, ms) = (100.0 * self.share, 1e3 * self.seconds);
        format!("    {:<24} {share:>5.1} %  {ms:>10.1} ms  {:>8} x", self.op, self.n)
    }
}

/// Time outside of profiled ops: splitting batches, choosing cells, and starting and joining threads.
const REST: &str = "rest";

/// Op times of all repetitions of a test.
#[derive(Default)]
pub struct Times {
    parts: Vec<OpTime>,
    wall: Duration,
}

impl Times {
    /// Adds the wall time and profile of a repetition.
    pub fn add(&mut self, wall: Duration, profile: &Profile) {
        self.wall += wall;
        for time in profile.times() {
            match self.parts.iter_mut().find(|part| part.activity == time.activity) {
                Some(part) => {
                    part.n += time.n;
                    part.time += time.time;
                }
                None => self.parts.push(time),
            }
        }
    }

    /// Returns the ops, largest first, and the rest; the shares add up to 1.
    pub fn shares(&self) -> Vec<OpShare> {
        let mut parts = self.parts.clone();
        parts.sort_by_key(|part| std::cmp::Reverse(part.time));
        let profiled: Duration = parts.iter().map(|part| part.time).sum();
        let rest = (REST.to_owned(), 1, self.wall.saturating_sub(profiled));
        let parts = parts.iter().map(|part| (name(part.activity), part.n, part.time));
        let all = self.wall.max(profiled).as_secs_f64().max(f64::MIN_POSITIVE);
        let share = |(op, n, time): (String, u64, Duration)| OpShare {
            op,
            n,
            seconds: time.as_secs_f64(),
            share: time.as_secs_f64() / all,
        };
        parts.chain([rest]).map(share).collect()
    }
}

fn name(activity: Activity) -> String {
    match activity.weights {
        Some(weights) => format!("{} {weights}", activity.name),
        None => activity.name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_add_up_to_total_time() {
        let part = |name, seconds| OpTime {
            activity: Activity { name, weights: None },
            n: 2,
            time: Duration::from_secs(seconds),
        };
        let mut times = Times {
            parts: vec![part("add", 1), part("norm", 4)],
            wall: Duration::from_secs(6),
        };
        // This repetition recorded no profile.
        times.add(Duration::from_secs(2), &Profile::new());
        let found: Vec<(String, u64, f64)> = times.shares().into_iter().map(|s| (s.op, s.n, s.share)).collect();
        let expected = [("norm", 2, 0.5), ("add", 2, 0.125), (REST, 1, 0.375)];
        assert_eq!(found, expected.map(|(op, n, share)| (op.to_owned(), n, share)));
    }
}
