//! Where the time of a test goes, op by op.

use std::time::Duration;

use engine::backend::{Activity, OpTime, Profile};
use serde::Serialize;

/// The part of a test's time that is spent on one thing.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpShare {
    /// The op, with the type of its weights if it is a product; what is done between runs of graphs; or [`REST`].
    pub op: String,
    /// How often it was done.
    pub n: u64,
    /// All together.
    pub seconds: f64,
    /// Of the time that the tokens of all repetitions took, 0 to 1.
    pub share: f64,
}

/// What no part of a profile is: splitting batches, choosing cells, starting threads and waiting for the last of them.
const REST: &str = "rest";

/// The times of all repetitions of a test.
#[derive(Default)]
pub struct Times {
    parts: Vec<OpTime>,
    wall: Duration,
}

impl Times {
    /// Adds what a repetition took in all, and what its profile says.
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

    /// The parts, largest first, and the rest at the end; they add up to 1.
    pub fn shares(&self) -> Vec<OpShare> {
        let mut parts = self.parts.clone();
        parts.sort_by_key(|part| std::cmp::Reverse(part.time));
        let told: Duration = parts.iter().map(|part| part.time).sum();
        let rest = (REST.to_owned(), 1, self.wall.saturating_sub(told));
        let parts = parts.iter().map(|part| (name(part.activity), part.n, part.time));
        let all = self.wall.max(told).as_secs_f64().max(f64::MIN_POSITIVE);
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
    fn shares_are_of_all_the_time() {
        let part = |name, seconds| OpTime {
            activity: Activity { name, weights: None },
            n: 2,
            time: Duration::from_secs(seconds),
        };
        let mut times = Times {
            parts: vec![part("add", 1), part("norm", 4)],
            wall: Duration::from_secs(6),
        };
        // A repetition of which no op is known.
        times.add(Duration::from_secs(2), &Profile::new());
        let found: Vec<(String, u64, f64)> = times.shares().into_iter().map(|s| (s.op, s.n, s.share)).collect();
        let expected = [("norm", 2, 0.5), ("add", 2, 0.125), (REST, 1, 0.375)];
        assert_eq!(found, expected.map(|(op, n, share)| (op.to_owned(), n, share)));
    }
}
