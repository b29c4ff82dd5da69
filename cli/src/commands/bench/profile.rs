//! Where the time of a test goes, op by op.

use std::time::Duration;

use engine::backend::Profile;
use serde::Serialize;

/// An op's part of the time that the graphs of a test took.
#[derive(Debug, Serialize)]
pub struct OpShare {
    /// The op, with the type of its weights if it is a product.
    pub op: String,
    /// How often it was computed.
    pub n: u64,
    /// All together.
    pub seconds: f64,
    /// Of the time of all ops, 0 to 1.
    pub share: f64,
}

/// The parts, largest first; they add up to 1.
pub fn shares(profile: &Profile) -> Vec<OpShare> {
    let times = profile.times();
    let all: Duration = times.iter().map(|t| t.time).sum();
    let share = |time: Duration| time.as_secs_f64() / all.as_secs_f64().max(f64::MIN_POSITIVE);
    let times = times.iter().map(|t| OpShare {
        op: match t.activity.weights {
            Some(weights) => format!("{} {weights}", t.activity.name),
            None => t.activity.name.to_owned(),
        },
        n: t.n,
        seconds: t.time.as_secs_f64(),
        share: share(t.time),
    });
    times.collect()
}
