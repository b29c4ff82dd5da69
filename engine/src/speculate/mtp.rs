//! Drafts by a model's own layer of multi-token prediction (MTP, arXiv 2412.19437): from a token and the model's hidden row before it, the layer
//! guesses the token after, and from that and its own hidden row the next ones.

use super::{Decoded, Drafter, MAX_DRAFTS, most_likely};
use crate::context::{Batch, Context, ContextError, ContextParams, DecodeError, SeqSet};
use crate::vocab::Token;

/// A layer at work behind the text of one sequence.
///
/// Its memory has an entry for each token of the text but the first: the token with the hidden row before it. Entries are made of tokens that
/// the model has decoded, a ubatch at a time at the latest, and of drafts, which are taken out again.
pub struct Mtp {
    /// Runs the layer. It counts positions from the first entry.
    context: Context,
    n_embd: usize,
    /// Entries of tokens of the text in the memory; drafts may lie behind them.
    n_entries: usize,
    /// Tokens of the text that entries are due for.
    due: Vec<Token>,
    /// The hidden row before each of these, and the one behind the last, `[due + 1, n_embd]`; empty where no text is followed.
    rows: Vec<f32>,
    /// Tokens of the text that were followed.
    n_text: usize,
    /// The layer's own hidden row behind the latest draft.
    row: Vec<f32>,
    batch: Batch,
}

/// Why a model cannot draft for itself.
#[derive(Debug, thiserror::Error)]
pub enum MtpError {
    /// The architecture's file does not say what such layers compute.
    #[error("it is not declared what layers of multi-token prediction compute in {arch}")]
    Undeclared {
        /// The architecture.
        arch: &'static str,
    },
    /// The file has none.
    #[error("the file has no layers of multi-token prediction (`nextn_predict_layers`)")]
    NoLayer,
    /// It has some, and none was loaded.
    #[error("the model was loaded without its layers of multi-token prediction")]
    NotLoaded,
    /// The model's context does not keep them.
    #[error("the context keeps no hidden rows")]
    NoHiddenRows,
    /// There can be no context.
    #[error(transparent)]
    Context(#[from] ContextError),
}

impl Mtp {
    /// A context for the layer beside that of its model, with the same size and threads.
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

    /// Forgets the text.
    fn forget(&mut self) {
        self.context.clear();
        self.n_entries = 0;
        self.due.clear();
        self.rows.clear();
        self.n_text = 0;
    }

    /// Takes drafts out of the memory.
    fn cut(&mut self) {
        let is_cut = self.context.n_past(0) <= self.n_entries || self.context.seq_rm(0, self.n_entries..).is_ok();
        if !is_cut {
            self.forget();
        }
    }

    /// Makes the entries that are due.
    fn catch_up(&mut self) -> Result<(), DecodeError> {
        self.cut();
        let n = self.due.len();
        if n == 0 || !self.has_room(n) {
            return Ok(());
        }
        self.push_due(false);
        self.context.decode_after(&self.batch, &self.rows[..n * self.n_embd])?;
        self.entered(n);
        Ok(())
    }

    /// A batch of the tokens that entries are due for; whether the last wants an output.
    fn push_due(&mut self, output: bool) {
        self.batch.clear();
        for (i, &token) in self.due.iter().enumerate() {
            let is_last = i + 1 == self.due.len();
            self.batch
                .push(token, self.n_entries + i, SeqSet::one(0), output && is_last);
        }
    }

    /// The first `n` entries due are made.
    fn entered(&mut self, n: usize) {
        self.n_entries += n;
        self.due.drain(..n);
        self.rows.drain(..n * self.n_embd);
    }

    /// Whether so many more entries fit into the memory.
    fn has_room(&self, n: usize) -> bool {
        !self.context.is_limited() || self.n_entries + n <= self.context.n_ctx()
    }

    /// Computes what is due and then `token`, which is no entry yet.
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

    /// Computes the layer behind its own hidden row.
    fn go_on(&mut self, draft: Token) -> Result<(), DecodeError> {
        let hidden = self.batch.len().checked_sub(1).and_then(|i| self.context.hidden(i));
        self.row.clear();
        self.row.extend_from_slice(hidden.unwrap_or_default());
        self.batch.clear();
        self.batch.push(draft, self.context.n_past(0), SeqSet::one(0), true);
        self.context.decode_after(&self.batch, &self.row)
    }

    /// The most likely next token, if it is likely enough.
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
        if !is_followed || !self.has_room(self.due.len() + n) {
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
