//! `/embedding`: texts to vectors, as llama-server tells them.

use axum::extract::State;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, Form};
use crate::embedder::in_turn;
use crate::http::{App, Body, Shared, json};
use crate::openai::{MAX_TEXTS, prompts};

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "content",
        form: Form::Any,
        doc: "A text, a list of texts, a list of tokens, or a list of such lists.",
    },
    Field {
        name: "input",
        form: Form::Any,
        doc: "The same.",
    },
    Field {
        name: "embd_normalize",
        form: Form::Integer,
        doc: "2: vectors have the length one, and there are no others.",
    },
    Field {
        name: "model",
        form: Form::Ignored,
        doc: "The model, of which there is one.",
    },
];

/// A vector for each text, in a list of its own: llama-server may have one for each token.
pub async fn embedding(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    in_turn(app, |served| &served.embedder, body, FIELDS, embed).await
}

fn embed(app: &App, mut fields: Fields) -> ApiResult {
    let served = &app.served;
    if fields.integer("embd_normalize")?.is_some_and(|how| how != 2) {
        return Err(ApiError::field(
            "embd_normalize",
            "vectors have the length one: expected 2",
        ));
    }
    let name = match (fields.given("content"), fields.given("input")) {
        (Some(_), Some(_)) => return Err(ApiError::field("input", "there is `content`, too")),
        (None, Some(_)) => "input",
        _ => "content",
    };
    let texts = prompts(&mut fields, name, MAX_TEXTS, served)?;
    fields.finish()?;
    let vectors = served.embedder.embed(&texts)?;
    let told = vectors.into_iter().enumerate();
    let told = told.map(|(index, vector)| json!({ "index": index, "embedding": [vector] }));
    Ok(json(&told.collect::<Vec<Json>>().into()))
}
