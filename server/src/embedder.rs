//! Texts to vectors, many at once, in a context of their own that is made when the first ones come.

use std::sync::{Arc, Mutex, PoisonError};

use engine::builder::Pooling;
use engine::context::{Batch, Context, ContextParams, SeqSet};
use engine::model::Model;
use engine::sample::Token;
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields};
use crate::http::{App, Shared, blocking};
use crate::served::Served;

/// Most texts computed at once.
const MAX_TEXTS: usize = 64;
/// Most tokens of several texts computed at once: answers under way wait for them.
const MAX_TOKENS: usize = 512;

/// Makes vectors.
pub struct Embedder {
    model: Arc<Model>,
    params: ContextParams,
    /// One caller at a time computes.
    context: Mutex<Option<Context>>,
    turn: tokio::sync::Mutex<()>,
}

impl Embedder {
    /// Nothing is computed or reserved yet. `params`: how the context is made, of which `n_batch` is the longest text.
    pub fn new(model: Arc<Model>, params: ContextParams) -> Embedder {
        let n_batch = params.n_batch.min(model.base().n_ctx_train());
        let pooling = params
            .pooling
            .or(model.base().pooling)
            .unwrap_or(match model.bidirectional() {
                true => Pooling::Mean,
                // What a causal model knows of a text stands in its last token.
                false => Pooling::Last,
            });
        let params = ContextParams {
            n_ctx: n_batch,
            n_batch,
            n_ubatch: n_batch,
            n_seq_max: MAX_TEXTS,
            pooling: Some(pooling),
            ..params
        };
        Embedder {
            model,
            params,
            context: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Most tokens of a text.
    pub fn n_max(&self) -> usize {
        self.params.n_batch
    }

    /// Waits for a turn to [`Embedder::embed`]: callers who do not would each keep a thread waiting.
    pub async fn turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// A vector of length one for each text. Takes as long as computing does.
    pub fn embed(&self, texts: &[Vec<Token>]) -> ApiResult<Vec<Vec<f32>>> {
        if matches!(self.params.pooling, Some(Pooling::None | Pooling::Rank)) {
            return Err(ApiError::unsupported("this model does not make one vector of a text"));
        }
        let vectors = self.compute(texts, "input")?;
        Ok(vectors.iter().map(|vector| normalized(vector)).collect())
    }

    /// How well each text, a question and a document together, was rated by a classifier.
    pub fn rank(&self, texts: &[Vec<Token>]) -> ApiResult<Vec<f32>> {
        let vectors = self.compute(texts, "documents")?;
        Ok(vectors.iter().filter_map(|vector| vector.first().copied()).collect())
    }

    /// What the model makes of each text. `name`: the field that they are from.
    fn compute(&self, texts: &[Vec<Token>], name: &str) -> ApiResult<Vec<Vec<f32>>> {
        self.check(texts, name)?;
        let mut place = self.context.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = |e: &dyn std::fmt::Display| ApiError::server(format!("the texts could not be computed: {e}"));
        if place.is_none() {
            let made = Context::new(self.model.clone(), &self.params);
            // The one thing that a model may lack for it.
            let refused = |e| ApiError::unsupported(format!("this model does not make that of texts: {e}"));
            *place = Some(made.map_err(refused)?);
        }
        let Some(context) = place.as_mut() else {
            return Ok(Vec::new());
        };
        let mut vectors = Vec::with_capacity(texts.len());
        let mut rest = texts;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(n_fitting(rest, self.n_max().min(MAX_TOKENS)));
            let mut batch = Batch::new();
            for (seq, text) in now.iter().enumerate() {
                for (pos, &token) in text.iter().enumerate() {
                    batch.push(token, pos, SeqSet::one(seq), true);
                }
            }
            context.clear();
            context.decode(&batch).map_err(|e| failed(&e))?;
            if let Some(rejected) = context.rejected().first() {
                return Err(failed(&rejected.error));
            }
            vectors.extend(
                (0..now.len())
                    .filter_map(|seq| context.embedding(seq))
                    .map(<[f32]>::to_vec),
            );
            rest = later;
        }
        Ok(vectors)
    }

    fn check(&self, texts: &[Vec<Token>], name: &str) -> ApiResult<()> {
        let (n_max, n_vocab) = (self.n_max(), self.model.base().n_vocab());
        for (i, text) in texts.iter().enumerate() {
            if text.is_empty() {
                return Err(ApiError::field(name, format_args!("text {i} has no tokens")));
            }
            if text.len() > n_max {
                let n = text.len();
                let mut error = ApiError::field(
                    name,
                    format_args!("text {i} has {n} tokens, the model takes at most {n_max}"),
                );
                error.code = Some("context_length_exceeded");
                return Err(error);
            }
            if let Some(token) = text.iter().find(|&&token| token as usize >= n_vocab) {
                return Err(ApiError::field(
                    name,
                    format_args!("text {i} has the token {token}, the vocabulary has {n_vocab}"),
                ));
            }
        }
        Ok(())
    }
}

/// How many of the next texts fit into a batch; at least one.
fn n_fitting(texts: &[Vec<Token>], n_batch: usize) -> usize {
    let mut n_tokens = 0;
    let fitting = texts.iter().take(MAX_TEXTS).take_while(|text| {
        n_tokens += text.len();
        n_tokens <= n_batch
    });
    fitting.count().max(1)
}

/// The vector divided by its length. One of zeros stays one.
fn normalized(vector: &[f32]) -> Vec<f32> {
    let length = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 1.0 };
    vector.iter().map(|&x| (f64::from(x) * scale) as f32).collect()
}

/// Answers a request when it is its turn: `which` embedder has to be waited for, `known` are the fields.
pub async fn in_turn(
    app: Shared,
    which: fn(&Served) -> &Embedder,
    body: Map<String, Json>,
    known: &'static [Field],
    answer: fn(&App, Fields) -> ApiResult,
) -> ApiResult {
    let of_app = app.clone();
    let _turn = which(&of_app.served).turn().await;
    blocking(move || answer(&app, Fields::new(body, &[known], false)?)).await
}

/// How many tokens were taken, where none are answered.
pub fn usage_of_prompts(prompts: &[Vec<Token>]) -> Json {
    let n: usize = prompts.iter().map(Vec::len).sum();
    json!({ "prompt_tokens": n, "total_tokens": n })
}

#[cfg(test)]
mod tests {
    use ::tests::{exact, model};

    use super::*;

    #[test]
    fn vectors_have_the_length_one_and_are_the_same_in_any_company() {
        let embedder = Embedder::new(model("llama-dense"), exact().context);
        let texts: Vec<Vec<Token>> = (1..70)
            .map(|n| (0..n % 9 + 1).map(|i| (i * n) % 128).collect())
            .collect();
        let vectors = embedder.embed(&texts).unwrap();
        assert_eq!(vectors.len(), 69);
        for (text, vector) in texts.iter().zip(&vectors).step_by(10) {
            let length: f32 = vector.iter().map(|x| x * x).sum();
            assert!((length - 1.0).abs() < 1e-5, "{length}");
            let alone = embedder.embed(std::slice::from_ref(text)).unwrap().remove(0);
            assert!(alone.iter().zip(vector).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn texts_that_cannot_be_are_named() {
        let embedder = Embedder::new(model("llama-dense"), exact().context);
        let too_long = vec![1; embedder.n_max() + 1];
        for text in [vec![], vec![128], too_long] {
            let error = embedder.embed(&[vec![1], text]).unwrap_err();
            assert!(error.message.contains("text 1"), "{}", error.message);
        }
    }
}
