//! Batches: every line gets exactly one result, regardless of its content and of how often the process is killed.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;

use serde_json::{Value as Json, json};
use server::batch::{BatchError, Progress, batch, finished};
use server::guard::AccessPolicy;
use server::router::router;

use crate::common::Server;

fn line(i: usize) -> Json {
    json!({"custom_id": format!("c{i}"), "method": "POST", "url": "/v1/completions", "body": {"prompt": "hello", "max_tokens": i % 5 + 1, "ignore_eos": true}})
}

fn run(server: &Server, input: &str, output: &mut File) -> Result<Progress, BatchError> {
    let done = finished(output)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut last = 0;
    runtime.block_on(batch(
        router(server.app.clone(), AccessPolicy::default()),
        input.as_bytes(),
        output,
        &done,
        6,
        |progress| {
            assert_eq!(progress.n_done, last + 1);
            last += 1;
        },
    ))
}

fn answers(path: &std::path::Path) -> Vec<Json> {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn open(path: &std::path::Path) -> File {
    File::options()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .unwrap()
}

#[test]
fn byte_order_mark_of_input_is_ignored() {
    let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("out.jsonl");
    let input = format!("\u{feff}{}\r\n{}\r\n", line(0), line(1));
    for n_before in [0, 2] {
        let progress = run(&server, &input, &mut open(&path)).unwrap();
        assert_eq!((progress.n_before, progress.n_failed), (n_before, 0));
    }
    assert!(answers(&path).iter().any(|answer| answer["custom_id"] == "c0"));
}

#[test]
fn interrupted_batch_resumes_without_duplicates() {
    let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("out.jsonl");
    let input: String = (0..20).map(|i| format!("{}\n", line(i))).collect();
    let progress = run(&server, &input, &mut open(&path)).unwrap();
    assert_eq!(
        progress,
        Progress {
            n_before: 0,
            n_done: 20,
            n_failed: 0
        }
    );
    let whole = std::fs::read(&path).unwrap();
    // Simulates a kill at various offsets: complete results remain, and the missing results are computed.
    for cut in [0, 1, whole.len() / 3, whole.len() / 2, whole.len() - 1, whole.len()] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let n_kept = whole[..cut].iter().filter(|&&byte| byte == b'\n').count();
        let progress = run(&server, &input, &mut open(&path)).unwrap();
        assert_eq!((progress.n_before, progress.n_done), (n_kept, 20 - n_kept), "{cut}");
        let all = answers(&path);
        let ids: BTreeSet<&str> = all.iter().map(|answer| answer["custom_id"].as_str().unwrap()).collect();
        assert_eq!((all.len(), ids.len()), (20, 20));
        for answer in &all {
            let i: usize = answer["custom_id"].as_str().unwrap()[1..].parse().unwrap();
            let body = &answer["response"]["body"];
            assert_eq!(
                (&answer["response"]["status_code"], &answer["error"]),
                (&json!(200), &Json::Null)
            );
            assert_eq!(body["usage"]["completion_tokens"], i % 5 + 1);
        }
    }
}

#[test]
fn invalid_line_gets_error_result() {
    let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("out.jsonl");
    let mut stream = line(1);
    stream["body"]["stream"] = true.into();
    let mut wrong = line(2);
    wrong["body"]["temperatur"] = 1.into();
    let mut elsewhere = line(3);
    elsewhere["url"] = "http://other.example/".into();
    let input = format!("no JSON\n\n{stream}\n{wrong}\n{{}}\n{elsewhere}\n{}", line(4));
    let progress = run(&server, &input, &mut open(&path)).unwrap();
    assert_eq!(
        progress,
        Progress {
            n_before: 0,
            n_done: 6,
            n_failed: 5
        }
    );
    let all = answers(&path);
    let of = |n: usize| {
        all.iter()
            .find(|answer| answer["id"] == format!("batch_req_{n}"))
            .unwrap()
    };
    for n in [1, 3, 5, 6] {
        assert!(
            of(n)["error"]["message"]
                .as_str()
                .unwrap()
                .contains(&format!("line {n}: ")),
            "{}",
            of(n)
        );
    }
    assert_eq!(of(4)["response"]["status_code"], 400);
    assert_eq!(of(7)["response"]["status_code"], 200);
    assert_eq!(run(&server, &input, &mut open(&path)).unwrap().n_before, 6);
}

#[test]
fn mismatched_output_file_is_rejected() {
    let (server, folder) = (Server::new(), tempfile::tempdir().unwrap());
    let path = folder.path().join("out.jsonl");
    run(&server, &line(1).to_string(), &mut open(&path)).unwrap();
    let before = std::fs::read(&path).unwrap();
    let other = run(&server, &line(2).to_string(), &mut open(&path));
    assert!(matches!(other, Err(BatchError::Other { line: 1, .. })));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    let mut file = File::create(&path).unwrap();
    file.write_all(b"notes\n").unwrap();
    assert!(matches!(
        finished(&mut open(&path)),
        Err(BatchError::Output { line: 1 })
    ));
    assert_eq!(std::fs::read(&path).unwrap(), b"notes\n");
}
