//! How many drafts to verify: as many as pay, by what decodes have cost and how many drafts were right; none where they do not.

/// Numbers of drafts of a sequence to choose from. For one sequence a batch of each is a graph of its own, and a context keeps five: these
/// and the one without drafts.
const SIZES: [usize; 4] = [1, 3, 7, 15];

/// Most drafts of a sequence in a batch.
pub const MAX_DRAFTS: usize = SIZES[SIZES.len() - 1];

/// Share of a new figure in a running mean.
const NEW: f64 = 0.1;

/// By how much old yields move to what acceptance promises with each decode without drafts.
const FORGET: f64 = 0.01;

/// Gain below which verifying is not worth its noise.
const LEAST_GAIN: f64 = 1.05;

/// Steps without drafts after which some are tried all the same, in case they pay by now: a thousandth of the time.
const PATIENCE: usize = 400;

/// Levels that such a trial raises drafts by, beside one for each sequence: one draft alone would say little about more of them.
const TRIED_LEVELS: usize = 1;

/// Decodes without drafts before any are verified, to know their time. The first of a size may build a graph.
const PLAIN_FIRST: usize = 2;

/// What a draft adds to the time of a decode as long as that is not known: little, so that it is found out.
const UNTRIED: f64 = 0.1;

/// What drafts may lose: a share of the time of decodes without them. Guesses at gains err where texts are short, times noisy or drafts right by turns; what
/// was measured afterwards does not.
const ALLOWED_LOSS: f64 = 0.005;

/// Decodes without drafts that the first drafts may cost, before anything is known of them.
const FIRST_LOSS: f64 = 2.0;

/// Decodes that drafts have won which they may lose again, at most.
const MOST_LEAD: f64 = 8.0;

/// Outliers are cut: a decode counts with at most so many times its expected time, as a suspended computer or a busy core says nothing of drafts.
const MOST_SURPRISE: f64 = 2.0;

/// Least acceptance that a new sequence starts with: other texts tell little of it.
const LEAST_HOPE: f64 = 0.4;

/// Weight of the latest finished sequence in the running mean of acceptance.
const NEW_SEQUENCE: f64 = 0.2;

/// What decodes cost, of the sequences that are decoded together, and how many drafts of each that pays for.
#[derive(Clone, Debug)]
pub struct Pace {
    n_max: usize,
    /// As many as there is room for, whatever they cost.
    is_fixed: bool,
    /// Each token of a decode counts as a second, and making drafts as nothing.
    counts_tokens: bool,
    times: Times,
    /// Mean time of making a draft.
    draft: f64,
    /// Steps since drafts were verified.
    n_idle: usize,
    /// Time that drafts have saved so far, less what they cost, in decodes without drafts. Below 0 none are tried until decodes without them have made up for it.
    lead: f64,
    /// The latest decode, as long as it is not known how many of its drafts were right.
    latest: Option<Latest>,
    /// Running mean of the acceptance of finished sequences.
    usual: f64,
}

/// A decode: its sequences, its drafts, and how long both took.
#[derive(Clone, Copy, Debug)]
struct Latest {
    n_sequences: usize,
    n_drafts: usize,
    seconds: f64,
}

/// How right the drafts of a sequence were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Luck {
    /// The share of drafts that are right where those before them are.
    acceptance: f64,
    /// Mean tokens that a decode with each of [`SIZES`] yielded: fewer than acceptance promises where right drafts do not come in runs.
    yields: [Option<f64>; SIZES.len()],
    /// The latest decode with drafts, as an index of [`SIZES`], and how many of them were right so far.
    latest: Option<(usize, usize)>,
}

/// A sequence that may have drafts in the next batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    luck: Luck,
    /// Drafts that there is room for.
    n_room: usize,
    /// How many of [`SIZES`] were tried on it: it gets none, or the size before.
    level: usize,
}

impl Choice {
    /// A sequence with room for so many drafts.
    pub fn new(luck: Luck, n_room: usize) -> Choice {
        Choice { luck, n_room, level: 0 }
    }

    /// The drafts chosen.
    pub fn n_drafts(&self) -> usize {
        match self.level {
            0 => 0,
            level => SIZES[level - 1],
        }
    }

    /// Drafts that the next level adds, if it exists.
    fn n_more(&self) -> Option<usize> {
        let next = SIZES.get(self.level).filter(|&&n| n <= self.n_room)?;
        Some(next - self.n_drafts())
    }

    /// Tokens that the next level is expected to add, for each of its drafts.
    fn gain(&self) -> Option<f64> {
        let n_more = self.n_more()?;
        let more = self.luck.tokens(self.level + 1) - self.luck.tokens(self.level);
        Some(more / n_more as f64)
    }
}

impl Pace {
    /// At most `n_max` drafts of a sequence.
    pub fn new(n_max: usize) -> Pace {
        Pace {
            n_max: n_max.min(MAX_DRAFTS),
            is_fixed: false,
            counts_tokens: false,
            times: Times::default(),
            draft: 0.0,
            n_idle: 0,
            lead: FIRST_LOSS,
            latest: None,
            usual: Luck::default().acceptance,
        }
    }

    /// Always as many as there is room for, at most `n_max`.
    pub fn fixed(n_max: usize) -> Pace {
        Pace {
            is_fixed: true,
            ..Pace::new(n_max)
        }
    }

    /// As many as would pay if a decode took as long as it has tokens, drafts among them: the same in each run.
    pub fn by_tokens(n_max: usize) -> Pace {
        Pace {
            counts_tokens: true,
            ..Pace::new(n_max)
        }
    }

    /// Chooses the drafts to ask for of each sequence, no more than there is room for in all; none where they would not pay.
    pub(super) fn choose(&mut self, choices: &mut [Choice], n_room: usize) {
        for choice in choices.iter_mut() {
            (choice.level, choice.n_room) = (0, choice.n_room.min(self.n_max));
        }
        if self.is_fixed {
            raise_times(choices, n_room, usize::MAX);
        } else if self.times.is_known(choices.len()) {
            self.choose_by_gain(choices, n_room);
        }
    }

    /// Raises levels in the order of what they are expected to bring, as often as gives the most tokens per second.
    fn choose_by_gain(&mut self, choices: &mut [Choice], n_room: usize) {
        let plain = self.speed(choices);
        let (mut best, mut best_times, mut times, mut n_used) = (plain * LEAST_GAIN, 0, 0, 0);
        while let Some(n_more) = raise(choices, n_room - n_used) {
            (times, n_used) = (times + 1, n_used + n_more);
            let speed = self.speed(choices);
            if speed >= best {
                (best, best_times) = (speed, times);
            }
        }
        choices.iter_mut().for_each(|choice| choice.level = 0);
        if self.lead < 0.0 {
            self.n_idle += 1;
            return;
        }
        raise_times(choices, n_room, best_times);
        if best_times > 0 {
            return;
        }
        self.n_idle += 1;
        if self.n_idle >= PATIENCE {
            raise_times(choices, n_room, choices.len() + TRIED_LEVELS);
        }
    }

    /// Tokens per second with the drafts chosen.
    fn speed(&self, choices: &[Choice]) -> f64 {
        let n_drafts: usize = choices.iter().map(Choice::n_drafts).sum();
        let tokens: f64 = choices.iter().map(|choice| choice.luck.tokens(choice.level)).sum();
        let seconds = self.times.estimate(choices.len(), choices.len() + n_drafts);
        tokens / (seconds + n_drafts as f64 * self.draft)
    }

    /// A decode of so many tokens, drafts among them, took so long.
    pub(super) fn decoded(&mut self, n_tokens: usize, n_drafts: usize, seconds: f64) {
        if n_drafts > 0 {
            self.n_idle = 0;
        }
        let n_sequences = n_tokens - n_drafts;
        let expected = self.times.estimate(n_sequences, n_tokens);
        // What took much longer than expected was held up by something else.
        let charged = if expected > 0.0 {
            seconds.min(MOST_SURPRISE * expected)
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

    /// So many drafts of the latest decode were right.
    pub(super) fn yielded(&mut self, n_right: usize) {
        let Some(latest) = self.latest.take().filter(|_| !self.counts_tokens) else {
            return;
        };
        let n = latest.n_sequences;
        let plain = self.times.estimate(n, n);
        if latest.n_drafts == 0 || plain <= 0.0 {
            self.lead += ALLOWED_LOSS;
        } else {
            // Without drafts all its tokens would have taken so many decodes.
            self.lead += 1.0 + n_right as f64 / n.max(1) as f64 - latest.seconds / plain;
        }
        self.lead = self.lead.min(MOST_LEAD);
    }

    /// What is expected of a sequence of which nothing is known: what was true of others.
    pub(super) fn luck(&self) -> Luck {
        Luck {
            acceptance: self.usual.max(LEAST_HOPE),
            ..Luck::default()
        }
    }

    /// A sequence is over.
    pub(super) fn ended(&mut self, luck: Luck) {
        self.usual += NEW_SEQUENCE * (luck.acceptance - self.usual);
    }

    /// Making `n` drafts took so long.
    pub(super) fn drafted(&mut self, n: usize, seconds: f64) {
        if !self.counts_tokens {
            self.draft += NEW * (seconds / n.max(1) as f64 - self.draft);
        }
    }
}

/// The drafts of a lone sequence's batch where `n` were made: sizes in between would be graphs of their own. A batch is filled up by one
/// token rather than cut.
pub(super) fn batch_size(n: usize) -> usize {
    let fits = SIZES.iter().rev().find(|&&size| n > 0 && size <= n + 1);
    fits.copied().unwrap_or(0)
}

/// Raises the level that is expected to bring the most for each draft, where there is room for it; the drafts that this adds.
fn raise(choices: &mut [Choice], n_room: usize) -> Option<usize> {
    let fits = |choice: &&mut Choice| choice.n_more().is_some_and(|n| n <= n_room);
    let gain = |choice: &Choice| choice.gain().unwrap_or(0.0);
    let best = choices
        .iter_mut()
        .filter(fits)
        .max_by(|a, b| gain(a).total_cmp(&gain(b)))?;
    let n_more = best.n_more();
    best.level += 1;
    n_more
}

fn raise_times(choices: &mut [Choice], n_room: usize, times: usize) {
    let mut n_used = 0;
    for _ in 0..times {
        match raise(choices, n_room - n_used) {
            Some(n_more) => n_used += n_more,
            None => break,
        }
    }
}

impl Default for Luck {
    fn default() -> Luck {
        Luck {
            acceptance: 0.7,
            yields: [None; SIZES.len()],
            latest: None,
        }
    }
}

impl Luck {
    /// A draft was right, or wrong.
    pub fn judged(&mut self, is_right: bool) {
        self.acceptance += NEW * (f64::from(u8::from(is_right)) - self.acceptance);
        if let (true, Some((_, n_right))) = (is_right, &mut self.latest) {
            *n_right += 1;
        }
    }

    /// The sequence was decoded with so many drafts.
    pub fn decoded(&mut self, n_drafts: usize) {
        if let Some((i, n_right)) = self.latest.take() {
            let mean = self.yields[i].get_or_insert(expected(self.acceptance, SIZES[i]));
            *mean += NEW * (1.0 + n_right as f64 - *mean);
        }
        if n_drafts > 0 {
            self.latest = SIZES.iter().position(|&size| size >= n_drafts).map(|i| (i, 0));
        } else {
            self.forget_yields();
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

    /// Tokens that a decode with drafts of a level is expected to yield.
    fn tokens(&self, level: usize) -> f64 {
        let Some(i) = level.checked_sub(1) else { return 1.0 };
        let promised = expected(self.acceptance, SIZES[i]);
        self.yields[i].map_or(promised, |mean| mean.min(promised))
    }
}

/// Tokens that a decode of `n` drafts yields: one, and one for each draft that is right along with all before it.
fn expected(acceptance: f64, n: usize) -> f64 {
    (0..=n as i32).map(|i| acceptance.powi(i)).sum()
}

/// Mean times of decodes, by numbers of tokens: one for each power of two.
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
        let share = if point.count < PLAIN_FIRST { 1.0 } else { 2.0 * NEW };
        point.tokens += share * (tokens - point.tokens);
        point.seconds += share * (seconds - point.seconds);
        point.count += 1;
    }

    /// Decodes of about so many tokens were measured.
    fn is_known(&self, n_tokens: usize) -> bool {
        self.points[self.place(n_tokens)].is_some_and(|point| point.count >= PLAIN_FIRST)
    }

    /// The time of a decode of `n_tokens`, where one without drafts has `n_plain`: on the line between the nearest times that were measured.
    /// Beyond them tokens cost as much as those before, but are taken for cheap as long as no drafts were tried.
    fn estimate(&self, n_plain: usize, n_tokens: usize) -> f64 {
        let n = n_tokens as f64;
        let known = || self.points.iter().flatten();
        let below = known().rfind(|point| point.tokens <= n);
        let above = known().find(|point| point.tokens > n);
        match (below, above) {
            (Some(a), Some(b)) => a.seconds + (b.seconds - a.seconds) * (n - a.tokens) / (b.tokens - a.tokens),
            (Some(a), None) if a.tokens <= n_plain as f64 => a.seconds * (1.0 + UNTRIED * (n - a.tokens)),
            (Some(a), None) => a.seconds * n / a.tokens,
            (None, Some(b)) => b.seconds,
            (None, None) => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Drafts of a lone sequence.
    fn choose_one(pace: &mut Pace, luck: Luck, n_room: usize) -> usize {
        let mut choices = [Choice::new(luck, n_room)];
        pace.choose(&mut choices, n_room);
        choices[0].n_drafts()
    }

    /// Tokens per unit of time of a thousand steps of some sequences, where a decode costs 1, and each draft `cost`, and a draft of a sequence
    /// is right as many of 10 times as given.
    fn speed(cost: f64, rightly: &[usize]) -> f64 {
        let mut pace = Pace::new(MAX_DRAFTS);
        let mut lucks = vec![Luck::default(); rightly.len()];
        let (mut tokens, mut time, mut turn) = (0.0, 0.0, 0);
        for _ in 0..1000 {
            let mut choices: Vec<Choice> = lucks.iter().map(|&luck| Choice::new(luck, 100)).collect();
            pace.choose(&mut choices, 200);
            let n_drafts: usize = choices.iter().map(Choice::n_drafts).sum();
            let seconds = 1.0 + n_drafts as f64 * cost;
            pace.decoded(rightly.len() + n_drafts, n_drafts, seconds);
            let mut n_right = 0;
            time += seconds;
            for ((luck, choice), rightly) in lucks.iter_mut().zip(&choices).zip(rightly) {
                let n = choice.n_drafts();
                luck.decoded(n);
                tokens += 1.0;
                for _ in 0..n.max(1) {
                    turn += 1;
                    let is_right = turn * 7 % 10 < *rightly;
                    luck.judged(is_right);
                    // Without drafts the next token only shows whether a draft would have been right.
                    if !is_right || n == 0 {
                        break;
                    }
                    tokens += 1.0;
                    n_right += 1;
                }
            }
            pace.yielded(n_right);
        }
        tokens / time
    }

    /// Four texts at once, of 128 tokens each and then another, as servers have them, whose decodes take times as on a processor: by what part of the time
    /// without drafts they are sooner.
    fn serving(costs: [f64; 3], is_right: impl Fn(usize) -> bool, noise: f64) -> f64 {
        let [of_8, of_16, of_32] = costs;
        let points = [(4.0, 1.0), (8.0, of_8), (16.0, of_16), (32.0, of_32)];
        let time_of = |n: usize| {
            let at = points.windows(2).find(|w| n as f64 <= w[1].0).unwrap();
            at[0].1 + (n as f64 - at[0].0) * (at[1].1 - at[0].1) / (at[1].0 - at[0].0)
        };
        let mut pace = Pace::new(MAX_DRAFTS);
        let mut texts = [0usize, 32, 64, 96].map(|n| (n, pace.luck()));
        let (mut tokens, mut time, mut turn, mut random) = (0.0, 0.0, 0, 1u64);
        for _ in 0..3000 {
            let mut choices: Vec<Choice> = texts.iter().map(|(_, luck)| Choice::new(*luck, 100)).collect();
            pace.choose(&mut choices, 27);
            let n_drafts: usize = choices.iter().map(Choice::n_drafts).sum();
            random = crate::random::splitmix64(random);
            let seconds = time_of(4 + n_drafts) * (1.0 + noise * (random as f64 / u64::MAX as f64 - 0.5));
            pace.decoded(4 + n_drafts, n_drafts, seconds);
            time += time_of(4 + n_drafts);
            let mut all_right = 0;
            for ((n_text, luck), choice) in texts.iter_mut().zip(&choices) {
                let n = choice.n_drafts();
                luck.decoded(n);
                let mut n_told = 1;
                for _ in 0..n.max(1) {
                    turn += 1;
                    luck.judged(is_right(turn));
                    if !is_right(turn) || n == 0 {
                        break;
                    }
                    n_told += 1;
                }
                all_right += n_told - 1;
                tokens += n_told as f64;
                *n_text += n_told;
                if *n_text >= 128 {
                    pace.ended(*luck);
                    (*n_text, *luck) = (0, pace.luck());
                }
            }
            pace.yielded(all_right);
        }
        tokens / 4.0 / time
    }

    /// However often drafts are right, and whatever columns cost, a server is not slower by them.
    #[test]
    fn texts_that_come_and_go_lose_nothing_by_drafts() {
        let mut least = f64::MAX;
        for costs in [[1.1, 1.4, 2.0], [1.5, 2.5, 4.0], [1.8, 3.2, 6.0], [1.02, 2.5, 5.0]] {
            for rightly in 0..=10 {
                for noise in [0.0, 0.4] {
                    // Right by chance, and in runs.
                    for is_run in [false, true] {
                        let is_right = |turn: usize| match is_run {
                            true => turn / 20 * 7 % 10 < rightly,
                            false => turn * 7 % 10 < rightly,
                        };
                        let found = serving(costs, is_right, noise);
                        assert!(
                            found > 0.99,
                            "{found} where columns cost {costs:?}, {rightly} of 10, noise {noise}"
                        );
                        least = least.min(found);
                    }
                }
            }
        }
        println!("at least {least}");
        assert!(serving([1.5, 2.5, 4.0], |_| true, 0.4) > 1.4);
        assert!(serving([1.1, 1.4, 2.0], |turn| turn % 8 != 0, 0.4) > 1.3);
    }

    #[test]
    fn a_decode_that_is_held_up_does_not_end_drafts_for_long() {
        let mut pace = Pace::new(MAX_DRAFTS);
        let mut luck = Luck::default();
        let mut step = |pace: &mut Pace, held_up: f64| {
            let n = choose_one(pace, luck, 100);
            luck.decoded(n);
            (0..n).for_each(|_| luck.judged(true));
            pace.decoded(1 + n, n, 1.0 + 0.1 * n as f64 + held_up);
            pace.yielded(n);
            n
        };
        (0..100).for_each(|_| {
            step(&mut pace, 0.0);
        });
        // Whichever comes next with drafts takes as long as ten thousand others.
        while step(&mut pace, 1e4) == 0 {}
        let n_without = (0..2000).take_while(|_| step(&mut pace, 0.0) == 0).count();
        assert!(n_without < 1000, "{n_without}");
    }

    #[test]
    fn drafts_that_pay_are_verified() {
        assert!(speed(0.05, &[10]) > 4.0, "{}", speed(0.05, &[10]));
        assert!(speed(0.2, &[10]) > 2.5, "{}", speed(0.2, &[10]));
        assert!(speed(0.1, &[7]) > 1.3, "{}", speed(0.1, &[7]));
    }

    #[test]
    fn drafts_that_do_not_pay_cost_almost_nothing() {
        for cost in [0.0, 0.1, 0.3, 1.0, 2.0] {
            for rightly in 0..=10 {
                let speed = speed(cost, &[rightly]);
                assert!(speed > 0.95, "{speed} at cost {cost}, {rightly} of 10");
            }
        }
    }

    /// Of sequences that are decoded together, those have drafts whose drafts are right.
    #[test]
    fn drafts_go_where_they_are_right() {
        let mut pace = Pace::new(MAX_DRAFTS);
        (0..4).for_each(|_| pace.decoded(2, 0, 1.0));
        let mut lucks = [Luck::default(); 2];
        (0..60).for_each(|_| lucks[0].judged(false));
        (0..60).for_each(|_| lucks[1].judged(true));
        let mut choices = lucks.map(|luck| Choice::new(luck, 100));
        pace.choose(&mut choices, 100);
        assert_eq!(choices.map(|choice| choice.n_drafts()), [0, 15]);
        // What there is room for in all.
        pace.choose(&mut choices, 10);
        assert_eq!(choices.map(|choice| choice.n_drafts()), [0, 7]);
        // Fifteen drafts and four tokens in the time of 2.5 decodes.
        let best = (15.0 + 4.0) / (1.0 + 15.0 * 0.1);
        let found = speed(0.1, &[10, 0, 0, 0]);
        assert!(found > 0.98 * best, "{found} of {best}");
    }

    #[test]
    fn several_sequences_lose_nothing_by_drafts_that_do_not_pay() {
        for cost in [0.0, 0.1, 0.3, 1.0] {
            for rightly in 0..=10 {
                let speed = speed(cost, &[rightly, 0, 10 - rightly, rightly]);
                assert!(speed > 0.95 * 4.0, "{speed} at cost {cost}, {rightly} of 10");
            }
        }
    }

    #[test]
    fn batches_have_few_sizes() {
        assert_eq!(
            [0, 1, 2, 3, 5, 6, 7, 13, 14, 15].map(batch_size),
            [0, 1, 3, 3, 3, 7, 7, 7, 15, 15]
        );
    }

    #[test]
    fn there_must_be_room() {
        let (mut pace, mut luck) = (Pace::new(7), Luck::default());
        assert_eq!(choose_one(&mut pace, luck, 100), 0, "nothing is known yet");
        (0..4).for_each(|_| pace.decoded(1, 0, 1.0));
        (0..40).for_each(|_| luck.judged(true));
        let chosen = [100, 6, 2, 0].map(|n_room| choose_one(&mut pace, luck, n_room));
        assert_eq!(chosen, [7, 3, 1, 0]);
    }

    /// A draft that is right every other time pays where two tokens cost little more than one, and more drafts cost more than they bring.
    #[test]
    fn one_draft_is_chosen_where_more_do_not_pay() {
        let (mut pace, mut luck) = (Pace::new(MAX_DRAFTS), Luck::default());
        for (n_drafts, seconds) in [(0, 1.0), (1, 1.1), (3, 1.8), (7, 3.0), (15, 5.0)] {
            (0..4).for_each(|_| pace.decoded(1 + n_drafts, n_drafts, seconds));
        }
        (0..100).for_each(|i| luck.judged(i % 2 == 0));
        assert_eq!(choose_one(&mut pace, luck, 100), 1);
        // Where four tokens cost as much as two, three drafts are better.
        (0..40).for_each(|_| pace.decoded(4, 3, 1.1));
        assert_eq!(choose_one(&mut pace, luck, 100), 3);
    }
}
