//! Images and audio in messages: their data, their limits, and their rows in a prompt.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{DecodeError, Engine};
use engine::context::MediaRows;
use engine::model::Medium;
use llama::parts::MediaLayout;
use media::Limits;
use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

use super::content_error::ContentError;
use super::file_limit::FileLimit;
use super::media_sources::MediaSources;
use crate::api::{ApiError, ApiResult};
use crate::http::Charge;

/// Maximum number of images and audio files of a request.
pub const MAX_MEDIA: usize = 32;

/// Sizes and limits of the media that a model reads.
#[derive(Clone, Debug)]
pub struct MediaFormat {
    /// Row counts, and positions in prompts.
    pub layout: MediaLayout,
    /// Limits of a file.
    pub limits: Limits,
    /// Sources other than the request itself.
    pub sources: MediaSources,
}

/// Rules for the data of a file.
#[derive(Clone, Copy, Debug)]
pub struct DataRules<'a> {
    /// Limits of the size.
    pub limit: FileLimit<'a>,
    /// Sources other than the request itself.
    pub sources: &'a MediaSources,
}

/// An image or audio file of a request.
#[derive(Clone, Debug)]
pub struct MediaFile {
    /// The encoded file.
    pub bytes: Arc<[u8]>,
    /// Medium of the file.
    pub medium: Medium,
    /// SHA-256 of the file.
    pub digest: [u8; 32],
    /// Rows of the medium; `None` until the file is encoded.
    pub rows: Option<Arc<MediaRows>>,
    /// Memory of the fetched files of the request, counted until the last file is dropped.
    _memory: Arc<Charge>,
    n_rows: usize,
    /// Texts between the rows, each with the number of rows before it.
    texts: Vec<(usize, String)>,
    field: String,
    /// Medium and 1-based index of the file in the request.
    title: String,
}

impl MediaFile {
    /// Checks the header of a file against the limits. `field` and `title` identify the file in errors, and `memory`
    /// counts the fetched files of the request.
    pub fn new(
        bytes: Vec<u8>,
        format: &MediaFormat,
        field: &str,
        title: &str,
        memory: Arc<Charge>,
    ) -> Result<MediaFile, String> {
        let (layout, limits) = (&format.layout, &format.limits);
        let medium = layout.medium_of(&bytes);
        let n_rows = layout.n_rows(medium, &bytes, limits).map_err(|e| e.to_string())?;
        let texts = layout.texts(medium, &bytes, limits).map_err(|e| e.to_string())?;
        Ok(MediaFile {
            medium,
            texts,
            digest: Sha256::digest(&bytes).into(),
            bytes: bytes.into(),
            rows: None,
            _memory: memory,
            n_rows,
            field: field.to_owned(),
            title: title.to_owned(),
        })
    }

    /// Returns an error about the file.
    pub fn error(&self, why: impl Display) -> ApiError {
        ApiError::field(&self.field, format_args!("{}: {why}", self.title))
    }

    /// Sets placeholder rows, for prompts whose tokens are only counted.
    pub fn measure(&mut self) {
        let (half, _) = self.digest.as_chunks::<16>();
        let rows = || {
            let rows = MediaRows::new(u128::from_le_bytes(half[0]), 1, vec![0.0; self.n_rows]);
            Arc::new(rows.of(self.medium).with_texts(self.texts.clone()))
        };
        self.rows.get_or_insert_with(rows);
    }

    /// Returns the rows of an encoded file.
    pub fn encoded(&self) -> ApiResult<Arc<MediaRows>> {
        let missing = || ApiError::server(format!("internal error: {} is not encoded", self.title));
        self.rows.clone().ok_or_else(missing)
    }
}

/// Returns the medium of parts of this type.
pub fn medium_of(kind: &str) -> Option<Medium> {
    match kind {
        "image_url" | "input_image" | "image" => Some(Medium::Image),
        "input_audio" | "audio_url" | "audio" => Some(Medium::Audio),
        _ => None,
    }
}

/// Returns the name of a medium in messages.
pub fn name_of(medium: Medium) -> &'static str {
    match medium {
        Medium::Image => "image",
        Medium::Audio => "audio",
    }
}

/// Returns the plural of [`name_of`].
pub fn plural_of(medium: Medium) -> &'static str {
    match medium {
        Medium::Image => "images",
        Medium::Audio => "audio",
    }
}

/// Returns the data of a part in the format of OpenAI, Anthropic, vLLM, or the Model Context Protocol.
pub fn part_data(fields: &Map<String, Json>, rules: DataRules<'_>) -> Result<Vec<u8>, ContentError> {
    let given = |name: &&str| fields.get(*name).is_some_and(|value| !value.is_null());
    if let Some(name) = ["image_url", "audio_url"].into_iter().find(given) {
        let url = &fields[name];
        let url = url.as_str().or_else(|| url["url"].as_str());
        return url_data(url.ok_or_else(|| format!("expected a `data:` URL in `{name}`"))?, rules);
    }
    let inner = ["source", "input_audio"]
        .iter()
        .find_map(|name| fields.get(*name)?.as_object());
    let source = inner.unwrap_or(fields);
    let text = |name: &str| source.get(name).and_then(Json::as_str);
    match (text("data").or_else(|| text("base64")), text("url")) {
        (Some(data), _) => plain_data(data, rules),
        (None, Some(url)) => url_data(url, rules),
        (None, None) => Err("expected base64 data; files are not stored by this server".into()),
    }
}

/// Returns the data of a file that is given as base64 or as a `data:` URL.
pub fn plain_data(text: &str, rules: DataRules<'_>) -> Result<Vec<u8>, ContentError> {
    if text.contains(':') {
        url_data(text, rules)
    } else {
        decoded(text, rules)
    }
}

/// Returns the data of a URL. The media type of a `data:` URL is ignored, because files start with their format.
fn url_data(url: &str, rules: DataRules<'_>) -> Result<Vec<u8>, ContentError> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "data" => {}
        "http" | "https" => return rules.sources.download(url, rules.limit),
        "file" => return rules.sources.file(rest, rules.limit),
        _ => return Err("expected a `data:` URL, such as data:image/png;base64,…".into()),
    }
    let (kind, data) = rest
        .split_once(',')
        .ok_or("the `data:` URL has no comma before its data")?;
    if kind.to_ascii_lowercase().ends_with(";base64") {
        return decoded(data, rules);
    }
    let bytes: Vec<u8> = percent_encoding::percent_decode_str(data).collect();
    rules.limit.check(bytes.len()).map(|()| bytes)
}

/// Decodes base64 in the standard or the URL-safe alphabet. Padding is optional, and whitespace is ignored.
fn decoded(data: &str, rules: DataRules<'_>) -> Result<Vec<u8>, ContentError> {
    const CONFIG: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const PLAIN: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
    const SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
    let is_space = |c: char| c.is_ascii_whitespace();
    let data: Cow<'_, str> = if data.contains(is_space) {
        data.split(is_space).collect::<String>().into()
    } else {
        data.into()
    };
    rules.limit.check(data.trim_end_matches('=').len() * 3 / 4)?;
    let engine = if data.contains(['-', '_']) { SAFE } else { PLAIN };
    let bytes = engine
        .decode(data.as_bytes())
        .map_err(|e| format!("invalid base64: {}", reason(&e)))?;
    rules.limit.check(bytes.len()).map(|()| bytes)
}

/// Describes the first invalid character, or the missing end.
fn reason(error: &DecodeError) -> String {
    match error {
        DecodeError::InvalidByte(offset, byte) => {
            format!("unexpected character {:?} at offset {offset}", char::from(*byte))
        }
        _ => "the end is missing or wrong".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(data: impl FnOnce(DataRules<'_>) -> Result<Vec<u8>, ContentError>, left: usize) -> Result<Vec<u8>, String> {
        let (sources, memory) = (MediaSources::default(), Charge::default());
        let limit = FileLimit {
            max: 8,
            left,
            memory: &memory,
        };
        let rules = DataRules {
            limit,
            sources: &sources,
        };
        data(rules).map_err(|error| error.of_field("f").message)
    }

    fn data(part: Json) -> Result<Vec<u8>, String> {
        read(|rules| part_data(part.as_object().unwrap(), rules), 16)
    }

    fn plain(text: &str) -> Result<Vec<u8>, String> {
        read(|rules| plain_data(text, rules), 16)
    }

    #[test]
    fn later_files_get_remaining_limit() {
        assert_eq!(
            read(|rules| plain_data("aGVsbG8=", rules), 5).as_deref(),
            Ok(&b"hello"[..])
        );
        for text in ["aGVsbG8=", "data:,hello"] {
            let error = read(|rules| plain_data(text, rules), 4).unwrap_err();
            assert!(error.contains("more than 16 bytes together"), "{error}");
        }
    }

    #[test]
    fn media_parts_of_all_apis_are_decoded() {
        for part in [
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8=", "detail": "low"}}),
            json!({"type": "image_url", "image_url": "DATA:;BASE64,aGVs\nbG8"}),
            json!({"type": "image_url", "image_url": {"url": "data:text/plain,hel%6Co"}}),
            json!({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8=", "file_id": null}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}),
            json!({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}),
            json!({"type": "input_audio", "input_audio": {"data": "aGVsbG8=", "format": "wav"}}),
            json!({"type": "input_audio", "input_audio": {"data": "data:audio/wav;base64,aGVsbG8="}}),
            json!({"type": "input_audio", "data": "aGVsbG8=", "format": "mp3"}),
            json!({"type": "audio_url", "audio_url": {"url": "data:audio/ogg;base64,aGVsbG8="}}),
            json!({"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav"}),
        ] {
            assert_eq!(data(part.clone()).as_deref(), Ok(&b"hello"[..]), "{part}");
        }
        assert_eq!(plain("aGVsbG8").as_deref(), Ok(&b"hello"[..]));
        assert_eq!(plain("data:;base64,_-8=").as_deref(), Ok(&[0xff, 0xef][..]));
    }

    #[test]
    fn unsupported_sources_are_rejected_with_reason() {
        let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        for (part, reason) in [
            (url("http://127.0.0.1/a.png"), "are not fetched"),
            (url("HTTPS://example.org/a.png"), "are not fetched"),
            (url("file:///etc/passwd"), "files of the server are not read"),
            (url("/etc/passwd"), "expected a `data:` URL"),
            (url("data:image/png;base64"), "no comma"),
            (
                url("data:image/png;base64,aG*VsbG8"),
                "invalid base64: unexpected character '*' at offset 2",
            ),
            (
                url("data:image/png;base64,aGVsb"),
                "invalid base64: the end is missing or wrong",
            ),
            (
                url("data:image/png;base64,aGVsbG8gd29ybGQ="),
                "has 11 bytes; the limit is 8 (--media-max-mib)",
            ),
            (url("data:,123456789"), "has 9 bytes; the limit is 8"),
            (json!({"type": "image_url", "image_url": 3}), "expected a `data:` URL"),
            (json!({"type": "input_image", "file_id": "f"}), "files are not stored"),
            (
                json!({"type": "image", "source": {"type": "url", "url": "https://a/b"}}),
                "are not fetched",
            ),
            (json!({"type": "image"}), "expected base64 data"),
            (json!({"type": "audio_url", "audio_url": 3}), "in `audio_url`"),
            (
                json!({"type": "input_audio", "input_audio": {"url": "https://a/b"}}),
                "are not fetched",
            ),
        ] {
            let error = data(part.clone()).unwrap_err();
            assert!(error.contains(reason), "{part}: {error}");
        }
        assert!(plain("http://a/b").is_err() && plain("file:a").is_err());
    }
}
