//! Embeddings and reranking scores. Batches run in a separate context, which is created on the first request.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use engine::builder::Pooling;
use engine::context::{Context, ContextParams, MEDIA_TOKENS};
use engine::finite::check_finite;
use engine::model::{MediaUse, Model};
use llama::parts::{MAX_TEXTS, MediaPrompt, decode_texts, default_pooling, n_fitting, normalized};

use crate::api::{ApiError, ApiResult};
use crate::metrics::Metrics;

/// Maximum number of tokens in a batch of several inputs. The limit is low because running completions wait
/// for a batch.
const MAX_TOKENS: usize = 512;

/// Computes embeddings or reranking scores.
pub struct Embedder {
    model: Arc<Model>,
    params: ContextParams,
    /// Context of the model; locked during a computation.
    context: Mutex<Option<Context>>,
    exclusive: tokio::sync::Mutex<()>,
    /// Counters of the model.
    metrics: Arc<Metrics>,
}

impl Embedder {
    /// Creates an embedder without allocating its context. `params.n_batch` limits the length of an input in
    /// tokens. Computed tokens are added to `metrics`.
    pub fn new(model: Arc<Model>, params: ContextParams, metrics: Arc<Metrics>) -> Embedder {
        let n_batch = params.n_batch.min(model.base().n_ctx_train());
        let pooling = params.pooling.unwrap_or_else(|| default_pooling(&model));
        let embeds_media = model.arch().media_use == MediaUse::Causal && pooling != Pooling::Rank;
        let params = ContextParams {
            n_ctx: n_batch,
            n_batch,
            n_ubatch: n_batch,
            n_seq_max: MAX_TEXTS,
            pooling: Some(pooling),
            media_rows: if embeds_media { params.media_rows } else { 0 },
            ..params
        };
        Embedder {
            model,
            params,
            context: Mutex::default(),
            exclusive: tokio::sync::Mutex::default(),
            metrics,
        }
    }

    /// Returns the maximum number of tokens per input.
    pub fn n_max(&self) -> usize {
        self.params.n_batch
    }

    /// Waits for exclusive access. Call it before [`Embedder::embed`], which would otherwise block a thread
    /// per caller.
    pub async fn exclusive(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.exclusive.lock().await
    }

    /// Computes an embedding of length 1 for each input. Blocks until the batch is done.
    pub fn embed(&self, texts: &[MediaPrompt]) -> ApiResult<Vec<Vec<f32>>> {
        if self.params.pooling == Some(Pooling::None) {
            return Err(ApiError::invalid(
                "with --pooling none, each token has an embedding; POST /embedding returns them",
            ));
        }
        let vectors = self.vectors(texts)?;
        Ok(vectors.iter().flatten().map(|vector| normalized(vector)).collect())
    }

    /// Computes the vectors of each input: one, or one per token without pooling.
    pub fn vectors(&self, texts: &[MediaPrompt]) -> ApiResult<Vec<Vec<Vec<f32>>>> {
        if self.params.pooling == Some(Pooling::Rank) {
            return Err(ApiError::unsupported("this model does not produce embeddings"));
        }
        self.compute(texts, "input")
    }

    /// Returns true if each token has an embedding, because there is no pooling.
    pub fn is_per_token(&self) -> bool {
        self.params.pooling == Some(Pooling::None)
    }

    /// Computes a relevance score for each input, a query joined with a document. Needs a reranking model.
    pub fn rank(&self, texts: &[MediaPrompt]) -> ApiResult<Vec<f32>> {
        let vectors = self.compute(texts, "documents")?;
        let scores = vectors.iter().flatten().filter_map(|vector| vector.first().copied());
        Ok(scores.collect())
    }

    /// Computes the output of each input, pooled or per token. `name` is the request field reported in errors.
    fn compute(&self, texts: &[MediaPrompt], name: &str) -> ApiResult<Vec<Vec<Vec<f32>>>> {
        self.check(texts, name)?;
        let mut slot = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |e: &dyn std::fmt::Display| ApiError::server(format!("cannot compute embeddings: {e}"));
        if slot.is_none() {
            let made = Context::new(self.model.clone(), &self.params);
            // Creating the context fails only if the model lacks the requested pooling.
            let refused =
                |e| ApiError::unsupported(format!("this model does not support embeddings or reranking: {e}"));
            *slot = Some(made.map_err(refused)?);
        }
        let Some(context) = slot.as_mut() else {
            return Ok(Vec::new());
        };
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(n_fitting(rest, self.n_max().min(MAX_TOKENS)));
            let start = Instant::now();
            decode_texts(context, now).map_err(|e| failed(&e))?;
            self.metrics.n_decode.add(1);
            self.metrics
                .n_prompt
                .add(now.iter().map(|text| text.tokens.len()).sum());
            self.metrics.t_prompt.add_time(start.elapsed());
            if let Some(rejected) = context.rejected().first() {
                return Err(failed(&rejected.error));
            }
            let mut first = 0;
            for (seq, text) in now.iter().enumerate() {
                let rows = first..first + text.tokens.len();
                first = rows.end;
                let of_text: Vec<&[f32]> = if self.is_per_token() {
                    rows.filter_map(|row| context.logits(row)).collect()
                } else {
                    context.embedding(seq).into_iter().collect()
                };
                for vector in &of_text {
                    check_finite(vector).map_err(|e| failed(&e))?;
                }
                vectors.push(of_text.into_iter().map(<[f32]>::to_vec).collect());
            }
            rest = later;
        }
        Ok(vectors)
    }

    /// Checks the lengths and tokens of inputs. `name` is the request field reported in errors.
    ///
    /// # Errors
    /// Returns status 400 if an input is empty or too long, or has unknown tokens.
    pub fn check(&self, texts: &[MediaPrompt], name: &str) -> ApiResult<()> {
        let (n_max, n_vocab) = (self.n_max(), self.model.base().n_vocab());
        for (i, MediaPrompt { tokens: text, media }) in texts.iter().enumerate() {
            if !media.is_empty() && self.params.media_rows == 0 {
                let arch = self.model.arch().name;
                let why = format_args!("input {i} has images or audio, which {arch} models cannot embed");
                return Err(ApiError::field(name, why));
            }
            if text.is_empty() {
                return Err(ApiError::field(name, format_args!("input {i} is empty")));
            }
            if text.len() > n_max {
                let n = text.len();
                let remedy = if n <= self.model.base().n_ctx_train() {
                    "; serve the model with a larger batch (-b)"
                } else {
                    ""
                };
                let mut error = ApiError::field(
                    name,
                    format_args!("input {i} is too large: {n} tokens, at most {n_max}{remedy}"),
                );
                error.code = Some("context_length_exceeded");
                return Err(error);
            }
            // Larger ids belong to media rows in the request.
            let mut tokens = text.iter().filter(|token| media.is_empty() || **token < MEDIA_TOKENS);
            if let Some(token) = tokens.find(|&&token| token as usize >= n_vocab) {
                return Err(ApiError::field(
                    name,
                    format_args!("input {i} contains token {token}, but the vocabulary has {n_vocab} tokens"),
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ::tests::{exact, model};

    use super::*;

    #[test]
    fn embeddings_are_normalized_and_independent_of_batch() {
        let metrics: Arc<Metrics> = Arc::default();
        let embedder = Embedder::new(model("llama-dense"), exact().context, metrics.clone());
        let texts: Vec<MediaPrompt> = (1..70_u32)
            .map(|n| (0..n % 9 + 1).map(|i| (i * n) % 128).collect::<Vec<_>>().into())
            .collect();
        let vectors = embedder.embed(&texts).unwrap();
        assert_eq!(vectors.len(), 69);
        let n_tokens: usize = texts.iter().map(|text| text.tokens.len()).sum();
        assert_eq!(
            (metrics.n_prompt.get(), metrics.n_generated.get()),
            (n_tokens as u64, 0)
        );
        assert!(metrics.n_decode.get() > 0);
        for (text, vector) in texts.iter().zip(&vectors).step_by(10) {
            let length: f32 = vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            let alone = embedder.embed(std::slice::from_ref(text)).unwrap().remove(0);
            assert!(alone.iter().zip(vector).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn invalid_inputs_are_rejected_by_index() {
        let embedder = Embedder::new(model("llama-dense"), exact().context, Arc::default());
        let too_long = vec![1; embedder.n_max() + 1];
        for text in [vec![], vec![128], too_long] {
            let error = embedder.embed(&[vec![1].into(), text.into()]).unwrap_err();
            assert!(error.message.contains("input 1"), "{}", error.message);
        }
    }
}
