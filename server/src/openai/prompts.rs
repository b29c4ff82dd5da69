//! Prompts and texts of requests: strings, tokens, objects and lists of them.

use engine::sample::Token;
use serde_json::Value as Json;

use crate::api::{ApiError, ApiResult, Fields, integer_of};
use crate::service::ModelService;

/// Prompts of a request.
pub struct Prompts {
    /// Tokens of each prompt.
    pub tokens: Vec<Vec<Token>>,
    /// True if the request has a list of prompts, even of a single one.
    pub is_list: bool,
}

const EXPECTED: &str =
    "expected a string, a list of tokens and strings, an object with prompt_string, or a list of these";

/// Reads the prompts in a field; at most `max`.
pub fn prompts(fields: &mut Fields, name: &str, max: usize, service: &ModelService) -> ApiResult<Vec<Vec<Token>>> {
    Ok(prompt_list(fields, name, max, service)?.tokens)
}

/// Reads the prompts in a field, and whether they are a list.
pub fn prompt_list(fields: &mut Fields, name: &str, max: usize, service: &ModelService) -> ApiResult<Prompts> {
    let missing = || ApiError::field(name, "missing; expected a string or tokens");
    let value = fields.take(name).ok_or_else(missing)?;
    let read = |value: &Json| prompt(value, service).map_err(|why| ApiError::field(name, why));
    match &value {
        // A list of tokens and strings is one prompt.
        Json::Array(list) if !list.iter().any(Json::is_number) => {
            if list.is_empty() || list.len() > max {
                let found = list.len();
                return Err(ApiError::field(
                    name,
                    format_args!("expected 1 to {max} prompts, found {found}"),
                ));
            }
            Ok(Prompts {
                tokens: list.iter().map(read).collect::<ApiResult<_>>()?,
                is_list: true,
            })
        }
        one => Ok(Prompts {
            tokens: vec![read(one)?],
            is_list: false,
        }),
    }
}

/// Reads one prompt. Returns an error message for other values.
fn prompt(value: &Json, service: &ModelService) -> Result<Vec<Token>, String> {
    match value {
        Json::String(text) => Ok(service.tokens(text)),
        Json::Array(list) if !list.is_empty() => mixed(list, service).ok_or_else(|| EXPECTED.to_owned()),
        Json::Object(fields) => match (fields.get("prompt_string"), fields.get("content")) {
            (Some(Json::String(_)), _) if has_media(value) => {
                Err("multimodal_data: unsupported; this model accepts text only".to_owned())
            }
            (Some(Json::String(text)), None) => Ok(service.tokens(text)),
            (None, Some(Json::Array(parts))) => Ok(service.tokens(&text_of_parts(parts)?)),
            _ => Err(EXPECTED.to_owned()),
        },
        _ => Err(EXPECTED.to_owned()),
    }
}

fn has_media(prompt: &Json) -> bool {
    match &prompt["multimodal_data"] {
        Json::Null => false,
        Json::Array(list) => !list.is_empty(),
        _ => true,
    }
}

/// Returns the tokens of a list of token ids and strings. Special tokens are added to a string at the start only.
fn mixed(list: &[Json], service: &ModelService) -> Option<Vec<Token>> {
    let mut tokens = Vec::with_capacity(list.len());
    for (i, part) in list.iter().enumerate() {
        match part {
            Json::String(text) => tokens.extend(service.vocab().tokenize(text, i == 0, true)),
            part => tokens.push(integer_of(part).and_then(|id| Token::try_from(id).ok())?),
        }
    }
    Some(tokens)
}

/// Joins the texts of content parts.
fn text_of_parts(parts: &[Json]) -> Result<String, String> {
    let mut whole = String::new();
    for part in parts {
        match (part["type"].as_str(), part["text"].as_str()) {
            (Some("text"), Some(text)) => whole += text,
            (kind, _) => {
                let kind: String = kind.unwrap_or("none").chars().take(32).collect();
                return Err(format!("unsupported content part of type {kind:?}: expected text"));
            }
        }
    }
    Ok(whole)
}
