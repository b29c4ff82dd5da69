//! The candidates for the next token: what a sampler chain works on.

use super::Token;
use std::cmp::Ordering;

/// One token that may come next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// Its id.
    pub token: Token,
    /// Its logit as changed by the samplers so far; never NaN inside [`Candidates`].
    pub logit: f32,
    /// Its probability as of the last softmax (0 before the first one).
    pub p: f32,
}

/// Tokens that may still come next, and the one selected.
///
/// The best candidates stand first and in order as far as a sampler needed them to: the length of that prefix is
/// known, so that no sampler sorts more than it looks at, and none sorts twice. Order is by falling logit, equal
/// logits by rising token, hence the same on every machine.
#[derive(Debug, Clone, Default)]
pub struct Candidates {
    data: Vec<Candidate>,
    /// The first `n_sorted` are the best of all, best first.
    n_sorted: usize,
    selected: Option<usize>,
    /// Work space of [`Best`].
    scratch: Vec<Candidate>,
}

impl Candidates {
    /// Every token with its logit, in token order. `logits`: `[n_vocab]`; NaN becomes minus infinity.
    pub fn fill(&mut self, logits: &[f32]) {
        // Now, so that no later token allocates because a sampler happens to look at more candidates.
        self.scratch.clear();
        self.scratch.reserve(Best::capacity(logits.len() / SCAN_FACTOR));
        self.data.clear();
        self.data
            .extend(logits.iter().enumerate().map(|(i, &logit)| candidate(i, logit)));
        self.n_sorted = 0;
        self.selected = None;
    }

    /// What `fill` and `retain_tokens` give, without listing the others, and with `top_k` what [`Candidates::top_k`] leaves of that.
    pub fn fill_allowed(&mut self, logits: &[f32], top_k: Option<usize>, is_allowed: impl Fn(Token) -> bool) {
        match top_k {
            Some(k) if k > 0 && k.saturating_mul(SCAN_FACTOR) <= logits.len() => self.fill_best(logits, k, is_allowed),
            _ => {
                self.scratch.clear();
                self.scratch.reserve(Best::capacity(logits.len() / SCAN_FACTOR));
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

    /// The `k` most likely tokens, best first: what `fill` and `top_k` give, without listing the others.
    /// Tokens whose logit is NaN are left out.
    pub fn fill_top_k(&mut self, logits: &[f32], k: usize) {
        if k == 0 || k.saturating_mul(SCAN_FACTOR) > logits.len() {
            self.fill(logits);
            self.top_k(k);
            return;
        }
        self.fill_best(logits, k, |_| true);
    }

    /// The `k` most likely of the tokens that are allowed, best first.
    fn fill_best(&mut self, logits: &[f32], k: usize, is_allowed: impl Fn(Token) -> bool) {
        let mut best = Best::new(&mut self.data, k);
        for (c, chunk) in logits.chunks(SCAN_CHUNK).enumerate() {
            // One branch for the whole chunk: almost none holds a candidate once the threshold has risen.
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

    /// The candidates, best first as far as [`Candidates::n_sorted`] says.
    pub fn as_slice(&self) -> &[Candidate] {
        &self.data
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// None left?
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// How many at the front are the best of all and in order.
    pub fn n_sorted(&self) -> usize {
        self.n_sorted
    }

    /// Are all of them in order, best first?
    pub fn is_sorted(&self) -> bool {
        self.n_sorted == self.data.len()
    }

    /// The selected candidate, once a sampler has selected one.
    pub fn selected(&self) -> Option<&Candidate> {
        self.selected.and_then(|i| self.data.get(i))
    }

    /// Its index.
    pub(super) fn selected_index(&self) -> Option<usize> {
        self.selected
    }

    /// Selects the candidate at an index.
    pub fn select(&mut self, index: usize) {
        debug_assert!(index < self.data.len());
        self.selected = Some(index);
    }

    /// Index of the best candidate: the greatest logit, of equals the lowest token.
    pub fn argmax(&self) -> Option<usize> {
        if self.n_sorted > 0 {
            return Some(0);
        }
        (0..self.data.len()).reduce(|best, i| match by_rank(&self.data[i], &self.data[best]) {
            Ordering::Less => i,
            _ => best,
        })
    }

    /// The greatest logit; minus infinity where there are no candidates.
    pub fn max_logit(&self) -> f32 {
        match self.n_sorted {
            0 => self.data.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit)),
            _ => self.data[0].logit,
        }
    }

    /// Sets every `p` to the softmax of the logits.
    ///
    /// An infinite logit takes all of the probability; where all logits are minus infinity the result is uniform, and
    /// the caller of the chain gets an error for it.
    pub fn softmax(&mut self) {
        let sum = self.exponentials();
        let scale = (1.0 / sum) as f32;
        for c in &mut self.data {
            c.p *= scale;
        }
    }

    /// Sets every `p` to `exp(logit - max)` and returns their sum: a softmax not yet normalized.
    pub(super) fn exponentials(&mut self) -> f64 {
        let max = self.max_logit();
        let mut sum = 0.0;
        for c in &mut self.data {
            // Not by subtraction where both are infinite: inf - inf is NaN.
            c.p = if c.logit == max { 1.0 } else { (c.logit - max).exp() };
            sum += f64::from(c.p);
        }
        sum
    }

    /// Brings the best `k` to the front, in order. Costs one or two passes over the rest for a small `k`.
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

    /// The candidate of rank `i`, 0 the best. Asked for in rising order, sorts block by block as far as needed.
    pub(super) fn best(&mut self, i: usize) -> Option<&Candidate> {
        if i >= self.n_sorted {
            self.sort_top(i.saturating_mul(BLOCK_GROWTH).max(FIRST_BLOCK));
        }
        self.data.get(i)
    }

    /// Keeps the `k` best, in order. 0 keeps all.
    pub fn top_k(&mut self, k: usize) {
        if k > 0 {
            self.sort_top(k);
            self.truncate(k);
        }
    }

    /// Keeps the first `n` in their present order.
    pub fn truncate(&mut self, n: usize) {
        self.data.truncate(n);
        self.n_sorted = self.n_sorted.min(n);
    }

    /// Removes the first `n`.
    pub fn drop_first(&mut self, n: usize) {
        self.data.drain(..n);
        self.n_sorted -= n.min(self.n_sorted);
    }

    /// Keeps the candidates with a logit of at least `min_logit`. The order stays.
    pub fn retain_from(&mut self, min_logit: f32) {
        let in_order = self.data[..self.n_sorted].partition_point(|c| c.logit >= min_logit);
        self.data.retain(|c| c.logit >= min_logit);
        self.n_sorted = in_order;
    }

    /// Keeps the candidates whose tokens pass a test. The order stays.
    pub fn retain_tokens(&mut self, is_kept: impl Fn(Token) -> bool) {
        let n_sorted = self.data[..self.n_sorted].iter().filter(|c| is_kept(c.token)).count();
        self.data.retain(|c| is_kept(c.token));
        self.n_sorted = n_sorted;
        self.selected = None;
    }

    /// Changes every logit by a function that keeps their order (as a division by a temperature does).
    pub fn map_monotone(&mut self, f: impl Fn(f32) -> f32) {
        for c in &mut self.data {
            c.logit = f(c.logit);
        }
    }

    /// Changes logits in a way that may change the order. NaN results become minus infinity.
    pub fn map(&mut self, mut f: impl FnMut(&Candidate) -> f32) {
        for c in &mut self.data {
            c.logit = clean(f(c));
        }
        self.n_sorted = 0;
    }

    /// Changes the logits of the candidates whose tokens are in `edits` (rising by token). Without a pass over all
    /// candidates while they still stand in token order.
    pub fn edit<T>(&mut self, edits: &[(Token, T)], f: impl Fn(f32, &T) -> f32) {
        debug_assert!(edits.is_sorted_by_key(|e| e.0));
        let Some((last, _)) = edits.last() else { return };
        let in_place = |data: &[Candidate], token: Token| data.get(token as usize).is_some_and(|c| c.token == token);
        // Where `fill` put them? Then every edit is direct.
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

    /// Replaces the candidates by one, whether or not it was among them.
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

/// Best first: falling logits, then rising tokens. Total, as the sorts of the standard library require.
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

/// NaN to minus infinity.
fn clean(logit: f32) -> f32 {
    if logit.is_nan() { f32::NEG_INFINITY } else { logit }
}

/// Partitions of fewer than one in this many go by a threshold scan instead of a quickselect.
const SCAN_FACTOR: usize = 16;
/// Logits looked at per branch: a few vector registers.
const SCAN_CHUNK: usize = 32;
/// Candidates sorted at first by [`Candidates::best`], and by what factor the number grows.
const FIRST_BLOCK: usize = 256;
const BLOCK_GROWTH: usize = 8;

/// Moves the `k` best of `data` (`0 < k <= data.len()`) to its front, in any order.
fn partition_top(data: &mut [Candidate], k: usize, scratch: &mut Vec<Candidate>) {
    let mut best = Best::new(scratch, k);
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

/// Collects the `k` best of a stream: a buffer of a few `k`, cut back to `k` whenever it is full, with the worst logit
/// kept as the threshold for what comes.
struct Best<'a> {
    k: usize,
    kept: &'a mut Vec<Candidate>,
    /// Nothing below can be among the best. The caller skips it (and NaN, which compares false).
    threshold: f32,
}

impl<'a> Best<'a> {
    fn new(kept: &'a mut Vec<Candidate>, k: usize) -> Best<'a> {
        kept.clear();
        kept.reserve(Best::capacity(k));
        Best {
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
        if self.kept.len() == Best::capacity(self.k) {
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
