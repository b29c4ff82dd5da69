//! Clients that do harm, by intent or not: nothing panics, nothing hangs, and others get their answers.

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
fn a_body_of_a_hundred_megabytes_is_not_read() {
    let server = Server::new();
    let mut stream = server.connect();
    stream
        .write_all(&head("POST", "/v1/completions", &[], 100 << 20))
        .unwrap();
    let piece = vec![b' '; 1 << 20];
    // It is refused on the way, or the connection is cut.
    let n_sent = (0..100).take_while(|_| stream.write_all(&piece).is_ok()).count();
    let response = Response::read(&mut stream);
    assert!(n_sent < 100 || response.is_some());
    assert!(response.is_none_or(|r| r.status == 413));
    is_well(&server);
}

#[test]
fn bodies_that_are_no_requests_are_refused() {
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
fn large_numbers_reserve_nothing() {
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

/// The head of a request comes byte by byte, more slowly than anybody types.
#[test]
fn who_is_too_slow_is_cut_off() {
    let server = Server::with(Options {
        listen: ListenParams {
            t_head: Duration::from_millis(300),
            max_connections: 4,
            ..ListenParams::default()
        },
        ..Options::default()
    });
    // As many as there may be connections: others wait until these are cut off.
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
fn heads_have_an_end() {
    let server = Server::new();
    let mut stream = server.connect();
    let line = format!("X-Filler: {}\r\n", "x".repeat(1000));
    let _ = stream.write_all(b"GET /health HTTP/1.1\r\nHost: test\r\n");
    let n_sent = (0..10_000)
        .take_while(|_| stream.write_all(line.as_bytes()).is_ok())
        .count();
    assert!(n_sent < 10_000, "it was read to the end");
    is_well(&server);
}

/// A reader that takes nothing does not hold up anybody else, and what was said for it is let go with it.
#[test]
fn a_reader_that_does_not_read_harms_nobody() {
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

/// Clients that go before the first byte, in the middle of an answer, or in the queue.
#[test]
fn nothing_is_done_for_clients_that_have_gone() {
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
    assert_eq!(server.app.served.scheduler.gauges().n_running, 0);
}

#[test]
fn hundreds_of_streams_at_once() {
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

/// Clients that vanish: before anything is sent, in the middle of a request, in the queue, in the middle of a prompt or of an answer.
#[test]
fn nothing_is_left_of_a_storm_of_clients_that_vanish() {
    const N_CLIENTS: usize = 1000;
    const N_AT_ONCE: usize = 40;
    let server = Server::with(Options {
        max_waiting: 32,
        ..Options::default()
    });
    let asked = json!({"prompt": "once upon a time", "max_tokens": 12, "temperature": 0, "ignore_eos": true});
    let text = |server: &Server| server.ask("/v1/completions", &asked)["choices"][0]["text"].clone();
    let before = text(&server);
    let client = |i: usize| {
        // A sequence of numbers that looks random and is the same each time.
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
        // A server that has enough of a client may cut it off first.
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
    // All cells come back once what is kept goes. What a client had sent before it went may still be on its way to the server.
    let n_slots = server.get("/slots").json().as_array().expect("a list").len();
    let mut gauges = server.app.served.scheduler.gauges();
    for _ in 0..200 {
        for id in 0..n_slots {
            server.post(&format!("/slots/{id}?action=erase"), &json!({}));
        }
        gauges = server.app.served.scheduler.gauges();
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
