//! `/tokenize`, `/detokenize`, `/tokenizer_info` and `/apply-template`: under the names of llama-server, and under those of vLLM that programs look for.

use axum::extract::State;
use axum::response::Response;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field, Fields, Form, integer_of};
use crate::http::{Body, Shared, blocking, json};
use crate::openai::conversation;

/// The fields of `/tokenize`.
pub const TOKENIZE_FIELDS: &[Field] = &[
    Field {
        name: "content",
        form: Form::Text,
        doc: "The text.",
    },
    Field {
        name: "prompt",
        form: Form::Text,
        doc: "The text, in place of `content`.",
    },
    Field {
        name: "add_special",
        form: Form::Flag,
        doc: "With the tokens that the model expects around a text (false; with `prompt` true).",
    },
    Field {
        name: "add_special_tokens",
        form: Form::Flag,
        doc: "The same.",
    },
    Field {
        name: "parse_special",
        form: Form::Flag,
        doc: "Names of special tokens are those tokens (true).",
    },
    Field {
        name: "with_pieces",
        form: Form::Flag,
        doc: "Tell each token's text, or its bytes where they are none (false).",
    },
    MODEL,
];

const MODEL: Field = Field {
    name: "model",
    form: Form::Ignored,
    doc: "The model, of which there is one.",
};

/// The fields of `/detokenize`.
pub const DETOKENIZE_FIELDS: &[Field] = &[
    Field {
        name: "tokens",
        form: Form::List,
        doc: "The tokens.",
    },
    MODEL,
];

/// The fields of `/apply-template`.
pub const TEMPLATE_FIELDS: &[Field] = &[
    Field {
        name: "messages",
        form: Form::List,
        doc: "What was said.",
    },
    Field {
        name: "chat_template_kwargs",
        form: Form::Object,
        doc: "Variables of the template.",
    },
    Field {
        name: "reasoning_effort",
        form: Form::Text,
        doc: "How much to think.",
    },
    Field {
        name: "continue_final_message",
        form: Form::Flag,
        doc: "The last message is the beginning of the answer.",
    },
    Field {
        name: "tools",
        form: Form::List,
        doc: "Functions that may be called.",
    },
    MODEL,
];

/// Text to tokens.
pub async fn tokenize(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let mut fields = Fields::new(body, &[TOKENIZE_FIELDS], false)?;
        let (text, is_prompt) = match (fields.text("content")?, fields.text("prompt")?) {
            (Some(text), None) => (text, false),
            (None, Some(text)) => (text, true),
            (None, None) => return Err(ApiError::field("content", "there is none")),
            (Some(_), Some(_)) => return Err(ApiError::field("prompt", "there is `content`, too")),
        };
        let add_special = [fields.flag("add_special")?, fields.flag("add_special_tokens")?];
        let add_special = add_special.into_iter().flatten().next().unwrap_or(is_prompt);
        let parse_special = fields.flag("parse_special")?.unwrap_or(true);
        let with_pieces = fields.flag("with_pieces")?.unwrap_or(false);
        fields.finish()?;
        let vocab = app.served.vocab();
        let tokens = vocab.tokenize(&text, add_special, parse_special);
        let piece = |&token: &Token| -> Json {
            let bytes = vocab.token_to_piece(token, true);
            let piece: Json = match std::str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => bytes.into(),
            };
            json!({ "id": token, "piece": piece })
        };
        let tokens: Vec<Json> = match with_pieces {
            true => tokens.iter().map(piece).collect(),
            false => tokens.into_iter().map(Json::from).collect(),
        };
        Ok(json(&json!({
            "count": tokens.len(),
            "max_model_len": app.served.n_ctx(),
            "tokens": tokens,
        })))
    })
    .await
}

/// Tokens to text.
pub async fn detokenize(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    let mut fields = Fields::new(body, &[DETOKENIZE_FIELDS], false)?;
    let n_tokens = i64::from(app.served.vocab().n_tokens());
    let list = fields
        .list("tokens")?
        .ok_or_else(|| ApiError::field("tokens", "there are none"))?;
    fields.finish()?;
    let token = |value: &Json| {
        integer_of(value)
            .filter(|id| (0..n_tokens).contains(id))
            .map(|id| id as Token)
    };
    let tokens: Option<Vec<Token>> = list.iter().map(token).collect();
    let wrong = || ApiError::field("tokens", format_args!("expected numbers from 0 to {}", n_tokens - 1));
    let text = app.served.vocab().detokenize(&tokens.ok_or_else(wrong)?, false, true);
    Ok(json(&json!({ "content": text, "prompt": text })))
}

/// What programs ask for that turn messages and texts into prompts themselves.
pub async fn tokenizer_info(State(app): State<Shared>) -> Response {
    let vocab = app.served.vocab();
    let text = |token: Option<Token>| token.map(|token| vocab.text(token).into_owned());
    json(&json!({
        "bos_token": text(vocab.bos()),
        "eos_token": text(vocab.eos()),
        "model_max_length": app.served.n_ctx(),
        "chat_template": app.served.template(),
    }))
}

/// Messages to the prompt that they make.
pub async fn apply_template(State(app): State<Shared>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let mut fields = Fields::new(body, &[TEMPLATE_FIELDS], false)?;
        let (conversation, _) = conversation(&mut fields)?;
        fields.finish()?;
        let prompt = app.served.prompt(&conversation)?;
        Ok(json(&json!({ "prompt": prompt.text })))
    })
    .await
}
