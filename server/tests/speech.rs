//! `/v1/audio/transcriptions`, as OpenAI's clients use it.

use std::sync::Arc;

use engine::context::ContextParams;
use engine::model::{LoadParams, Model};
use llama::parts::{TranscribeOptions, Transcriber};
use serde_json::{Value as Json, json};
use tests::speech::{wav, whisper_model};

use crate::common::{Options, Response, Server};

const PATH: &str = "/v1/audio/transcriptions";

fn server() -> Server {
    Server::with(Options {
        model: Some(whisper_model()),
        ..Options::default()
    })
}

fn samples() -> Vec<i16> {
    let sample = |i: usize| ((i as f64 * 0.12).sin() * (i as f64 * 0.0007).sin() * 12_000.0) as i16;
    (0..24_000).map(sample).collect()
}

/// Sends a form with fields and a file.
fn post(server: &Server, path: &str, fields: &[(&str, &str)], file: Option<&[u8]>) -> Response {
    let mut body = Vec::new();
    for (name, value) in fields {
        body.extend(format!("--x\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n").bytes());
    }
    if let Some(file) = file {
        body.extend(b"--x\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n");
        body.extend(file);
        body.extend(b"\r\n");
    }
    body.extend(b"--x--\r\n");
    server.request(
        "POST",
        path,
        &[("Content-Type", "multipart/form-data; boundary=x")],
        &body,
    )
}

/// Returns the text of the recognizer, which the server must return as well.
fn expected() -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("whisper.gguf");
    std::fs::write(&path, whisper_model()).unwrap();
    let model = Arc::new(Model::load(&path, archs::ALL, &LoadParams::default()).unwrap());
    let params = ContextParams {
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    };
    let samples: Vec<f32> = samples().iter().map(|&sample| f32::from(sample) / 32_768.0).collect();
    let mut transcriber = Transcriber::new(&model, &params).unwrap();
    transcriber
        .transcribe(&samples, &TranscribeOptions::default())
        .unwrap()
        .text()
}

#[test]
fn formats_have_the_text_of_the_recognizer() {
    let (server, file, text) = (server(), wav(&samples(), 16_000), expected());
    let ask = |format: &str| {
        post(
            &server,
            PATH,
            &[("model", "whisper-1"), ("response_format", format)],
            Some(&file),
        )
    };
    let plain = post(&server, PATH, &[], Some(&file));
    assert_eq!(
        (plain.status, plain.json()),
        (200, json!({ "text": text })),
        "{}",
        plain.body
    );
    assert_eq!(ask("json").json(), plain.json());
    assert_eq!(ask("text").body, format!("{text}\n"));
    let verbose = ask("verbose_json").json();
    assert_eq!(
        (&verbose["text"], &verbose["task"]),
        (&json!(text), &json!("transcribe"))
    );
    assert_eq!(verbose["duration"], 1.5);
    let segments = verbose["segments"].as_array().unwrap();
    assert!(!text.is_empty() && !segments.is_empty(), "{verbose}");
    assert!(
        segments
            .iter()
            .all(|segment| segment["start"].as_f64() <= segment["end"].as_f64())
    );
    let (srt, vtt) = (ask("srt"), ask("vtt"));
    assert_eq!(srt.body.matches(" --> ").count(), segments.len());
    assert!(vtt.body.starts_with("WEBVTT\n\n") && vtt.body.matches(" --> ").count() == segments.len());
    let translated = post(
        &server,
        "/v1/audio/translations",
        &[("response_format", "verbose_json")],
        Some(&file),
    );
    assert_eq!(translated.json()["task"], "translate", "{}", translated.body);
    let warned = post(
        &server,
        PATH,
        &[("prompt", "Names: Ada"), ("temperature", "0")],
        Some(&file),
    );
    assert_eq!(warned.header("warning"), Some("299 - \"ignored: prompt\""));
    assert_eq!(server.get("/props").json()["modalities"]["audio"], true);
}

#[test]
fn invalid_forms_are_rejected_by_field() {
    let (server, file) = (server(), wav(&samples(), 16_000));
    let param = |fields: &[(&str, &str)], file: Option<&[u8]>| -> Json {
        let response = post(&server, PATH, fields, file);
        assert_eq!(response.status, 400, "{}", response.body);
        response.json()["error"]["param"].clone()
    };
    assert_eq!(param(&[], None), "file");
    assert_eq!(param(&[], Some(b"no audio")), "file");
    assert_eq!(param(&[], Some(&file[..40])), "file");
    assert_eq!(param(&[("response_format", "xml")], Some(&file)), "response_format");
    assert_eq!(param(&[("temperature", "0.7")], Some(&file)), "temperature");
    assert_eq!(param(&[("stream", "true")], Some(&file)), "stream");
    let json = server.post(PATH, &json!({}));
    assert!(
        json.status == 400 && json.body.contains("multipart/form-data"),
        "{}",
        json.body
    );
    let headers = [("Content-Type", "multipart/form-data; boundary=x")];
    assert_eq!(server.request("POST", PATH, &headers, b"--x\r\nno form").status, 400);
    // A chat model does not recognize speech, and Whisper does not chat.
    assert_eq!(post(&Server::new(), PATH, &[], Some(&file)).status, 501);
    let chat = server.post(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "a"}]}),
    );
    assert_eq!(chat.status, 400, "{}", chat.body);
    assert_eq!(post(&server, PATH, &[], Some(&file)).status, 200);
}
