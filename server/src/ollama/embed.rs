//! `/api/embed`: texts to vectors.

use std::time::Instant;

use axum::extract::State;
use serde_json::json;

use crate::api::{ApiResult, Field, Fields, Form};
use crate::embedder::in_turn;
use crate::http::{App, Body, Shared, json};
use crate::openai::{MAX_TEXTS, check_dimensions, prompts};

/// The fields.
pub const EMBED_FIELDS: &[Field] = &[
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "input",
        form: Form::Any,
        doc: "A text, or a list of texts.",
    },
    Field {
        name: "truncate",
        form: Form::Flag,
        doc: "Cut texts that are too long for the model (true).",
    },
    Field {
        name: "dimensions",
        form: Form::Integer,
        doc: "Elements of a vector: as many as the model has.",
    },
    Field {
        name: "options",
        form: Form::Ignored,
        doc: "Nothing is chosen.",
    },
    Field {
        name: "keep_alive",
        form: Form::Ignored,
        doc: "The model stays.",
    },
];

/// The fields of what it was called before.
pub const EMBEDDINGS_FIELDS: &[Field] = &[
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "prompt",
        form: Form::Text,
        doc: "The text; without it, the model is only said to be there.",
    },
    Field {
        name: "options",
        form: Form::Ignored,
        doc: "Nothing is chosen.",
    },
    Field {
        name: "keep_alive",
        form: Form::Ignored,
        doc: "The model stays.",
    },
];

/// A vector for one text, as it was asked for before.
pub async fn embeddings(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    in_turn(app, |served| &served.embedder, body, EMBEDDINGS_FIELDS, embed_one).await
}

/// A vector for each text.
pub async fn embed(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    in_turn(app, |served| &served.embedder, body, EMBED_FIELDS, embed_all).await
}

fn embed_one(app: &App, mut fields: Fields) -> ApiResult {
    let served = &app.served;
    fields.text("model")?;
    let text = fields.text("prompt")?.unwrap_or_default();
    fields.finish()?;
    if text.is_empty() {
        return Ok(json(&json!({ "embedding": [] })));
    }
    let mut tokens = served.tokens(&text);
    tokens.truncate(served.embedder.n_max());
    let vectors = served.embedder.embed(&[tokens])?;
    Ok(json(&json!({ "embedding": vectors.first() })))
}

fn embed_all(app: &App, mut fields: Fields) -> ApiResult {
    let (start, served) = (Instant::now(), &app.served);
    fields.text("model")?;
    check_dimensions(&mut fields, served.model().base().n_embd())?;
    let truncate = fields.flag("truncate")?.unwrap_or(true);
    let mut texts = prompts(&mut fields, "input", MAX_TEXTS, served)?;
    fields.finish()?;
    if truncate {
        texts.iter_mut().for_each(|text| text.truncate(served.embedder.n_max()));
    }
    let vectors = served.embedder.embed(&texts)?;
    Ok(json(&json!({
        "model": served.params.name,
        "embeddings": vectors,
        "total_duration": u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX),
        "load_duration": 0,
        "prompt_eval_count": texts.iter().map(Vec::len).sum::<usize>(),
    })))
}
