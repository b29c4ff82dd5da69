//! `/v1/chat/completions/control`: what can be done with an answer while it is under way.

use axum::Extension;
use axum::extract::State;
use serde_json::json;

use crate::api::{ApiError, ApiResult, Field, Fields, Form};
use crate::http::{Body, Client, Shared, json};

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "id",
        form: Form::Text,
        doc: "The id that the pieces of the answer have; its request has `reasoning_control`.",
    },
    Field {
        name: "action",
        form: Form::Text,
        doc: "`reasoning_end`.",
    },
    Field {
        name: "model",
        form: Form::Ignored,
        doc: "The model, of which there is one.",
    },
];

/// Ends what is being thought, and tells whether anything was.
pub async fn control(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let mut fields = Fields::new(body, &[FIELDS], false)?;
    let id = fields
        .text("id")?
        .ok_or_else(|| ApiError::field("id", "it is missing"))?;
    if fields.text("action")?.as_deref() != Some("reasoning_end") {
        return Err(ApiError::field("action", "expected reasoning_end"));
    }
    fields.finish()?;
    let scheduler = &app.served.scheduler;
    let ended = scheduler
        .ask(move |batcher| Ok(batcher.end_reasoning(client.0, &id)))
        .await?;
    let why = match ended {
        Some(true) => return Ok(json(&json!({ "success": true }))),
        Some(false) => "nothing is being thought in this answer, or its request has no `reasoning_control`",
        None => "no answer of this id is under way",
    };
    Ok(json(&json!({ "success": false, "message": why })))
}
