//! Reranking: `/v1/rerank`, in the format of Jina's and Cohere's APIs. Requests with `texts` get the format of
//! Text Embeddings Inference.

use axum::extract::State;
use engine::sample::Token;
use llama::parts::MediaPrompt;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, between, text_of};
use crate::app::{App, Shared};
use crate::http::{Body, json, unique};
use crate::openai::{MAX_TEXTS, prompt_usage, with_embedder};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::text("query", "Query string."),
    Field::list("documents", "Strings or objects with `text`, up to 2048."),
    Field::list(
        "texts",
        "Documents, as in the API of Text Embeddings Inference; the response is then a list of `index` and `score`.",
    ),
    Field::flag("return_text", "With `texts`, return them with their scores (false)."),
    Field::ignored("raw_scores", "Ignored; scores are never converted."),
    Field::ignored("truncate", "Ignored; an input that does not fit is rejected."),
    Field::ignored("max_tokens_per_doc", "Ignored; an input that does not fit is rejected."),
    Field::ignored("priority", "Ignored."),
    Field::integer("top_n", "Number of best documents to return (all)."),
    Field::flag("return_documents", "Return the documents with their scores (false)."),
    Field::text("model", "Model name; must be a reranking model."),
    Field::ignored("user", "Ignored."),
];

/// Handles `POST /v1/rerank`.
pub async fn rerank(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    with_embedder(app, |app| &app.ranker, body, FIELDS, rank).await
}

fn rank(app: &App, mut fields: Fields) -> ApiResult {
    let service = &app.service;
    fields.text("model")?;
    let query = fields
        .text("query")?
        .ok_or_else(|| ApiError::field("query", "missing; expected a string"))?;
    let (documents, texts) = (fields.list("documents")?, fields.list("texts")?);
    let is_tei = documents.is_none() && texts.is_some();
    let list = documents
        .or(texts)
        .ok_or_else(|| ApiError::field("documents", "missing; expected a list of documents"))?;
    if list.is_empty() || list.len() > MAX_TEXTS {
        return Err(ApiError::field(
            "documents",
            format_args!("expected 1 to {MAX_TEXTS} documents, found {}", list.len()),
        ));
    }
    let wrong = || ApiError::field("documents", "expected strings or objects with a text");
    let text = |document: Json| match document {
        Json::Object(mut fields) => fields.remove("text").and_then(text_of),
        document => text_of(document),
    };
    let documents: Vec<String> = list.into_iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?;
    let top_n = between("top_n", fields.integer("top_n")?, 1, i64::MAX)?.unwrap_or(usize::MAX);
    let flags = [fields.flag("return_documents")?, fields.flag("return_text")?];
    let tells_documents = flags.contains(&Some(true));
    fields.finish()?;
    let pairs = documents
        .iter()
        .map(|document| pair(app, &query, document).map(MediaPrompt::from))
        .collect::<ApiResult<Vec<_>>>()?;
    let scores = app.ranker.rank(&pairs)?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let result = |(index, score): (usize, f32)| {
        let text = documents[index].as_str();
        match (is_tei, tells_documents) {
            (true, true) => json!({ "index": index, "score": score, "text": text }),
            (true, false) => json!({ "index": index, "score": score }),
            (false, true) => json!({ "index": index, "relevance_score": score, "document": { "text": text } }),
            (false, false) => json!({ "index": index, "relevance_score": score }),
        }
    };
    let results: Vec<Json> = ranked.into_iter().take(top_n).map(result).collect();
    if is_tei {
        return Ok(json(&results.into()));
    }
    Ok(json(&json!({
        "id": unique("rerank-"),
        "object": "list",
        "model": service.params.name,
        "results": results,
        "usage": prompt_usage(&pairs),
    })))
}

/// Tokenizes a query and a document in the model's reranking format.
fn pair(app: &App, query: &str, document: &str) -> ApiResult<Vec<Token>> {
    let (vocab, metadata) = (app.service.vocab(), app.service.model().metadata());
    let template = metadata.optional::<&str>("tokenizer.chat_template.rerank");
    match template.map_err(|e| ApiError::unsupported(e.to_string()))? {
        None => Ok(vocab.tokenize_pair(query, document)),
        Some(template) => {
            // Split before substitution, so that placeholders inside the query or document are not replaced.
            let parts = template
                .split("{query}")
                .map(|part| part.replace("{document}", document));
            let prompt = parts.collect::<Vec<_>>().join(query);
            Ok(vocab.tokenize(&prompt, true, true))
        }
    }
}
