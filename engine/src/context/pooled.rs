//! Pooling: selects the tokens that determine the embedding of each sequence in a batch.

use crate::builder::{GraphOutput, Pooling};
use crate::model::Model;

use super::batch::{BatchToken, MAX_SEQUENCES};

/// Output row of each sequence; see the module documentation. All memory is reserved once.
pub(super) struct Pooled {
    /// Pooling type; `None` if the context computes no embeddings.
    pooling: Option<Pooling>,
    rank: bool,
    /// Output row of each sequence, by sequence id.
    rows: [Option<u32>; MAX_SEQUENCES],
    /// Tokens whose rows represent sequences, in ascending order.
    tokens: Vec<u32>,
    /// Weight of each token in each mean, `[T, S]`.
    shares: Vec<f32>,
}

impl Pooled {
    /// Creates the state for at most `n_seqs` sequences in batches of `n_batch` tokens.
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
        // All sequences are initially present: the worst case for reserving memory.
        pooled.rows[..n_seqs].fill(Some(0));
        pooled.tokens.resize(n_seqs, 0);
        pooled
    }

    /// Selects the tokens of the next batch, which is computed as a whole unless pooling is none.
    pub fn plan(&mut self, tokens: &[BatchToken]) {
        self.rows.fill(None);
        self.tokens.clear();
        self.shares.clear();
        let last = match self.pooling {
            None | Some(Pooling::None) => return,
            pooling => pooling != Some(Pooling::Cls),
        };
        // Positions ascend within a sequence, so the first and last token in the batch are the first
        // and last token of the sequence.
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
        // A token shared by several sequences represents all of them.
        self.tokens.extend(self.rows.iter().flatten());
        self.tokens.sort_unstable();
        self.tokens.dedup();
        for row in self.rows.iter_mut().flatten() {
            *row = self.tokens.partition_point(|t| t < row) as u32;
        }
    }

    /// Returns the number of output rows; `None` if the rows belong to the tokens with output.
    pub fn n_rows(&self) -> Option<usize> {
        match self.pooling {
            None | Some(Pooling::None) => None,
            Some(Pooling::Mean) => Some(self.rows.iter().flatten().count()),
            Some(_) => Some(self.tokens.len()),
        }
    }

    /// Returns the graph output for `n_rows` rows.
    pub fn graph_output(&self, n_rows: usize) -> GraphOutput {
        match self.pooling {
            None => GraphOutput::Result,
            Some(pooling) => GraphOutput::Embedding {
                n_means: if pooling == Pooling::Mean { n_rows } else { 0 },
                rank: self.rank,
            },
        }
    }

    /// Returns the output row of a sequence.
    pub fn row_of(&self, seq: usize) -> Option<usize> {
        self.rows.get(seq).copied().flatten().map(|row| row as usize)
    }

    /// Returns the tokens whose rows are needed.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the weight of each token in the mean of each sequence, `[T, S]`.
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
