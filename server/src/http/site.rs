//! Rejects requests from pages of other sites. Browsers omit the `Origin` header for some of these requests, such as
//! for images and scripts. Names of other sites may also resolve to this machine (DNS rebinding).

use axum::http::{HeaderMap, HeaderName, Method, StatusCode, Uri, header};

use super::cors::{ANY, is_this_machine};
use crate::api::ApiError;

/// Headers that must not be repeated, because a proxy before this server may read a different occurrence.
static SINGLE: [HeaderName; 7] = [
    header::HOST,
    header::ORIGIN,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::CONTENT_LENGTH,
    header::CONTENT_ENCODING,
    HeaderName::from_static("x-api-key"),
];

/// Checks that no header that decides about access is repeated.
///
/// # Errors
/// Returns a 400 error that names the header.
pub fn check_repeated(headers: &HeaderMap) -> Result<(), ApiError> {
    let repeated = SINGLE
        .iter()
        .find(|name| headers.get_all(*name).iter().nth(1).is_some());
    match repeated {
        Some(name) => Err(ApiError::invalid(format!("the header {name} is given more than once"))),
        None => Ok(()),
    }
}

/// Checks that a request without an API key names this machine as its host. Valid names are an address, `localhost`,
/// and the host of a listed origin. Requests without a host are not from browsers.
///
/// # Errors
/// Returns a 403 error that names the host.
pub fn check_host(headers: &HeaderMap, uri: &Uri, listed: &[String]) -> Result<(), ApiError> {
    let of_uri = uri.authority().map(|authority| authority.as_str());
    let of_header = headers.get(header::HOST).map(|host| host.to_str().unwrap_or("?"));
    let Some(host) = of_uri.or(of_header).filter(|host| !host.is_empty()) else {
        return Ok(());
    };
    let is_listed = |origin: &String| origin == ANY || origin.split_once("://").is_some_and(|(_, of)| of == host);
    if is_this_machine(host) || listed.iter().any(is_listed) {
        return Ok(());
    }
    Err(refused(format!(
        "the host {host:?} is not allowed: use an address or localhost, or list its origin in --cors-origins"
    )))
}

/// Rejects requests without an `Origin` header that a browser sends for a page of another site. Links to this server
/// are allowed.
///
/// # Errors
/// Returns a 403 error if a browser sent the request for a page of another site.
pub fn check_site(method: &Method, headers: &HeaderMap, listed: &[String]) -> Result<(), ApiError> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let is_other = matches!(text("sec-fetch-site"), Some("cross-site" | "same-site"));
    if !is_other || headers.contains_key(header::ORIGIN) || listed.iter().any(|origin| origin == ANY) {
        return Ok(());
    }
    let is_link = text("sec-fetch-mode") == Some("navigate") && text("sec-fetch-dest") == Some("document");
    if is_link && method == Method::GET {
        return Ok(());
    }
    Err(refused(
        "the browser sent this request for a page of another site (Sec-Fetch-Site)".to_owned(),
    ))
}

fn refused(message: String) -> ApiError {
    ApiError {
        status: StatusCode::FORBIDDEN,
        ..ApiError::invalid(message)
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).unwrap());
        }
        headers
    }

    #[test]
    fn host_must_be_an_address_or_localhost_or_listed() {
        let listed = ["https://chat.example".to_owned(), "http://box.lan:8080".to_owned()];
        let is_fine = |host: &str, listed: &[String]| {
            check_host(&headers(&[("host", host)]), &Uri::from_static("/props"), listed).is_ok()
        };
        for host in [
            "127.0.0.1:8080",
            "localhost",
            "LocalHost:80",
            "[::1]:8080",
            "192.168.1.7",
            "a.localhost",
            "",
        ] {
            assert!(is_fine(host, &[]), "{host}");
        }
        for host in [
            "evil.example:8080",
            "evil.example",
            "127.0.0.1.nip.io",
            "localhost.evil.example",
            "0x7f000001",
            "localhost.:80",
        ] {
            assert!(!is_fine(host, &[]), "{host}");
            assert!(!is_fine(host, &listed), "{host}");
            assert!(is_fine(host, &[ANY.to_owned()]), "{host}");
        }
        assert!(is_fine("chat.example", &listed) && is_fine("box.lan:8080", &listed));
        assert!(!is_fine("chat.example:1", &listed));
        let absolute = Uri::from_static("http://evil.example/props");
        assert!(check_host(&headers(&[("host", "localhost")]), &absolute, &[]).is_err());
        assert!(check_host(&headers(&[]), &Uri::from_static("/props"), &[]).is_ok());
    }

    #[test]
    fn requests_for_pages_of_other_sites_are_rejected() {
        let is_fine = |pairs: &[(&'static str, &str)], listed: &[String]| {
            check_site(&Method::GET, &headers(pairs), listed).is_ok()
        };
        for site in ["cross-site", "same-site"] {
            let image = [
                ("sec-fetch-site", site),
                ("sec-fetch-mode", "no-cors"),
                ("sec-fetch-dest", "image"),
            ];
            assert!(!is_fine(&image, &[]) && is_fine(&image, &[ANY.to_owned()]));
            let frame = [
                ("sec-fetch-site", site),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "iframe"),
            ];
            assert!(!is_fine(&frame, &[]));
            let link = [
                ("sec-fetch-site", site),
                ("sec-fetch-mode", "navigate"),
                ("sec-fetch-dest", "document"),
            ];
            assert!(is_fine(&link, &[]));
            assert!(check_site(&Method::POST, &headers(&link), &[]).is_err());
            // Requests with an origin are checked by it.
            assert!(is_fine(
                &[("sec-fetch-site", site), ("origin", "https://a.example")],
                &[]
            ));
        }
        for site in ["same-origin", "none"] {
            assert!(is_fine(&[("sec-fetch-site", site)], &[]));
        }
        assert!(is_fine(&[], &[]));
    }

    #[test]
    fn repeated_headers_of_access_are_rejected() {
        let keys = headers(&[("authorization", "Bearer a"), ("authorization", "Bearer b")]);
        assert!(check_repeated(&keys).unwrap_err().message.contains("authorization"));
        assert!(check_repeated(&headers(&[("host", "a"), ("host", "b")])).is_err());
        assert!(check_repeated(&headers(&[("host", "a"), ("accept", "a"), ("accept", "b")])).is_ok());
    }
}
