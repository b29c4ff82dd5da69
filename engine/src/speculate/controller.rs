//! Chooses the number of drafts to verify from measured decode times and acceptance rates, so that drafts increase the
//! speed.

/// Numbers of drafts per sequence to choose from. For a single sequence, each batch size needs its own graph;
/// a context caches five graphs: these sizes and the one without drafts.
const SIZES: [usize; 4] = [1, 3, 7, 15];

/// Maximum number of drafts per sequence in a batch.
pub const MAX_DRAFTS: usize = SIZES[SIZES.len() - 1];

/// Weight of a new value in a running mean.
const MEAN_WEIGHT: f64 = 0.1;

/// Rate at which old yields converge to the value predicted by the acceptance rate, per decode without
/// drafts.
const YIELD_DECAY: f64 = 0.01;

/// Minimum predicted speedup for verifying drafts; smaller gains are within noise.
const MIN_GAIN: f64 = 1.05;

/// Number of decodes without drafts after which drafts are tried again. Limits the cost of trials to a
/// thousandth of the time.
const RETRY_INTERVAL: usize = 400;

/// Additional levels of a trial, beyond one per sequence: a single draft reveals little about larger batches.
const TRIAL_LEVELS: usize = 1;

/// Number of decodes without drafts before drafts are tried, to measure their time. The first decode of a
/// size may build a graph.
const MIN_PLAIN_DECODES: usize = 2;

/// Assumed relative cost of a draft before it was measured. A low value encourages measuring it.
const UNMEASURED_COST: f64 = 0.1;

/// Fraction of the decode time that drafts may waste. Predictions are unreliable for short sequences, noisy
/// times, or alternating acceptance, but the measured loss is exact.
const ALLOWED_LOSS: f64 = 0.005;

/// Initial credit, in decodes without drafts, that the first drafts may cost.
const INITIAL_CREDIT: f64 = 2.0;

/// Maximum credit, in decodes without drafts.
const MAX_CREDIT: f64 = 8.0;

/// Limit for outliers: the time of a decode is capped at this multiple of the expected time. Delays by a suspended
/// machine or a busy core are unrelated to drafts.
const MAX_OUTLIER: f64 = 2.0;

/// Minimum acceptance rate assumed for a new sequence: other sequences are a weak predictor.
const MIN_PRIOR: f64 = 0.4;

/// Weight of the latest finished sequence in the moving average of acceptance rates.
const SEQUENCE_WEIGHT: f64 = 0.2;

/// Chooses the number of drafts for sequences that are decoded together, from measured times and acceptance
/// rates.
#[derive(Clone, Debug)]
pub struct DraftController {
    n_max: usize,
    /// Always use as many drafts as fit, regardless of cost.
    is_fixed: bool,
    /// Deterministic mode: every token of a decode costs one second and drafting is free.
    counts_tokens: bool,
    times: Times,
    /// Mean time to make a draft, in seconds.
    draft: f64,
    /// Decodes since drafts were last verified.
    n_idle: usize,
    /// Time saved by drafts minus their cost, in decodes without drafts. Below 0, no drafts are tried until
    /// decodes without drafts have restored the credit.
    credit: f64,
    /// Latest decode, until the number of accepted drafts is known.
    latest: Option<Latest>,
    /// Running mean of the acceptance rates of finished sequences.
    mean_acceptance: f64,
}

/// A decode with its numbers of sequences and drafts, and the time of drafting and decoding.
#[derive(Clone, Copy, Debug)]
struct Latest {
    n_sequences: usize,
    n_drafts: usize,
    seconds: f64,
}

/// Acceptance statistics of a sequence's drafts.
#[derive(Clone, Copy, Debug)]
pub(super) struct AcceptanceStats {
    /// Probability that a draft is accepted if all preceding drafts were.
    acceptance: f64,
    /// Mean number of tokens per decode for each of [`SIZES`]. It is lower than predicted by the acceptance
    /// rate if accepted drafts are not consecutive.
    yields: [Option<f64>; SIZES.len()],
    /// Latest decode with drafts: index into [`SIZES`], and number of accepted drafts.
    latest: Option<(usize, usize)>,
}

/// A sequence that may get drafts in the next batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    stats: AcceptanceStats,
    /// Maximum number of drafts for this sequence.
    n_free: usize,
    /// Chosen level: 0 for no drafts, otherwise 1 plus an index into [`SIZES`].
    level: usize,
}

impl Choice {
    /// Creates a choice for a sequence with space for `n_free` drafts.
    pub fn new(stats: AcceptanceStats, n_free: usize) -> Choice {
        Choice {
            stats,
            n_free,
            level: 0,
        }
    }

    /// Returns the chosen number of drafts.
    pub fn n_drafts(&self) -> usize {
        match self.level {
            0 => 0,
            level => SIZES[level - 1],
        }
    }

    /// Returns the number of drafts that the next level adds, if it exists and fits.
    fn n_more(&self) -> Option<usize> {
        let next = SIZES.get(self.level).filter(|&&n| n <= self.n_free)?;
        Some(next - self.n_drafts())
    }

    /// Returns the expected number of additional tokens per draft of the next level.
    fn gain(&self) -> Option<f64> {
        let n_more = self.n_more()?;
        let more = self.stats.tokens(self.level + 1) - self.stats.tokens(self.level);
        Some(more / n_more as f64)
    }
}

impl DraftController {
    /// Creates a controller that chooses at most `n_max` drafts per sequence.
    pub fn new(n_max: usize) -> DraftController {
        DraftController {
            n_max: n_max.min(MAX_DRAFTS),
            is_fixed: false,
            counts_tokens: false,
            times: Times::default(),
            draft: 0.0,
            n_idle: 0,
            credit: INITIAL_CREDIT,
            latest: None,
            mean_acceptance: AcceptanceStats::default().acceptance,
        }
    }

    /// Creates a controller that always uses as many drafts as fit, at most `n_max` per sequence.
    pub fn fixed(n_max: usize) -> DraftController {
        DraftController {
            is_fixed: true,
            ..DraftController::new(n_max)
        }
    }

    /// Creates a deterministic controller, which assumes that the decode time equals the number of tokens.
    pub fn by_tokens(n_max: usize) -> DraftController {
        DraftController {
            counts_tokens: true,
            ..DraftController::new(n_max)
        }
    }

    /// Chooses the number of drafts for each sequence, at most `n_free` in total; zero if drafts would not
    /// increase the speed.
    pub(super) fn choose(&mut self, choices: &mut [Choice], n_free: usize) {
        for choice in choices.iter_mut() {
            (choice.level, choice.n_free) = (0, choice.n_free.min(self.n_max));
        }
        if self.is_fixed {
            raise_times(choices, n_free, usize::MAX);
        } else if self.times.is_known(choices.len()) {
            self.choose_by_gain(choices, n_free);
        }
    }

    /// Raises levels in the order of expected gain, up to the point with the most tokens per second.
    fn choose_by_gain(&mut self, choices: &mut [Choice], n_free: usize) {
        let plain = self.speed(choices);
        let (mut best, mut best_times, mut times, mut n_used) = (plain * MIN_GAIN, 0, 0, 0);
        while let Some(n_more) = raise(choices, n_free - n_used) {
            (times, n_used) = (times + 1, n_used + n_more);
            let speed = self.speed(choices);
            if speed >= best {
                (best, best_times) = (speed, times);
            }
        }
        choices.iter_mut().for_each(|choice| choice.level = 0);
        if self.credit < 0.0 {
            self.n_idle += 1;
            return;
        }
        raise_times(choices, n_free, best_times);
        if best_times > 0 {
            return;
        }
        self.n_idle += 1;
        if self.n_idle >= RETRY_INTERVAL {
            raise_times(choices, n_free, choices.len() + TRIAL_LEVELS);
        }
    }

    /// Returns the expected tokens per second for the chosen drafts.
    fn speed(&self, choices: &[Choice]) -> f64 {
        let n_drafts: usize = choices.iter().map(Choice::n_drafts).sum();
        let tokens: f64 = choices.iter().map(|choice| choice.stats.tokens(choice.level)).sum();
        let seconds = self.times.estimate(choices.len(), choices.len() + n_drafts);
        tokens / (seconds + n_drafts as f64 * self.draft)
    }

    /// Records the duration of a decode of `n_tokens` tokens, including `n_drafts` drafts.
    pub(super) fn decoded(&mut self, n_tokens: usize, n_drafts: usize, seconds: f64) {
        if n_drafts > 0 {
            self.n_idle = 0;
        }
        let n_sequences = n_tokens - n_drafts;
        let expected = self.times.estimate(n_sequences, n_tokens);
        // Much longer times have a cause other than drafts.
        let charged = if expected > 0.0 {
            seconds.min(MAX_OUTLIER * expected)
        } else {
            seconds
        };
        let counted = match (self.counts_tokens, self.times.is_known(n_tokens)) {
            (true, _) => n_tokens as f64,
            (false, true) => charged,
            (false, false) => seconds,
        };
        self.times.add(n_tokens, counted);
        self.latest = Some(Latest {
            n_sequences,
            n_drafts,
            seconds: charged + n_drafts as f64 * self.draft,
        });
    }

    /// Records the number of accepted drafts of the latest decode.
    pub(super) fn yielded(&mut self, n_right: usize) {
        let Some(latest) = self.latest.take() else {
            return;
        };
        if self.counts_tokens {
            return;
        }
        let n = latest.n_sequences;
        let plain = self.times.estimate(n, n);
        if latest.n_drafts == 0 || plain <= 0.0 {
            self.credit += ALLOWED_LOSS;
        } else {
            // Number of decodes without drafts that would produce the same tokens, minus the actual cost.
            self.credit += 1.0 + n_right as f64 / n.max(1) as f64 - latest.seconds / plain;
        }
        self.credit = self.credit.min(MAX_CREDIT);
    }

    /// Returns the statistics assumed for a new sequence, from the history of other sequences.
    pub(super) fn stats(&self) -> AcceptanceStats {
        AcceptanceStats {
            acceptance: self.mean_acceptance.max(MIN_PRIOR),
            ..AcceptanceStats::default()
        }
    }

    /// Records the statistics of a finished sequence.
    pub(super) fn ended(&mut self, stats: AcceptanceStats) {
        self.mean_acceptance += SEQUENCE_WEIGHT * (stats.acceptance - self.mean_acceptance);
    }

    /// Records the time to make `n` drafts.
    pub(super) fn drafted(&mut self, n: usize, seconds: f64) {
        if !self.counts_tokens {
            self.draft += MEAN_WEIGHT * (seconds / n.max(1) as f64 - self.draft);
        }
    }
}

/// Returns the batch size for `n` drafts of a single sequence. Other sizes would need additional graphs. A
/// batch is padded by at most one draft, otherwise truncated.
pub(super) fn batch_size(n: usize) -> usize {
    let fits = SIZES.iter().rev().find(|&&size| n > 0 && size <= n + 1);
    fits.copied().unwrap_or(0)
}

/// Raises the level with the greatest expected gain per draft that fits into `n_free`. Returns the number of
/// added drafts.
fn raise(choices: &mut [Choice], n_free: usize) -> Option<usize> {
    let fits = |choice: &&mut Choice| choice.n_more().is_some_and(|n| n <= n_free);
    let gain = |choice: &Choice| choice.gain().unwrap_or(0.0);
    let best = choices
        .iter_mut()
        .filter(fits)
        .max_by(|a, b| gain(a).total_cmp(&gain(b)))?;
    let n_more = best.n_more();
    best.level += 1;
    n_more
}

fn raise_times(choices: &mut [Choice], n_free: usize, times: usize) {
    let mut n_used = 0;
    for _ in 0..times {
        match raise(choices, n_free - n_used) {
            Some(n_more) => n_used += n_more,
            None => break,
        }
    }
}

impl Default for AcceptanceStats {
    fn default() -> AcceptanceStats {
        AcceptanceStats {
            acceptance: 0.7,
            yields: [None; SIZES.len()],
            latest: None,
        }
    }
}

impl AcceptanceStats {
    /// Records whether a draft was accepted.
    pub fn judged(&mut self, is_right: bool) {
        self.acceptance += MEAN_WEIGHT * (f64::from(u8::from(is_right)) - self.acceptance);
        if let (true, Some((_, n_right))) = (is_right, &mut self.latest) {
            *n_right += 1;
        }
    }

    /// Records a decode of the sequence with `n_drafts` drafts.
    pub fn decoded(&mut self, n_drafts: usize) {
        if let Some((i, n_right)) = self.latest.take() {
            let mean = self.yields[i].get_or_insert(expected(self.acceptance, SIZES[i]));
            *mean += MEAN_WEIGHT * (1.0 + n_right as f64 - *mean);
        }
        if n_drafts > 0 {
            self.latest = SIZES.iter().position(|&size| size >= n_drafts).map(|i| (i, 0));
        } else {
            self.forget_yields();
        }
    }

    /// Lets old yields decay during decodes without drafts, because the output may have become more
    /// predictable.
    fn forget_yields(&mut self) {
        for (mean, size) in self.yields.iter_mut().zip(SIZES) {
            if let Some(mean) = mean {
                *mean += YIELD_DECAY * (expected(self.acceptance, size) - *mean);
            }
        }
    }

    /// Returns the expected number of tokens per decode at a level.
    fn tokens(&self, level: usize) -> f64 {
        let Some(i) = level.checked_sub(1) else { return 1.0 };
        let promised = expected(self.acceptance, SIZES[i]);
        self.yields[i].map_or(promised, |mean| mean.min(promised))
    }
}

/// Returns the expected number of tokens of a decode with `n` drafts: one, plus one for each draft accepted
/// together with all preceding drafts.
fn expected(acceptance: f64, n: usize) -> f64 {
    (0..=n as i32).map(|i| acceptance.powi(i)).sum()
}

/// Mean decode times by number of tokens, in buckets of powers of two.
#[derive(Clone, Debug, Default)]
struct Times {
    points: [Option<Point>; 12],
}

#[derive(Clone, Copy, Debug)]
struct Point {
    tokens: f64,
    seconds: f64,
    count: usize,
}

impl Times {
    fn place(&self, n_tokens: usize) -> usize {
        let power = n_tokens.max(1).next_power_of_two().trailing_zeros() as usize;
        power.min(self.points.len() - 1)
    }

    fn add(&mut self, n_tokens: usize, seconds: f64) {
        let place = self.place(n_tokens);
        let tokens = n_tokens as f64;
        let point = self.points[place].get_or_insert(Point {
            tokens,
            seconds,
            count: 0,
        });
        let share = if point.count < MIN_PLAIN_DECODES {
            1.0
        } else {
            2.0 * MEAN_WEIGHT
        };
        point.tokens += share * (tokens - point.tokens);
        point.seconds += share * (seconds - point.seconds);
        point.count += 1;
    }

    /// Returns true if decodes of about `n_tokens` tokens were measured.
    fn is_known(&self, n_tokens: usize) -> bool {
        self.points[self.place(n_tokens)].is_some_and(|point| point.count >= MIN_PLAIN_DECODES)
    }

    /// Estimates the time of a decode of `n_tokens` tokens by linear interpolation between measured sizes;
    /// `n_plain` is the size without drafts. Beyond the measured sizes, the time is extrapolated linearly, or
    /// assumed to be low if no drafts were tried.
    fn estimate(&self, n_plain: usize, n_tokens: usize) -> f64 {
        let n = n_tokens as f64;
        let known = || self.points.iter().flatten();
        let below = known().rfind(|point| point.tokens <= n);
        let above = known().find(|point| point.tokens > n);
        match (below, above) {
            (Some(a), Some(b)) => a.seconds + (b.seconds - a.seconds) * (n - a.tokens) / (b.tokens - a.tokens),
            (Some(a), None) if a.tokens <= n_plain as f64 => a.seconds * (1.0 + UNMEASURED_COST * (n - a.tokens)),
            (Some(a), None) => a.seconds * n / a.tokens,
            (None, Some(b)) => b.seconds,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Chooses the number of drafts for a single sequence.
    fn choose_one(controller: &mut DraftController, stats: AcceptanceStats, n_free: usize) -> usize {
        let mut choices = [Choice::new(stats, n_free)];
        controller.choose(&mut choices, n_free);
        choices[0].n_drafts()
    }

    /// Simulates 1000 steps of several sequences and returns tokens per unit of time. A decode costs 1, each
    /// draft costs `cost`, and `accepted` gives the acceptance rate of each sequence in tenths.
    fn speed(cost: f64, accepted: &[usize]) -> f64 {
        let mut controller = DraftController::new(MAX_DRAFTS);
        let mut all_stats = vec![AcceptanceStats::default(); accepted.len()];
        let (mut tokens, mut time, mut turn) = (0.0, 0.0, 0);
        for _ in 0..1000 {
            let mut choices: Vec<Choice> = all_stats.iter().map(|&stats| Choice::new(stats, 100)).collect();
            controller.choose(&mut choices, 200);
            let n_drafts: usize = choices.iter().map(Choice::n_drafts).sum();
            let seconds = 1.0 + n_drafts as f64 * cost;
            controller.decoded(accepted.len() + n_drafts, n_drafts, seconds);
            let mut n_right = 0;
            time += seconds;
            for ((stats, choice), accepted) in all_stats.iter_mut().zip(&choices).zip(accepted) {
                let n = choice.n_drafts();
                stats.decoded(n);
                tokens += 1.0;
                for _ in 0..n.max(1) {
                    turn += 1;
                    let is_right = turn * 7 % 10 < *accepted;
                    stats.judged(is_right);
                    // Without drafts, the next token only reveals whether a draft would have been accepted.
                    if !is_right || n == 0 {
                        break;
                    }
                    tokens += 1.0;
                    n_right += 1;
                }
            }
            controller.yielded(n_right);
        }
        tokens / time
    }

    /// Simulates a server that decodes four sequences of 128 tokens at a time, with decode times measured on
    /// a CPU. Returns the speedup relative to decoding without drafts.
    fn serving(costs: [f64; 3], is_right: impl Fn(usize) -> bool, noise: f64) -> f64 {
        let [of_8, of_16, of_32] = costs;
        let points = [(4.0, 1.0), (8.0, of_8), (16.0, of_16), (32.0, of_32)];
        let time_of = |n: usize| {
            let at = points.windows(2).find(|w| n as f64 <= w[1].0).unwrap();
            at[0].1 + (n as f64 - at[0].0) * (at[1].1 - at[0].1) / (at[1].0 - at[0].0)
        };
        let mut controller = DraftController::new(MAX_DRAFTS);
        let mut texts = [0usize, 32, 64, 96].map(|n| (n, controller.stats()));
        let (mut tokens, mut time, mut turn, mut random) = (0.0, 0.0, 0, 1u64);
        for _ in 0..3000 {
            let mut choices: Vec<Choice> = texts.iter().map(|(_, stats)| Choice::new(*stats, 100)).collect();
            controller.choose(&mut choices, 27);
            let n_drafts: usize = choices.iter().map(Choice::n_drafts).sum();
            random = crate::random::splitmix64(random);
            let seconds = time_of(4 + n_drafts) * (1.0 + noise * (random as f64 / u64::MAX as f64 - 0.5));
            controller.decoded(4 + n_drafts, n_drafts, seconds);
            time += time_of(4 + n_drafts);
            let mut all_right = 0;
            for ((n_text, stats), choice) in texts.iter_mut().zip(&choices) {
                let n = choice.n_drafts();
                stats.decoded(n);
                let mut n_told = 1;
                for _ in 0..n.max(1) {
                    turn += 1;
                    stats.judged(is_right(turn));
                    if !is_right(turn) || n == 0 {
                        break;
                    }
                    n_told += 1;
                }
                all_right += n_told - 1;
                tokens += n_told as f64;
                *n_text += n_told;
                if *n_text >= 128 {
                    controller.ended(*stats);
                    (*n_text, *stats) = (0, controller.stats());
                }
            }
            controller.yielded(all_right);
        }
        tokens / 4.0 / time
    }

    /// Drafts never slow down a server, regardless of acceptance rate and batch cost.
    #[test]
    fn drafts_do_not_slow_down_short_sequences() {
        let mut least = f64::MAX;
        for costs in [[1.1, 1.4, 2.0], [1.5, 2.5, 4.0], [1.8, 3.2, 6.0], [1.02, 2.5, 5.0]] {
            for accepted in 0..=10 {
                for noise in [0.0, 0.4] {
                    // Drafts are accepted either independently or in runs.
                    for is_run in [false, true] {
                        let is_right = |turn: usize| {
                            let turn = if is_run { turn / 20 } else { turn };
                            turn * 7 % 10 < accepted
                        };
                        let found = serving(costs, is_right, noise);
                        assert!(
                            found > 0.99,
                            "speedup {found} for batch costs {costs:?}, acceptance {accepted}/10, noise {noise}"
                        );
                        least = least.min(found);
                    }
                }
            }
        }
        println!("minimum speedup {least}");
        assert!(serving([1.5, 2.5, 4.0], |_| true, 0.4) > 1.4);
        assert!(serving([1.1, 1.4, 2.0], |turn| turn % 8 != 0, 0.4) > 1.3);
    }

    #[test]
    fn slow_outlier_does_not_disable_drafts_for_long() {
        let mut controller = DraftController::new(MAX_DRAFTS);
        let mut stats = AcceptanceStats::default();
        let mut step = |controller: &mut DraftController, held_up: f64| {
            let n = choose_one(controller, stats, 100);
            stats.decoded(n);
            (0..n).for_each(|_| stats.judged(true));
            controller.decoded(1 + n, n, 1.0 + 0.1 * n as f64 + held_up);
            controller.yielded(n);
            n
        };
        (0..100).for_each(|_| {
            step(&mut controller, 0.0);
        });
        // The next decode with drafts takes 10,000 times as long.
        while step(&mut controller, 1e4) == 0 {}
        let n_without = (0..2000).take_while(|_| step(&mut controller, 0.0) == 0).count();
        assert!(n_without < 1000, "{n_without}");
    }

    #[test]
    fn profitable_drafts_are_verified() {
        assert!(speed(0.05, &[10]) > 4.0, "{}", speed(0.05, &[10]));
        assert!(speed(0.2, &[10]) > 2.5, "{}", speed(0.2, &[10]));
        assert!(speed(0.1, &[7]) > 1.3, "{}", speed(0.1, &[7]));
    }

    #[test]
    fn unprofitable_drafts_cost_little() {
        for cost in [0.0, 0.1, 0.3, 1.0, 2.0] {
            for accepted in 0..=10 {
                let speed = speed(cost, &[accepted]);
                assert!(
                    speed > 0.95,
                    "speed {speed} for draft cost {cost}, acceptance {accepted}/10"
                );
            }
        }
    }

    /// The controller prefers sequences with accurate drafts among sequences decoded together.
    #[test]
    fn drafts_go_to_sequences_with_high_acceptance() {
        let mut controller = DraftController::new(MAX_DRAFTS);
        (0..4).for_each(|_| controller.decoded(2, 0, 1.0));
        let mut all_stats = [AcceptanceStats::default(); 2];
        (0..60).for_each(|_| all_stats[0].judged(false));
        (0..60).for_each(|_| all_stats[1].judged(true));
        let mut choices = all_stats.map(|stats| Choice::new(stats, 100));
        controller.choose(&mut choices, 100);
        assert_eq!(choices.map(|choice| choice.n_drafts()), [0, 15]);
        // 10 is the limit on the total number of drafts.
        controller.choose(&mut choices, 10);
        assert_eq!(choices.map(|choice| choice.n_drafts()), [0, 7]);
        // 15 drafts and 4 tokens take the time of 2.5 decodes.
        let best = (15.0 + 4.0) / (1.0 + 15.0 * 0.1);
        let found = speed(0.1, &[10, 0, 0, 0]);
        assert!(found > 0.98 * best, "{found} of at most {best}");
    }

    #[test]
    fn unprofitable_drafts_cost_little_for_several_sequences() {
        for cost in [0.0, 0.1, 0.3, 1.0] {
            for accepted in 0..=10 {
                let speed = speed(cost, &[accepted, 0, 10 - accepted, accepted]);
                assert!(
                    speed > 0.95 * 4.0,
                    "speed {speed} for draft cost {cost}, acceptance {accepted}/10"
                );
            }
        }
    }

    #[test]
    fn batch_size_is_one_of_few_sizes() {
        assert_eq!(
            [0, 1, 2, 3, 5, 6, 7, 13, 14, 15].map(batch_size),
            [0, 1, 3, 3, 3, 7, 7, 7, 15, 15]
        );
    }

    #[test]
    fn number_of_drafts_is_limited_by_space() {
        let (mut controller, mut stats) = (DraftController::new(7), AcceptanceStats::default());
        assert_eq!(choose_one(&mut controller, stats, 100), 0, "no measurements yet");
        (0..4).for_each(|_| controller.decoded(1, 0, 1.0));
        (0..40).for_each(|_| stats.judged(true));
        let chosen = [100, 6, 2, 0].map(|n_free| choose_one(&mut controller, stats, n_free));
        assert_eq!(chosen, [7, 3, 1, 0]);
    }

    /// With an acceptance rate of 1/2, a single draft pays off if two tokens cost little more than one, while
    /// more drafts do not.
    #[test]
    fn single_draft_is_chosen_if_more_do_not_pay() {
        let (mut controller, mut stats) = (DraftController::new(MAX_DRAFTS), AcceptanceStats::default());
        for (n_drafts, seconds) in [(0, 1.0), (1, 1.1), (3, 1.8), (7, 3.0), (15, 5.0)] {
            (0..4).for_each(|_| controller.decoded(1 + n_drafts, n_drafts, seconds));
        }
        (0..100).for_each(|i| stats.judged(i % 2 == 0));
        assert_eq!(choose_one(&mut controller, stats, 100), 1);
        // If four tokens cost as much as two, three drafts are better.
        (0..40).for_each(|_| controller.decoded(4, 3, 1.1));
        assert_eq!(choose_one(&mut controller, stats, 100), 3);
    }
}
