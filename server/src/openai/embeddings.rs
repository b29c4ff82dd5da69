//! OpenAI's Embeddings API: `/v1/embeddings`.

use axum::Extension;
use axum::extract::State;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use llama::parts::{MediaPrompt, normalized};
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, between};
use crate::app::{App, Shared};
use crate::embedder::Embedder;
use crate::encoding::read_encoded;
use crate::http::{Body, Client, blocking, json};
use crate::openai::{Prompts, prompt_list};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any(
        "input",
        "String, list of strings, list of tokens, or list of token lists. Also objects with `content` (a list of `text`, `image_url`, and `input_audio` parts) or with `prompt_string` and `multimodal_data`.",
    ),
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::text(
        "encoding_format",
        "`float` (default), or `base64` of little-endian 32-bit floats.",
    ),
    Field::integer(
        "dimensions",
        "Length of the embeddings, which are truncated and normalized again; for models trained with truncation (the embedding size of the model).",
    ),
    Field::ignored("user", "Ignored."),
];

/// Maximum number of inputs per request.
pub const MAX_TEXTS: usize = 2048;

/// Reads `dimensions`, the length of the embeddings.
///
/// # Errors
/// Returns an error if the length is not from 1 to `n_embd`.
pub fn dimensions(fields: &mut Fields, n_embd: usize) -> ApiResult<Option<usize>> {
    between("dimensions", fields.integer("dimensions")?, 1, n_embd as i64)
}

/// Shortens embeddings to their first `n` components, and normalizes them again.
pub fn shortened(vectors: Vec<Vec<f32>>, n: Option<usize>) -> Vec<Vec<f32>> {
    let Some(n) = n else { return vectors };
    vectors
        .iter()
        .map(|vector| normalized(&vector[..n.min(vector.len())]))
        .collect()
}

/// Handles a request once `which` embedder is free. `known` lists the accepted fields.
pub async fn with_embedder(
    app: Shared,
    which: fn(&App) -> &Embedder,
    body: Map<String, Json>,
    known: &'static [Field],
    handler: fn(&App, Fields) -> ApiResult,
) -> ApiResult {
    let shared = app.clone();
    let _guard = which(&shared).exclusive().await;
    blocking(move || handler(&app, Fields::new(body, &[known], false)?)).await
}

/// Returns the usage object of a request that generates no tokens.
pub fn prompt_usage(prompts: &[MediaPrompt]) -> Json {
    let n: usize = prompts.iter().map(|prompt| prompt.tokens.len()).sum();
    json!({ "prompt_tokens": n, "total_tokens": n })
}

/// Handles `POST /v1/embeddings`.
pub async fn embeddings(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Body(body): Body,
) -> ApiResult {
    let read = move |app: &App| read(app, Fields::new(body, &[FIELDS], false)?);
    let (prompts, format) = read_encoded(&app, client, read).await?;
    let shared = app.clone();
    let _guard = shared.embedder.exclusive().await;
    blocking(move || embed(&app, prompts, &format)).await
}

/// Format of the response.
struct VectorFormat {
    n_dimensions: Option<usize>,
    is_base64: bool,
}

fn read(app: &App, mut fields: Fields) -> ApiResult<(Prompts, VectorFormat)> {
    let service = &app.service;
    fields.text("model")?;
    let n_dimensions = dimensions(&mut fields, service.model().base().n_embd())?;
    let is_base64 = match fields.text("encoding_format")?.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(_) => return Err(ApiError::field("encoding_format", "expected float or base64")),
    };
    let prompts = prompt_list(&mut fields, "input", MAX_TEXTS, service)?.to_embed("input");
    fields.finish()?;
    let format = VectorFormat {
        n_dimensions,
        is_base64,
    };
    Ok((prompts, format))
}

fn embed(app: &App, prompts: Prompts, format: &VectorFormat) -> ApiResult {
    let service = &app.service;
    let texts = prompts.tokenized(service)?;
    let vectors = shortened(app.embedder.embed(&texts)?, format.n_dimensions);
    let data = vectors.iter().enumerate().map(|(index, vector)| {
        let embedding: Json = if format.is_base64 {
            let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
            STANDARD.encode(bytes).into()
        } else {
            vector.as_slice().into()
        };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    });
    Ok(json(&json!({
        "object": "list",
        "data": data.collect::<Vec<_>>(),
        "model": service.params.name,
        "usage": prompt_usage(&texts),
    })))
}
