//! Web UI, served at `/`. The files from `server/web` are embedded in the binary unchanged, and the page
//! loads nothing from other hosts.

use std::hash::{DefaultHasher, Hasher};
use std::sync::LazyLock;

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};

use crate::api::ApiError;

/// File of the web UI.
pub struct File {
    /// Path relative to `server/web`. Served under `/web/`; `index.html` also at `/`.
    pub path: &'static str,
    /// Contents.
    pub bytes: &'static [u8],
}

macro_rules! files {
    ($($path:literal),* $(,)?) => {
        &[$(File { path: $path, bytes: include_bytes!(concat!("../web/", $path)) }),*]
    };
}

/// All files, including third-party code with its licenses.
pub const FILES: &[File] = files![
    "index.html",
    "icon.svg",
    "base.css",
    "layout.css",
    "message.css",
    "theme.js",
    "main.js",
    "app.js",
    "completion.js",
    "api.js",
    "attachments.js",
    "chat_view.js",
    "chips.js",
    "composer.js",
    "dialog.js",
    "dom.js",
    "files.js",
    "highlight.js",
    "images.js",
    "markdown.js",
    "message_view.js",
    "models.js",
    "notices.js",
    "recorder.js",
    "rich.js",
    "settings.js",
    "settings_view.js",
    "sidebar.js",
    "sse.js",
    "store.js",
    "tree.js",
    "vendor/Temml-Local.css",
    "vendor/Temml.woff2",
    "vendor/marked.esm.js",
    "vendor/marked.LICENSE",
    "vendor/purify.min.js",
    "vendor/purify.LICENSE",
    "vendor/temml.min.js",
    "vendor/temml.LICENSE",
];

/// Content security policy: only scripts of this server, only connections to this server, and HTML parsing only through
/// DOMPurify. Model output therefore cannot make the browser contact other hosts.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types dompurify";

impl File {
    /// Returns the file at a request path.
    pub fn at(path: &str) -> Option<&'static File> {
        let name = match path {
            "/" | "/index.html" => "index.html",
            _ => path.strip_prefix("/web/")?,
        };
        FILES.iter().find(|file| file.path == name)
    }

    fn content_type(&self) -> &'static str {
        match self.path.rsplit_once('.').map_or("", |(_, ending)| ending) {
            "html" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "svg" => "image/svg+xml",
            "woff2" => "font/woff2",
            _ => "text/plain; charset=utf-8",
        }
    }

    /// Returns the entity tag, a hash of the contents.
    fn tag(&self) -> HeaderValue {
        // `DefaultHasher::new` uses fixed keys, unlike a `HashMap`'s hasher.
        let mut hasher = DefaultHasher::new();
        hasher.write(self.bytes);
        let tag = format!("\"{:016x}\"", hasher.finish());
        HeaderValue::from_str(&tag).expect("an entity tag contains only hex digits and quotes")
    }
}

static TAGS: LazyLock<Vec<HeaderValue>> = LazyLock::new(|| FILES.iter().map(File::tag).collect());

/// Serves a file, or status 304 if the browser's copy is current.
pub async fn file(uri: Uri, headers: HeaderMap) -> Response {
    let Some(i) = File::at(uri.path()).and_then(|file| FILES.iter().position(|f| f.path == file.path)) else {
        return ApiError::not_found("the web UI has no such file").into_response();
    };
    let (file, tag) = (&FILES[i], &TAGS[i]);
    let of_browser = headers.get(header::IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_same = |given: &str| given == "*" || given.trim_start_matches("W/") == tag;
    let mut response = if of_browser.is_some_and(|tags| tags.split(',').map(str::trim).any(is_same)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        ([(header::CONTENT_TYPE, file.content_type())], file.bytes).into_response()
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag.clone());
    let fixed: [(HeaderName, &str); 6] = [
        // Revalidate on each load, because another version of the program serves other files at these paths.
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}
