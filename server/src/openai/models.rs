//! Model list of OpenAI and Anthropic: `/v1/models`.

use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult};
use crate::app::Shared;
use crate::http::json;
use crate::service::ModelService;
use crate::timestamp::rfc3339;

/// Header of Anthropic's clients.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// Handles `GET /v1/models` for a single model.
pub async fn models(State(app): State<Shared>, headers: HeaderMap) -> Response {
    json(&list_json(vec![model_json(&app.service)], &headers))
}

/// Handles `GET /v1/models/{name}` for a single model.
pub async fn model(State(app): State<Shared>, Path(name): Path<String>, headers: HeaderMap) -> ApiResult {
    let params = &app.service.params;
    if name == params.name || params.aliases.contains(&name) {
        return Ok(json(&entry_json(model_json(&app.service), &headers)));
    }
    let name: String = name.chars().take(128).collect();
    let service = &app.service.params.name;
    Err(ApiError {
        param: Some("model".to_owned()),
        code: Some("model_not_found"),
        ..ApiError::not_found(format!("unknown model {name:?}; this server serves {service:?}"))
    })
}

/// Returns the list of all models. For Anthropic's clients, it is a page with all models.
pub fn list_json(models: Vec<Json>, headers: &HeaderMap) -> Json {
    let models: Vec<Json> = models.into_iter().map(|model| entry_json(model, headers)).collect();
    let mut list = json!({ "object": "list" });
    if headers.contains_key(ANTHROPIC_VERSION) {
        let id = |model: Option<&Json>| model.map(|model| model["id"].clone());
        list["first_id"] = id(models.first()).into();
        list["last_id"] = id(models.last()).into();
        list["has_more"] = false.into();
    }
    list["data"] = models.into();
    list
}

/// Adds the fields of Anthropic's API to the description of a model, for its clients.
pub fn entry_json(mut model: Json, headers: &HeaderMap) -> Json {
    if headers.contains_key(ANTHROPIC_VERSION) {
        model["type"] = "model".into();
        model["display_name"] = model["id"].clone();
        model["created_at"] = rfc3339(model["created"].as_u64().unwrap_or(0), 0).into();
    }
    model
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
