//! Drafts by a smaller model with the same vocabulary.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Drafter, MAX_DRAFTS, most_likely};
use crate::context::{Batch, Context, ContextError, ContextParams, DecodeError};
use crate::model::Model;
use crate::vocab::Token;

/// Drafter that proposes the most likely tokens of a smaller model for one sequence. Several drafters may
/// share a context.
pub struct DraftModel {
    shared: Arc<Mutex<Shared>>,
    /// Sequence id in the shared context.
    seq: usize,
}

/// Context of the draft model and its cached tokens.
struct Shared {
    context: Context,
    /// Cached tokens of each sequence.
    cached: Vec<Vec<Token>>,
    batch: Batch,
}

/// Error while creating a [`DraftModel`].
#[derive(Debug, thiserror::Error)]
pub enum DraftModelError {
    /// The vocabularies differ.
    #[error("the draft model's vocabulary differs: {difference}")]
    Vocabulary {
        /// Description of the first difference.
        difference: String,
    },
    /// The model cannot generate tokens incrementally.
    #[error("architecture {arch} cannot be used as a draft model: it does not generate tokens incrementally")]
    NoDecoder {
        /// Name of the architecture.
        arch: &'static str,
    },
    /// Creating the context failed.
    #[error(transparent)]
    Context(#[from] ContextError),
}

impl DraftModel {
    /// Creates a drafter with a context of the same size and number of threads as `target`.
    ///
    /// # Errors
    /// Returns an error if the vocabularies differ, if the model cannot generate tokens, or if the context cannot be
    /// created.
    pub fn new(model: Arc<Model>, target: &Context) -> Result<DraftModel, DraftModelError> {
        let shared = Shared::new(model, target, 1)?;
        Ok(DraftModel {
            shared: Arc::new(Mutex::new(shared)),
            seq: 0,
        })
    }

    /// Like [`DraftModel::new`], but creates `n` drafters that share a context.
    ///
    /// # Errors
    /// Returns a [`DraftModelError`] under the conditions of [`DraftModel::new`].
    pub fn several(model: Arc<Model>, target: &Context, n: usize) -> Result<Vec<DraftModel>, DraftModelError> {
        let shared = Arc::new(Mutex::new(Shared::new(model, target, n)?));
        let of = |seq| DraftModel {
            shared: shared.clone(),
            seq,
        };
        Ok((0..n).map(of).collect())
    }
}

impl Shared {
    fn new(model: Arc<Model>, target: &Context, n: usize) -> Result<Shared, DraftModelError> {
        if model.bidirectional() || model.arch().encoder {
            return Err(DraftModelError::NoDecoder {
                arch: model.arch().name,
            });
        }
        check_vocabulary(&model, target.model())?;
        let params = target.params();
        let params = ContextParams {
            n_ctx: target.n_ctx(),
            n_batch: params.n_batch,
            n_ubatch: params.n_ubatch,
            n_seq_max: n,
            n_rollback: MAX_DRAFTS,
            n_outputs_max: 1,
            n_threads: params.n_threads,
            n_threads_batch: params.n_threads_batch,
            thread_pool: params.thread_pool.clone(),
            type_k: params.type_k,
            type_v: params.type_v,
            precision: params.precision,
            ..ContextParams::default()
        };
        Ok(Shared {
            cached: (0..n).map(|_| Vec::with_capacity(target.n_ctx())).collect(),
            context: Context::new(model, &params)?,
            batch: Batch::new(),
        })
    }

    /// Clears the cache of a sequence.
    fn forget(&mut self, seq: usize) {
        let removed = self.context.seq_rm(seq, ..);
        debug_assert!(
            removed.is_ok(),
            "removing a whole sequence always succeeds: {removed:?}"
        );
        self.cached[seq].clear();
    }

    /// Truncates the cache of a sequence to the common prefix with `text`.
    fn cut(&mut self, seq: usize, text: &[Token]) {
        let cached = &mut self.cached[seq];
        let common = cached.iter().zip(text).take_while(|(a, b)| a == b).count();
        cached.truncate(common);
        if self.context.n_past(seq) > common && self.context.seq_rm(seq, common..).is_err() {
            // Sliding windows and recurrent states cannot be truncated that far.
            self.forget(seq);
        }
    }

    /// Returns true if a sequence can grow to `n` tokens. Evicts other sequences if necessary; they recompute
    /// their cache later.
    fn reserve(&mut self, seq: usize, n: usize) -> bool {
        if !self.context.is_limited() {
            return true;
        }
        let (n_ctx, n_more) = (self.context.n_ctx(), n.saturating_sub(self.cached[seq].len()));
        if n > n_ctx {
            return false;
        }
        let others = (0..self.cached.len()).filter(|&other| other != seq);
        for other in others {
            if self.context.n_used() + n_more <= n_ctx {
                break;
            }
            if !self.cached[other].is_empty() {
                self.forget(other);
            }
        }
        self.context.n_used() + n_more <= n_ctx
    }

    /// Extends the cache to `text` and decodes `token` last.
    fn follow(&mut self, seq: usize, text: &[Token], token: Token) -> Result<(), DecodeError> {
        let n_batch = self.context.params().n_batch;
        while self.cached[seq].len() < text.len() {
            let from = self.cached[seq].len();
            let to = text.len().min(from + n_batch);
            self.decode(seq, &text[from..to])?;
        }
        self.decode(seq, &[token])
    }

    fn decode(&mut self, seq: usize, tokens: &[Token]) -> Result<(), DecodeError> {
        self.batch.clear();
        self.batch.push_prompt(tokens, self.cached[seq].len(), seq);
        self.context.decode(&self.batch)?;
        self.cached[seq].extend_from_slice(tokens);
        Ok(())
    }

    /// Returns the most likely next token, if its probability is high enough.
    fn next(&self) -> Option<Token> {
        most_likely(self.context.logits(self.batch.len().checked_sub(1)?)?)
    }
}

impl Drafter for DraftModel {
    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError> {
        let (seq, mut shared) = (self.seq, self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        shared.cut(seq, text);
        if !shared.reserve(seq, text.len() + 1 + n) {
            return Ok(());
        }
        shared.follow(seq, text, token)?;
        for i in 0..n {
            let Some(next) = shared.next() else { break };
            drafts.push(next);
            if i + 1 < n {
                shared.decode(seq, &[next])?;
            }
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        false
    }
}

/// Checks that the two models' token ids have the same meaning.
fn check_vocabulary(draft: &Model, target: &Model) -> Result<(), DraftModelError> {
    let different = |difference: String| Err(DraftModelError::Vocabulary { difference });
    let (a, b) = (draft.vocab(), target.vocab());
    if a.n_tokens() != b.n_tokens() {
        return different(format!("found {} tokens, expected {}", a.n_tokens(), b.n_tokens()));
    }
    let differs = |&token: &Token| a.token_to_piece(token, true) != b.token_to_piece(token, true);
    match (0..a.n_tokens()).find(differs) {
        Some(token) => {
            let piece = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (a, b) = (
                piece(a.token_to_piece(token, true)),
                piece(b.token_to_piece(token, true)),
            );
            different(format!("token {token} is {a:?}, expected {b:?}"))
        }
        None => Ok(()),
    }
}
