//! `/v1/models`: what is served.

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult};
use crate::http::{Shared, json};
use crate::served::Served;

/// All models, of which there is one.
pub async fn models(State(app): State<Shared>) -> Response {
    json(&json!({ "object": "list", "data": [model_json(&app.served)] }))
}

/// One by name.
pub async fn model(State(app): State<Shared>, Path(name): Path<String>) -> ApiResult {
    let params = &app.served.params;
    if name == params.name || params.aliases.contains(&name) {
        return Ok(json(&model_json(&app.served)));
    }
    let name: String = name.chars().take(128).collect();
    let served = &app.served.params.name;
    Err(ApiError::not_found(format!(
        "there is no model {name:?} here; {served:?} is served"
    )))
}

/// What is told of a model.
pub fn model_json(served: &Served) -> Json {
    let model = served.model();
    json!({
        "id": served.params.name,
        "aliases": served.params.aliases,
        "object": "model",
        "created": served.created,
        "owned_by": "llama",
        "max_model_len": served.n_ctx(),
        "capabilities": served.capabilities(),
        "meta": {
            "architecture": model.arch().name,
            "vocab_type": model.vocab().kind().to_string(),
            "n_vocab": model.base().n_vocab(),
            "n_ctx": served.n_ctx(),
            "n_ctx_train": model.base().n_ctx_train(),
            "n_embd": model.base().n_embd(),
            "n_params": model.n_params(),
            "size": model.n_bytes(),
        },
    })
}
