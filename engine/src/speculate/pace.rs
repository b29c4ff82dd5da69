//! How many drafts to verify: as many as pay, by what verifying has cost and how many drafts were right; none where they do not.

/// Numbers of drafts to choose from. A batch of each is a graph of its own, and a context keeps four: these and the one without drafts.
const SIZES: [usize; 3] = [3, 7, 15];

/// Most drafts of a batch.
pub const MAX_DRAFTS: usize = SIZES[SIZES.len() - 1];

/// Share of a new figure in a running mean.
const NEW: f64 = 0.1;

/// By how much old yields move to what acceptance promises with each decode without drafts.
const FORGET: f64 = 0.01;

/// Gain below which verifying is not worth its noise.
const LEAST_GAIN: f64 = 1.05;

/// Steps without drafts after which some are tried all the same, in case they pay by now: a thousandth of the time.
const PATIENCE: usize = 400;

/// Decodes without drafts before any are verified, to know their time.
const PLAIN_FIRST: usize = 2;

/// What is known of costs and of luck.
#[derive(Clone, Debug)]
pub struct Pace {
    n_max: usize,
    /// As many as there is room for, whatever they cost.
    is_fixed: bool,
    /// Mean time of a decode without drafts, and how many there were.
    plain: (f64, usize),
    /// Mean times of decodes with each of [`SIZES`], once measured.
    verify: [Option<f64>; SIZES.len()],
    /// Mean time of making a draft.
    draft: f64,
    /// The share of drafts that are right where those before them are.
    acceptance: f64,
    /// Mean tokens that a decode with each of [`SIZES`] yielded: fewer than acceptance promises where right drafts do not come in runs.
    yields: [Option<f64>; SIZES.len()],
    /// The latest decode with drafts, as an index of [`SIZES`], and how many of them were right so far.
    latest: Option<(usize, usize)>,
    /// Steps since drafts were verified.
    n_idle: usize,
}

impl Pace {
    /// At most `n_max` drafts.
    pub fn new(n_max: usize) -> Pace {
        Pace {
            n_max: n_max.min(MAX_DRAFTS),
            is_fixed: false,
            plain: (0.0, 0),
            verify: [None; SIZES.len()],
            draft: 0.0,
            acceptance: 0.7,
            yields: [None; SIZES.len()],
            latest: None,
            n_idle: 0,
        }
    }

    /// Always as many as there is room for, at most `n_max`.
    pub fn fixed(n_max: usize) -> Pace {
        Pace {
            is_fixed: true,
            ..Pace::new(n_max)
        }
    }

    /// Drafts to ask for, where there is room for `n_room`; 0 if none would pay.
    pub fn choose(&mut self, n_room: usize) -> usize {
        if self.is_fixed {
            return SIZES.into_iter().rfind(|&n| n <= n_room.min(self.n_max)).unwrap_or(0);
        }
        if self.plain.1 < PLAIN_FIRST {
            return 0;
        }
        let sizes = SIZES.iter().enumerate().filter(|&(_, &n)| n <= n_room.min(self.n_max));
        let gains = sizes.clone().map(|(i, &n)| (self.gain(i), n));
        let best = gains.max_by(|a, b| a.0.total_cmp(&b.0));
        if let Some((_, n)) = best.filter(|&(gain, _)| gain >= LEAST_GAIN) {
            return n;
        }
        self.n_idle += 1;
        match sizes.map(|(_, &n)| n).next() {
            Some(smallest) if self.n_idle >= PATIENCE => smallest,
            _ => 0,
        }
    }

    /// The size of a batch for `n` drafts that were made: sizes in between would be graphs of their own.
    pub fn batch_size(&self, n: usize) -> usize {
        let fits = SIZES.iter().rev().find(|&&size| size <= n);
        fits.copied().unwrap_or(if n == 0 { 0 } else { SIZES[0] })
    }

    /// A decode with as many drafts as a batch has took so long.
    pub fn decoded(&mut self, n: usize, seconds: f64) {
        self.count_latest();
        self.latest = SIZES.iter().position(|&size| size == n).map(|i| (i, 0));
        match SIZES.iter().position(|&size| size == n) {
            Some(i) => {
                self.n_idle = 0;
                let mean = self.verify[i].get_or_insert(seconds);
                *mean += 2.0 * NEW * (seconds - *mean);
            }
            None => {
                let (mean, count) = &mut self.plain;
                // The first decode may build a graph.
                let share = if *count < PLAIN_FIRST { 1.0 } else { 2.0 * NEW };
                *mean += share * (seconds - *mean);
                *count += 1;
                self.forget_yields();
            }
        }
    }

    /// Takes account of what the latest decode with drafts yielded.
    fn count_latest(&mut self) {
        if let Some((i, n_right)) = self.latest.take() {
            let mean = self.yields[i].get_or_insert(expected(self.acceptance, SIZES[i]));
            *mean += NEW * (1.0 + n_right as f64 - *mean);
        }
    }

    /// Without drafts, old yields count less and less: the text may have become more predictable.
    fn forget_yields(&mut self) {
        for (mean, size) in self.yields.iter_mut().zip(SIZES) {
            if let Some(mean) = mean {
                *mean += FORGET * (expected(self.acceptance, size) - *mean);
            }
        }
    }

    /// Making `n` drafts took so long.
    pub fn drafted(&mut self, n: usize, seconds: f64) {
        self.draft += NEW * (seconds / n.max(1) as f64 - self.draft);
    }

    /// A draft was right, or wrong.
    pub fn judged(&mut self, is_right: bool) {
        self.acceptance += NEW * (f64::from(u8::from(is_right)) - self.acceptance);
        if let (true, Some((_, n_right))) = (is_right, &mut self.latest) {
            *n_right += 1;
        }
    }

    /// Tokens per second with so many drafts over those without.
    fn gain(&self, size: usize) -> f64 {
        let (n, plain) = (SIZES[size], self.plain.0);
        let measured = (0..=size)
            .rev()
            .find_map(|i| Some(self.verify[i]? * SIZES[size] as f64 / SIZES[i] as f64));
        // What was never tried looks cheap, and is found out by one try.
        let cost = self.verify[size].or(measured).unwrap_or(plain * (1.0 + 0.1 * n as f64));
        let promised = expected(self.acceptance, n);
        let tokens = self.yields[size].map_or(promised, |mean| mean.min(promised));
        tokens * plain / (cost + n as f64 * self.draft)
    }
}

/// Tokens that a decode of `n` drafts yields: one, and one for each draft that is right along with all before it.
fn expected(acceptance: f64, n: usize) -> f64 {
    (0..=n as i32).map(|i| acceptance.powi(i)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens per unit of time of a thousand steps, where a decode of n drafts costs `1 + n * cost` and a draft is right `rightly` of 10 times.
    fn speed(cost: f64, rightly: usize) -> f64 {
        let mut pace = Pace::new(MAX_DRAFTS);
        let (mut tokens, mut time, mut turn) = (0.0, 0.0, 0);
        for _ in 0..1000 {
            let n = pace.choose(100);
            let seconds = 1.0 + n as f64 * cost;
            pace.decoded(n, seconds);
            (tokens, time) = (tokens + 1.0, time + seconds);
            for _ in 0..n.max(1) {
                turn += 1;
                let is_right = turn * 7 % 10 < rightly;
                pace.judged(is_right);
                // Without drafts the next token only shows whether a draft would have been right.
                if !is_right || n == 0 {
                    break;
                }
                tokens += 1.0;
            }
        }
        tokens / time
    }

    #[test]
    fn drafts_that_pay_are_verified() {
        assert!(speed(0.05, 10) > 4.0, "{}", speed(0.05, 10));
        assert!(speed(0.2, 10) > 2.5, "{}", speed(0.2, 10));
        assert!(speed(0.1, 7) > 1.3, "{}", speed(0.1, 7));
    }

    #[test]
    fn drafts_that_do_not_pay_cost_almost_nothing() {
        for cost in [0.0, 0.1, 0.3, 1.0, 2.0] {
            for rightly in 0..=10 {
                let speed = speed(cost, rightly);
                assert!(speed > 0.95, "{speed} at cost {cost}, {rightly} of 10");
            }
        }
    }

    #[test]
    fn batches_have_few_sizes() {
        let pace = Pace::new(MAX_DRAFTS);
        assert_eq!(
            [0, 1, 2, 3, 6, 7, 14, 15].map(|n| pace.batch_size(n)),
            [0, 3, 3, 3, 3, 7, 7, 15]
        );
    }

    #[test]
    fn there_must_be_room() {
        let mut pace = Pace::new(7);
        assert_eq!(pace.choose(100), 0, "nothing is known yet");
        (0..4).for_each(|_| pace.decoded(0, 1.0));
        (0..40).for_each(|_| pace.judged(true));
        assert_eq!((pace.choose(100), pace.choose(6), pace.choose(2)), (7, 3, 0));
    }
}
