//! Tokenization and templates: `/tokenize`, `/detokenize`, `/tokenizer_info`, and `/apply-template`, compatible with
//! llama-server and vLLM.

use axum::extract::State;
use axum::response::Response;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, integer_of};
use crate::app::Shared;
use crate::chat::MediaFile;
use crate::http::{Body, blocking, json};
use crate::openai::conversation;

/// Fields of `/tokenize`.
pub const TOKENIZE_FIELDS: &[Field] = &[
    Field::text("content", "String to tokenize."),
    Field::text("prompt", "vLLM's name of `content`."),
    Field::flag(
        "add_special",
        "Add the special tokens that the model expects around a prompt (false; true with `prompt`).",
    ),
    Field::flag("add_special_tokens", "Alias of `add_special`."),
    Field::flag("parse_special", "Parse the names of special tokens (true)."),
    Field::flag(
        "with_pieces",
        "Return the text of each token, or its bytes if they are not valid UTF-8 (false).",
    ),
    MODEL,
];

const MODEL: Field = Field::ignored("model", "Ignored.");

/// Fields of `/detokenize`.
pub const DETOKENIZE_FIELDS: &[Field] = &[Field::list("tokens", "Token ids."), MODEL];

/// Fields of `/apply-template`.
pub const TEMPLATE_FIELDS: &[Field] = &[
    Field::list("messages", "Messages, oldest first."),
    Field::object("chat_template_kwargs", "Variables of the chat template."),
    Field::text(
        "reasoning_effort",
        "Reasoning effort, if the chat template supports it.",
    ),
    Field::flag(
        "continue_final_message",
        "Continue the last message, which must have role `assistant` (false).",
    ),
    Field::flag(
        "add_generation_prompt",
        "End the prompt with the start of a new assistant message (the opposite of `continue_final_message`).",
    ),
    Field::list("tools", "Tool definitions."),
    MODEL,
];

/// Handles `POST /tokenize`.
pub async fn tokenize(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let mut fields = Fields::new(body, &[TOKENIZE_FIELDS], false)?;
        let (text, is_prompt) = match (fields.text("content")?, fields.text("prompt")?) {
            (Some(text), None) => (text, false),
            (None, Some(text)) => (text, true),
            (None, None) => return Err(ApiError::field("content", "missing; expected a string")),
            (Some(_), Some(_)) => return Err(ApiError::field("prompt", "cannot be combined with content")),
        };
        let add_special = [fields.flag("add_special")?, fields.flag("add_special_tokens")?];
        let add_special = add_special.into_iter().flatten().next().unwrap_or(is_prompt);
        let parse_special = fields.flag("parse_special")?.unwrap_or(true);
        let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
        fields.finish()?;
        let vocab = app.service.vocab();
        let tokens = vocab.tokenize(&text, add_special, parse_special);
        let piece = |&token: &Token| -> Json {
            let bytes = vocab.token_to_piece(token, true);
            let piece: Json = match std::str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => bytes.into(),
            };
            json!({ "id": token, "piece": piece })
        };
        let tokens: Vec<Json> = if with_pieces {
            tokens.iter().map(piece).collect()
        } else {
            tokens.into_iter().map(Json::from).collect()
        };
        Ok(json(&json!({
            "count": tokens.len(),
            "max_model_len": app.service.n_ctx(),
            "tokens": tokens,
        })))
    })
    .await
}

/// Handles `POST /detokenize`.
pub async fn detokenize(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    let mut fields = Fields::new(body, &[DETOKENIZE_FIELDS], false)?;
    let n_tokens = i64::from(app.service.vocab().n_tokens());
    let list = fields
        .list("tokens")?
        .ok_or_else(|| ApiError::field("tokens", "missing; expected a list of tokens"))?;
    fields.finish()?;
    let token = |value: &Json| {
        integer_of(value)
            .filter(|id| (0..n_tokens).contains(id))
            .map(|id| id as Token)
    };
    let tokens: Option<Vec<Token>> = list.iter().map(token).collect();
    let wrong = || ApiError::field("tokens", format_args!("expected tokens from 0 to {}", n_tokens - 1));
    let text = app.service.vocab().detokenize(&tokens.ok_or_else(wrong)?, false, true);
    Ok(json(&json!({ "content": text, "prompt": text })))
}

/// Handles `GET /tokenizer_info`, for clients that render prompts themselves.
pub async fn tokenizer_info(State(app): State<Shared>) -> Response {
    let vocab = app.service.vocab();
    let text = |token: Option<Token>| token.map(|token| vocab.text(token).into_owned());
    json(&json!({
        "bos_token": text(vocab.bos()),
        "eos_token": text(vocab.eos()),
        "model_max_length": app.service.n_ctx(),
        "chat_template": app.service.chat.template(),
    }))
}

/// Handles `POST /apply-template`.
pub async fn apply_template(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let mut fields = Fields::new(body, &[TEMPLATE_FIELDS], false)?;
        let starts_answer = fields.flag("add_generation_prompt")?;
        let reader = app.service.chat.content_reader();
        let (mut conversation, ..) = conversation(&mut fields, reader)?;
        fields.finish()?;
        if starts_answer == Some(true) && conversation.continues_last {
            let why = "must be false with continue_final_message";
            return Err(ApiError::field("add_generation_prompt", why));
        }
        conversation.without_answer = starts_answer == Some(false) && !conversation.continues_last;
        conversation.media.iter_mut().for_each(MediaFile::measure);
        let prompt = app.service.chat.prompt(&conversation)?;
        Ok(json(&json!({ "prompt": prompt.text })))
    })
    .await
}
