//! Images in messages: their data, their limits, and their rows in a prompt.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;

use base64::Engine;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use engine::context::MediaRows;
use llama::parts::ImageLayout;
use media::Limits;
use serde_json::{Map, Value as Json};
use sha2::{Digest as _, Sha256};

use crate::api::{ApiError, ApiResult};

/// Maximum number of images of a request.
pub const MAX_IMAGES: usize = 32;

/// Sizes and limits of the images that a model reads.
#[derive(Clone, Debug)]
pub struct ImageFormat {
    /// Sizes of images, and their places in prompts.
    pub layout: ImageLayout,
    /// Limits of an image.
    pub limits: Limits,
}

/// An image of a request.
#[derive(Clone, Debug)]
pub struct ImageFile {
    /// The encoded file.
    pub bytes: Arc<[u8]>,
    /// SHA-256 of the file.
    pub digest: [u8; 32],
    /// Rows of the image; `None` until the image is encoded.
    pub rows: Option<Arc<MediaRows>>,
    n_rows: usize,
    field: String,
    /// 1-based index of the image in the request.
    number: usize,
}

impl ImageFile {
    /// Checks the header of a file against the limits. `field` and `number` identify the image in errors.
    pub fn new(bytes: Vec<u8>, format: &ImageFormat, field: &str, number: usize) -> Result<ImageFile, String> {
        let n_rows = format
            .layout
            .n_rows(&bytes, &format.limits)
            .map_err(|e| e.to_string())?;
        Ok(ImageFile {
            digest: Sha256::digest(&bytes).into(),
            bytes: bytes.into(),
            rows: None,
            n_rows,
            field: field.to_owned(),
            number,
        })
    }

    /// Returns an error about the image.
    pub fn error(&self, why: impl Display) -> ApiError {
        let number = self.number;
        ApiError::field(&self.field, format_args!("image {number} of the request: {why}"))
    }

    /// Sets rows of zeros, for prompts that are not decoded.
    pub fn measure(&mut self) {
        let rows = MediaRows::new(self.number as u128, 1, vec![0.0; self.n_rows]);
        self.rows.get_or_insert(Arc::new(rows));
    }

    /// Returns the rows of an encoded image.
    pub fn encoded(&self) -> ApiResult<Arc<MediaRows>> {
        let missing = || ApiError::server(format!("internal error: image {} is not encoded", self.number));
        self.rows.clone().ok_or_else(missing)
    }
}

/// Returns true for types of parts that are images.
pub fn is_image(kind: &str) -> bool {
    matches!(kind, "image_url" | "input_image" | "image")
}

/// Returns the data of an image part in the format of OpenAI, Anthropic, or the Model Context Protocol.
pub fn part_data(fields: &Map<String, Json>, max: usize) -> Result<Vec<u8>, String> {
    let given = |value: &&Json| !value.is_null();
    if let Some(url) = fields.get("image_url").filter(given) {
        let url = url.as_str().or_else(|| url["url"].as_str());
        return url_data(url.ok_or("expected a `data:` URL in `image_url`")?, max);
    }
    let source = match fields.get("source") {
        Some(Json::Object(source)) => source,
        _ => fields,
    };
    let text = |name: &str| source.get(name).and_then(Json::as_str);
    match (text("data").or_else(|| text("base64")), text("url")) {
        (Some(data), _) => decoded(data, max),
        (None, Some(url)) => url_data(url, max),
        (None, None) => Err("expected base64 data; files are not stored by this server".to_owned()),
    }
}

/// Returns the data of an image that is given as base64 or as a `data:` URL.
pub fn plain_data(data: &Json, max: usize) -> Result<Vec<u8>, String> {
    let text = data.as_str().ok_or("expected base64 data")?;
    if text.contains(':') {
        url_data(text, max)
    } else {
        decoded(text, max)
    }
}

/// Returns the data of a `data:` URL. Its media type is ignored, because files start with their format.
fn url_data(url: &str, max: usize) -> Result<Vec<u8>, String> {
    let (scheme, rest) = url.split_once(':').unwrap_or_default();
    match scheme.to_ascii_lowercase().as_str() {
        "data" => {}
        "http" | "https" => {
            return Err("images of other servers are not fetched; send the image as a `data:` URL".to_owned());
        }
        "file" => return Err("files of the server are not read; send the image as a `data:` URL".to_owned()),
        _ => return Err("expected a `data:` URL, such as data:image/png;base64,…".to_owned()),
    }
    let (kind, data) = rest
        .split_once(',')
        .ok_or("the `data:` URL has no comma before its data")?;
    if kind.to_ascii_lowercase().ends_with(";base64") {
        return decoded(data, max);
    }
    let bytes: Vec<u8> = percent_encoding::percent_decode_str(data).collect();
    check_size(bytes.len(), max).map(|()| bytes)
}

fn check_size(n_bytes: usize, max: usize) -> Result<(), String> {
    if n_bytes > max {
        return Err(format!(
            "the image has {n_bytes} bytes; the limit is {max} (--media-max-mib)"
        ));
    }
    Ok(())
}

/// Decodes base64 in the standard or the URL-safe alphabet. Padding is optional, and whitespace is ignored.
fn decoded(data: &str, max: usize) -> Result<Vec<u8>, String> {
    const CONFIG: GeneralPurposeConfig =
        GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
    const PLAIN: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, CONFIG);
    const SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, CONFIG);
    let is_space = |c: char| c.is_ascii_whitespace();
    let data: Cow<'_, str> = match data.contains(is_space) {
        true => data.split(is_space).collect::<String>().into(),
        false => data.into(),
    };
    check_size(data.trim_end_matches('=').len() * 3 / 4, max)?;
    let engine = if data.contains(['-', '_']) { SAFE } else { PLAIN };
    let bytes = engine
        .decode(data.as_bytes())
        .map_err(|e| format!("invalid base64: {e}"))?;
    check_size(bytes.len(), max).map(|()| bytes)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn data(part: Json) -> Result<Vec<u8>, String> {
        part_data(part.as_object().unwrap(), 8)
    }

    #[test]
    fn image_parts_of_all_apis_are_decoded() {
        for part in [
            json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8=", "detail": "low"}}),
            json!({"type": "image_url", "image_url": "DATA:;BASE64,aGVs\nbG8"}),
            json!({"type": "image_url", "image_url": {"url": "data:text/plain,hel%6Co"}}),
            json!({"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8=", "file_id": null}),
            json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}}),
            json!({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}),
        ] {
            assert_eq!(data(part.clone()).as_deref(), Ok(&b"hello"[..]), "{part}");
        }
        assert_eq!(plain_data(&json!("aGVsbG8"), 8).as_deref(), Ok(&b"hello"[..]));
        assert_eq!(
            plain_data(&json!("data:;base64,_-8="), 8).as_deref(),
            Ok(&[0xff, 0xef][..])
        );
    }

    #[test]
    fn other_sources_are_refused_with_a_reason() {
        let url = |url: &str| json!({"type": "image_url", "image_url": {"url": url}});
        for (part, reason) in [
            (url("http://127.0.0.1/a.png"), "are not fetched"),
            (url("HTTPS://example.org/a.png"), "are not fetched"),
            (url("file:///etc/passwd"), "files of the server are not read"),
            (url("/etc/passwd"), "expected a `data:` URL"),
            (url("data:image/png;base64"), "no comma"),
            (url("data:image/png;base64,*"), "invalid base64"),
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
        ] {
            let error = data(part.clone()).unwrap_err();
            assert!(error.contains(reason), "{part}: {error}");
        }
        assert!(plain_data(&json!("http://a/b"), 8).is_err() && plain_data(&json!(1), 8).is_err());
    }
}
