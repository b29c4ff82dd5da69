//! `/v1/rerank`: documents by how well they answer a question, as Jina's interface of that name has it.

use axum::extract::State;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, Form, between, text_of};
use crate::embedder::{in_turn, usage_of_prompts};
use crate::http::{App, Body, Shared, json};
use crate::openai::MAX_TEXTS;

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "query",
        form: Form::Text,
        doc: "The question.",
    },
    Field {
        name: "documents",
        form: Form::List,
        doc: "Texts, or objects with a `text`, up to 2048.",
    },
    Field {
        name: "top_n",
        form: Form::Integer,
        doc: "As many of the best (all).",
    },
    Field {
        name: "return_documents",
        form: Form::Flag,
        doc: "Tell the documents again (false).",
    },
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model, which has to be one that rates pairs of texts.",
    },
    Field {
        name: "user",
        form: Form::Ignored,
        doc: "Who asks.",
    },
];

/// Rates documents.
pub async fn rerank(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    in_turn(app, |served| &served.ranker, body, FIELDS, rank).await
}

fn rank(app: &App, mut fields: Fields) -> ApiResult {
    let served = &app.served;
    fields.text("model")?;
    let query = fields
        .text("query")?
        .ok_or_else(|| ApiError::field("query", "there is none"))?;
    let list = fields
        .list("documents")?
        .ok_or_else(|| ApiError::field("documents", "there are none"))?;
    if list.is_empty() || list.len() > MAX_TEXTS {
        return Err(ApiError::field(
            "documents",
            format_args!("expected 1 to {MAX_TEXTS}, found {}", list.len()),
        ));
    }
    let wrong = || ApiError::field("documents", "expected texts, or objects with a text");
    let text = |document: Json| match document {
        Json::Object(mut fields) => fields.remove("text").and_then(text_of),
        document => text_of(document),
    };
    let documents: Vec<String> = list.into_iter().map(text).collect::<Option<_>>().ok_or_else(wrong)?;
    let top_n = between("top_n", fields.integer("top_n")?, 1, i64::MAX)?.unwrap_or(usize::MAX);
    let tells_documents = fields.flag("return_documents")?.unwrap_or(false);
    fields.finish()?;
    let pairs = documents
        .iter()
        .map(|document| pair(app, &query, document))
        .collect::<ApiResult<Vec<_>>>()?;
    let scores = served.ranker.rank(&pairs)?;
    let mut ranked: Vec<(usize, f32)> = scores.into_iter().enumerate().collect();
    ranked.sort_by(|a, b| b.1.total_cmp(&a.1));
    let result = |(index, score): (usize, f32)| {
        let mut result = json!({ "index": index, "relevance_score": score });
        if tells_documents {
            result["document"] = json!({ "text": documents[index] });
        }
        result
    };
    Ok(json(&json!({
        "object": "list",
        "model": served.params.name,
        "results": ranked.into_iter().take(top_n).map(result).collect::<Vec<_>>(),
        "usage": usage_of_prompts(&pairs),
    })))
}

/// The tokens of a question with a document, in the frame that the model was trained with.
fn pair(app: &App, query: &str, document: &str) -> ApiResult<Vec<Token>> {
    let (vocab, metadata) = (app.served.vocab(), app.served.model().metadata());
    let template = metadata.optional::<&str>("tokenizer.chat_template.rerank");
    match template.map_err(|e| ApiError::unsupported(e.to_string()))? {
        None => Ok(vocab.tokenize_pair(query, document)),
        Some(template) => {
            // What stands in a text is not filled in again.
            let parts = template
                .split("{query}")
                .map(|part| part.replace("{document}", document));
            let prompt = parts.collect::<Vec<_>>().join(query);
            Ok(vocab.tokenize(&prompt, true, true))
        }
    }
}
