//! llama-server's `/embedding`.

use axum::extract::State;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields};
use crate::app::{App, Shared};
use crate::http::{Body, json};
use crate::openai::{MAX_TEXTS, prompts, with_embedder};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any(
        "content",
        "String, list of strings, list of tokens, or list of token lists.",
    ),
    Field::any("input", "Alias of `content`."),
    Field::integer(
        "embd_normalize",
        "Normalization; must be 2 (Euclidean), the only supported value.",
    ),
    Field::ignored("model", "Ignored."),
];

/// Handles `POST /embedding`. Each embedding is wrapped in a list, as in llama-server, whose list may have an
/// element per token.
pub async fn embedding(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    with_embedder(app, |app| &app.embedder, body, FIELDS, embed).await
}

fn embed(app: &App, mut fields: Fields) -> ApiResult {
    let service = &app.service;
    if fields.integer("embd_normalize")?.is_some_and(|how| how != 2) {
        return Err(ApiError::field(
            "embd_normalize",
            "unsupported normalization: expected 2 (Euclidean)",
        ));
    }
    let name = match (fields.given("content"), fields.given("input")) {
        (Some(_), Some(_)) => return Err(ApiError::field("input", "cannot be combined with content")),
        (None, Some(_)) => "input",
        _ => "content",
    };
    let texts = prompts(&mut fields, name, MAX_TEXTS, service)?;
    fields.finish()?;
    let vectors = app.embedder.embed(&texts)?;
    let told = vectors.into_iter().enumerate();
    let told = told.map(|(index, vector)| json!({ "index": index, "embedding": [vector] }));
    Ok(json(&told.collect::<Vec<Json>>().into()))
}
