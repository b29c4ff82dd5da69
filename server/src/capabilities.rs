//! Capabilities of models, named as in Ollama's API.

use engine::chat::{ChatTemplate, reasoning_tags};
use engine::gguf::Metadata;

use crate::chat::tools::ToolFormat;

/// Returns the names of the capabilities.
pub fn capabilities(
    is_encoder: bool,
    supports_tools: bool,
    has_reasoning: bool,
    reads_images: bool,
    reads_audio: bool,
) -> Vec<&'static str> {
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
    if reads_images {
        names.push("vision");
    }
    if reads_audio {
        names.push("audio");
    }
    names
}

/// Returns the capabilities of an unloaded model from its file header.
pub fn capabilities_of(metadata: &Metadata) -> Vec<&'static str> {
    let text = |key: &str| metadata.optional::<&str>(key).ok().flatten();
    let arch = text("general.architecture").unwrap_or_default();
    let is_causal = metadata.optional::<bool>(&format!("{arch}.attention.causal"));
    let is_encoder = is_causal.ok().flatten() == Some(false);
    let template = |source: &'static str| {
        let source = text(source)?;
        Some((ChatTemplate::new(source, "", "").ok()?, source))
    };
    let default = template("tokenizer.chat_template").or_else(|| template("tokenizer.chat_template.default"));
    let with_tools = template("tokenizer.chat_template.tool_use");
    let has_tools = |found: &Option<(ChatTemplate, &str)>| {
        let format = found
            .as_ref()
            .and_then(|(template, source)| ToolFormat::of(template, source));
        format.is_some()
    };
    let has_reasoning = |(template, source): &(ChatTemplate, &str)| reasoning_tags(template, source).is_some();
    capabilities(
        is_encoder,
        has_tools(&with_tools) || has_tools(&default),
        default.as_ref().or(with_tools.as_ref()).is_some_and(has_reasoning),
        false,
        false,
    )
}
