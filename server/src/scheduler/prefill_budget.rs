//! Prefill budget: how many prompt tokens a step may process, and how they are divided among prompts.

use std::time::Duration;

/// Largest batch for which matmuls use the more precise activation format. Prompt chunks avoid crossing this
/// limit, so that results depend less on other requests in the batch.
pub const SMALL_BATCH: usize = 31;

/// Measures the prefill speed and derives the budget of a step.
#[derive(Clone, Debug)]
pub struct PrefillBudget {
    /// Moving average in tokens per second; 0 before the first measurement.
    speed: f64,
    target: Duration,
}

impl PrefillBudget {
    /// Creates a budget for steps of about `target`.
    pub fn new(target: Duration) -> PrefillBudget {
        PrefillBudget { speed: 0.0, target }
    }

    /// Records that `n` tokens took `time`.
    pub fn record(&mut self, n: usize, time: Duration) {
        let speed = n as f64 / time.as_secs_f64().max(1e-6);
        self.speed = match self.speed {
            0.0 => speed,
            before => 0.75 * before + 0.25 * speed,
        };
    }

    /// Returns the prefill budget of a step in tokens, at most `max`.
    pub fn budget(&self, max: usize) -> usize {
        let least = 2 * (SMALL_BATCH + 1);
        let fitting = (self.speed * self.target.as_secs_f64()) as usize / (SMALL_BATCH + 1) * (SMALL_BATCH + 1);
        fitting.max(least).min(max)
    }
}

/// Divides a budget among prompts with `left` remaining tokens each, oldest first. Half goes to the oldest
/// prompt, so that it progresses. The rest goes to the shortest prompts, so that they do not wait for long
/// ones. Unused shares are passed on. The total is at most `max`.
pub fn divide(left: &[usize], budget: usize, max: usize) -> Vec<usize> {
    let mut shares = vec![0; left.len()];
    let Some(&oldest) = left.first() else { return shares };
    let mut rest = budget.min(max);
    let first = oldest.min(rest.div_ceil(2));
    rest -= first;
    let mut by_length: Vec<usize> = (1..left.len()).collect();
    by_length.sort_by_key(|&i| left[i]);
    for i in by_length {
        let share = left[i].min(rest);
        // A tiny chunk costs as much as a larger one.
        if share == left[i] || share > SMALL_BATCH {
            shares[i] = share;
            rest -= share;
        }
    }
    shares[0] = first + rest.min(oldest - first);
    let mut more = max - shares.iter().sum::<usize>().min(max);
    for (share, &left) in shares.iter_mut().zip(left) {
        let tail = left - *share;
        if *share > 0 && tail <= SMALL_BATCH.min(more) {
            *share += tail;
            more -= tail;
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divide_serves_oldest_and_shortest() {
        assert_eq!(divide(&[1000, 10, 500], 128, 512), [64, 10, 54]);
        assert_eq!(divide(&[1000], 128, 512), [128]);
        assert_eq!(divide(&[40, 1000], 128, 512), [40, 88]);
        assert_eq!(divide(&[], 128, 512), [0; 0]);
        assert_eq!(divide(&[1000, 60, 70], 128, 512), [68, 60, 0], "no crumbs");
    }

    #[test]
    fn divide_avoids_tiny_chunks() {
        assert_eq!(divide(&[140], 128, 512), [140]);
        assert_eq!(divide(&[140], 128, 128), [128]);
        assert_eq!(divide(&[160], 128, 512), [128]);
    }

    #[test]
    fn divide_stays_within_budget_and_progresses() {
        for n in 1..6 {
            for budget in [1, 32, 64, 200] {
                let left: Vec<usize> = (0..n).map(|i| 1 + (i * 7919 + budget * 31) % 300).collect();
                let shares = divide(&left, budget, budget + 10);
                assert!(
                    shares[0] > 0 && shares.iter().sum::<usize>() <= budget + 10,
                    "{left:?} {shares:?}"
                );
                assert!(shares.iter().zip(&left).all(|(share, left)| share <= left));
            }
        }
    }

    #[test]
    fn budget_follows_measured_speed() {
        let mut prefill_budget = PrefillBudget::new(Duration::from_millis(100));
        assert_eq!(prefill_budget.budget(512), 64);
        prefill_budget.record(1000, Duration::from_millis(500));
        assert_eq!((prefill_budget.budget(512), prefill_budget.budget(100)), (192, 100));
        (0..40).for_each(|_| prefill_budget.record(512, Duration::from_secs(20)));
        assert_eq!(prefill_budget.budget(512), 64);
    }
}
