//! Which tokens' rows make up the embedding of each sequence of a batch.

use crate::builder::{GraphOutput, Pooling};
use crate::model::Model;

use super::batch::{BatchToken, MAX_SEQUENCES};

/// A row for each sequence; see the module. Its memory is reserved once.
pub(super) struct Pooled {
    /// How rows are pooled: none at all, the rows of tokens, or one of mean, first and last.
    pooling: Option<Pooling>,
    rank: bool,
    /// Row of the result for each sequence.
    rows: [Option<u32>; MAX_SEQUENCES],
    /// Tokens whose rows stand for sequences, ascending.
    tokens: Vec<u32>,
    /// Share of each token in each mean, `[T, S]`.
    shares: Vec<f32>,
}

impl Pooled {
    /// For at most `n_seqs` sequences in batches of `n_batch` tokens.
    pub fn new(model: &Model, pooling: Option<Pooling>, n_seqs: usize, n_batch: usize) -> Pooled {
        let rank = pooling == Some(Pooling::Rank);
        let (arch, base) = (model.arch(), model.base());
        let by_default = if model.bidirectional() {
            Pooling::Cls
        } else {
            Pooling::Last
        };
        let before_rank = base
            .rank_pooling
            .filter(|p| !matches!(p, Pooling::None | Pooling::Rank))
            .or(arch.rank_pooling)
            .unwrap_or(by_default);
        let pooling = if rank { Some(before_rank) } else { pooling };
        let n_shares = if pooling == Some(Pooling::Mean) {
            n_seqs * n_batch
        } else {
            0
        };
        let mut pooled = Pooled {
            pooling,
            rank,
            rows: [None; MAX_SEQUENCES],
            tokens: Vec::with_capacity(n_seqs),
            shares: Vec::with_capacity(n_shares),
        };
        // Before the first batch: the largest, for reserving.
        pooled.rows[..n_seqs].fill(Some(0));
        pooled.tokens.resize(n_seqs, 0);
        pooled
    }

    /// Looks at the tokens of the next batch, which is computed whole unless pooling is none.
    pub fn plan(&mut self, tokens: &[BatchToken]) {
        self.rows.fill(None);
        self.tokens.clear();
        self.shares.clear();
        let last = match self.pooling {
            None | Some(Pooling::None) => return,
            pooling => pooling != Some(Pooling::Cls),
        };
        // Positions of a sequence ascend, so that its first token in the batch is its first, and its last its last.
        for (i, t) in tokens.iter().enumerate() {
            for seq in t.seqs.iter() {
                if last || self.rows[seq].is_none() {
                    self.rows[seq] = Some(i as u32);
                }
            }
        }
        if self.pooling == Some(Pooling::Mean) {
            let present = self.rows.iter_mut().flatten();
            present.zip(0..).for_each(|(row, index)| *row = index);
            self.plan_shares(tokens);
            return;
        }
        // A token that several sequences share stands for all of them.
        self.tokens.extend(self.rows.iter().flatten());
        self.tokens.sort_unstable();
        self.tokens.dedup();
        for row in self.rows.iter_mut().flatten() {
            *row = self.tokens.partition_point(|t| t < row) as u32;
        }
    }

    /// Rows of the result; `None` where they are those of tokens that want output.
    pub fn n_rows(&self) -> Option<usize> {
        match self.pooling {
            None | Some(Pooling::None) => None,
            Some(Pooling::Mean) => Some(self.rows.iter().flatten().count()),
            Some(_) => Some(self.tokens.len()),
        }
    }

    /// What to ask of a graph with `n_rows` rows.
    pub fn graph_output(&self, n_rows: usize) -> GraphOutput {
        match self.pooling {
            None => GraphOutput::Result,
            Some(pooling) => GraphOutput::Embedding {
                n_means: if pooling == Pooling::Mean { n_rows } else { 0 },
                rank: self.rank,
            },
        }
    }

    /// The row of a sequence's embedding.
    pub fn row_of(&self, seq: usize) -> Option<usize> {
        self.rows.get(seq).copied().flatten().map(|row| row as usize)
    }

    /// Tokens whose rows are wanted.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Share of each token in the mean of each sequence, `[T, S]`.
    pub fn shares(&self) -> &[f32] {
        &self.shares
    }

    fn plan_shares(&mut self, tokens: &[BatchToken]) {
        let n = self.rows.iter().flatten().count();
        self.shares.resize(n * tokens.len(), 0.0);
        for (seq, row) in self.rows.iter().enumerate() {
            let Some(row) = row else { continue };
            let shares = &mut self.shares[*row as usize * tokens.len()..][..tokens.len()];
            let belongs = |t: &BatchToken| t.seqs.contains(seq);
            let share = 1.0 / tokens.iter().filter(|t| belongs(t)).count() as f32;
            for (s, t) in shares.iter_mut().zip(tokens) {
                *s = if belongs(t) { share } else { 0.0 };
            }
        }
    }
}
