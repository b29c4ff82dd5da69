//! Drafts by a smaller model with the same vocabulary.

use std::sync::Arc;

use super::{Drafter, MAX_DRAFTS, most_likely};
use crate::context::{Batch, Context, ContextError, ContextParams, DecodeError};
use crate::model::Model;
use crate::vocab::Token;

/// A model whose most likely tokens are the drafts.
pub struct DraftModel {
    context: Context,
    /// What its memory holds.
    held: Vec<Token>,
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
            n_rollback: MAX_DRAFTS,
            n_threads: params.n_threads,
            n_threads_batch: params.n_threads_batch,
            thread_pool: params.thread_pool.clone(),
            type_k: params.type_k,
            type_v: params.type_v,
            precision: params.precision,
            ..ContextParams::default()
        };
        Ok(DraftModel {
            held: Vec::with_capacity(target.n_ctx()),
            context: Context::new(model, &params)?,
            batch: Batch::new(),
        })
    }

    /// Makes the memory hold a text and nothing else, its last token computed last.
    fn follow(&mut self, text: &[Token], token: Token) -> Result<(), DecodeError> {
        let common = self.held.iter().zip(text).take_while(|(a, b)| a == b).count();
        self.held.truncate(common);
        if self.context.n_past(0) > common && self.context.seq_rm(0, common..).is_err() {
            // Windows and recurrent states do not reach back so far.
            self.context.clear();
            self.held.clear();
        }
        let n_batch = self.context.params().n_batch;
        while self.held.len() < text.len() {
            let from = self.held.len();
            let to = text.len().min(from + n_batch);
            self.decode(&text[from..to])?;
        }
        self.decode(&[token])
    }

    fn decode(&mut self, tokens: &[Token]) -> Result<(), DecodeError> {
        self.batch.clear();
        self.batch.push_prompt(tokens, self.held.len(), 0);
        self.context.decode(&self.batch)?;
        self.held.extend_from_slice(tokens);
        Ok(())
    }

    /// The most likely next token, if it is likely enough.
    fn next(&self) -> Option<Token> {
        most_likely(self.context.logits(self.batch.len().checked_sub(1)?)?)
    }
}

impl Drafter for DraftModel {
    fn draft(&mut self, text: &[Token], token: Token, n: usize, drafts: &mut Vec<Token>) -> Result<(), DecodeError> {
        if self.context.is_limited() && text.len() + 1 + n > self.context.n_ctx() {
            return Ok(());
        }
        self.follow(text, token)?;
        for i in 0..n {
            let Some(next) = self.next() else { break };
            drafts.push(next);
            if i + 1 < n {
                self.decode(&[next])?;
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
