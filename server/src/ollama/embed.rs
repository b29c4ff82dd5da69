//! Ollama's `/api/embed` and `/api/embeddings`.

use std::time::Instant;

use axum::extract::State;
use llama::parts::MediaPrompt;
use serde_json::json;

use super::KeepAlive;
use crate::api::{ApiResult, Field, Fields};
use crate::app::{App, Shared};
use crate::http::{Body, json};
use crate::openai::{MAX_TEXTS, dimensions, prompts, shortened, with_embedder};

/// Fields of `/api/embed`.
pub const EMBED_FIELDS: &[Field] = &[
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::any("input", "String or list of strings."),
    Field::flag("truncate", "Truncate inputs that are too long for the model (true)."),
    Field::integer(
        "dimensions",
        "Length of the embeddings, which are shortened and normalized again (the embedding size of the model).",
    ),
    Field::ignored("options", "Ignored."),
    Field::any("keep_alive", "Time until the idle model is unloaded; see `/api/chat`."),
];

/// Fields of `/api/embeddings`, the deprecated form.
pub const EMBEDDINGS_FIELDS: &[Field] = &[
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::text(
        "prompt",
        "Input string. If empty, the server only confirms that the model is loaded.",
    ),
    Field::ignored("options", "Ignored."),
    Field::any("keep_alive", "Time until the idle model is unloaded; see `/api/chat`."),
];

/// Handles `POST /api/embeddings`.
pub async fn embeddings(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    with_embedder(app, |app| &app.embedder, body, EMBEDDINGS_FIELDS, embed_one).await
}

/// Handles `POST /api/embed`.
pub async fn embed(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    with_embedder(app, |app| &app.embedder, body, EMBED_FIELDS, embed_all).await
}

fn embed_one(app: &App, mut fields: Fields) -> ApiResult {
    let service = &app.service;
    fields.text("model")?;
    KeepAlive::check(&mut fields)?;
    let text = fields.text("prompt")?.unwrap_or_default();
    fields.finish()?;
    if text.is_empty() {
        return Ok(json(&json!({ "embedding": [] })));
    }
    let mut tokens = service.tokens(&text);
    tokens.truncate(app.embedder.n_max());
    let vectors = app.embedder.embed(&[tokens.into()])?;
    Ok(json(&json!({ "embedding": vectors.first() })))
}

fn embed_all(app: &App, mut fields: Fields) -> ApiResult {
    let (start, service) = (Instant::now(), &app.service);
    fields.text("model")?;
    KeepAlive::check(&mut fields)?;
    let n_dimensions = dimensions(&mut fields, service.model().base().n_embd())?;
    let truncate = fields.flag("truncate")?.unwrap_or(true);
    let mut texts = prompts(&mut fields, "input", MAX_TEXTS, service, "/api/embed")?;
    fields.finish()?;
    if truncate {
        texts.iter_mut().for_each(|text| text.truncate(app.embedder.n_max()));
    }
    let n_tokens: usize = texts.iter().map(Vec::len).sum();
    let texts: Vec<MediaPrompt> = texts.into_iter().map(MediaPrompt::from).collect();
    let vectors = shortened(app.embedder.embed(&texts)?, n_dimensions);
    Ok(json(&json!({
        "model": service.params.name,
        "embeddings": vectors,
        "total_duration": u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        "load_duration": 0,
        "prompt_eval_count": n_tokens,
    })))
}
