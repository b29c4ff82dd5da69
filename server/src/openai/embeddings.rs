//! `/v1/embeddings`: texts to vectors.

use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, Form};
use crate::http::{App, Body, Shared, blocking, json};
use crate::openai::prompts;

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "input",
        form: Form::Any,
        doc: "A text, a list of texts, a list of tokens, or a list of such lists.",
    },
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "encoding_format",
        form: Form::Text,
        doc: "`float` (default), or `base64` of 32-bit floats, little-endian.",
    },
    Field {
        name: "dimensions",
        form: Form::Integer,
        doc: "Elements of a vector: as many as the model has.",
    },
    Field {
        name: "user",
        form: Form::Ignored,
        doc: "Who asks.",
    },
];

/// Texts in one request.
const MAX_TEXTS: usize = 2048;

/// A vector for each text.
pub async fn embeddings(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    let served = app.clone();
    let _turn = served.served.embedder.turn().await;
    blocking(move || embed(&app, Fields::new(body, &[FIELDS], false)?)).await
}

fn embed(app: &App, mut fields: Fields) -> ApiResult {
    let served = &app.served;
    fields.text("model")?;
    let n_embd = served.model().base().n_embd();
    if let Some(n) = fields
        .integer("dimensions")?
        .filter(|&n| usize::try_from(n) != Ok(n_embd))
    {
        return Err(ApiError::field(
            "dimensions",
            format_args!("vectors of this model have {n_embd}, found {n}"),
        ));
    }
    let is_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "expected float or base64")),
    };
    let texts: Vec<Vec<Token>> = prompts(&mut fields, "input", MAX_TEXTS, served)?;
    fields.finish()?;
    let vectors = served.embedder.embed(&texts)?;
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding: Json = match is_base64 {
            false => vector.as_slice().into(),
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                STANDARD.encode(bytes).into()
            }
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    let n: usize = texts.iter().map(Vec::len).sum();
    Ok(json(&json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": served.params.name,
        "usage": { "prompt_tokens": n, "total_tokens": n },
    })))
}
