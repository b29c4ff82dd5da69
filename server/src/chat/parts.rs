//! Text of the parts of a message's content. Parts that the model cannot read become notes, so that a
//! conversation with an image remains usable.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use serde_json::{Map, Value as Json};

use crate::api::text_of;

/// Maximum length of a part's type in messages.
const MAX_KIND: usize = 32;
/// Maximum nesting depth of parts.
const MAX_DEPTH: usize = 8;

/// Returns the text of a part.
pub fn text(part: Json) -> Result<String, String> {
    text_at(part, 0)
}

/// Adds a warning for each part that becomes a note.
pub fn omitted(content: &Json, warnings: &mut Vec<String>) {
    omitted_at(content, warnings, 0);
}

fn omitted_at(content: &Json, warnings: &mut Vec<String>, depth: usize) {
    let Json::Array(parts) = content else { return };
    for part in parts {
        let Json::Object(fields) = part else { continue };
        let kind = kind_of(fields);
        let has_parts = fields.get("content").is_some_and(Json::is_array);
        let is_omitted = match read(fields, &kind) {
            Part::Unreadable => !has_parts,
            _ => is_document(&kind) && document(fields).is_none(),
        };
        if is_omitted {
            let kind: String = kind
                .chars()
                .filter(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            let warning = format!("content of type {kind}");
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        match fields.get("content") {
            Some(content) if depth < MAX_DEPTH => omitted_at(content, warnings, depth + 1),
            _ => {}
        }
    }
}

/// Returns the notes in place of images that a message has beside its content, as in Ollama's API.
pub fn image_notes(images: &Json) -> Option<String> {
    let n = images.as_array().map_or(0, Vec::len);
    if n == 0 {
        None
    } else {
        Some(format!("\n{}", note("image", &Map::new())))
    }
}

/// Content of a part.
enum Part {
    Text(String),
    /// The part has no text by design.
    Empty,
    /// The part is not text.
    Unreadable,
    /// A text part without text.
    Invalid,
}

fn text_at(part: Json, depth: usize) -> Result<String, String> {
    let Json::Object(fields) = part else {
        return text_of(part).ok_or_else(|| "expected a list of objects".to_owned());
    };
    let kind = kind_of(&fields);
    if kind.is_empty() {
        return Err("a part has no `type`".to_owned());
    }
    if is_document(&kind) {
        return Ok(document(&fields).unwrap_or_else(|| note(&kind, &fields)));
    }
    match read(&fields, &kind) {
        Part::Text(text) => Ok(text),
        Part::Empty => Ok(String::new()),
        Part::Invalid => Err(format!("a part of type {kind:?} has no text")),
        // Results of tools that other servers run contain parts.
        Part::Unreadable => match fields.get("content") {
            Some(Json::Array(list)) if depth < MAX_DEPTH => {
                list.iter().map(|part| text_at(part.clone(), depth + 1)).collect()
            }
            _ => Ok(note(&kind, &fields)),
        },
    }
}

fn kind_of(fields: &Map<String, Json>) -> String {
    let kind = fields.get("type").and_then(Json::as_str).unwrap_or_default();
    kind.chars().take(MAX_KIND).collect()
}

fn is_document(kind: &str) -> bool {
    matches!(kind, "document" | "file" | "input_file" | "search_result")
}

fn read(fields: &Map<String, Json>, kind: &str) -> Part {
    let key = match kind {
        "text" | "input_text" | "output_text" | "summary_text" => "text",
        "refusal" => "refusal",
        // Reasoning of earlier turns; templates read it from its own field.
        "thinking" | "reasoning" | "redacted_thinking" => return Part::Empty,
        kind if is_document(kind) => return Part::Empty,
        _ => return Part::Unreadable,
    };
    match fields.get(key) {
        Some(Json::String(text)) => Part::Text(text.clone()),
        _ => Part::Invalid,
    }
}

/// Returns the note in place of a part.
fn note(kind: &str, fields: &Map<String, Json>) -> String {
    let kind = match kind {
        "image_url" | "input_image" => "image",
        "input_audio" | "audio_url" => "audio",
        "video_url" => "video",
        kind => kind,
    };
    let title = title(fields).map(|title| format!(" {title:?}")).unwrap_or_default();
    format!("[{kind}{title} omitted: this model reads text only]")
}

/// Returns the text of a document between tags with its title; `None` if it is not text.
fn document(fields: &Map<String, Json>) -> Option<String> {
    let file = fields.get("file").and_then(Json::as_object).unwrap_or(fields);
    let source = file.get("source").unwrap_or(&Json::Null);
    let data = |value: &Json| value.as_str().and_then(text_of_url);
    let text = match source["type"].as_str() {
        Some("text") => source["data"].as_str()?.to_owned(),
        Some("content") => text_of_blocks(&source["content"])?,
        Some("base64") => {
            let kind = source["media_type"].as_str().unwrap_or_default();
            decoded(source["data"].as_str()?, kind)?
        }
        Some(_) => return None,
        None => match file.get("file_data") {
            Some(value) => data(value)?,
            None => text_of_blocks(fields.get("content")?)?,
        },
    };
    let title = title(fields).unwrap_or_default();
    Some(format!(
        "<document title={title:?}>\n{}\n</document>\n",
        text.trim_end()
    ))
}

fn title(fields: &Map<String, Json>) -> Option<&str> {
    let file = fields.get("file").and_then(Json::as_object).unwrap_or(fields);
    ["title", "filename"].iter().find_map(|key| file.get(*key)?.as_str())
}

/// Returns the text of a string or of a list of text blocks.
fn text_of_blocks(content: &Json) -> Option<String> {
    match content {
        Json::String(text) => Some(text.clone()),
        Json::Array(blocks) => blocks.iter().map(|block| block["text"].as_str()).collect(),
        _ => None,
    }
}

/// Returns the text of a `data:` URL, or of base64 without a media type.
fn text_of_url(url: &str) -> Option<String> {
    let Some(rest) = url.strip_prefix("data:") else {
        return decoded(url, "");
    };
    let (kind, data) = rest.split_once(',')?;
    match kind.strip_suffix(";base64") {
        Some(kind) => decoded(data, kind),
        None => {
            let text = percent_encoding::percent_decode_str(data).decode_utf8().ok()?;
            Some(text.into_owned())
        }
    }
}

/// Returns base64 data as text; `None` if it is not text.
fn decoded(data: &str, kind: &str) -> Option<String> {
    if kind.starts_with("image/") || kind.starts_with("audio/") || kind == "application/pdf" {
        return None;
    }
    let bytes = [STANDARD, STANDARD_NO_PAD, URL_SAFE]
        .iter()
        .find_map(|engine| engine.decode(data).ok())?;
    let text = String::from_utf8(bytes).ok()?;
    if text.contains('\0') { None } else { Some(text) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_documents_are_read() {
        let expected = "<document title=\"t\">\nhello\n</document>\n";
        for part in [
            json!({"type": "document", "title": "t", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}}),
            json!({"type": "document", "title": "t", "source": {"type": "base64", "media_type": "text/csv", "data": "aGVsbG8="}}),
            json!({"type": "document", "title": "t", "source": {"type": "content", "content": [{"type": "text", "text": "hello"}]}}),
            json!({"type": "file", "file": {"filename": "t", "file_data": "data:text/plain;base64,aGVsbG8="}}),
            json!({"type": "file", "file": {"filename": "t", "file_data": "data:text/plain,hel%6Co"}}),
            json!({"type": "input_file", "filename": "t", "file_data": "aGVsbG8="}),
            json!({"type": "search_result", "title": "t", "source": "http://x", "content": [{"type": "text", "text": "hello"}]}),
        ] {
            let mut warnings = Vec::new();
            omitted(&json!([part]), &mut warnings);
            assert_eq!(warnings, [""; 0], "{part}");
            assert_eq!(text(part.clone()).unwrap(), expected, "{part}");
        }
    }

    #[test]
    fn unreadable_parts_become_notes() {
        for (part, expected) in [
            (
                json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
                "[image omitted: this model reads text only]",
            ),
            (
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}),
                "[image omitted: this model reads text only]",
            ),
            (
                json!({"type": "document", "title": "a", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}),
                "[document \"a\" omitted: this model reads text only]",
            ),
            (
                json!({"type": "file", "file": {"file_id": "x"}}),
                "[file omitted: this model reads text only]",
            ),
            (
                json!({"type": "input_audio"}),
                "[audio omitted: this model reads text only]",
            ),
        ] {
            let mut warnings = Vec::new();
            omitted(&json!([part, part]), &mut warnings);
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert_eq!(text(part).unwrap(), expected);
        }
        assert_eq!(text(json!({"type": "refusal", "refusal": "no"})).unwrap(), "no");
        assert_eq!(text(json!({"type": "thinking", "thinking": "hm"})).unwrap(), "");
        assert!(
            text(json!({"type": "text"})).is_err() && text(json!({"text": "a"})).is_err() && text(json!(3)).is_err()
        );
    }

    #[test]
    fn nested_results_are_read_to_a_limited_depth() {
        let inner = json!({"type": "tool_result", "content": [{"type": "text", "text": "a"}, {"type": "image"}]});
        assert_eq!(text(inner).unwrap(), "a[image omitted: this model reads text only]");
        let deep = (0..100).fold(
            json!({"type": "image"}),
            |inner, _| json!({"type": "x", "content": [inner]}),
        );
        assert!(text(deep).unwrap().contains("omitted"));
    }
}
