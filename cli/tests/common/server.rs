//! A web server for tests, which can also misbehave.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Request {
    pub path: String,
    /// Header names are lowercase.
    pub headers: BTreeMap<String, String>,
    /// Number of earlier requests for this path.
    pub n_before: usize,
}

/// Response to a request.
pub enum Reply {
    /// Send these bytes and close the connection.
    Bytes(Vec<u8>),
    /// Send these bytes, then nothing until the client gives up.
    Silence(Vec<u8>),
    /// Send the first bytes together and the other bytes one by one, with this time between them.
    Trickle(Vec<u8>, usize, Duration),
}

/// A server that runs until the test process exits.
pub struct Server {
    pub address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    pub fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}", listener.local_addr().expect("an address"));
        let seen: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (answer, noted) = (Arc::new(answer), seen.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, noted) = (answer.clone(), noted.clone());
                std::thread::spawn(move || serve(stream, &*answer, &noted));
            }
        });
        Server { address, seen }
    }

    /// Returns the received requests whose path contains `part`.
    pub fn requests(&self, part: &str) -> Vec<Request> {
        let seen = self.seen.lock().expect("no panic");
        seen.iter().filter(|r| r.path.contains(part)).cloned().collect()
    }
}

fn serve(mut stream: TcpStream, answer: &dyn Fn(&Request) -> Reply, seen: &Mutex<Vec<Request>>) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => head.push(byte[0]),
            _ => return,
        }
    }
    let head = String::from_utf8(head).expect("text");
    let mut lines = head.lines();
    let path = lines
        .next()
        .and_then(|l| l.split(' ').nth(1))
        .expect("a path")
        .to_owned();
    let headers = lines.filter_map(|l| l.split_once(": "));
    let headers = headers.map(|(n, v)| (n.to_ascii_lowercase(), v.to_owned())).collect();
    let request = {
        let mut seen = seen.lock().expect("no panic");
        let n_before = seen.iter().filter(|r| r.path == path).count();
        seen.push(Request {
            path,
            headers,
            n_before,
        });
        seen.last().cloned().expect("just pushed")
    };
    // The client may have disconnected.
    match answer(&request) {
        Reply::Bytes(bytes) => {
            let _ = stream.write_all(&bytes);
        }
        Reply::Silence(bytes) => {
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut byte);
        }
        Reply::Trickle(bytes, n_first, pause) => {
            let _ = stream.write_all(&bytes[..n_first]);
            let _ = bytes[n_first..].iter().try_for_each(|byte| {
                std::thread::sleep(pause);
                stream.write_all(&[*byte])
            });
        }
    }
}

/// Formats a complete response.
pub fn response(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut bytes = format!(
        "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        bytes += &format!("{name}: {value}\r\n");
    }
    let mut bytes = (bytes + "\r\n").into_bytes();
    bytes.extend(body);
    bytes
}

/// Formats a redirect.
pub fn redirection(to: &str) -> Vec<u8> {
    response("302 Found", &[("Location", to)], b"")
}

/// Returns the start of the requested range.
pub fn range_start(request: &Request) -> Option<usize> {
    request
        .headers
        .get("range")?
        .strip_prefix("bytes=")?
        .split('-')
        .next()?
        .parse()
        .ok()
}

/// Responds with a file, or with the requested range.
pub fn file(request: &Request, content: &[u8]) -> Vec<u8> {
    match range_start(request) {
        Some(start) if start < content.len() => {
            let range = format!("bytes {start}-{}/{}", content.len() - 1, content.len());
            response("206 Partial Content", &[("Content-Range", &range)], &content[start..])
        }
        Some(_) => response("416 Range Not Satisfiable", &[], b""),
        None => response("200 OK", &[], content),
    }
}

/// Formats the hub's listing of a repository.
pub fn listing(files: &[(&str, &[u8], &str)]) -> Vec<u8> {
    let siblings: Vec<_> = files
        .iter()
        .map(|(path, content, sha256)| {
            format!(
                r#"{{"rfilename": "{path}", "lfs": {{"sha256": "{sha256}", "size": {}}}}}"#,
                content.len()
            )
        })
        .collect();
    let json = format!(r#"{{"sha": "{COMMIT}", "siblings": [{}]}}"#, siblings.join(","));
    response("200 OK", &[("Content-Type", "application/json")], json.as_bytes())
}

/// Commit hash in all listings.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
