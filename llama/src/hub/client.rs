//! HTTP requests to a model hub: redirects, authentication, and retries.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Uri};
use ureq::{Agent, Body};

use super::{HubError, HubResult};
use crate::CancelHandle;

/// Timeouts and retry limits of hub requests.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Timeout for establishing a connection.
    pub connect: Duration,
    /// Timeout between two reads, after which a connection is considered dead.
    pub read: Duration,
    /// Length of a period; a download that receives fewer than [`MIN_BYTES`] per period fails.
    pub trickle: Duration,
    /// Maximum consecutive attempts without progress.
    pub attempts: u32,
    /// Delay before the first retry; doubled for each further retry.
    pub pause: Duration,
    /// Maximum accepted Retry-After delay.
    pub longest_pause: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            trickle: Duration::from_secs(20),
            attempts: 5,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(120),
        }
    }
}

/// Minimum number of bytes of a download in [`RetryPolicy::trickle`].
pub const MIN_BYTES: u64 = 8 << 10;
/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 8;
/// Maximum size of a text response in bytes.
const MAX_TEXT: u64 = 16 << 20;

/// Maximum time to read a text response.
const MAX_TEXT_TIME: Duration = Duration::from_secs(60);

/// Client for a hub, with its credentials.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    pub retry: RetryPolicy,
}

/// Reason why a request failed.
pub enum RequestError {
    /// Permanent error.
    Permanent(HubError),
    /// Transient error, with the server's Retry-After delay, if any.
    Transient(String, Option<Duration>),
}

/// Response with status 2xx or 416.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Client {
    /// Creates a client for `endpoint`. The token is only sent to the endpoint itself.
    pub fn new(endpoint: &str, token: Option<String>, retry: RetryPolicy) -> HubResult<Client> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let wrong = || {
            HubError::new(format_args!(
                "HF_ENDPOINT: expected a URL such as https://host, found {endpoint:?}"
            ))
        };
        let (_, host) = origin(&endpoint).ok_or_else(wrong)?;
        if token
            .as_deref()
            .is_some_and(|t| t.contains(|c: char| !c.is_ascii_graphic()))
        {
            return Err(HubError::new(
                "invalid Hugging Face token: expected printable ASCII characters without spaces",
            ));
        }
        let config = Agent::config_builder()
            // Redirects are followed manually, so that the token is never sent to another host.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_resolve(Some(retry.connect))
            .timeout_connect(Some(retry.connect))
            .timeout_recv_response(Some(retry.read))
            .timeout_per_read(Some(retry.read));
        let mut config = config.user_agent(concat!("llama/", env!("CARGO_PKG_VERSION")));
        if is_this_machine(&host) {
            // A proxy cannot reach the loopback interface of this machine.
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().into(),
            endpoint,
            token,
            retry,
        })
    }

    /// Returns the URL of a path on the hub.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// Returns the path of a hub URL; `None` for other hosts.
    pub fn path_of<'a>(&self, url: &'a str) -> Option<&'a str> {
        url.strip_prefix(&self.endpoint).filter(|path| path.starts_with('/'))
    }

    /// Sends a GET request and follows redirects.
    pub fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Answer, RequestError> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            if self.may_have_token(&url)
                && let Some(token) = &self.token
            {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| request_error(&url, e))?;
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            match (status, parts.headers.get("location").and_then(|v| v.to_str().ok())) {
                (301..=303 | 307 | 308, Some(location)) => {
                    url = redirected(&url, location).map_err(RequestError::Permanent)?
                }
                (200..=299 | 416, _) => {
                    return Ok(Answer {
                        status,
                        headers: parts.headers,
                        body,
                    });
                }
                _ => return Err(self.refused(&url, status, &parts.headers)),
            }
        }
        Err(RequestError::Permanent(HubError::new(format_args!(
            "{url}: too many redirects"
        ))))
    }

    /// Returns the body of a hub URL as text, with retries.
    pub fn text(&self, url: &str, stop: &CancelHandle) -> HubResult<String> {
        let mut attempts = Attempts::new(&self.retry);
        loop {
            match self.get(url, &[]).and_then(|answer| read_text(answer, url, stop)) {
                Ok(text) => return Ok(text),
                Err(error) => attempts.after(error, stop)?,
            }
        }
    }

    /// Returns true if the token may be sent: only to the hub, and only over HTTPS or the loopback interface.
    fn may_have_token(&self, url: &str) -> bool {
        let is_safe = |(scheme, host): (String, String)| scheme == "https" || is_this_machine(&host);
        origin(url).is_some_and(|o| Some(&o) == origin(&self.endpoint).as_ref() && is_safe(o))
    }

    fn refused(&self, url: &str, status: u16, headers: &HeaderMap) -> RequestError {
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
        let detail = header("x-error-message").filter(|text| !text.is_empty() && text.len() < 300);
        let detail = detail.map(|text| format!(" ({text})")).unwrap_or_default();
        let after = header("retry-after")
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs);
        let has_token = self.token.is_some();
        match status {
            401 | 403 if has_token => RequestError::Permanent(HubError::new(format_args!(
                "{url}: status {status}{detail}: the model does not exist, or the token has no access; for gated models, accept the license on the model page"
            ))),
            401 | 403 => RequestError::Permanent(HubError::TokenRequired {
                response: format!("{url}: status {status}{detail}"),
            }),
            404 => RequestError::Permanent(HubError::new(format_args!(
                "{url}: model or file not found (status 404){detail}"
            ))),
            408 | 429 | 500..=504 => RequestError::Transient(format!("{url}: status {status}{detail}"), after),
            _ => RequestError::Permanent(HubError::new(format_args!("{url}: unexpected status {status}{detail}"))),
        }
    }
}

/// Reads a text response within limits on its length and time.
fn read_text(answer: Answer, url: &str, stop: &CancelHandle) -> Result<String, RequestError> {
    let permanent = |reason: &str| RequestError::Permanent(HubError::new(format_args!("{url}: {reason}")));
    let start = Instant::now();
    let mut reader = answer.body.into_reader();
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let n = reader.read(&mut buffer);
        let n = n.map_err(|e| RequestError::Transient(format!("{url}: {e}"), None))?;
        if stop.is_cancelled() {
            return Err(RequestError::Permanent(HubError::Cancelled));
        }
        if n == 0 {
            return String::from_utf8(bytes).map_err(|_| permanent("the response is not text"));
        }
        bytes.extend_from_slice(&buffer[..n]);
        if bytes.len() as u64 > MAX_TEXT {
            return Err(permanent("the response is too long"));
        }
        if start.elapsed() > MAX_TEXT_TIME {
            return Err(permanent("the response takes too long"));
        }
    }
}

/// Counts consecutive attempts without progress.
pub struct Attempts<'a> {
    retry: &'a RetryPolicy,
    n_failed: u32,
}

impl Attempts<'_> {
    /// Starts counting at 0.
    pub fn new(retry: &RetryPolicy) -> Attempts<'_> {
        Attempts { retry, n_failed: 0 }
    }

    /// Resets the retry counter after progress.
    pub fn progressed(&mut self) {
        self.n_failed = 0;
    }

    /// Waits before the next attempt, or returns the error if no attempts remain.
    pub fn after(&mut self, error: RequestError, stop: &CancelHandle) -> HubResult {
        let (message, retry_after) = match error {
            RequestError::Permanent(failure) => return Err(failure),
            RequestError::Transient(message, retry_after) => (message, retry_after),
        };
        self.n_failed += 1;
        if let Some(retry_after) = retry_after.filter(|&pause| pause > self.retry.longest_pause) {
            return Err(HubError::new(format_args!(
                "{message}; try again in {} s",
                retry_after.as_secs()
            )));
        }
        if self.n_failed >= self.retry.attempts {
            return Err(match self.n_failed {
                1 => HubError::new(message),
                n => HubError::new(format_args!("{message} (gave up after {n} attempts)")),
            });
        }
        let pause = retry_after.unwrap_or_else(|| self.retry.pause.saturating_mul(1 << (self.n_failed - 1).min(6)));
        // The message may contain a signed address, which does not belong in logs.
        tracing::debug!(n_failed = self.n_failed, ?pause, "retrying a request");
        let mut left = pause;
        while !left.is_zero() {
            if stop.is_cancelled() {
                return Err(HubError::Cancelled);
            }
            let step = left.min(Duration::from_millis(100));
            std::thread::sleep(step);
            left -= step;
        }
        Ok(())
    }
}

fn request_error(url: &str, error: ureq::Error) -> RequestError {
    let is_transient = match &error {
        ureq::Error::Io(e) => e.kind() != io::ErrorKind::InvalidInput,
        ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => true,
        _ => false,
    };
    let message = match &error {
        ureq::Error::HostNotFound => unresolved(url),
        ureq::Error::Io(e) if e.to_string().contains(UNRESOLVED) => unresolved(url),
        _ => format!("{url}: {error}"),
    };
    if is_transient {
        RequestError::Transient(message, None)
    } else {
        RequestError::Permanent(HubError::new(message))
    }
}

/// Start of the standard library's error message for a failed DNS lookup, which has no specific error kind.
const UNRESOLVED: &str = "failed to lookup address information";

fn unresolved(url: &str) -> String {
    let host = url.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    format!("{} could not be resolved", host.as_deref().unwrap_or(url))
}

/// Returns scheme and authority; `None` unless it is an HTTP(S) URL.
fn origin(url: &str) -> Option<(String, String)> {
    let uri: Uri = url.parse().ok()?;
    let scheme = uri.scheme_str().filter(|s| matches!(*s, "http" | "https"))?;
    let host = uri.host()?.to_ascii_lowercase();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    Some((scheme.to_owned(), format!("{host}:{port}")))
}

fn is_this_machine(host: &str) -> bool {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    host == "localhost"
        || host
            .trim_matches(['[', ']'])
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Resolves a redirect. HTTPS never redirects to HTTP, and no redirect supplies a user name, because a name can look
/// like a host.
fn redirected(from: &str, location: &str) -> HubResult<String> {
    let wrong = || HubError::new(format_args!("{from}: invalid redirect to {location:?}"));
    let (scheme, _) = origin(from).ok_or_else(wrong)?;
    let authority = from
        .parse::<Uri>()
        .ok()
        .and_then(|uri| uri.authority().map(ToString::to_string))
        .ok_or_else(wrong)?;
    let to = if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.contains("://") {
        location.to_owned()
    } else {
        let path = from.split(['?', '#']).next().unwrap_or(from);
        let directory = path.rfind('/').map_or(path, |at| &path[..=at]);
        format!("{directory}{location}")
    };
    let has_user = |url: &str| {
        let uri: Option<Uri> = url.parse().ok();
        uri.is_some_and(|uri| {
            uri.authority()
                .is_some_and(|authority| authority.as_str().contains('@'))
        })
    };
    match origin(&to) {
        _ if has_user(&to) && !has_user(from) => Err(wrong()),
        Some((to_scheme, _)) if scheme != "https" || to_scheme == "https" => Ok(to),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirects_are_resolved() {
        let to = |location: &str| redirected("https://a.b/c/d?e=/f", location).ok();
        for (location, expected) in [
            ("/x?y", Some("https://a.b/x?y")),
            ("//h/x", Some("https://h/x")),
            ("x", Some("https://a.b/c/x")),
            ("https://h:1/x", Some("https://h:1/x")),
            ("http://h/x", None),
            ("file:///etc/passwd", None),
            ("ftp://h/x", None),
            ("https://hub.example@evil/x", None),
            ("https://hub.example:443@evil/x", None),
            ("//user:word@evil/x", None),
            ("/x@y", Some("https://a.b/x@y")),
        ] {
            assert_eq!(to(location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn token_is_only_sent_to_hub() {
        let client = |endpoint| Client::new(endpoint, Some("t".into()), RetryPolicy::default()).unwrap();
        let safe = client("https://hub.example");
        for (url, may) in [
            ("https://hub.example/x", true),
            ("https://HUB.example:443/x", true),
            ("http://hub.example/x", false),
            ("https://hub.example:444/x", false),
            ("https://hub.example.evil/x", false),
            ("https://hub.example@evil/x", false),
            ("https://cdn.example/x", false),
        ] {
            assert_eq!(safe.may_have_token(url), may, "{url}");
        }
        assert!(
            !client("http://hub.example").may_have_token("http://hub.example/x"),
            "plain HTTP would expose the token"
        );
        assert!(client("http://127.0.0.1:5").may_have_token("http://127.0.0.1:5/x"));
        assert!(Client::new("https://hub.example", Some("a\r\nb: c".into()), RetryPolicy::default()).is_err());
        assert!(Client::new("no address", None, RetryPolicy::default()).is_err());
    }
}
