//! Ollama's API, for clients that support no other.

mod chat;
mod embed;
mod keep_alive;
mod models;

pub use chat::{CHAT_FIELDS, GENERATE_FIELDS, chat, generate};
pub use embed::{EMBED_FIELDS, EMBEDDINGS_FIELDS, embed, embeddings};
pub use keep_alive::{KeepAlive, UnloadsModel};
pub use models::{ModelSummary, SHOW_FIELDS, describe, loaded_json, named, ps, show, tags, version};

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use crate::api::ApiError;
use crate::timestamp::rfc3339;

/// Formats an error for Ollama's clients.
pub fn error_json(error: &ApiError) -> Json {
    json!({ "error": error.message })
}

/// Returns the current time in RFC 3339 format, such as `2026-11-23T08:15:00.123456Z`.
fn now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    rfc3339(since.as_secs(), since.subsec_micros())
}
