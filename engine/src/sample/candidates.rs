//! Candidates for the next token, the state that a sampler chain transforms.

use super::{BestLogits, Token};
use std::cmp::Ordering;

/// A token that may be selected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Id of the token.
    pub token: Token,
    /// Logit as changed by the preceding samplers; never NaN inside [`Candidates`].
    pub logit: f32,
    /// Probability of the last softmax; 0 before the first one.
    pub p: f32,
}

/// The remaining candidates and the selected one.
///
/// Samplers sort only as many candidates as they need. The length of the sorted prefix is tracked, so that no
/// sampler sorts again. Candidates are ordered by descending logit; equal logits by ascending token, for the
/// same result on all machines.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    data: Vec<Candidate>,
    /// Length of the sorted prefix, which contains the best candidates in order.
    n_sorted: usize,
    selected: Option<usize>,
    /// Scratch buffer of [`TopKSelector`].
    scratch: Vec<Candidate>,
}

impl Candidates {
    /// Fills the candidates with all tokens, in token order. `logits` has shape `[n_vocab]`; NaN becomes
    /// negative infinity.
    pub fn fill(&mut self, logits: &[f32]) {
        // Reserve memory here, so that no later token allocates when a sampler needs more candidates.
        self.scratch.clear();
        self.scratch.reserve(TopKSelector::capacity(logits.len() / SCAN_FACTOR));
        self.data.clear();
        self.data
            .extend(logits.iter().enumerate().map(|(i, &logit)| candidate(i, logit)));
        self.n_sorted = 0;
        self.selected = None;
    }

    /// Like `fill` followed by `retain_tokens` and, with `top_k`, [`Candidates::top_k`], but does not
    /// materialize the other tokens.
    pub fn fill_allowed(&mut self, logits: &[f32], top_k: Option<usize>, is_allowed: impl Fn(Token) -> bool) {
        match top_k {
            Some(k) if Candidates::omits_others(k, logits.len()) => self.fill_best(logits, k, is_allowed),
            _ => {
                self.scratch.clear();
                self.scratch.reserve(TopKSelector::capacity(logits.len() / SCAN_FACTOR));
                self.data.clear();
                self.data.reserve(logits.len());
                let all = logits.iter().enumerate().map(|(i, &logit)| candidate(i, logit));
                self.data.extend(all.filter(|c| is_allowed(c.token)));
                self.n_sorted = 0;
                self.selected = None;
                self.top_k(top_k.unwrap_or(0));
            }
        }
    }

    /// Fills the candidates with the `k` most likely tokens of `logits [n_vocab]`, best first. The result is that of
    /// `fill` followed by `top_k`, but the other tokens are not materialized. Tokens with NaN logits are omitted.
    pub fn fill_top_k(&mut self, logits: &[f32], k: usize) {
        if !Candidates::omits_others(k, logits.len()) {
            self.fill(logits);
            self.top_k(k);
            return;
        }
        self.fill_best(logits, k, |_| true);
    }

    /// Returns true if [`Candidates::fill_top_k`] omits all but the `k` best of `n` tokens.
    pub(super) fn omits_others(k: usize, n: usize) -> bool {
        k > 0 && k.saturating_mul(SCAN_FACTOR) <= n
    }

    /// Fills the candidates with the most likely tokens, like [`Candidates::fill_top_k`].
    pub(super) fn fill_best_logits(&mut self, best: BestLogits<'_>) {
        self.data.clear();
        self.data
            .extend(best.iter().map(|(token, logit)| candidate(token as usize, logit)));
        self.n_sorted = self.data.len();
        self.selected = None;
    }

    /// Fills the candidates with the `k` most likely allowed tokens, best first.
    fn fill_best(&mut self, logits: &[f32], k: usize, is_allowed: impl Fn(Token) -> bool) {
        let mut best = TopKSelector::new(&mut self.data, k);
        for (c, chunk) in logits.chunks(SCAN_CHUNK).enumerate() {
            // One branch per chunk: once the threshold has risen, almost no chunk contains a candidate.
            if !chunk.iter().fold(false, |any, &l| any | (l >= best.threshold)) {
                continue;
            }
            for (i, &logit) in chunk.iter().enumerate() {
                let token = c * SCAN_CHUNK + i;
                if logit >= best.threshold && is_allowed(token as Token) {
                    best.offer(candidate(token, logit));
                }
            }
        }
        best.finish();
        self.data.sort_unstable_by(by_rank);
        self.n_sorted = self.data.len();
        self.selected = None;
    }

    /// Returns the candidates; the first [`Candidates::n_sorted`] are the best ones in order.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.data
    }

    /// Returns the number of candidates.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// Returns true if no candidates remain.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Returns the length of the sorted prefix.
    pub fn n_sorted(&self) -> usize {
        self.n_sorted
    }

    /// Returns true if all candidates are sorted.
    pub fn is_sorted(&self) -> bool {
        self.n_sorted == self.data.len()
    }

    /// Returns the selected candidate, if any.
    pub fn selected(&self) -> Option<&Candidate> {
        self.selected.and_then(|i| self.data.get(i))
    }

    /// Returns the index of the selected candidate, if any.
    pub(super) fn selected_index(&self) -> Option<usize> {
        self.selected
    }

    /// Selects the candidate at `index`.
    pub fn select(&mut self, index: usize) {
        debug_assert!(index < self.data.len());
        self.selected = Some(index);
    }

    /// Returns the index of the candidate with the greatest logit; on ties, of the lowest token.
    pub fn argmax(&self) -> Option<usize> {
        if self.n_sorted > 0 {
            return Some(0);
        }
        (0..self.data.len()).reduce(|best, i| match by_rank(&self.data[i], &self.data[best]) {
            Ordering::Less => i,
            _ => best,
        })
    }

    /// Returns the greatest logit; negative infinity if there are no candidates.
    pub fn max_logit(&self) -> f32 {
        match self.n_sorted {
            0 => self.data.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit)),
            _ => self.data[0].logit,
        }
    }

    /// Sets every `p` to the softmax of the logits.
    ///
    /// An infinite logit gets all of the probability. If all logits are negative infinity, the result is
    /// uniform, and the chain returns an error.
    pub fn softmax(&mut self) {
        let sum = self.exponentials();
        let scale = (1.0 / sum) as f32;
        for c in &mut self.data {
            c.p *= scale;
        }
    }

    /// Sets every `p` to `exp(logit - max)`, the unnormalized softmax, and returns the sum.
    pub(super) fn exponentials(&mut self) -> f64 {
        let max = self.max_logit();
        let mut sum = 0.0;
        for c in &mut self.data {
            // For an infinite maximum, `inf - inf` would be NaN.
            c.p = if c.logit == max { 1.0 } else { (c.logit - max).exp() };
            sum += f64::from(c.p);
        }
        sum
    }

    /// Moves the best `k` to the front, in order. For small `k`, this takes one or two passes over the unsorted
    /// candidates.
    pub fn sort_top(&mut self, k: usize) {
        let k = k.min(self.data.len());
        if k <= self.n_sorted {
            return;
        }
        let want = k - self.n_sorted;
        let rest = &mut self.data[self.n_sorted..];
        if want.saturating_mul(SCAN_FACTOR) <= rest.len() {
            partition_top(rest, want, &mut self.scratch);
        } else if want < rest.len() {
            rest.select_nth_unstable_by(want - 1, by_rank);
        }
        rest[..want].sort_unstable_by(by_rank);
        self.n_sorted = k;
    }

    /// Returns the candidate of rank `i`, 0 being the best. Sorts incrementally, in blocks, when called with
    /// ascending `i`.
    pub(super) fn best(&mut self, i: usize) -> Option<&Candidate> {
        if i >= self.n_sorted {
            self.sort_top(i.saturating_mul(BLOCK_GROWTH).max(FIRST_BLOCK));
        }
        self.data.get(i)
    }

    /// Keeps the `k` best candidates, in order. 0 keeps all.
    pub fn top_k(&mut self, k: usize) {
        if k > 0 {
            self.sort_top(k);
            self.truncate(k);
        }
    }

    /// Keeps the first `n` candidates in their current order.
    pub fn truncate(&mut self, n: usize) {
        self.data.truncate(n);
        self.n_sorted = self.n_sorted.min(n);
    }

    /// Removes the first `n` candidates.
    pub fn drop_first(&mut self, n: usize) {
        self.data.drain(..n);
        self.n_sorted -= n.min(self.n_sorted);
    }

    /// Keeps the candidates with a logit of at least `min_logit`, without changing their order.
    pub fn retain_from(&mut self, min_logit: f32) {
        let in_order = self.data[..self.n_sorted].partition_point(|c| c.logit >= min_logit);
        self.data.retain(|c| c.logit >= min_logit);
        self.n_sorted = in_order;
    }

    /// Keeps the candidates whose tokens satisfy a predicate, without changing their order.
    pub fn retain_tokens(&mut self, is_kept: impl Fn(Token) -> bool) {
        let n_sorted = self.data[..self.n_sorted].iter().filter(|c| is_kept(c.token)).count();
        self.data.retain(|c| is_kept(c.token));
        self.n_sorted = n_sorted;
        self.selected = None;
    }

    /// Applies a monotone function to every logit, such as a division by a temperature.
    pub fn map_monotone(&mut self, f: impl Fn(f32) -> f32) {
        for c in &mut self.data {
            c.logit = f(c.logit);
        }
    }

    /// Applies an arbitrary function to every logit, which may change the order. NaN becomes negative
    /// infinity.
    pub fn map(&mut self, mut f: impl FnMut(&Candidate) -> f32) {
        for c in &mut self.data {
            c.logit = clean(f(c));
        }
        self.n_sorted = 0;
    }

    /// Changes the logits of the candidates whose tokens are in `edits`, sorted by token. Does not scan the
    /// candidates while they are in token order.
    pub fn edit<T>(&mut self, edits: &[(Token, T)], f: impl Fn(f32, &T) -> f32) {
        debug_assert!(edits.is_sorted_by_key(|e| e.0));
        let Some((last, _)) = edits.last() else { return };
        let in_place = |data: &[Candidate], token: Token| data.get(token as usize).is_some_and(|c| c.token == token);
        // If the candidates are still in the order of `fill`, each edit is a direct access.
        if edits.iter().all(|&(token, _)| in_place(&self.data, token)) {
            for (token, value) in edits {
                let c = &mut self.data[*token as usize];
                c.logit = clean(f(c.logit, value));
            }
        } else {
            for c in self.data.iter_mut().filter(|c| c.token <= *last) {
                if let Ok(i) = edits.binary_search_by_key(&c.token, |e| e.0) {
                    c.logit = clean(f(c.logit, &edits[i].1));
                }
            }
        }
        self.n_sorted = 0;
    }

    /// Replaces all candidates by `token`, which need not be among them.
    pub(super) fn only(&mut self, token: Token) {
        self.data.clear();
        self.data.push(Candidate {
            token,
            logit: 0.0,
            p: 1.0,
        });
        self.n_sorted = 1;
        self.selected = None;
    }

    /// Replaces the candidates by those at `indices`, in that order.
    pub(super) fn pick(&mut self, indices: impl Iterator<Item = usize>) {
        self.scratch.clear();
        self.scratch.extend(indices.map(|i| self.data[i]));
        std::mem::swap(&mut self.data, &mut self.scratch);
        self.n_sorted = 0;
    }
}

/// Compares by descending logit, then ascending token. This is a total order, as the standard library's sorts
/// require.
fn by_rank(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.token.cmp(&b.token))
}

fn candidate(index: usize, logit: f32) -> Candidate {
    Candidate {
        token: index as Token,
        logit: clean(logit),
        p: 0.0,
    }
}

/// Replaces NaN by negative infinity.
fn clean(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// If `k` is smaller than the number of candidates by this factor, a threshold scan replaces quickselect.
const SCAN_FACTOR: usize = 16;
/// Logits compared per branch, a few vector registers.
const SCAN_CHUNK: usize = 32;
/// Initial number of candidates that [`Candidates::best`] sorts, and the growth factor.
const FIRST_BLOCK: usize = 256;
const BLOCK_GROWTH: usize = 8;

/// Moves the `k` best of `data` to its front, in any order. Requires `0 < k <= data.len()`.
fn partition_top(data: &mut [Candidate], k: usize, scratch: &mut Vec<Candidate>) {
    let mut best = TopKSelector::new(scratch, k);
    for &c in data.iter() {
        if c.logit >= best.threshold {
            best.offer(c);
        }
    }
    best.finish();
    let Some(&worst_kept) = scratch.iter().max_by(|a, b| by_rank(a, b)) else {
        return;
    };
    let mut n = 0;
    for i in 0..data.len() {
        if n < k && by_rank(&data[i], &worst_kept).is_le() {
            data.swap(i, n);
            n += 1;
        }
    }
}

/// Collects the `k` best items of a stream. The buffer holds a few times `k` items and is cut to `k` when
/// full; the worst remaining logit becomes the threshold.
struct TopKSelector<'a> {
    k: usize,
    kept: &'a mut Vec<Candidate>,
    /// Minimum logit of further items. Callers skip smaller logits and NaN, which compares false.
    threshold: f32,
}

impl<'a> TopKSelector<'a> {
    fn new(kept: &'a mut Vec<Candidate>, k: usize) -> TopKSelector<'a> {
        kept.clear();
        kept.reserve(TopKSelector::capacity(k));
        TopKSelector {
            k,
            kept,
            threshold: f32::NEG_INFINITY,
        }
    }

    fn capacity(k: usize) -> usize {
        k.saturating_mul(4).max(256)
    }

    fn offer(&mut self, c: Candidate) {
        self.kept.push(c);
        if self.kept.len() == TopKSelector::capacity(self.k) {
            self.finish();
        }
    }

    fn finish(&mut self) {
        if self.kept.len() > self.k {
            self.kept.select_nth_unstable_by(self.k - 1, by_rank);
            self.kept.truncate(self.k);
            self.threshold = self.kept[self.k - 1].logit;
        }
    }
}
