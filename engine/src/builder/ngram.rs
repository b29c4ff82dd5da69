//! N-gram embeddings: table rows selected by a hash of the most recent tokens.

use super::Builder;
use super::handles::Embed;
use crate::graph::{NgramHash, TensorId};

/// Arguments of [`Builder::ngram_embed`] in addition to the table.
#[derive(Clone, Copy, Debug)]
pub struct NgramArgs<'a> {
    /// Maximum number of tokens per n-gram.
    pub longest: usize,
    /// Multiplier of each token of an n-gram, starting with the current token.
    pub multipliers: &'a [usize],
    /// Number of hash heads per n-gram length.
    pub per_length: usize,
    /// First row of each head, starting with the bigram heads.
    pub offsets: &'a [usize],
    /// Number of rows of each head.
    pub sizes: &'a [usize],
    /// End-of-text token.
    pub end: usize,
}

impl NgramArgs<'_> {
    /// Returns the number of heads over all lengths from 2.
    fn n_heads(&self) -> usize {
        let n_lengths = self.longest.saturating_sub(1);
        n_lengths.saturating_mul(self.per_length)
    }

    /// Returns the hash of a head; `None` if its parameters do not match a table of `n_rows` rows.
    fn hash(&self, head: usize, n_rows: usize) -> Option<NgramHash> {
        let mut multipliers = [0; NgramHash::MAX];
        let factors = self.multipliers.get(..self.longest)?;
        for (to, &factor) in multipliers.get_mut(..self.longest)?.iter_mut().zip(factors) {
            *to = factor as u64;
        }
        let (first, size) = (*self.offsets.get(head)?, *self.sizes.get(head)?);
        let hash = NgramHash {
            n: 2 + head / self.per_length,
            multipliers,
            end: u32::try_from(self.end).ok()?,
            first: u32::try_from(first).ok()?,
            size: u32::try_from(size).ok()?,
        };
        if first.checked_add(size)? <= n_rows && hash.is_sound() {
            Some(hash)
        } else {
            None
        }
    }
}

impl Builder<'_> {
    /// Looks up, for each token, the rows of `table [n, rows]` that the n-grams ending at the token hash to,
    /// concatenated: `[n * heads, T]`. Earlier tokens are kept as a recurrent state of the layer. See
    /// [`Op::NgramHash`](crate::graph::Op::NgramHash).
    pub fn ngram_embed(&mut self, table: Embed, args: NgramArgs<'_>) -> TensorId {
        let rows = self.leaf(table.0);
        let tokens = self.tokens();
        let n_rows = self.g.tensor(rows).ne[1];
        let numbers = self.token_numbers(tokens, args.longest.min(NgramHash::MAX));
        let mut joined = None;
        for head in 0..args.n_heads() {
            let Some(hash) = args.hash(head, n_rows) else {
                self.fail_no_hash(head, n_rows);
                break;
            };
            let ids = self.g.ngram_hash(numbers, hash);
            let ids = self.ok(ids, tokens);
            let x = self.g.get_rows(rows, ids);
            let x = self.ok(x, numbers);
            let x = self.adapt_rows(table.0, ids, x);
            joined = Some(joined.map_or(x, |before| self.concat(before, x, 0)));
        }
        joined.unwrap_or(numbers)
    }

    /// Returns the ids plus one of each token and its `n - 1` predecessors (0 for no token): f32 `[n, T]`.
    fn token_numbers(&mut self, tokens: TensorId, n: usize) -> TensorId {
        let n_tokens = self.n_tokens();
        let ids = self.g.reshape(tokens, [1, n_tokens, 1, 1]);
        let ids = self.ok(ids, tokens);
        let ids = self.g.cast(ids);
        let ids = self.ok(ids, tokens);
        let mut last = self.shift(ids, 1.0);
        let mut all = last;
        for _ in 1..n {
            last = self.token_shift(last);
            all = self.concat(all, last, 0);
        }
        all
    }
}
