//! Embeddings of texts.

use std::sync::{Arc, PoisonError};

use engine::builder::Pooling;
use engine::context::{Batch, Context, ContextParams, DecodeError, MediaRows};
use engine::finite::check_finite;
use engine::sample::Token;

use crate::images::{image_spans, push_with_images};
use crate::{Error, Model, Result};

/// Maximum number of texts per batch.
pub const MAX_TEXTS: usize = 64;
/// Minimum capacity of a batch in tokens.
const MIN_BATCH: usize = 512;

/// Returns the pooling that the model file specifies. Otherwise, an encoder uses the mean. A causal model
/// uses the last token, which is the only token that attends to the whole text.
pub fn default_pooling(model: &engine::model::Model) -> Pooling {
    let suitable = if model.bidirectional() {
        Pooling::Mean
    } else {
        Pooling::Last
    };
    model.base().pooling.unwrap_or(suitable)
}

/// Tokens of a prompt, and the media whose rows are among the tokens.
#[derive(Clone, Debug, Default)]
pub struct MediaPrompt {
    /// Tokens. Rows of media have ids beyond the vocabulary.
    pub tokens: Vec<Token>,
    /// Media in any order.
    pub media: Vec<Arc<MediaRows>>,
}

impl From<Vec<Token>> for MediaPrompt {
    /// Creates a prompt without media.
    fn from(tokens: Vec<Token>) -> MediaPrompt {
        let media = Vec::new();
        MediaPrompt { tokens, media }
    }
}

/// Returns how many of the next texts fit into a batch of `n_batch` tokens; at least one.
pub fn n_fitting(texts: &[MediaPrompt], n_batch: usize) -> usize {
    let mut n_tokens = 0;
    let fitting = texts.iter().take(MAX_TEXTS).take_while(|text| {
        n_tokens += text.tokens.len();
        n_tokens <= n_batch
    });
    fitting.count().max(1)
}

/// Decodes one batch with a sequence per text. The pooled vectors are then available from
/// [`Context::embedding`] by the index of the text.
///
/// # Errors
/// Returns a [`DecodeError`] if nothing could be decoded. Rejected texts are in [`Context::rejected`].
pub fn decode_texts(context: &mut Context, texts: &[MediaPrompt]) -> Result<(), DecodeError> {
    let mut batch = Batch::new();
    for (seq, text) in texts.iter().enumerate() {
        let spans = image_spans(&text.tokens, &text.media);
        push_with_images(&mut batch, &text.tokens, 0..text.tokens.len(), &spans, seq);
    }
    batch.request_all();
    context.clear();
    context.decode(&batch)
}

/// Scales a vector to length 1. A zero vector stays zero.
pub fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
    vector.iter().map(|&x| (f64::from(x) * scale) as f32).collect()
}

impl Model {
    /// Computes an embedding for each text: a vector of length 1, whose dot product with another embedding is
    /// the similarity of the texts.
    ///
    /// The vectors are pooled as the model file specifies. If the file does not specify pooling, an encoder uses the
    /// mean of the tokens, and a causal model the last token. Only the last token attends to the whole text.
    ///
    /// # Errors
    /// Returns an [`Error`] if a text is empty or too long, or if the model does not support embeddings.
    pub fn embed<S: AsRef<str>>(&self, texts: &[S]) -> Result<Vec<Vec<f32>>> {
        let pooling = default_pooling(self.engine());
        if matches!(pooling, Pooling::None | Pooling::Rank) {
            return Err(Error::NoEmbeddings);
        }
        let n_max = self.engine().base().n_ctx_train();
        let mut inputs = Vec::with_capacity(texts.len());
        for (index, text) in texts.iter().enumerate() {
            let tokens = self.engine().vocab().tokenize(text.as_ref(), true, true);
            let n_tokens = tokens.len();
            match n_tokens {
                0 => return Err(Error::EmptyText { index }),
                n if n > n_max => return Err(Error::TextTooLong { index, n_tokens, n_max }),
                _ => inputs.push(MediaPrompt::from(tokens)),
            }
        }
        let longest = inputs.iter().map(|input| input.tokens.len()).max().unwrap_or(0);
        let mut cached = self.embedding_context().lock().unwrap_or_else(PoisonError::into_inner);
        let mut context = match cached.take() {
            Some(context) if context.params().n_batch >= longest => context,
            _ => embedding_context(self, pooling, longest.next_power_of_two().max(MIN_BATCH).min(n_max))?,
        };
        let vectors = vectors(&mut context, &inputs);
        *cached = Some(context);
        vectors
    }
}

/// Creates a context for batches of `n_batch` tokens.
fn embedding_context(model: &Model, pooling: Pooling, n_batch: usize) -> Result<Context> {
    let params = ContextParams {
        n_ctx: n_batch,
        n_batch,
        n_ubatch: n_batch,
        n_seq_max: MAX_TEXTS,
        pooling: Some(pooling),
        media_rows: 0,
        ..model.context_params().clone()
    };
    let mut context = Context::new(model.engine().clone(), &params)?;
    model.adapt(&mut context)?;
    Ok(context)
}

/// Computes an embedding of length 1 for each text.
fn vectors(context: &mut Context, inputs: &[MediaPrompt]) -> Result<Vec<Vec<f32>>> {
    let n_batch = context.params().n_batch;
    let mut vectors = Vec::with_capacity(inputs.len());
    let mut rest = inputs;
    while !rest.is_empty() {
        let (now, later) = rest.split_at(n_fitting(rest, n_batch));
        decode_texts(context, now)?;
        if let Some(rejected) = context.rejected().first() {
            let reason = rejected.error.to_string();
            return Err(Error::Embedding { reason });
        }
        for seq in 0..now.len() {
            let vector = context.embedding(seq).ok_or(Error::NoEmbeddings)?;
            check_finite(vector).map_err(|e| Error::Embedding { reason: e.to_string() })?;
            vectors.push(normalized(vector));
        }
        rest = later;
    }
    Ok(vectors)
}
