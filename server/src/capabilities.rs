//! Capabilities of models, named as in Ollama's API.

use engine::chat::{ChatTemplate, reasoning_tags};
use engine::gguf::Metadata;

use crate::chat::tools::ToolFormat;

/// Returns the names of the capabilities.
pub fn capabilities(is_encoder: bool, supports_tools: bool, has_reasoning: bool) -> Vec<&'static str> {
    let mut names = Vec::new();
    if !is_encoder {
        names.push("completion");
    }
    names.push("embedding");
    if supports_tools {
        names.push("tools");
    }
    if has_reasoning {
        names.push("thinking");
    }
    names
}

/// Returns the capabilities of an unloaded model from its file header.
pub fn capabilities_of(metadata: &Metadata) -> Vec<&'static str> {
    let text = |key: &str| metadata.optional::<&str>(key).ok().flatten();
    let arch = text("general.architecture").unwrap_or_default();
    let is_causal = metadata.optional::<bool>(&format!("{arch}.attention.causal"));
    let source = text("tokenizer.chat_template").unwrap_or_default();
    let is_encoder = is_causal.ok().flatten() == Some(false);
    match ChatTemplate::new(source, "", "") {
        Ok(template) => capabilities(
            is_encoder,
            ToolFormat::of(&template, source).is_some(),
            reasoning_tags(&template, source).is_some(),
        ),
        Err(_) => capabilities(is_encoder, false, false),
    }
}
