//! HTTPS downloads.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::ProgressBar;

use super::{Remote, SourceError};
use crate::{hub, interrupt};

/// Short timeout, so that an unreachable host does not delay the next source.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Time without data after which a connection is considered dead.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

pub fn fetch(remote: &Remote, dir: &Path, bar: &ProgressBar, stop: &interrupt::Guard) -> Result<PathBuf, SourceError> {
    let path = dir.join("download");
    download(
        &agent(),
        &format!("{}{}", hub::ENDPOINT, remote.path),
        remote.len,
        &path,
        bar,
        stop,
    )?;
    Ok(path)
}

fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .https_only(true)
        .timeout_resolve(Some(CONNECT_TIMEOUT))
        .timeout_connect(Some(CONNECT_TIMEOUT))
        .timeout_recv_response(Some(READ_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT));
    config.build().into()
}

/// Downloads `url` to `path`, up to one byte more than `len`. The caller verifies the file.
fn download(
    agent: &ureq::Agent,
    url: &str,
    len: u64,
    path: &Path,
    bar: &ProgressBar,
    stop: &interrupt::Guard,
) -> Result<(), SourceError> {
    let unavailable = |e: &dyn std::fmt::Display| SourceError::Unavailable(format!("{url}: {e}"));
    let write = |error| SourceError::Write {
        path: path.to_owned(),
        error,
    };
    let mut response = agent.get(url).call().map_err(|e| unavailable(&e))?;
    bar.set_length(len);
    // One extra byte suffices to detect a wrong length.
    let mut body = response.body_mut().as_reader().take(len + 1);
    let mut file = File::create(path).map_err(write)?;
    let mut buffer = vec![0; 1 << 16];
    loop {
        let n = body.read(&mut buffer).map_err(|e| unavailable(&e))?;
        if stop.is_set() {
            return Err(SourceError::Interrupted);
        }
        if n == 0 {
            return Ok(());
        }
        file.write_all(&buffer[..n]).map_err(write)?;
        bar.inc(n as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Downloads 5 bytes, after a redirect, from a server that responds with `response`.
    fn download_5(response: &'static str) -> Result<Vec<u8>, String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/first", listener.local_addr().unwrap());
        let server = std::thread::spawn(move || {
            for answer in [
                "HTTP/1.1 302 Found\r\nLocation: /second\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                response,
            ] {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    request.extend(byte);
                }
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        // The local server must be reached without a proxy from the environment.
        let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().into();
        let result = download(&agent, &url, 5, &path, &ProgressBar::hidden(), &interrupt::listen());
        server.join().unwrap();
        result
            .map(|()| std::fs::read(&path).unwrap())
            .map_err(|e| e.to_string())
    }

    #[test]
    fn download_follows_redirects() {
        let found = download_5("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello");
        assert_eq!(found.as_deref(), Ok(&b"hello"[..]));
    }

    #[test]
    fn download_stops_one_byte_after_expected_length() {
        let found = download_5("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world");
        assert_eq!(found.as_deref(), Ok(&b"hello "[..]));
    }

    #[test]
    fn truncated_or_missing_download_fails() {
        let cut = download_5("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel");
        assert!(cut.is_err(), "{cut:?}");
        let missing = download_5("HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nsorry");
        assert!(missing.as_ref().is_err_and(|e| e.contains("404")), "{missing:?}");
    }

    #[test]
    fn download_requires_https() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let url = "http://127.0.0.1:1/file";
        let result = download(&agent(), url, 5, &path, &ProgressBar::hidden(), &interrupt::listen());
        assert!(result.is_err_and(|e| e.to_string().contains("https")));
        assert!(!path.exists());
    }
}
