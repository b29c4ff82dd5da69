//! API keys, limits, metrics, and shutdown.

use std::io::{Read, Write};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use engine::context::DecodeError;
use engine::sample::Token;
use engine::speculate::{Decoded, Drafter};
use serde_json::{Value as Json, json};
use server::http::{ListenParams, Listener, tls};

use crate::common::{Options, Response, Server, head};

#[test]
fn health_props_and_slots_report_state() {
    let server = Server::new();
    assert_eq!(server.get("/health").json(), json!({"status": "ok"}));
    assert_eq!(server.get("/ready").status, 200);
    let models = server.get("/v1/models").json();
    assert_eq!(
        (&models["data"][0]["id"], &models["data"][0]["max_model_len"]),
        (&json!("tiny"), &json!(1024))
    );
    assert_eq!(server.get("/v1/models/tiny").json(), models["data"][0]);
    let unknown = server.get("/v1/models/other");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    let props = server.get("/props").json();
    assert_eq!(
        (&props["total_slots"], &props["eos_token"]),
        (&json!(4), &json!("</s>"))
    );
    assert_eq!(props["default_generation_settings"]["params"]["temperature"], 0.0);
    let slots = server.get("/slots").json();
    let slots = slots.as_array().unwrap();
    assert!(
        slots.len() == 8
            && slots
                .iter()
                .all(|slot| slot["is_processing"] == false && slot["n_held"] == 0)
    );
    assert_eq!(server.get("/nothing").status, 404);
    let other = server.get("/v1/completions");
    assert_eq!((other.status, other.header("allow")), (405, Some("POST")));
    assert!(other.json()["error"]["message"].as_str().unwrap().contains("GET"));
    let packed = server.request("POST", "/v1/completions", &[("Content-Encoding", "gzip")], b"\x1f\x8b");
    assert_eq!(packed.status, 415, "{}", packed.body);
    assert!(
        packed.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("content-encoding")
    );
}

#[test]
fn metrics_count_tokens_and_requests() {
    let server = Server::new();
    for _ in 0..2 {
        server.ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 5}));
    }
    server.rest();
    let page = server.get("/metrics");
    assert!(
        page.header("content-type")
            .unwrap()
            .starts_with("text/plain; version=0.0.4")
    );
    let value = |name: &str| {
        let line = page
            .body
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {}", page.body));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("llamacpp:tokens_predicted_total "), 10.0);
    // All tokens of the second prompt except the last are cached.
    assert_eq!(
        (
            value("llamacpp:prompt_tokens_total "),
            value("llamacpp:prompt_tokens_cached_total ")
        ),
        (6.0, 4.0)
    );
    assert_eq!(value("llamacpp:requests_processing "), 0.0);
    for (name, expected) in [
        ("vllm:num_requests_running{model_name=\"tiny\"}", 0.0),
        ("vllm:num_requests_waiting{model_name=\"tiny\"}", 0.0),
        (
            "vllm:request_success_total{model_name=\"tiny\",finished_reason=\"length\"}",
            2.0,
        ),
        ("vllm:time_to_first_token_seconds_count{", 2.0),
        ("vllm:inter_token_latency_seconds_count{", 8.0),
        (
            "vllm:time_to_first_token_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"}",
            2.0,
        ),
        (
            "vllm:cache_config_info{model_name=\"tiny\",block_size=\"64\",num_gpu_blocks=\"16\"}",
            1.0,
        ),
    ] {
        assert_eq!(value(name), expected, "{name}");
    }
    // Cached sequences do not count as load.
    assert!(value("llamacpp:kv_cache_usage_ratio ") > 0.0);
    assert_eq!(value("vllm:kv_cache_usage_perc{"), 0.0);
}

#[test]
fn api_key_is_required() {
    let server = Server::with(Options {
        keys: vec!["one".to_owned(), "two".to_owned()],
        ..Options::default()
    });
    let status = |headers: &[(&str, &str)]| server.request("GET", "/v1/models", headers, b"").status;
    assert_eq!(
        [
            status(&[]),
            status(&[("Authorization", "Bearer three")]),
            status(&[("X-Api-Key", "")])
        ],
        [401; 3]
    );
    assert_eq!(
        [
            status(&[("Authorization", "Bearer two")]),
            status(&[("X-Api-Key", "one")])
        ],
        [200; 2]
    );
    assert_eq!([server.get("/health").status, server.get("/ready").status], [200; 2]);
    let refused = server.get("/metrics").json();
    assert_eq!(refused["error"]["code"], "invalid_api_key");
}

#[test]
fn request_ids_and_cross_origin_checks() {
    let server = Server::new();
    let named = server.request("GET", "/health", &[("X-Request-Id", "mine-7")], b"");
    assert_eq!(named.header("x-request-id"), Some("mine-7"));
    assert!(
        server
            .get("/health")
            .header("x-request-id")
            .unwrap()
            .starts_with("req-")
    );
    let of_other = server.request("GET", "/v1/models", &[("Origin", "http://evil.example")], b"");
    assert_eq!(of_other.status, 403);
}

#[test]
fn listed_origins_are_allowed() {
    const PAGE: &str = "https://app.example";
    let server = Server::with(Options {
        keys: vec!["one".to_owned()],
        origins: vec![PAGE.to_owned()],
        ..Options::default()
    });
    let request = |origin: &str| {
        let headers = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "authorization,content-type"),
        ];
        server.request("OPTIONS", "/v1/chat/completions", &headers, b"")
    };
    let may = request(PAGE);
    assert_eq!(may.status, 204);
    for (name, value) in [
        ("access-control-allow-origin", PAGE),
        ("access-control-allow-methods", "POST"),
        ("access-control-allow-headers", "authorization,content-type"),
    ] {
        assert_eq!(may.header(name), Some(value), "{may:?}");
    }
    let must_not = request("https://evil.example");
    assert_eq!(
        (must_not.status, must_not.header("access-control-allow-origin")),
        (403, None)
    );
    // Pages can read error responses, and also need the key.
    for (key, status) in [("Bearer one", 200), ("Bearer two", 401)] {
        let headers = [("Origin", PAGE), ("Authorization", key)];
        let response = server.request("GET", "/v1/models", &headers, b"");
        assert_eq!(response.status, status);
        assert_eq!(response.header("access-control-allow-origin"), Some(PAGE));
        assert_eq!(response.header("vary"), Some("origin"));
    }
    let of_program = server.request("GET", "/v1/models", &[("Authorization", "Bearer one")], b"");
    assert_eq!(
        (of_program.status, of_program.header("access-control-allow-origin")),
        (200, None)
    );
}

/// Starts a request that runs until the context is full.
fn long(server: &Server) -> std::net::TcpStream {
    let body = json!({"prompt": "hello", "stream": true, "ignore_eos": true}).to_string();
    let mut stream = server.connect();
    stream
        .write_all(&head("POST", "/v1/completions", &[], body.len()))
        .unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    // The first bytes arrive once the request is running.
    let mut some = [0; 300];
    assert!(stream.read(&mut some).unwrap() > 0);
    stream
}

/// Waits for the given numbers of running and queued requests.
fn until(server: &Server, n_running: usize, n_waiting: usize) {
    for _ in 0..6000 {
        let gauges = server.app.service.scheduler.gauges();
        if (gauges.n_running, gauges.n_waiting) == (n_running, n_waiting) {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("unexpected load: {:?}", server.app.service.scheduler.gauges());
}

#[test]
fn full_queue_returns_429() {
    let server = Server::with(Options {
        n_parallel: 1,
        max_waiting: 1,
        n_ctx: 65536,
        ..Options::default()
    });
    // Submit one after the other, so that the second request is queued before the third.
    let first = long(&server);
    until(&server, 1, 0);
    let second = long(&server);
    until(&server, 1, 1);
    let response = server.post("/v1/completions", &json!({"prompt": "hello", "max_tokens": 1}));
    assert_eq!(response.status, 429, "{}", response.body);
    assert!(response.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
    assert_eq!(response.json()["error"]["type"], "rate_limit_error");
    assert_eq!(server.get("/health").status, 200, "a busy server is healthy");
    // Disconnected clients release their queue entries and slots.
    drop(second);
    drop(first);
    server.rest();
    server.ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 1}));
}

#[test]
fn shutdown_finishes_running_requests() {
    let mut server = Server::with(Options {
        n_ctx: 2048,
        ..Options::default()
    });
    let mut under_way = long(&server);
    server.app.service.scheduler.close();
    assert_eq!(server.get("/ready").status, 503);
    assert_eq!(server.post("/v1/completions", &json!({"prompt": "a"})).status, 503);
    assert!(server.end(), "all requests finished");
    let mut rest = String::new();
    under_way.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("data: [DONE]"));
    assert!(std::net::TcpStream::connect(server.address).is_err());
}

#[test]
fn shutdown_times_out() {
    let mut server = Server::with(Options {
        n_ctx: 1 << 20,
        listen: ListenParams {
            t_drain: Duration::from_millis(50),
            ..ListenParams::default()
        },
        ..Options::default()
    });
    let _under_way = long(&server);
    let options = json!({"num_predict": 1 << 19, "ignore_eos": true});
    let mut waiting: Vec<_> = [
        (
            "/v1/completions",
            json!({"prompt": "hello", "max_tokens": 1 << 19, "ignore_eos": true}),
        ),
        (
            "/api/generate",
            json!({"prompt": "hello", "stream": false, "options": options}),
        ),
    ]
    .iter()
    .map(|(path, body)| {
        let body = body.to_string();
        let mut stream = server.connect();
        stream.write_all(&head("POST", path, &[], body.len())).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        stream
    })
    .collect();
    until(&server, 3, 0);
    assert!(!server.end(), "the requests were aborted");
    let responses = waiting
        .iter_mut()
        .map(|stream| Response::read(stream).expect("a response"));
    let responses: Vec<Response> = responses.collect();
    assert!(responses.iter().all(|response| response.status == 503));
    let error = responses[0].json()["error"].clone();
    assert_eq!(error["type"], "unavailable_error", "{error}");
    let message = responses[1].json()["error"].as_str().unwrap().to_owned();
    assert!(message.contains("shutting down"), "{message}");
}

/// Starts an endless stream and returns its connection.
fn endless(server: &Server, path: &str, mut body: Json) -> std::net::TcpStream {
    body["stream"] = true.into();
    body["ignore_eos"] = true.into();
    let body = body.to_string();
    let mut stream = server.connect();
    stream.write_all(&head("POST", path, &[], body.len())).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    stream
}

/// Returns paths and bodies of requests, with the start of the error event and the end of the stream.
fn streamed_requests() -> Vec<(&'static str, Json, &'static str, &'static str)> {
    let n = 1 << 16;
    let messages = json!([{"role": "user", "content": "hello"}]);
    let options = json!({"num_predict": n, "ignore_eos": true});
    let done = "data: [DONE]\n\n";
    vec![
        (
            "/v1/completions",
            json!({"prompt": "hello", "max_tokens": n}),
            "unavailable_error",
            done,
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": n}),
            "unavailable_error",
            done,
        ),
        (
            "/completion",
            json!({"prompt": "hello", "n_predict": n}),
            "unavailable_error",
            "",
        ),
        (
            "/v1/responses",
            json!({"input": "hello", "max_output_tokens": n}),
            "event: response.failed",
            "",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": n}),
            "overloaded_error",
            "",
        ),
        (
            "/api/generate",
            json!({"prompt": "hello", "options": options}),
            "{\"error\":\"request",
            "",
        ),
        (
            "/api/chat",
            json!({"messages": messages, "options": options}),
            "{\"error\":\"request",
            "",
        ),
    ]
}

#[test]
fn shutdown_timeout_ends_streams_with_errors() {
    let mut server = Server::with(Options {
        n_ctx: 1 << 20,
        n_parallel: 8,
        listen: ListenParams {
            t_drain: Duration::from_millis(50),
            ..ListenParams::default()
        },
        ..Options::default()
    });
    let streams: Vec<_> = streamed_requests()
        .into_iter()
        .map(|(path, body, kind, end)| (path, endless(&server, path, body), kind, end))
        .collect();
    until(&server, streams.len(), 0);
    assert!(!server.end(), "the requests were aborted");
    for (path, mut stream, kind, end) in streams {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        // The last chunk is empty.
        let text = text
            .strip_suffix("0\r\n\r\n")
            .unwrap_or_else(|| panic!("{path}: no end"));
        let at = text.find("shutting down").unwrap_or_else(|| panic!("{path}: no error"));
        let event = &text[text[..at].rfind("\n\n").or(text[..at].rfind('\n')).unwrap_or(0)..];
        assert!(event.contains(kind), "{path}: {event}");
        assert!(text[at..].contains(end), "{path}: {event}");
        assert_eq!(
            text[at..].matches("\n\n").count().max(1),
            1 + usize::from(!end.is_empty()),
            "{path}: {event}"
        );
    }
}

/// Returns the response to a health check on a connection.
fn health(mut stream: impl std::io::Read + std::io::Write) -> String {
    stream
        .write_all(&head("GET", "/health", &[], 0))
        .expect("the server reads the request");
    let mut response = Vec::new();
    // A closed connection may still have delivered data.
    let _ = stream.read_to_end(&mut response);
    String::from_utf8_lossy(&response).into_owned()
}

#[test]
#[cfg(unix)]
fn unix_socket_is_served() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("llama.sock");
    let server = Server::on(Options::default(), |_| {
        Listener::Unix(tokio::net::UnixListener::bind(&path).expect("a socket"))
    });
    let stream = std::os::unix::net::UnixStream::connect(&path).expect("a connection");
    assert!(health(stream).starts_with("HTTP/1.1 200"));
    drop(server);
}

#[test]
fn tls_is_used_with_certificate() {
    use tokio_rustls::rustls::{self, pki_types::ServerName};
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    assert!(tls(&key, &key).is_err() && tls(&certificate, &certificate).is_err());
    assert!(tls(&folder.path().join("none"), &key).is_err());
    let acceptor = tls(&certificate, &key).unwrap();
    let server = Server::on(Options::default(), |listener| Listener::Tls(listener, acceptor));
    let mut roots = rustls::RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let client = rustls::ClientConnection::new(std::sync::Arc::new(config), name).unwrap();
    assert!(health(rustls::StreamOwned::new(client, server.connect())).starts_with("HTTP/1.1 200"));
    // Plain HTTP on a TLS port gets no plain response and causes no harm.
    assert!(!health(server.connect()).contains("200"));
}

/// A step that exceeds the time limit makes the health check fail until the step ends.
#[test]
fn stuck_step_fails_health_check() {
    /// Blocks the scheduler thread until the sender is dropped.
    struct Hanging(Receiver<()>);
    impl Drafter for Hanging {
        fn follow(&mut self, _: Decoded<'_>) -> Result<(), DecodeError> {
            let _ = self.0.recv();
            Ok(())
        }

        fn draft(&mut self, _: &[Token], _: Token, _: usize, _: &mut Vec<Token>) -> Result<(), DecodeError> {
            Ok(())
        }

        fn is_free(&self) -> bool {
            true
        }
    }
    let (go_on, wait) = channel();
    let server = Server::with(Options {
        t_stuck: Duration::from_millis(100),
        drafter: Mutex::new(Some(Box::new(Hanging(wait)))),
        ..Options::default()
    });
    assert_eq!(server.get("/health").status, 200);
    let mut hanging = server.connect();
    let body = json!({"prompt": "a", "max_tokens": 1}).to_string();
    let head = head("POST", "/v1/completions", &[], body.len());
    hanging.write_all(&[&head, body.as_bytes()].concat()).unwrap();
    let status_is = |status: u16| {
        let is_it = |_| {
            std::thread::sleep(Duration::from_millis(20));
            server.get("/health").status == status
        };
        (0..500).any(is_it)
    };
    assert!(status_is(503));
    let health_response = server.get("/health");
    assert!(health_response.body.contains("one step"), "{}", health_response.body);
    assert_eq!(server.get("/ready").status, 200, "requests are accepted");
    drop(go_on);
    assert_eq!(Response::read(&mut hanging).expect("a response").status, 200);
    assert!(status_is(200));
}

#[test]
fn unsupported_routes_report_reason() {
    let server = Server::new();
    for (method, path, why) in [
        ("GET", "/tools", "clients"),
        ("POST", "/tools", "clients"),
        ("GET", "/cors-proxy?url=http://127.0.0.1", "pages"),
        ("GET", "/models/sse", "/v1/models"),
        ("GET", "/v1/stream/abc", "connection"),
        ("POST", "/v1/audio/speech", "synthesis"),
        ("POST", "/models", "llama pull"),
        ("DELETE", "/models", "llama rm"),
        ("POST", "/models/load", "--models-dir"),
        ("POST", "/props", "request"),
    ] {
        let response = server.request(method, path, &[], b"{}");
        let error = &response.json()["error"];
        let message = error["message"].as_str().unwrap_or_default();
        assert_eq!(response.status, 501, "{method} {path}: {}", response.body);
        assert!(
            message.contains(why) && error["type"] == "not_supported_error",
            "{message}"
        );
    }
    assert_eq!(server.request("GET", "/toolshed", &[], b"").status, 404);
    assert_eq!(server.request("DELETE", "/props", &[], b"").status, 405);
}
