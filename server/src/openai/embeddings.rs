//! `/v1/embeddings`: texts to vectors.

use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, Form};
use crate::embedder::{in_turn, usage_of_prompts};
use crate::http::{App, Body, Shared, json};
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
pub const MAX_TEXTS: usize = 2048;

/// Takes the field `dimensions`: vectors have as many elements as the model gives, and are never cut.
///
/// # Errors
/// If another number is asked for.
pub fn check_dimensions(fields: &mut Fields, n_embd: usize) -> Result<(), ApiError> {
    let other = fields
        .integer("dimensions")?
        .filter(|&n| usize::try_from(n) != Ok(n_embd));
    other.map_or(Ok(()), |n| {
        let why = format_args!("vectors of this model have {n_embd}, found {n}");
        Err(ApiError::field("dimensions", why))
    })
}

/// A vector for each text.
pub async fn embeddings(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    in_turn(app, |served| &served.embedder, body, FIELDS, embed).await
}

fn embed(app: &App, mut fields: Fields) -> ApiResult {
    let served = &app.served;
    fields.text("model")?;
    check_dimensions(&mut fields, served.model().base().n_embd())?;
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
    Ok(json(&json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": served.params.name,
        "usage": usage_of_prompts(&texts),
    })))
}
