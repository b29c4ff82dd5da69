//! What a batch was asked for: logits of tokens, or embeddings of sequences, and where each is found.

use crate::builder::GraphOutput;
use crate::model::Model;

use super::batch::BatchToken;
use super::pooled::Pooled;
use super::result_rows::ResultRows;
use super::settings::Settings;

/// Results of the last batch, and which of them each ubatch computes.
pub(super) struct Outputs {
    /// `[n_outputs, width]`: as wide as the vocabulary, or an embedding.
    pub found: ResultRows,
    /// Row of each token of the batch that has one.
    rows: Vec<Option<u32>>,
    pooled: Pooled,
}

impl Outputs {
    pub fn new(model: &Model, settings: &Settings) -> Outputs {
        let p = &settings.params;
        Outputs {
            found: ResultRows::default(),
            rows: Vec::new(),
            pooled: Pooled::new(model, p.pooling, p.n_seq_max, p.n_batch),
        }
    }

    /// Takes memory for the largest batch.
    pub fn reserve(&mut self, model: &Model, settings: &Settings) {
        let p = &settings.params;
        self.found.reserve(p.n_outputs_max * model.base().n_vocab());
        self.rows.reserve(p.n_batch);
    }

    /// Forgets the results of the batch before and looks at what the next one asks for: `admitted` says which of its tokens are
    /// computed.
    pub fn start(&mut self, batch: &[BatchToken], admitted: &[bool], computed: &[BatchToken]) {
        self.found.clear();
        self.rows.clear();
        let mut n = 0;
        self.rows.extend(batch.iter().zip(admitted).map(|(t, &admitted)| {
            (t.output && admitted).then(|| {
                n += 1;
                n - 1
            })
        }));
        self.pooled.plan(computed);
    }

    /// There are no results.
    pub fn clear(&mut self) {
        self.start(&[], &[], &[]);
    }

    /// Rows that a ubatch of these tokens results in.
    pub fn n_rows(&self, tokens: &[BatchToken]) -> usize {
        let pooled = self.pooled.n_rows();
        pooled.unwrap_or_else(|| tokens.iter().filter(|t| t.output).count())
    }

    /// What to ask of a graph with `n_rows` rows.
    pub fn graph_output(&self, n_rows: usize) -> GraphOutput {
        self.pooled.graph_output(n_rows)
    }

    /// Indices in the ubatch of the tokens whose rows its graph gives, ascending; never empty, for a graph has at least one.
    pub fn ids<'a>(&'a self, tokens: &'a [BatchToken]) -> impl Iterator<Item = i32> + 'a {
        let pooled = self.pooled.n_rows().is_some();
        let of_sequences: &[u32] = if pooled { self.pooled.tokens() } else { &[] };
        let of_tokens: &[BatchToken] = if pooled { &[] } else { tokens };
        let asked = of_tokens.iter().enumerate().filter(|(_, t)| t.output);
        let instead = (!pooled && tokens.iter().all(|t| !t.output)).then_some(tokens.len() as i32 - 1);
        let of_sequences = of_sequences.iter().map(|&i| i as i32);
        of_sequences.chain(asked.map(|(i, _)| i as i32)).chain(instead)
    }

    /// Share of each token of the batch in the mean of each sequence, `[T, S]`.
    pub fn shares(&self) -> &[f32] {
        self.pooled.shares()
    }

    /// The row of the token at `index` of the batch.
    pub fn of_token(&self, index: usize) -> Option<&[f32]> {
        self.found.get((*self.rows.get(index)?)? as usize)
    }

    /// The row of a sequence.
    pub fn of_sequence(&self, seq: usize) -> Option<&[f32]> {
        self.found.get(self.pooled.row_of(seq)?)
    }
}
