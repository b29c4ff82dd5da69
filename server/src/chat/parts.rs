//! Text and images of the parts of a message's content. Other parts become notes, so that a conversation with such a
//! part remains usable.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use llama::parts::{IMAGE_MARK, without_marks};
use serde_json::{Map, Value as Json};

use super::images::{ImageFile, ImageFormat, MAX_IMAGES, is_image, part_data, plain_data};
use crate::api::{shown, text_of};

/// Maximum length of a part's type in messages.
const MAX_KIND: usize = 32;
/// Maximum nesting depth of parts.
const MAX_DEPTH: usize = 8;

/// Reader of the content of messages. Collects the images, and warnings about parts that become notes.
#[derive(Debug, Default)]
pub struct ContentReader {
    /// Sizes and limits of images; `None` if the model reads text only.
    format: Option<ImageFormat>,
    /// Field of the request that is being read.
    field: String,
    /// Images of the field are replaced by notes.
    notes_images: bool,
    images: Vec<ImageFile>,
    warnings: Vec<String>,
}

impl ContentReader {
    /// Creates a reader for a model that reads images, or text only.
    pub fn new(format: Option<ImageFormat>) -> ContentReader {
        ContentReader {
            format,
            ..ContentReader::default()
        }
    }

    /// Starts reading the content of a message with this role. `field` names the content in errors.
    ///
    /// Images of a user require a model that reads images. Images of tools become notes if the model reads text only,
    /// so that long sessions can continue. Images of the assistant always become notes.
    pub fn enter(&mut self, field: &str, role: &str) {
        field.clone_into(&mut self.field);
        let is_read = self.format.is_some() && role != "assistant";
        self.notes_images = !is_read && role != "user";
    }

    /// Returns the images in the order of their marks, and a warning for each kind of part that became a note.
    pub fn finish(self) -> (Vec<ImageFile>, Vec<String>) {
        (self.images, self.warnings)
    }

    /// Returns the text of a `content` value: a string, or the concatenated text of its parts. Each image becomes an
    /// [`IMAGE_MARK`].
    pub fn text(&mut self, content: Json) -> Result<String, String> {
        match content {
            Json::String(text) => Ok(self.plain(text)),
            Json::Array(list) => list.into_iter().map(|part| self.part(part, 0)).collect(),
            other => Err(format!("expected a string or a list of parts, found {}", shown(&other))),
        }
    }

    /// Reads a list of images that is separate from the content of a message, as in Ollama's API: base64 data without a
    /// media type. Returns the marks of the images.
    pub fn image_list(&mut self, images: Json) -> Result<String, String> {
        let list = match images {
            Json::Array(list) => list,
            Json::Null => Vec::new(),
            other => return Err(format!("expected a list of base64 texts, found {}", shown(&other))),
        };
        if list.is_empty() {
            return Ok(String::new());
        }
        if self.notes_images {
            self.warn("images");
            return Ok(format!("\n{}", note("image", &Map::new())));
        }
        list.into_iter()
            .map(|data| self.image(|max| plain_data(&data, max)))
            .collect()
    }

    /// Reads an image and returns its mark.
    fn image(&mut self, data: impl FnOnce(usize) -> Result<Vec<u8>, String>) -> Result<String, String> {
        let Some(format) = &self.format else {
            return Err(
                "this model reads text only; to send images, serve a vision model with its projector (--mmproj)"
                    .to_owned(),
            );
        };
        let number = self.images.len() + 1;
        let image = match number <= MAX_IMAGES {
            true => data(format.limits.bytes).and_then(|bytes| ImageFile::new(bytes, format, &self.field, number)),
            false => Err(format!("the limit is {MAX_IMAGES} images")),
        };
        let image = image.map_err(|why| format!("image {number} of the request: {why}"))?;
        self.images.push(image);
        Ok(IMAGE_MARK.to_string())
    }

    /// Returns text without marks of images.
    fn plain(&self, text: String) -> String {
        match self.format {
            Some(_) if text.contains(IMAGE_MARK) => without_marks(&text),
            _ => text,
        }
    }

    fn warn(&mut self, warning: &str) {
        if !self.warnings.iter().any(|known| known == warning) {
            self.warnings.push(warning.to_owned());
        }
    }

    /// Returns the note in place of a part, and adds a warning.
    fn note(&mut self, kind: &str, fields: &Map<String, Json>) -> String {
        let is_word = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
        let word: String = kind.chars().filter(is_word).collect();
        self.warn(&format!("content of type {word}"));
        note(kind, fields)
    }

    fn part(&mut self, part: Json, depth: usize) -> Result<String, String> {
        let Json::Object(mut fields) = part else {
            let text = text_of(part).ok_or("expected a list of objects")?;
            return Ok(self.plain(text));
        };
        let kind = kind_of(&fields);
        if kind.is_empty() {
            return Err("a part has no `type`".to_owned());
        }
        if is_document(&kind) {
            return Ok(match document(&fields) {
                Some(text) => self.plain(text),
                None => self.note(&kind, &fields),
            });
        }
        if is_image(&kind) && !self.notes_images {
            return self.image(|max| part_data(&fields, max));
        }
        match read(&fields, &kind) {
            Part::Text(text) => Ok(self.plain(text)),
            Part::Empty => Ok(String::new()),
            Part::Invalid => Err(format!("a part of type {kind:?} has no text")),
            // Results of tools that other servers run contain parts.
            Part::Unreadable => match fields.remove("content") {
                Some(Json::Array(list)) if depth < MAX_DEPTH => {
                    list.into_iter().map(|part| self.part(part, depth + 1)).collect()
                }
                _ => Ok(self.note(&kind, &fields)),
            },
        }
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
    format!("[{kind}{title} omitted: not supported by this model]")
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

    /// Reads the content of a tool's result with a model that reads text only.
    fn read(content: Json) -> (Result<String, String>, Vec<String>) {
        let mut reader = ContentReader::new(None);
        reader.enter("messages[0].content", "tool");
        let text = reader.text(content);
        (text, reader.finish().1)
    }

    #[test]
    fn images_of_users_need_a_model_that_reads_them() {
        let parts = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]);
        let mut reader = ContentReader::new(None);
        reader.enter("messages[0].content", "user");
        assert!(reader.text(parts.clone()).unwrap_err().contains("--mmproj"));
        assert!(reader.image_list(json!(["AA"])).unwrap_err().contains("--mmproj"));
        reader.enter("messages[1].content", "assistant");
        assert!(reader.text(parts).unwrap().contains("omitted"));
        assert_eq!(reader.finish().1, ["content of type image_url"]);
    }

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
            let (text, warnings) = read(json!([part]));
            assert_eq!(warnings, [""; 0], "{part}");
            assert_eq!(text.unwrap(), expected, "{part}");
        }
    }

    #[test]
    fn unreadable_parts_become_notes() {
        for (part, expected) in [
            (
                json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}),
                "[image omitted: not supported by this model]",
            ),
            (
                json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}),
                "[image omitted: not supported by this model]",
            ),
            (
                json!({"type": "document", "title": "a", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="}}),
                "[document \"a\" omitted: not supported by this model]",
            ),
            (
                json!({"type": "file", "file": {"file_id": "x"}}),
                "[file omitted: not supported by this model]",
            ),
            (
                json!({"type": "input_audio"}),
                "[audio omitted: not supported by this model]",
            ),
        ] {
            let (text, warnings) = read(json!([part, part]));
            assert_eq!(warnings.len(), 1, "{warnings:?}");
            assert_eq!(text.unwrap(), expected.repeat(2));
        }
        let text = |part: Json| read(json!([part])).0;
        assert_eq!(text(json!({"type": "refusal", "refusal": "no"})).unwrap(), "no");
        assert_eq!(text(json!({"type": "thinking", "thinking": "hm"})).unwrap(), "");
        assert!(
            text(json!({"type": "text"})).is_err() && text(json!({"text": "a"})).is_err() && text(json!(3)).is_err()
        );
    }

    #[test]
    fn nested_results_are_read_to_a_limited_depth() {
        let inner = json!({"type": "tool_result", "content": [{"type": "text", "text": "a"}, {"type": "image"}]});
        assert_eq!(
            read(json!([inner])).0.unwrap(),
            "a[image omitted: not supported by this model]"
        );
        let deep = (0..100).fold(
            json!({"type": "image"}),
            |inner, _| json!({"type": "x", "content": [inner]}),
        );
        assert!(read(json!([deep])).0.unwrap().contains("omitted"));
    }
}
