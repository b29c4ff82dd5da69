//! OpenAI's API.

mod audio;
mod chat;
mod completions;
mod control;
mod embeddings;
mod logprobs;
mod models;
mod prompts;
mod reasoning;
mod responses;

pub use audio::{AUDIO_FIELDS, TRANSCRIPTION_FIELDS, transcriptions, translations};
pub use chat::{FIELDS as CHAT_FIELDS, chat, conversation, count as count_chat};
pub use completions::{FIELDS as COMPLETION_FIELDS, MAX_TOP, completions};
pub use control::{FIELDS as CONTROL_FIELDS, control};
pub use embeddings::{
    FIELDS as EMBEDDING_FIELDS, MAX_TEXTS, dimensions, embeddings, prompt_usage, shortened, with_embedder,
};
pub use logprobs::{chat_logprob_json, probability_json};
pub use models::{entry_json, list_json, model, model_json, models};
pub use prompts::{MEDIA_MARKER, Prompts, prompt_list, prompts};
pub use reasoning::FIELDS as REASONING_FIELDS;
pub use responses::{FIELDS as RESPONSE_FIELDS, count as count_response, forget, input_items, response, responses};

use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult};
use crate::chat::{Conversation, Usage};
use crate::http::json as json_response;
use crate::scheduler::{Finish, PromptProgress};
use crate::service::ModelService;

/// Returns OpenAI's finish reason.
pub fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Model(_) | Finish::Stop(_) => "stop",
        Finish::Limit | Finish::ContextFull => "length",
    }
}

/// Formats token counts as OpenAI's `usage` object.
pub fn usage_json(usage: &Usage) -> Json {
    json!({
        "prompt_tokens": usage.n_prompt,
        "completion_tokens": usage.n_generated,
        "total_tokens": usage.n_prompt + usage.n_generated,
        "prompt_tokens_details": { "cached_tokens": usage.n_cached },
        "completion_tokens_details": { "reasoning_tokens": usage.n_reasoning },
    })
}

/// Formats times as llama-server's `timings` object.
pub fn timings_json(usage: &Usage) -> Json {
    let ms = |time: std::time::Duration| time.as_secs_f64() * 1e3;
    let rate = |n: usize, time: f64| {
        if n == 0 || time <= 0.0 {
            0.0
        } else {
            n as f64 / time * 1e3
        }
    };
    let per_token = |n: usize, time: f64| if n == 0 { 0.0 } else { time / n as f64 };
    let n_computed = usage.n_prompt - usage.n_cached;
    let (t_prompt, t_generated) = (ms(usage.t_prompt), ms(usage.t_generated));
    // Prefill produces the first token.
    let n_timed = usage.n_generated.saturating_sub(1);
    let mut timings = json!({
        "cache_n": usage.n_cached,
        "prompt_n": n_computed,
        "prompt_ms": t_prompt,
        "prompt_per_token_ms": per_token(n_computed, t_prompt),
        "prompt_per_second": rate(n_computed, t_prompt),
        "predicted_n": usage.n_generated,
        "predicted_ms": t_generated,
        "predicted_per_token_ms": per_token(n_timed, t_generated),
        "predicted_per_second": rate(n_timed, t_generated),
    });
    if usage.drafted.n_drafts > 0 {
        timings["draft_n"] = usage.drafted.n_drafts.into();
        timings["draft_n_accepted"] = usage.drafted.n_right.into();
    }
    timings
}

/// Formats the progress of a prompt as llama-server's `prompt_progress`.
pub fn progress_json(progress: &PromptProgress) -> Json {
    json!({
        "total": progress.n_prompt,
        "cache": progress.n_cached,
        "processed": progress.n_done,
        "time_ms": progress.t_prompt.as_secs_f64() * 1e3,
    })
}

/// Returns the number of prompt tokens of a conversation. `grammar` is the grammar of the request.
fn counted(service: &ModelService, conversation: Conversation, grammar: Option<&Grammar>) -> ApiResult {
    let n = service.count(conversation, grammar)?;
    Ok(json_response(
        &json!({ "object": "response.input_tokens", "input_tokens": n }),
    ))
}

/// Formats a server-sent event.
pub fn event(data: &Json) -> String {
    format!("data: {data}\n\n")
}

/// Last event of a stream.
pub const DONE: &str = "data: [DONE]\n\n";

/// Formats an error event.
pub fn failed(error: &ApiError) -> String {
    event(&error.to_json())
}

/// Usage that a stream reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct StreamUsage {
    /// The stream ends with an event with the token counts.
    is_included: bool,
    /// Each event has the current token counts.
    is_continuous: bool,
}

/// Reads `stream_options`.
fn stream_usage(options: Option<Map<String, Json>>) -> ApiResult<StreamUsage> {
    let mut usage = StreamUsage::default();
    for (name, value) in options.unwrap_or_default() {
        let wanted = || {
            let wrong = || ApiError::field("stream_options", format_args!("{name}: expected true or false"));
            value.as_bool().ok_or_else(wrong)
        };
        match name.as_str() {
            _ if value.is_null() => {}
            "include_usage" => usage.is_included = wanted()?,
            "continuous_usage_stats" => usage.is_continuous = wanted()?,
            // The remaining options concern the transport, such as OpenAI's padding against traffic analysis.
            _ => {}
        }
    }
    usage.is_continuous &= usage.is_included;
    Ok(usage)
}
