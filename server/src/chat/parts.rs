//! Text, images, and audio of the parts of a message's content. Other parts become notes, so that a conversation with
//! such a part remains usable.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE};
use engine::model::Medium;
use llama::parts::{IMAGE_MARK, without_marks};
use serde_json::{Map, Value as Json};

use super::content_error::ContentError;
use super::file_limit::FileLimit;
use super::media_files::{
    DataRules, MAX_MEDIA, MediaFile, MediaFormat, medium_of, name_of, part_data, plain_data, plural_of,
};
use crate::api::{shown, text_of};
use crate::http::Charge;

/// Maximum length of a part's type in messages.
const MAX_KIND: usize = 32;
/// Maximum nesting depth of parts.
const MAX_DEPTH: usize = 8;

/// Reader of the content of messages. Collects the media, and warnings about parts that become notes.
#[derive(Debug, Default)]
pub struct ContentReader {
    /// Sizes and limits of media; `None` if the model or the route reads text only.
    format: Option<MediaFormat>,
    /// Route that reads text only.
    text_route: Option<&'static str>,
    /// Field of the request that is being read.
    field: String,
    /// Treatment of the media of the field.
    media_in: MediaIn,
    files: Vec<MediaFile>,
    /// Size of the files in bytes.
    n_bytes: usize,
    /// Memory of the fetched files.
    memory: Arc<Charge>,
    warnings: Vec<String>,
}

/// Treatment of the media of a message, which follows from its role.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum MediaIn {
    /// A medium that the model does not read is an error.
    #[default]
    User,
    /// A medium that the model does not read becomes a note, so that long sessions can continue.
    Tool,
    /// All media become notes.
    Assistant,
}

impl ContentReader {
    /// Creates a reader for a model that reads media, or text only.
    pub fn new(format: Option<MediaFormat>) -> ContentReader {
        ContentReader {
            memory: Arc::new(Charge::with_media(
                format.as_ref().map_or(0, |format| format.limits.bytes),
            )),
            format,
            ..ContentReader::default()
        }
    }

    /// Creates a reader for a route that accepts text only.
    pub fn text_only(route: &'static str) -> ContentReader {
        ContentReader {
            text_route: Some(route),
            ..ContentReader::default()
        }
    }

    /// Starts reading the content of a message with this role. `field` names the content in errors.
    pub fn enter(&mut self, field: &str, role: &str) {
        field.clone_into(&mut self.field);
        self.media_in = match role {
            "user" => MediaIn::User,
            "assistant" => MediaIn::Assistant,
            _ => MediaIn::Tool,
        };
    }

    /// Returns the media in the order of their marks, and a warning for each kind of part that became a note.
    pub fn finish(self) -> (Vec<MediaFile>, Vec<String>) {
        (self.files, self.warnings)
    }

    /// Returns the text of a `content` value: a string, or the concatenated text of its parts. Each medium becomes an
    /// [`IMAGE_MARK`].
    pub fn text(&mut self, content: Json) -> Result<String, ContentError> {
        match content {
            Json::String(text) => Ok(self.plain(text)),
            Json::Array(list) => list.into_iter().map(|part| self.part(part, 0)).collect(),
            other => Err(format!("expected a string or a list of parts, found {}", shown(&other)).into()),
        }
    }

    /// Reads a list of media that is separate from the content of a message, as in Ollama's API: base64 data without a
    /// media type. Returns the marks of the media.
    pub fn list(&mut self, media: Json) -> Result<String, ContentError> {
        let list = match media {
            Json::Array(list) => list,
            Json::Null => Vec::new(),
            other => return Err(format!("expected a list of base64 texts, found {}", shown(&other)).into()),
        };
        if list.is_empty() {
            return Ok(String::new());
        }
        let medium = if self.reads(Medium::Audio) && !self.reads(Medium::Image) {
            Medium::Audio
        } else {
            Medium::Image
        };
        if self.notes(medium) {
            self.warn("images");
            return Ok(format!("\n{}", note("image", &Map::new())));
        }
        let wrong = "expected base64 data";
        list.into_iter()
            .map(|value| self.file(medium, |rules| plain_data(value.as_str().ok_or(wrong)?, rules)))
            .collect()
    }

    /// Returns true if the model reads media.
    pub fn reads_media(&self) -> bool {
        self.format.is_some()
    }

    /// Returns true if the model reads a medium.
    fn reads(&self, medium: Medium) -> bool {
        self.format.as_ref().is_some_and(|format| format.layout.reads(medium))
    }

    /// Returns true if files of a medium become notes in the current message.
    fn notes(&self, medium: Medium) -> bool {
        match self.media_in {
            MediaIn::User => false,
            MediaIn::Tool => !self.reads(medium),
            MediaIn::Assistant => true,
        }
    }

    /// Reads a file and returns its mark.
    fn file(
        &mut self,
        medium: Medium,
        data: impl FnOnce(DataRules<'_>) -> Result<Vec<u8>, ContentError>,
    ) -> Result<String, ContentError> {
        let Some(format) = &self.format else {
            return Err(match self.text_route {
                Some(route) => format!("this route accepts text only: {route}").into(),
                None => {
                    "this model reads text only; to send images or audio, serve a model with its projector (--mmproj)"
                        .into()
                }
            });
        };
        let (number, name) = (self.files.len() + 1, name_of(medium));
        let title = format!("{name} {number} of the request");
        let max = format.limits.bytes;
        let rules = DataRules {
            limit: FileLimit {
                max,
                left: FileLimit::of_request(max) - self.n_bytes,
                memory: &self.memory,
            },
            sources: &format.sources,
        };
        let bytes = if number > MAX_MEDIA {
            Err(format!("the limit is {MAX_MEDIA} images or audio files").into())
        } else if !format.layout.reads(medium) {
            let (encoded, found) = (format.layout.media(), plural_of(medium));
            Err(format!("the projector of this model encodes {encoded}, not {found}").into())
        } else {
            data(rules)
        };
        let file = bytes.and_then(|bytes| {
            self.n_bytes += bytes.len();
            Ok(MediaFile::new(bytes, format, &self.field, &title, self.memory.clone())?)
        });
        self.files.push(file.map_err(|error| error.prefixed(&title))?);
        Ok(IMAGE_MARK.to_string())
    }

    /// Returns the text without media marks.
    pub fn plain(&self, text: String) -> String {
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

    fn part(&mut self, part: Json, depth: usize) -> Result<String, ContentError> {
        let Json::Object(mut fields) = part else {
            let text = text_of(part).ok_or("expected a list of objects")?;
            return Ok(self.plain(text));
        };
        let kind = kind_of(&fields);
        if kind.is_empty() {
            return Err("a part has no `type`".into());
        }
        if is_document(&kind) {
            return Ok(match document(&fields) {
                Some(text) => self.plain(text),
                None => self.note(&kind, &fields),
            });
        }
        if let Some(medium) = medium_of(&kind).filter(|&medium| !self.notes(medium)) {
            return self.file(medium, |rules| part_data(&fields, rules));
        }
        match read(&fields, &kind) {
            Part::Text(text) => Ok(self.plain(text)),
            Part::Empty => Ok(String::new()),
            Part::Invalid => Err(format!("a part of type {kind:?} has no text").into()),
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
    let kind = match (medium_of(kind), kind) {
        (Some(medium), _) => name_of(medium),
        (None, "video_url") => "video",
        (None, kind) => kind,
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
    fn read(content: Json) -> (Result<String, ContentError>, Vec<String>) {
        let mut reader = ContentReader::new(None);
        reader.enter("messages[0].content", "tool");
        let text = reader.text(content);
        (text, reader.finish().1)
    }

    #[test]
    fn media_of_users_require_a_projector() {
        let parts = json!([{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]);
        let mut reader = ContentReader::new(None);
        reader.enter("messages[0].content", "user");
        let message = |error: ContentError| error.of_field("f").message;
        assert!(message(reader.text(parts.clone()).unwrap_err()).contains("--mmproj"));
        assert!(message(reader.list(json!(["AA"])).unwrap_err()).contains("--mmproj"));
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
