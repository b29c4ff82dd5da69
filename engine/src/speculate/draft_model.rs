//! Drafts by a smaller model with the same vocabulary.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Drafter, MAX_DRAFTS, most_likely};
use crate::context::{Batch, Context, ContextError, ContextParams, DecodeError};
use crate::model::Model;
use crate::vocab::Token;

/// A model whose most likely tokens are the drafts of one text. Several of them may share a context.
pub struct DraftModel {
    shared: Arc<Mutex<Shared>>,
    /// Its sequence there.
    seq: usize,
}

/// A context, and what its memory holds.
struct Shared {
    context: Context,
    /// By sequence.
    held: Vec<Vec<Token>>,
    batch: Batch,
}

/// Why a model cannot draft for another.
#[derive(Debug, thiserror::Error)]
pub enum DraftModelError {
    /// Tokens mean different things.
    #[error("its vocabulary is another one: {difference}")]
    Vocabulary {
        /// Where they differ.
        difference: String,
    },
    /// It computes texts whole.
    #[error("{arch} does not generate tokens one by one")]
    NoDecoder {
        /// The architecture.
        arch: &'static str,
    },
    /// There can be no context.
    #[error(transparent)]
    Context(#[from] ContextError),
}

impl DraftModel {
    /// A context for `model` beside that of `target`, with the same size and threads.
    pub fn new(model: Arc<Model>, target: &Context) -> Result<DraftModel, DraftModelError> {
        let shared = Shared::new(model, target, 1)?;
        Ok(DraftModel {
            shared: Arc::new(Mutex::new(shared)),
            seq: 0,
        })
    }

    /// The same for `n` texts, which share the context.
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
            held: (0..n).map(|_| Vec::with_capacity(target.n_ctx())).collect(),
            context: Context::new(model, &params)?,
            batch: Batch::new(),
        })
    }

    /// Forgets what a sequence holds.
    fn forget(&mut self, seq: usize) {
        let removed = self.context.seq_rm(seq, ..);
        debug_assert!(removed.is_ok(), "a whole sequence can always go: {removed:?}");
        self.held[seq].clear();
    }

    /// Makes a sequence hold what it has in common with a text, and nothing else.
    fn cut(&mut self, seq: usize, text: &[Token]) {
        let held = &mut self.held[seq];
        let common = held.iter().zip(text).take_while(|(a, b)| a == b).count();
        held.truncate(common);
        if self.context.n_past(seq) > common && self.context.seq_rm(seq, common..).is_err() {
            // Windows and recurrent states do not reach back so far.
            self.forget(seq);
        }
    }

    /// Whether a sequence can have so many tokens. What others hold goes for it: they compute theirs anew.
    fn has_room(&mut self, seq: usize, n: usize) -> bool {
        if !self.context.is_limited() {
            return true;
        }
        let (n_ctx, n_more) = (self.context.n_ctx(), n.saturating_sub(self.held[seq].len()));
        if n > n_ctx {
            return false;
        }
        let others = (0..self.held.len()).filter(|&other| other != seq);
        for other in others {
            if self.context.n_used() + n_more <= n_ctx {
                break;
            }
            if !self.held[other].is_empty() {
                self.forget(other);
            }
        }
        self.context.n_used() + n_more <= n_ctx
    }

    /// Makes the memory hold a text, its last token computed last.
    fn follow(&mut self, seq: usize, text: &[Token], token: Token) -> Result<(), DecodeError> {
        let n_batch = self.context.params().n_batch;
        while self.held[seq].len() < text.len() {
            let from = self.held[seq].len();
            let to = text.len().min(from + n_batch);
            self.decode(seq, &text[from..to])?;
        }
        self.decode(seq, &[token])
    }

    fn decode(&mut self, seq: usize, tokens: &[Token]) -> Result<(), DecodeError> {
        self.batch.clear();
        self.batch.push_prompt(tokens, self.held[seq].len(), seq);
        self.context.decode(&self.batch)?;
        self.held[seq].extend_from_slice(tokens);
        Ok(())
    }

    /// The most likely next token, if it is likely enough.
    fn next(&self) -> Option<Token> {
        most_likely(self.context.logits(self.batch.len().checked_sub(1)?)?)
    }
}

impl Drafter for DraftModel {
    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError> {
        let (seq, mut shared) = (self.seq, self.shared.lock().unwrap_or_else(PoisonError::into_inner));
        shared.cut(seq, text);
        if !shared.has_room(seq, text.len() + 1 + n) {
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

/// Drafts are numbers of tokens: the numbers must mean the same.
fn check_vocabulary(draft: &Model, target: &Model) -> Result<(), DraftModelError> {
    let different = |difference: String| Err(DraftModelError::Vocabulary { difference });
    let (a, b) = (draft.vocab(), target.vocab());
    if a.n_tokens() != b.n_tokens() {
        return different(format!("{} tokens instead of {}", a.n_tokens(), b.n_tokens()));
    }
    let differs = |&token: &Token| a.token_to_piece(token, true) != b.token_to_piece(token, true);
    match (0..a.n_tokens()).find(differs) {
        Some(token) => {
            let piece = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let (a, b) = (
                piece(a.token_to_piece(token, true)),
                piece(b.token_to_piece(token, true)),
            );
            different(format!("token {token} is {a:?} instead of {b:?}"))
        }
        None => Ok(()),
    }
}
