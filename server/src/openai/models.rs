//! OpenAI's model list: `/v1/models`.

use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult};
use crate::app::Shared;
use crate::http::json;
use crate::service::ModelService;

/// Handles `GET /v1/models` for a single model.
pub async fn models(State(app): State<Shared>) -> Response {
    json(&json!({ "object": "list", "data": [model_json(&app.service)] }))
}

/// Handles `GET /v1/models/{name}` for a single model.
pub async fn model(State(app): State<Shared>, Path(name): Path<String>) -> ApiResult {
    let params = &app.service.params;
    if name == params.name || params.aliases.contains(&name) {
        return Ok(json(&model_json(&app.service)));
    }
    let name: String = name.chars().take(128).collect();
    let service = &app.service.params.name;
    Err(ApiError {
        param: Some("model".to_owned()),
        code: Some("model_not_found"),
        ..ApiError::not_found(format!("unknown model {name:?}; this server serves {service:?}"))
    })
}

/// Returns the description of a model.
pub fn model_json(service: &ModelService) -> Json {
    let model = service.model();
    json!({
        "id": service.params.name,
        "aliases": service.params.aliases,
        "tags": service.params.tags,
        "object": "model",
        "created": service.created,
        "owned_by": "llama",
        "max_model_len": service.n_ctx(),
        "capabilities": service.capabilities(),
        "meta": {
            "architecture": model.arch().name,
            "vocab_type": model.vocab().kind().to_string(),
            "n_vocab": model.base().n_vocab(),
            "n_ctx": service.n_ctx(),
            "n_ctx_train": model.base().n_ctx_train(),
            "n_embd": model.base().n_embd(),
            "has_chat_template": !service.chat.template().is_empty(),
            "n_params": model.n_params(),
            "size": model.n_bytes(),
        },
    })
}
