//! How much of which prompt is computed in a step: enough that computing pays, and not so much that texts under way wait for long.

use std::time::Duration;

/// Up to so many tokens products take activations of another form than above. Parts of prompts keep to the one side or the other where they can, so
/// that results depend less on what else is computed.
pub const FEW: usize = 31;

/// Learns how fast prompts are computed.
#[derive(Clone, Debug)]
pub struct Pace {
    /// Tokens in a second, as of late; 0 before the first.
    speed: f64,
    target: Duration,
}

impl Pace {
    /// Steps with prompts are to take about `target`.
    pub fn new(target: Duration) -> Pace {
        Pace { speed: 0.0, target }
    }

    /// Notes how long so many tokens took.
    pub fn record(&mut self, n: usize, time: Duration) {
        let speed = n as f64 / time.as_secs_f64().max(1e-6);
        self.speed = match self.speed {
            0.0 => speed,
            before => 0.75 * before + 0.25 * speed,
        };
    }

    /// Tokens of prompts for a step that others wait for, at most `max`.
    pub fn budget(&self, max: usize) -> usize {
        let least = 2 * (FEW + 1);
        let fitting = (self.speed * self.target.as_secs_f64()) as usize / (FEW + 1) * (FEW + 1);
        fitting.max(least).min(max)
    }
}

/// Divides a budget of tokens among prompts, of each of which so many tokens are left, oldest first. Half of it is for the oldest, so that it is done
/// at some time, and the rest for the shortest, so that none waits behind a long one; what is too much for one goes to the other. At most `max` in all.
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
        // Crumbs would cost as much as a piece.
        if share == left[i] || share > FEW {
            shares[i] = share;
            rest -= share;
        }
    }
    shares[0] = first + rest.min(oldest - first);
    let mut more = max - shares.iter().sum::<usize>().min(max);
    for (share, &left) in shares.iter_mut().zip(left) {
        let tail = left - *share;
        if *share > 0 && tail <= FEW.min(more) {
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
    fn neither_the_oldest_nor_the_shortest_waits() {
        assert_eq!(divide(&[1000, 10, 500], 128, 512), [64, 10, 54]);
        assert_eq!(divide(&[1000], 128, 512), [128]);
        assert_eq!(divide(&[40, 1000], 128, 512), [40, 88]);
        assert_eq!(divide(&[], 128, 512), [0; 0]);
        assert_eq!(divide(&[1000, 60, 70], 128, 512), [68, 60, 0], "no crumbs");
    }

    #[test]
    fn tails_are_not_left_for_a_step_of_their_own() {
        assert_eq!(divide(&[140], 128, 512), [140]);
        assert_eq!(divide(&[140], 128, 128), [128]);
        assert_eq!(divide(&[160], 128, 512), [128]);
    }

    #[test]
    fn something_is_always_done_and_never_too_much() {
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
    fn the_budget_follows_the_speed() {
        let mut pace = Pace::new(Duration::from_millis(100));
        assert_eq!(pace.budget(512), 64);
        pace.record(1000, Duration::from_millis(500));
        assert_eq!((pace.budget(512), pace.budget(100)), (192, 100));
        (0..40).for_each(|_| pace.record(512, Duration::from_secs(20)));
        assert_eq!(pace.budget(512), 64);
    }
}
