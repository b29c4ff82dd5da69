//! Misbehaving clients: the server must not panic or hang, and must keep serving other clients.

use std::io::{Read, Write};
use std::time::Duration;

use serde_json::{Value as Json, json};
use server::http::ListenParams;

use crate::common::{Options, Response, Server, head};

#[track_caller]
fn is_well(server: &Server) {
    let answer = server.ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 3}));
    assert_eq!(answer["usage"]["completion_tokens"], 3);
}

#[test]
fn oversized_body_is_rejected() {
    let server = Server::new();
    let mut stream = server.connect();
    stream
        .write_all(&head("POST", "/v1/completions", &[], 100 << 20))
        .unwrap();
    let piece = vec![b' '; 1 << 20];
    // The server rejects the body early or resets the connection.
    let n_sent = (0..100).take_while(|_| stream.write_all(&piece).is_ok()).count();
    let response = Response::read(&mut stream);
    assert!(n_sent < 100 || response.is_some());
    assert!(response.is_none_or(|r| r.status == 413));
    is_well(&server);
}

/// Bodies of models that read text only have no space for media.
#[test]
fn text_model_rejects_body_above_16_mib() {
    let server = Server::new();
    let respond = |n: usize| {
        let mut body = json!({"prompt": "a", "max_tokens": 1}).to_string().into_bytes();
        body.resize(n, b' ');
        let mut stream = server.connect();
        stream.write_all(&head("POST", "/v1/completions", &[], n)).unwrap();
        // The server rejects the body early or resets the connection.
        let _ = stream.write_all(&body);
        Response::read(&mut stream).map(|response| response.status)
    };
    assert_eq!(respond(16 << 20), Some(200));
    let status = respond((16 << 20) + 1);
    assert!(status.is_none_or(|status| status == 413), "{status:?}");
}

#[test]
fn invalid_bodies_are_rejected() {
    let server = Server::new();
    let nested = |n: usize| "[".repeat(n) + &"]".repeat(n);
    for body in [
        String::new(),
        "{".to_owned(),
        "[]".to_owned(),
        "7".to_owned(),
        "\u{0}".to_owned(),
        nested(100_000),
        format!("{{\"prompt\": {}}}", nested(100_000)),
        format!("{{\"prompt\": {}}}", nested(100)),
        format!("{{\"a\":{}", "{\"a\":".repeat(50_000)),
        "{\"prompt\": \"\\ud800\"}".to_owned(),
        "{\"prompt\": \"a\", \"max_tokens\": 1e999}".to_owned(),
        "{\"prompt\": \"a\", \"n\": 18446744073709551615}".to_owned(),
        "{\"prompt\": \"a\", \"seed\": 1e300}".to_owned(),
    ] {
        let response = server.request("POST", "/v1/completions", &[], body.as_bytes());
        assert_eq!(response.status, 400, "{:.60}: {}", body, response.body);
        assert!(response.json()["error"]["message"].is_string());
    }
    let bytes = server.request("POST", "/v1/completions", &[], b"{\"prompt\": \"\xff\"}");
    assert_eq!(bytes.status, 400);
    is_well(&server);
}

#[test]
fn huge_numbers_allocate_nothing() {
    let server = Server::new();
    for (name, value) in [
        ("n", json!(1_000_000_000)),
        ("logprobs", json!(1_000_000_000)),
        ("best_of", json!(1_000_000_000)),
        ("min_keep", json!(-1)),
        ("repeat_last_n", json!(1e15)),
        ("dry_allowed_length", json!(1e15)),
        ("logit_bias", json!({"4000000000": 1})),
    ] {
        let mut body = json!({"prompt": "a", "max_tokens": 2});
        body[name] = value;
        server.refused("/v1/completions", &body, 400);
    }
    for (name, value) in [
        ("max_tokens", json!(9_000_000_000_000_000_i64)),
        ("top_k", json!(2_000_000_000)),
        ("priority", json!(-8e15)),
    ] {
        let mut body = json!({"prompt": "a", "stop": "\u{1}", "regex": "[a-c]{3}"});
        body[name] = value;
        server.ask("/v1/completions", &body);
    }
    is_well(&server);
}

/// Sends a request head too slowly; the server disconnects the client.
#[test]
fn slow_client_is_disconnected() {
    let server = Server::with(Options {
        listen: ListenParams {
            t_head: Duration::from_millis(300),
            max_connections: 4,
            ..ListenParams::default()
        },
        ..Options::default()
    });
    // As many connections as allowed; others wait until these are closed.
    let mut slow: Vec<_> = (0..4).map(|_| server.connect()).collect();
    for stream in &mut slow {
        stream.write_all(b"GET /health HT").unwrap();
    }
    is_well(&server);
    for stream in &mut slow {
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(!rest.starts_with(b"HTTP/1.1 200"));
    }
}

#[test]
fn oversized_head_is_rejected() {
    let server = Server::new();
    let mut stream = server.connect();
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    let _ = stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\n");
    let n_sent = (0..10_000)
        .take_while(|_| stream.write_all(line.as_bytes()).is_ok())
        .count();
    assert!(n_sent < 10_000, "the whole request head was read");
    is_well(&server);
}

/// A client that does not read its stream does not block others, and its buffered output is freed.
#[test]
fn stalled_reader_does_not_block_others() {
    let server = Server::with(Options {
        n_parallel: 2,
        n_ctx: 4096,
        ..Options::default()
    });
    let body = json!({"prompt": "hello", "stream": true, "ignore_eos": true, "logprobs": 5}).to_string();
    let lazy: Vec<_> = (0..2)
        .map(|_| {
            let mut stream = server.connect();
            stream
                .write_all(&head("POST", "/v1/completions", &[], body.len()))
                .unwrap();
            stream.write_all(body.as_bytes()).unwrap();
            stream
        })
        .collect();
    is_well(&server);
    drop(lazy);
    server.rest();
    is_well(&server);
}

/// Requests responses until their data fills the buffers, and reads none of them.
fn client_that_never_reads(server: &Server) -> std::net::TcpStream {
    let mut stream = server.connect();
    stream.set_nonblocking(true).unwrap();
    let request = head("GET", "/openapi.json", &[], 0);
    for _ in 0..400 {
        // The server stops reading while it cannot write.
        if stream.write(&request).is_err() {
            break;
        }
    }
    stream
}

#[test]
fn clients_that_never_read_are_disconnected() {
    let server = Server::with(Options {
        listen: ListenParams {
            t_write: Duration::from_millis(300),
            ..ListenParams::default()
        },
        ..Options::default()
    });
    let mut stream = client_that_never_reads(&server);
    std::thread::sleep(Duration::from_secs(2));
    stream.set_nonblocking(false).unwrap();
    // Buffered bytes arrive, then the connection ends.
    let n_read = std::io::copy(&mut stream, &mut std::io::sink());
    assert!(n_read.is_err() || n_read.is_ok_and(|n| n < 400 * 20_000));
    is_well(&server);
}

#[test]
fn unused_connections_are_closed_for_new_ones() {
    let server = Server::with(Options {
        listen: ListenParams {
            max_connections: 4,
            ..ListenParams::default()
        },
        ..Options::default()
    });
    let silent: Vec<_> = (0..2).map(|_| server.connect()).collect();
    let unread: Vec<_> = (0..2).map(|_| client_that_never_reads(&server)).collect();
    std::thread::sleep(Duration::from_millis(1200));
    // All connection slots are taken by clients that send nothing or do not read; their write timeout is far away.
    for _ in 0..4 {
        is_well(&server);
    }
    drop((silent, unread));
}

/// Clients disconnect before the first byte, in the queue, or during a completion; the server cancels their
/// requests.
#[test]
fn disconnect_cancels_requests() {
    let server = Server::with(Options {
        n_parallel: 2,
        n_ctx: 2048,
        ..Options::default()
    });
    let question = json!({"prompt": "what is it?", "max_tokens": 20});
    let before = server.ask("/v1/completions", &question);
    let endless =
        |stream: bool| json!({"prompt": "once upon a time", "stream": stream, "ignore_eos": true}).to_string();
    for round in 0..60 {
        let body = endless(round % 2 == 0);
        let mut clients: Vec<_> = (0..4)
            .map(|_| {
                let mut stream = server.connect();
                stream
                    .write_all(&head("POST", "/v1/completions", &[], body.len()))
                    .unwrap();
                stream.write_all(body.as_bytes()).unwrap();
                stream
            })
            .collect();
        if round % 3 == 0 && round % 2 == 0 {
            let mut some = [0; 64];
            let _ = clients[0].read(&mut some);
        }
        drop(clients);
    }
    server.rest();
    let after = server.ask("/v1/completions", &question);
    assert_eq!(after["choices"], before["choices"]);
    server.rest();
    assert_eq!(server.app.service.scheduler.gauges().n_running, 0);
}

#[test]
fn hundreds_of_concurrent_streams_succeed() {
    let server = Server::with(Options {
        n_parallel: 16,
        max_waiting: 256,
        n_ctx: 8192,
        ..Options::default()
    });
    let ask = |i: usize| {
        let body = json!({"prompt": format!("number {}", i % 8), "max_tokens": 10, "stream": true});
        let events = server.events("/v1/completions", &body);
        assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
        let text = |event: &String| {
            serde_json::from_str::<Json>(event)
                .ok()
                .map(|e| e["choices"][0]["text"].as_str().unwrap().to_owned())
        };
        events.iter().filter_map(text).collect::<String>()
    };
    let alone: Vec<String> = (0..8).map(ask).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..256).map(|i| scope.spawn(move || ask(i))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (i, text) in together.iter().enumerate() {
        assert_eq!(*text, alone[i % 8], "stream {i}");
    }
}

/// Clients disconnect before sending, within a request, in the queue, in prefill, or while generating. The
/// server must release all resources.
#[test]
fn mass_disconnect_leaks_nothing() {
    const N_CLIENTS: usize = 1000;
    const N_AT_ONCE: usize = 40;
    let server = Server::with(Options {
        max_waiting: 32,
        ..Options::default()
    });
    let request = json!({"prompt": "once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let text = |server: &Server| server.ask("/v1/completions", &request)["choices"][0]["text"].clone();
    let before = text(&server);
    let client = |i: usize| {
        // Deterministic pseudorandom numbers.
        let random = (i as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33;
        let prompt: Vec<u64> = (0..random % 400 + 1).map(|n| (n * 7 + random) % 100 + 5).collect();
        let body = json!({"prompt": prompt, "max_tokens": 300, "stream": random.is_multiple_of(2), "ignore_eos": true, "n": random % 3 + 1});
        let body = body.to_string();
        let mut stream = server.connect();
        let whole = [head("POST", "/v1/completions", &[], body.len()), body.into_bytes()].concat();
        let n = if random.is_multiple_of(5) {
            whole.len() * (random as usize % 97) / 97
        } else {
            whole.len()
        };
        // The server may close the connection first.
        let _ = stream.write_all(&whole[..n]);
        std::thread::sleep(Duration::from_micros(random % 20_000));
        if random % 4 == 1 {
            let _ = stream.set_read_timeout(Some(Duration::from_millis(random % 30 + 1)));
            let _ = stream.read(&mut [0; 64]);
        }
    };
    std::thread::scope(|scope| {
        for first in 0..N_AT_ONCE {
            scope.spawn(move || (first..N_CLIENTS).step_by(N_AT_ONCE).for_each(client));
        }
    });
    server.rest();
    assert_eq!(text(&server), before);
    server.rest();
    // All cells are free after erasing the slots. Requests of closed connections may still be arriving.
    let n_slots = server.get("/slots").json().as_array().expect("a list").len();
    let mut gauges = server.app.service.scheduler.gauges();
    for _ in 0..200 {
        for id in 0..n_slots {
            server.post(&format!("/slots/{id}?action=erase"), &json!({}));
        }
        gauges = server.app.service.scheduler.gauges();
        if gauges.n_running + gauges.n_waiting + gauges.n_kept + gauges.n_used == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(
        (gauges.n_running, gauges.n_waiting, gauges.n_kept, gauges.n_used),
        (0, 0, 0, 0),
        "{gauges:?}"
    );
    assert_eq!(text(&server), before);
}
