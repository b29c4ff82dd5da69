//! llama-server's `/embedding`.

use axum::Extension;
use axum::extract::State;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields};
use crate::app::{App, Shared};
use crate::encoding::read_encoded;
use crate::http::{Body, Client, blocking, json};
use crate::openai::{self, MAX_TEXTS, Prompts, prompt_list};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any(
        "content",
        "String, list of strings, list of tokens, list of token lists, or objects as in `/v1/embeddings`.",
    ),
    Field::any("input", "Alias of `content`."),
    Field::integer(
        "embd_normalize",
        "Normalization: -1 none, 0 to the largest value 32760, 1 by the sum of absolute values, 2 Euclidean, more: the norm of this order (2).",
    ),
    Field::ignored("model", "Ignored."),
];

/// Maximum order of a norm.
const MAX_ORDER: i64 = 64;

/// Handles `POST /embedding`. Each embedding is wrapped in a list, as in llama-server, whose list may have an
/// element per token.
pub async fn embedding(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let read = move |app: &App| read(app, Fields::new(body, &[FIELDS], false)?);
    let (prompts, order) = read_encoded(&app, client, read).await?;
    let shared = app.clone();
    let _guard = shared.embedder.exclusive().await;
    blocking(move || embed(&app, prompts, order)).await
}

/// Handles `POST /embeddings` in OpenAI's format. Without pooling, the response has llama-server's format, because
/// OpenAI's format cannot represent the vectors of tokens.
pub async fn embeddings(State(app): State<Shared>, client: Extension<Client>, Body(body): Body) -> ApiResult {
    if app.embedder.is_per_token() {
        embedding(State(app), client, Body(body)).await
    } else {
        openai::embeddings(State(app), client, Body(body)).await
    }
}

/// Reads the prompts, and the order of the norm.
fn read(app: &App, mut fields: Fields) -> ApiResult<(Prompts, Option<i64>)> {
    let service = &app.service;
    let order = fields.integer("embd_normalize")?;
    if order.is_some_and(|order| !(-1..=MAX_ORDER).contains(&order)) {
        let why = format_args!("expected -1 to {MAX_ORDER}, found {}", order.unwrap_or(0));
        return Err(ApiError::field("embd_normalize", why));
    }
    let name = match (fields.given("content"), fields.given("input")) {
        (Some(_), Some(_)) => return Err(ApiError::field("input", "cannot be combined with content")),
        (None, Some(_)) => "input",
        _ => "content",
    };
    let prompts = prompt_list(&mut fields, name, MAX_TEXTS, service)?.to_embed(name);
    fields.finish()?;
    Ok((prompts, order))
}

fn embed(app: &App, prompts: Prompts, order: Option<i64>) -> ApiResult {
    let vectors = app.embedder.vectors(&prompts.tokenized(&app.service)?)?;
    // As in llama-server, the vectors of tokens are not normalized.
    let order = if app.embedder.is_per_token() {
        -1
    } else {
        order.unwrap_or(2)
    };
    let told = vectors.into_iter().enumerate().map(|(index, mut vectors)| {
        vectors.iter_mut().for_each(|vector| normalize(vector, order));
        json!({ "index": index, "embedding": vectors })
    });
    Ok(json(&told.collect::<Vec<Json>>().into()))
}

/// Divides a vector by its norm of this order; -1 leaves it unchanged, and 0 scales its largest value to 32760.
/// Zero vectors remain zero.
fn normalize(vector: &mut [f32], order: i64) {
    let sizes = vector.iter().map(|x| f64::from(x.abs()));
    let norm = match order {
        -1 => return,
        0 => sizes.fold(0.0, f64::max) / 32760.0,
        order => {
            let order = order as f64;
            sizes.map(|x| x.powf(order)).sum::<f64>().powf(1.0 / order)
        }
    };
    if norm > 0.0 {
        vector.iter_mut().for_each(|x| *x = (f64::from(*x) / norm) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalize_divides_by_the_requested_norm() {
        let by = |order| {
            let mut vector = [3.0, -4.0, 0.0];
            normalize(&mut vector, order);
            vector
        };
        assert_eq!(by(-1), [3.0, -4.0, 0.0]);
        assert_eq!(by(0), [24570.0, -32760.0, 0.0]);
        assert_eq!(by(1), [3.0 / 7.0, -4.0 / 7.0, 0.0]);
        assert_eq!(by(2), [0.6, -0.8, 0.0]);
        let cubic = 91_f64.cbrt();
        assert!((f64::from(by(3)[0]) - 3.0 / cubic).abs() < 1e-6);
        let mut zero = [0.0; 2];
        normalize(&mut zero, 2);
        assert_eq!(zero, [0.0; 2]);
    }
}
