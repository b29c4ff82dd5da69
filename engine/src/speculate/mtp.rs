//! Drafts by the model's multi-token prediction layer (MTP, arXiv 2412.19437). From a token and the model's
//! preceding hidden state, the layer predicts the next token. From that token and its own hidden state, it
//! predicts further tokens.

use super::{Decoded, Drafter, MAX_DRAFTS, most_likely};
use crate::context::{Batch, Context, ContextError, ContextParams, DecodeError, SeqSet};
use crate::vocab::Token;

/// Drafter that runs the multi-token prediction layer for one sequence.
///
/// The layer's cache has an entry for each token of the sequence except the first, computed from the token
/// and the preceding hidden state. Entries are added when the target model decodes tokens, at most one ubatch
/// late, and for drafts, whose entries are removed again.
pub struct Mtp {
    /// Context that runs the layer. Positions start at the first entry.
    context: Context,
    n_embd: usize,
    /// Entries of accepted tokens in the cache; entries of drafts may follow.
    n_entries: usize,
    /// Accepted tokens whose entries have not been computed.
    due: Vec<Token>,
    /// Hidden states before each pending token and after the last one, `[n_pending + 1, n_embd]`; empty if no
    /// sequence is followed.
    rows: Vec<f32>,
    /// Number of tokens of the sequence that the layer has processed.
    n_text: usize,
    /// The layer's hidden state after the latest draft.
    row: Vec<f32>,
    batch: Batch,
}

/// Error while creating an [`Mtp`] drafter.
#[derive(Debug, thiserror::Error)]
pub enum MtpError {
    /// The architecture declares no `mtp` graph.
    #[error("architecture {arch} has no `mtp` block")]
    Undeclared {
        /// Name of the architecture.
        arch: &'static str,
    },
    /// The file contains no MTP layers.
    #[error("the file has no multi-token prediction layers (`nextn_predict_layers`)")]
    NoLayer,
    /// The file contains MTP layers, but they were not loaded.
    #[error("the model was loaded without its multi-token prediction layers")]
    NotLoaded,
    /// The target context does not keep hidden states.
    #[error("the context does not keep hidden states")]
    NoHiddenRows,
    /// Creating the context failed.
    #[error(transparent)]
    Context(#[from] ContextError),
}

impl Mtp {
    /// Creates a drafter with a context of the same size and number of threads as `target`.
    ///
    /// # Errors
    /// Returns an error if the model has no loaded MTP layer, if `target` keeps no hidden states, or if the context
    /// cannot be created.
    pub fn new(target: &Context) -> Result<Mtp, MtpError> {
        let model = target.model();
        if !model.arch().mtp {
            let arch = model.arch().name;
            return Err(MtpError::Undeclared { arch });
        }
        if !model.has_mtp() {
            return Err(match model.base().n_mtp() {
                0 => MtpError::NoLayer,
                _ => MtpError::NotLoaded,
            });
        }
        let params = target.params();
        if !params.hidden {
            return Err(MtpError::NoHiddenRows);
        }
        let n_embd = model.base().n_embd();
        let n_ubatch = params.n_ubatch;
        let params = ContextParams {
            n_ctx: target.n_ctx(),
            n_batch: n_ubatch + 1,
            n_seq_max: 1,
            n_rollback: MAX_DRAFTS + 1,
            n_outputs_max: 1,
            hidden: false,
            mtp: true,
            ..params.clone()
        };
        Ok(Mtp {
            context: Context::new(model.clone(), &params)?,
            n_embd,
            n_entries: 0,
            due: Vec::with_capacity(n_ubatch + 1),
            rows: Vec::with_capacity((n_ubatch + 2) * n_embd),
            n_text: 0,
            row: Vec::with_capacity(n_embd),
            batch: Batch::new(),
        })
    }

    /// Resets the drafter to an empty sequence.
    fn forget(&mut self) {
        self.context.clear();
        self.n_entries = 0;
        self.due.clear();
        self.rows.clear();
        self.n_text = 0;
    }

    /// Removes the entries of drafts from the cache.
    fn cut(&mut self) {
        let is_cut = self.context.n_past(0) <= self.n_entries || self.context.seq_rm(0, self.n_entries..).is_ok();
        if !is_cut {
            self.forget();
        }
    }

    /// Computes the pending entries.
    fn catch_up(&mut self) -> Result<(), DecodeError> {
        self.cut();
        let n = self.due.len();
        if n == 0 || !self.has_space(n) {
            return Ok(());
        }
        self.push_due(false);
        self.context.decode_after(&self.batch, &self.rows[..n * self.n_embd])?;
        self.entered(n);
        Ok(())
    }

    /// Fills the batch with the pending tokens; `output` requests logits for the last one.
    fn push_due(&mut self, output: bool) {
        self.batch.clear();
        for (i, &token) in self.due.iter().enumerate() {
            let is_last = i + 1 == self.due.len();
            self.batch
                .push(token, self.n_entries + i, SeqSet::one(0), output && is_last);
        }
    }

    /// Records that the first `n` pending tokens were computed.
    fn entered(&mut self, n: usize) {
        self.n_entries += n;
        self.due.drain(..n);
        self.rows.drain(..n * self.n_embd);
    }

    /// Returns true if `n` more entries fit into the cache.
    fn has_space(&self, n: usize) -> bool {
        !self.context.is_limited() || self.n_entries + n <= self.context.n_ctx()
    }

    /// Decodes the pending tokens followed by `token`, whose entry is temporary.
    fn begin(&mut self, token: Token) -> Result<(), DecodeError> {
        let n = self.due.len();
        self.due.push(token);
        self.push_due(true);
        let decoded = self.context.decode_after(&self.batch, &self.rows);
        self.due.pop();
        decoded?;
        self.entered(n);
        Ok(())
    }

    /// Decodes a draft from the layer's own hidden state.
    fn go_on(&mut self, draft: Token) -> Result<(), DecodeError> {
        let hidden = self.batch.len().checked_sub(1).and_then(|i| self.context.hidden(i));
        self.row.clear();
        self.row.extend_from_slice(hidden.unwrap_or_default());
        self.batch.clear();
        self.batch.push(draft, self.context.n_past(0), SeqSet::one(0), true);
        self.context.decode_after(&self.batch, &self.row)
    }

    /// Returns the most likely next token, if its probability is high enough.
    fn next(&self) -> Option<Token> {
        most_likely(self.context.logits(self.batch.len().checked_sub(1)?)?)
    }
}

impl Drafter for Mtp {
    fn follow(&mut self, decoded: Decoded<'_>) -> Result<(), DecodeError> {
        if decoded.n_before != self.n_text || self.rows.is_empty() {
            self.forget();
        }
        for (i, &token) in decoded.tokens.iter().enumerate() {
            let Some(row) = decoded.context.hidden(decoded.first + i) else {
                self.forget();
                return Ok(());
            };
            if !self.rows.is_empty() {
                self.due.push(token);
            }
            self.rows.extend_from_slice(row);
            self.n_text = decoded.n_before + i + 1;
            if self.due.len() >= self.context.params().n_ubatch {
                self.catch_up()?;
            }
        }
        Ok(())
    }

    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError> {
        self.cut();
        let is_followed = self.n_text == text.len() && !self.rows.is_empty();
        if !is_followed || !self.has_space(self.due.len() + n) {
            return Ok(());
        }
        self.begin(token)?;
        for i in 0..n {
            let Some(next) = self.next() else { break };
            drafts.push(next);
            if i + 1 < n {
                self.go_on(next)?;
            }
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        false
    }
}
