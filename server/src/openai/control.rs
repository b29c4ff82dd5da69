//! Control of running completions: `/v1/chat/completions/control`.

use axum::Extension;
use axum::extract::State;
use serde_json::json;

use crate::api::{ApiError, ApiResult, Field, Fields};
use crate::app::Shared;
use crate::http::{Body, Client, json};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::text(
        "id",
        "Id of a running completion whose request set `reasoning_control`.",
    ),
    Field::text("action", "Must be `reasoning_end`."),
    Field::ignored("model", "Ignored."),
];

/// Handles `POST /v1/chat/completions/control`; reports whether a reasoning section was ended.
pub async fn control(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let mut fields = Fields::new(body, &[FIELDS], false)?;
    let id = fields
        .text("id")?
        .ok_or_else(|| ApiError::field("id", "missing; expected the id of a completion"))?;
    if fields.text("action")?.as_deref() != Some("reasoning_end") {
        return Err(ApiError::field("action", "expected `reasoning_end`"));
    }
    fields.finish()?;
    let why = match app.service.scheduler.end_reasoning(client.0, id).await? {
        Some(true) => return Ok(json(&json!({ "success": true }))),
        Some(false) => "the completion is not in its reasoning section, or its request did not set `reasoning_control`",
        None => "no completion with this id is running",
    };
    Ok(json(&json!({ "success": false, "message": why })))
}
