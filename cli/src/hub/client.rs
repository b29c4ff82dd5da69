//! Requests to a hub: where they go, what they carry, and what is tried again.

use std::io::{self, Read};
use std::time::Duration;

use ureq::http::{HeaderMap, Uri};
use ureq::{Agent, Body};

use crate::failure::{Failure, Outcome};
use crate::interrupt;

/// How long to wait, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// For a host to answer at all.
    pub connect: Duration,
    /// For the next bytes: silence after which a connection counts as dead.
    pub read: Duration,
    /// Attempts in a row that bring nothing.
    pub attempts: u32,
    /// Before the second attempt; doubled for each further one.
    pub pause: Duration,
    /// Longest that a host may ask to wait.
    pub longest_pause: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience {
            connect: Duration::from_secs(10),
            read: Duration::from_secs(30),
            attempts: 5,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(120),
        }
    }
}

/// Redirections that are followed.
const MAX_REDIRECTS: usize = 8;
/// Most bytes of an answer that is not a file.
const MAX_TEXT: u64 = 16 << 20;

/// A hub, and what it is asked with.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    pub patience: Patience,
}

/// Why a request failed.
pub enum Trouble {
    /// It would fail again.
    Final(Failure),
    /// Another attempt may succeed, after this pause if the host said so.
    Passing(String, Option<Duration>),
}

/// An answer of status 2xx, or 416.
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Client {
    /// Requests to `endpoint`, with `token` where it may go.
    pub fn new(endpoint: &str, token: Option<String>, patience: Patience) -> Outcome<Client> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        let wrong = || {
            Failure::new(format_args!(
                "HF_ENDPOINT is {endpoint:?}, expected an address such as https://host"
            ))
        };
        let (_, host) = origin(&endpoint).ok_or_else(wrong)?;
        if token
            .as_deref()
            .is_some_and(|t| t.contains(|c: char| !c.is_ascii_graphic()))
        {
            return Err(Failure::new("the token for the hub has characters that no token has"));
        }
        let config = Agent::config_builder()
            // Redirections are followed here, so that no token goes astray.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .http_status_as_error(false)
            .timeout_resolve(Some(patience.connect))
            .timeout_connect(Some(patience.connect))
            .timeout_recv_response(Some(patience.read))
            .timeout_per_read(Some(patience.read));
        let mut config = config.user_agent(concat!("llama/", env!("CARGO_PKG_VERSION")));
        if is_this_machine(&host) {
            // A proxy would look for it on its own machine.
            config = config.proxy(None);
        }
        Ok(Client {
            agent: config.build().into(),
            endpoint,
            token,
            patience,
        })
    }

    /// The address of a path on the hub.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint)
    }

    /// The path of an address on the hub; `None` if it is elsewhere.
    pub fn path_of<'a>(&self, url: &'a str) -> Option<&'a str> {
        url.strip_prefix(&self.endpoint).filter(|path| path.starts_with('/'))
    }

    /// One request, redirections followed.
    pub fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Answer, Trouble> {
        let mut url = url.to_owned();
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.agent.get(&url);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            if let Some(token) = self.token.as_deref().filter(|_| self.may_have_token(&url)) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(|e| trouble_of(&url, e))?;
            let (parts, body) = response.into_parts();
            let status = parts.status.as_u16();
            match (status, parts.headers.get("location").and_then(|v| v.to_str().ok())) {
                (301..=303 | 307 | 308, Some(location)) => url = redirected(&url, location).map_err(Trouble::Final)?,
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
        Err(Trouble::Final(Failure::new(format_args!(
            "{url}: redirected again and again"
        ))))
    }

    /// The text at an address of the hub, after as many attempts as it takes.
    pub fn text(&self, url: &str, stop: &interrupt::Guard) -> Outcome<String> {
        let mut attempts = Attempts::new(&self.patience);
        loop {
            let read = |answer: Answer| {
                let mut text = String::new();
                let mut reader = answer.body.into_reader().take(MAX_TEXT + 1);
                match reader.read_to_string(&mut text) {
                    Ok(_) if text.len() as u64 > MAX_TEXT => Err(Trouble::Final(Failure::new(format_args!(
                        "{url}: the answer is too long"
                    )))),
                    Ok(_) => Ok(text),
                    Err(e) => Err(Trouble::Passing(format!("{url}: {e}"), None)),
                }
            };
            match self.get(url, &[]).and_then(read) {
                Ok(text) => return Ok(text),
                Err(trouble) => attempts.after(trouble, stop)?,
            }
        }
    }

    /// A token goes to the hub itself only, and only where nobody else can read it.
    fn may_have_token(&self, url: &str) -> bool {
        let is_safe = |(scheme, host): (String, String)| scheme == "https" || is_this_machine(&host);
        origin(url).is_some_and(|o| Some(&o) == origin(&self.endpoint).as_ref() && is_safe(o))
    }

    fn refused(&self, url: &str, status: u16, headers: &HeaderMap) -> Trouble {
        let header = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).map(str::trim);
        let told = header("x-error-message").filter(|text| !text.is_empty() && text.len() < 300);
        let told = told.map(|text| format!(" ({text})")).unwrap_or_default();
        let after = header("retry-after")
            .and_then(|text| text.parse().ok())
            .map(Duration::from_secs);
        let has_token = self.token.is_some();
        match status {
            401 | 403 if has_token => Trouble::Final(Failure::new(format_args!(
                "{url}: refused with status {status}{told}: there is no such model, or the token may not read it; some models want their licence accepted on their page first"
            ))),
            401 | 403 => Trouble::Final(Failure::new(format_args!(
                "{url}: refused with status {status}{told}: there is no such model, or it needs a token, which -hft or HF_TOKEN gives"
            ))),
            404 => Trouble::Final(Failure::new(format_args!(
                "{url}: there is no such model or file (status 404){told}"
            ))),
            408 | 429 | 500..=504 => Trouble::Passing(format!("{url}: status {status}{told}"), after),
            _ => Trouble::Final(Failure::new(format_args!("{url}: unexpected status {status}{told}"))),
        }
    }
}

/// Attempts in a row that brought nothing.
pub struct Attempts<'a> {
    patience: &'a Patience,
    n_failed: u32,
}

impl Attempts<'_> {
    /// None has failed.
    pub fn new(patience: &Patience) -> Attempts<'_> {
        Attempts { patience, n_failed: 0 }
    }

    /// The last one has brought something.
    pub fn progressed(&mut self) {
        self.n_failed = 0;
    }

    /// Waits for the next attempt; an error if there is to be none.
    pub fn after(&mut self, trouble: Trouble, stop: &interrupt::Guard) -> Outcome {
        let (message, asked) = match trouble {
            Trouble::Final(failure) => return Err(failure),
            Trouble::Passing(message, asked) => (message, asked),
        };
        self.n_failed += 1;
        if let Some(asked) = asked.filter(|&pause| pause > self.patience.longest_pause) {
            return Err(Failure::new(format_args!(
                "{message}; try again in {} s",
                asked.as_secs()
            )));
        }
        if self.n_failed >= self.patience.attempts {
            return Err(Failure::new(format_args!(
                "{message}, {} times in a row",
                self.n_failed
            )));
        }
        let pause = asked.unwrap_or_else(|| self.patience.pause.saturating_mul(1 << (self.n_failed - 1).min(6)));
        let mut left = pause;
        while !left.is_zero() {
            if stop.is_set() {
                return Err(Failure::Interrupted);
            }
            let step = left.min(Duration::from_millis(100));
            std::thread::sleep(step);
            left -= step;
        }
        Ok(())
    }
}

fn trouble_of(url: &str, error: ureq::Error) -> Trouble {
    let is_passing = match &error {
        ureq::Error::Io(e) => e.kind() != io::ErrorKind::InvalidInput,
        ureq::Error::Timeout(_)
        | ureq::Error::HostNotFound
        | ureq::Error::ConnectionFailed
        | ureq::Error::Protocol(_) => true,
        _ => false,
    };
    let message = format!("{url}: {error}");
    if is_passing {
        Trouble::Passing(message, None)
    } else {
        Trouble::Final(Failure::new(message))
    }
}

/// Scheme and host with port; `None` unless it is an address of the web.
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

/// Where a redirection leads. From a safe address it leads to safe ones only.
fn redirected(from: &str, location: &str) -> Outcome<String> {
    let wrong = || {
        Failure::new(format_args!(
            "{from}: redirected to {location:?}, which is no address to go to"
        ))
    };
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
        let folder = path.rfind('/').map_or(path, |at| &path[..=at]);
        format!("{folder}{location}")
    };
    match origin(&to) {
        Some((to_scheme, _)) if scheme != "https" || to_scheme == "https" => Ok(to),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redirections_lead_where_they_say() {
        let to = |location: &str| redirected("https://a.b/c/d?e=/f", location).ok();
        for (location, expected) in [
            ("/x?y", Some("https://a.b/x?y")),
            ("//h/x", Some("https://h/x")),
            ("x", Some("https://a.b/c/x")),
            ("https://h:1/x", Some("https://h:1/x")),
            ("http://h/x", None),
            ("file:///etc/passwd", None),
            ("ftp://h/x", None),
        ] {
            assert_eq!(to(location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn a_token_goes_to_the_hub_only() {
        let client = |endpoint| Client::new(endpoint, Some("t".into()), Patience::default()).unwrap();
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
            "everybody could read it"
        );
        assert!(client("http://127.0.0.1:5").may_have_token("http://127.0.0.1:5/x"));
        assert!(Client::new("https://hub.example", Some("a\r\nb: c".into()), Patience::default()).is_err());
        assert!(Client::new("no address", None, Patience::default()).is_err());
    }
}
