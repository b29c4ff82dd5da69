//! Connections: idle ones are kept, and slow request heads are not.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use server::http::{ListenParams, Listener};
use tokio::net::TcpListener;

use crate::common::{Options, Server, head};

fn limits(t_head: u64, t_idle: u64) -> Options {
    Options {
        listen: ListenParams {
            t_head: Duration::from_millis(t_head),
            t_idle: Duration::from_millis(t_idle),
            ..ListenParams::default()
        },
        ..Options::default()
    }
}

const HEALTH: &[u8] = b"GET /health HTTP/1.1\r\nHost: test\r\n\r\n";

/// Reads the next response, which must fit into one read; empty at the end of the connection.
fn response(stream: &mut impl Read) -> String {
    let mut bytes = [0; 4096];
    let n = stream.read(&mut bytes).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..n]).into_owned()
}

/// A connection may be idle for longer than a request head may take.
#[test]
fn idle_connection_stays_open_until_its_own_limit() {
    let server = Server::with(limits(300, 2000));
    let mut stream = server.connect();
    for _ in 0..2 {
        stream.write_all(HEALTH).unwrap();
        assert!(response(&mut stream).starts_with("HTTP/1.1 200"));
        std::thread::sleep(Duration::from_millis(900));
    }
    stream.write_all(HEALTH).unwrap();
    assert!(response(&mut stream).starts_with("HTTP/1.1 200"));
    let start = Instant::now();
    assert_eq!(response(&mut stream), "");
    assert!(start.elapsed() >= Duration::from_millis(1500), "{:?}", start.elapsed());
}

#[test]
fn incomplete_head_is_cut_off_on_new_and_on_kept_connections() {
    let server = Server::with(limits(300, 30_000));
    for is_kept in [false, true] {
        let mut stream = server.connect();
        if is_kept {
            stream.write_all(HEALTH).unwrap();
            assert!(response(&mut stream).starts_with("HTTP/1.1 200"));
        }
        stream.write_all(&HEALTH[..12]).unwrap();
        let start = Instant::now();
        let rest = response(&mut stream);
        assert!(rest.is_empty() || rest.starts_with("HTTP/1.1 4"), "{rest}");
        let elapsed = start.elapsed();
        assert!(
            elapsed >= Duration::from_millis(200) && elapsed < Duration::from_secs(20),
            "{elapsed:?}"
        );
    }
}

/// The limit of heads concerns neither slow request bodies nor long answers.
#[test]
fn slow_body_and_long_answer_are_not_cut_off() {
    let server = Server::with(limits(300, 30_000));
    let body = br#"{"prompt": "once upon", "n_predict": 400, "ignore_eos": true}"#;
    let mut stream = server.connect();
    stream.write_all(&head("POST", "/completion", &[], body.len())).unwrap();
    for part in body.chunks(20) {
        std::thread::sleep(Duration::from_millis(250));
        stream.write_all(part).unwrap();
    }
    assert!(response(&mut stream).starts_with("HTTP/1.1 200"));
}

#[test]
fn several_listeners_serve_the_same_model() {
    let second = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = second.local_addr().unwrap();
    second.set_nonblocking(true).unwrap();
    let server = Server::on(Options::default(), |first| {
        let second = TcpListener::from_std(second).expect("a listener");
        Listener::Several(vec![Listener::Tcp(first), Listener::Tcp(second)])
    });
    for address in [server.address, address] {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(HEALTH).unwrap();
        assert!(response(&mut stream).starts_with("HTTP/1.1 200"), "{address}");
    }
}
