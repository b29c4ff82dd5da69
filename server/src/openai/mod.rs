//! The interface of OpenAI.

mod chat;
mod completions;
mod control;
mod embeddings;
mod logprobs;
mod models;
mod responses;

pub use chat::{FIELDS as CHAT_FIELDS, chat, conversation, count as count_chat};
pub use completions::{FIELDS as COMPLETION_FIELDS, completions, prompts};
pub use control::{FIELDS as CONTROL_FIELDS, control};
pub use embeddings::{FIELDS as EMBEDDING_FIELDS, MAX_TEXTS, check_dimensions, embeddings};
pub use logprobs::of_chat;
pub use models::{model, model_json, models};
pub use responses::{FIELDS as RESPONSE_FIELDS, Kept, count as count_response, forget, response, responses};

use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use crate::answer::Usage;
use crate::api::{ApiError, ApiResult};
use crate::http::json as json_response;
use crate::scheduler::Finish;
use crate::served::{Conversation, Served};

/// OpenAI's word for why an answer ended.
pub fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Model(_) | Finish::Stop(_) => "stop",
        Finish::Limit | Finish::ContextFull => "length",
    }
}

/// Counts as OpenAI has them.
pub fn usage_json(usage: &Usage) -> Json {
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "prompt_tokens_details": { "cached_tokens": usage.n_cached },
        "completion_tokens_details": { "reasoning_tokens": usage.n_reasoning },
    })
}

/// Times as llama-server has them.
pub fn timings_json(usage: &Usage) -> Json {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let rate = |n: usize, time: f64| {
        if n == 0 || time <= 0.0 {
            0.0
        } else {
            n as f64 / time * 1e3
        }
    };
    let n_computed = usage.n_prompt - usage.n_cached;
    let (t_prompt, t_generated) = (ms(usage.t_prompt), ms(usage.t_generated));
    // The first token comes with the prompt.
    let n_timed = usage.n_generated.saturating_sub(1);
    let mut timings = json!({
        "cache_n": usage.n_cached,
        "prompt_n": n_computed,
        "prompt_ms": t_prompt,
        "prompt_per_second": rate(n_computed, t_prompt),
        "predicted_n": usage.n_generated,
        "predicted_ms": t_generated,
        "predicted_per_second": rate(n_timed, t_generated),
    });
    if usage.drafted.n_drafts > 0 {
        timings["draft_n"] = usage.drafted.n_drafts.into();
        timings["draft_n_accepted"] = usage.drafted.n_right.into();
    }
    timings
}

/// How many tokens the prompt of a conversation has, whose answer has to be something or may be anything.
fn counted(served: &Served, conversation: Conversation, grammar: Option<&Grammar>) -> ApiResult {
    let n = served.count(conversation, grammar)?;
    Ok(json_response(
        &json!({ "object": "response.input_tokens", "input_tokens": n }),
    ))
}

/// An event of a stream.
pub fn event(data: &Json) -> String {
    format!("data: {data}\n\n")
}

/// What ends a stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// An error in the middle of a stream.
pub fn failed(text: &str) -> String {
    event(&ApiError::server(text).to_json())
}

/// True if a last event with counts is asked for.
fn includes_usage(options: Option<Map<String, Json>>) -> ApiResult<bool> {
    let mut includes = false;
    for (name, value) in options.unwrap_or_default() {
        match (name.as_str(), value.as_bool()) {
            ("include_usage", Some(wanted)) => includes = wanted,
            // Padding against eavesdroppers, which loopback has none of.
            ("include_obfuscation", Some(_)) => {}
            _ => {
                return Err(ApiError::field(
                    "stream_options",
                    "expected an object with include_usage, true or false",
                ));
            }
        }
    }
    Ok(includes)
}
