//! Cross-origin requests: rejected unless the origin is allowed.

use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};

use crate::api::ApiError;

/// CORS value that allows all origins.
pub const ANY: &str = "*";
/// CORS value that allows all origins on this machine.
const LOCAL: &str = "localhost";

/// Returns the origin of a cross-origin request; `None` for same-origin requests and non-browser clients.
///
/// With `is_public`, the server is reachable from other machines, and any page served under the requested host counts
/// as same-origin. Otherwise the host must also be an address or a name that always resolves to this machine. This
/// prevents DNS rebinding, where an attacker's domain resolves to this machine.
///
/// # Errors
///
/// Returns an error if the origin is not allowed.
pub fn origin(headers: &HeaderMap, listed: &[String], is_public: bool) -> Result<Option<HeaderValue>, ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let Some(value) = headers.get(header::ORIGIN) else {
        return Ok(None);
    };
    let name = value.to_str().unwrap_or_default();
    let host = name.split_once("://").map(|(_, host)| host);
    let is_own = host.is_some() && host == text(header::HOST);
    if is_own && (is_public || host.is_some_and(is_this_machine)) {
        return Ok(None);
    }
    if listed.iter().any(|known| is_listed(known, name)) {
        return Ok(Some(value.clone()));
    }
    Err(ApiError {
        status: StatusCode::FORBIDDEN,
        ..ApiError::invalid("cross-origin request rejected: the origin is not allowed (--cors-origins)")
    })
}

/// Returns true if an entry of the list allows an origin. In an entry, `*` matches all origins, for the first labels
/// of a host name (`https://*.example.org`), or for the port (`http://localhost:*`). The entry `localhost` matches all
/// origins on this machine.
fn is_listed(entry: &str, origin: &str) -> bool {
    if entry == ANY || entry == origin {
        return true;
    }
    let Some((scheme, host)) = origin.split_once("://") else {
        return false;
    };
    let (name, port) = split_port(host);
    if entry == LOCAL {
        let address = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<std::net::IpAddr>();
        return name == LOCAL || address.is_ok_and(|address| address.is_loopback());
    }
    let Some((entry_scheme, entry_host)) = entry.split_once("://") else {
        return false;
    };
    let (entry_name, entry_port) = match entry_host.strip_suffix(":*") {
        Some(entry_name) => (entry_name, None),
        None => {
            let (entry_name, entry_port) = split_port(entry_host);
            (entry_name, Some(entry_port))
        }
    };
    let is_name = match entry_name.strip_prefix("*.") {
        Some(domain) => (name.strip_suffix(domain).and_then(|labels| labels.strip_suffix('.')))
            .is_some_and(|labels| !labels.is_empty()),
        None => name == entry_name,
    };
    scheme == entry_scheme && is_name && entry_port.is_none_or(|entry_port| entry_port == port)
}

/// Returns true for a list entry that [`origin`] understands.
pub fn is_entry(entry: &str) -> bool {
    let is_host = |(scheme, host): (&str, &str)| {
        let host = host.strip_suffix(":*").unwrap_or(host);
        let host = host.strip_prefix("*.").unwrap_or(host);
        !scheme.is_empty() && !host.is_empty() && !host.contains(['/', '*'])
    };
    entry == ANY || entry == LOCAL || entry.split_once("://").is_some_and(is_host)
}

/// Splits a host into its name and its port, which may be missing.
fn split_port(host: &str) -> (&str, Option<&str>) {
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    match host.rsplit_once(':') {
        Some((name, port)) if is_port(port) && !name.ends_with(':') => (name, Some(port)),
        _ => (host, None),
    }
}

/// Returns true for IP addresses and for names that always resolve to this machine.
pub(super) fn is_this_machine(host: &str) -> bool {
    let (name, _) = split_port(host);
    let address = name
        .strip_prefix('[')
        .and_then(|name| name.strip_suffix(']'))
        .unwrap_or(name);
    let name = name.to_ascii_lowercase();
    address.parse::<std::net::IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

/// Returns the response to a CORS preflight request; `None` for other requests.
pub fn preflight(method: &Method, headers: &HeaderMap) -> Option<Response> {
    let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
    if method != Method::OPTIONS {
        return None;
    }
    let mut response = StatusCode::NO_CONTENT.into_response();
    let of_response = response.headers_mut();
    of_response.insert(header::ACCESS_CONTROL_ALLOW_METHODS, wanted.clone());
    // Any header is allowed; access depends only on the API key.
    if let Some(names) = headers.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        of_response.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
    }
    of_response.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    Some(response)
}

/// Adds CORS headers that let the page read the response.
pub fn allow(response: &mut Response, origin: HeaderValue) {
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    let exposed = HeaderValue::from_static("x-request-id, retry-after");
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
    headers.remove(HeaderName::from_static("cross-origin-resource-policy"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(host: &str, of_page: Option<&str>, listed: &[&str]) -> Option<bool> {
        taken_by(false, host, of_page, listed)
    }

    fn taken_by(is_public: bool, host: &str, of_page: Option<&str>, listed: &[&str]) -> Option<bool> {
        let mut headers = HeaderMap::new();
        headers.insert(header::HOST, HeaderValue::from_str(host).unwrap());
        if let Some(of_page) = of_page {
            headers.insert(header::ORIGIN, HeaderValue::from_str(of_page).unwrap());
        }
        let listed: Vec<String> = listed.iter().map(|&name| name.to_owned()).collect();
        origin(&headers, &listed, is_public).ok().map(|other| other.is_some())
    }

    #[test]
    fn cross_origin_request_is_rejected_unless_listed() {
        const HOST: &str = "127.0.0.1:8080";
        assert_eq!(taken(HOST, None, &[]), Some(false));
        assert_eq!(taken(HOST, Some("http://127.0.0.1:8080"), &[]), Some(false));
        for of_page in ["http://evil.example", "null", "http://127.0.0.1:9090"] {
            assert_eq!(taken(HOST, Some(of_page), &[]), None, "{of_page}");
            assert_eq!(
                taken(HOST, Some(of_page), &["https://evil.example", "http://evil"]),
                None
            );
            assert_eq!(taken(HOST, Some(of_page), &["x", of_page]), Some(true));
            assert_eq!(taken(HOST, Some(of_page), &[ANY]), Some(true));
        }
    }

    #[test]
    fn wildcards_match_ports_and_subdomains() {
        for (entry, allowed, refused) in [
            ("http://localhost:*", "http://localhost:5173", "https://localhost:5173"),
            (
                "http://localhost:*",
                "http://localhost",
                "http://localhost.evil.example:80",
            ),
            (
                "https://*.example.org",
                "https://a.b.example.org",
                "https://example.org",
            ),
            (
                "https://*.example.org",
                "https://a.example.org",
                "https://evilexample.org",
            ),
            (
                "https://*.example.org",
                "https://x.example.org",
                "https://x.example.org:8443",
            ),
            (
                "https://*.example.org:*",
                "https://x.example.org:8443",
                "https://x.example.org.evil",
            ),
            ("localhost", "http://[::1]:3000", "http://localhost.evil.example"),
            ("localhost", "http://127.0.0.1", "http://10.0.0.1"),
        ] {
            assert!(is_entry(entry), "{entry}");
            assert!(is_listed(entry, allowed) && !is_listed(entry, refused), "{entry}");
        }
        for wrong in [
            "https://*",
            "https://a.*.org",
            "https://example.org/x",
            "example.org",
            "*.org",
            "http://*:*",
        ] {
            assert!(!is_entry(wrong), "{wrong}");
        }
    }

    #[test]
    fn dns_rebinding_is_rejected() {
        for host in [
            "127.0.0.1",
            "localhost:8080",
            "LOCALHOST",
            "a.localhost:1",
            "[::1]:8080",
            "[::1]",
            "10.0.0.7:80",
        ] {
            assert_eq!(taken(host, Some(&format!("http://{host}")), &[]), Some(false), "{host}");
        }
        for host in [
            "evil.example:8080",
            "127.0.0.1.evil.example",
            "localhost.evil.example:80",
            "::1:80:x",
        ] {
            let of_page = format!("http://{host}");
            assert_eq!(taken(host, Some(&of_page), &[]), None, "{host}");
            assert_eq!(taken(host, Some(&of_page), &[&of_page]), Some(true), "{host}");
            assert_eq!(taken_by(true, host, Some(&of_page), &[]), Some(false), "{host}");
        }
    }
}
