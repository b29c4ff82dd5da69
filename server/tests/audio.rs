//! Audio in the requests of all APIs.

use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value as Json, json};
use tests::images::{IMAGE_SIDE, bitmap};
use tests::speech::wav;

use crate::common::{Options, Server, head};
use crate::images::{CACHED, ENCODED, answer_of_session, content, counter};

const CHAT: &str = "/v1/chat/completions";

fn server() -> Server {
    Server::with(Options::with_audio())
}

/// Returns a tone as a WAV file.
fn tone(period: usize, n_samples: usize, rate: u32) -> Vec<u8> {
    let sample = |i: usize| (i % period * 20_000 / period) as i16 - 10_000;
    let samples: Vec<i16> = (0..n_samples).map(sample).collect();
    wav(&samples, rate)
}

/// Returns half a second of a tone as base64.
fn data(period: usize) -> String {
    STANDARD.encode(tone(period, 4000, 8000))
}

fn part(data: &str) -> Json {
    json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}})
}

fn chat(parts: &[Json], text: &str) -> Json {
    let parts = [parts, &[json!({"type": "text", "text": text})]].concat();
    json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "ignore_eos": true})
}

#[test]
fn all_apis_give_the_answer_of_a_session() {
    let server = server();
    let file = tone(40, 4000, 8000);
    let expected = answer_of_session(&Options::with_audio(), &file, "what");
    let body = chat(&[part(&data(40))], "what");
    let answer = server.ask(CHAT, &body);
    assert_eq!(content(&answer), expected);
    let url = format!("data:audio/wav;base64,{}", data(40));
    let by_url = json!({"type": "audio_url", "audio_url": {"url": url}});
    assert_eq!(content(&server.ask(CHAT, &chat(&[by_url], "what"))), expected);
    let input = json!([{"role": "user", "content": [part(&data(40)), {"type": "input_text", "text": "what"}]}]);
    let response = server.ask(
        "/v1/responses",
        &json!({"input": input, "max_output_tokens": 8, "ignore_eos": true}),
    );
    assert_eq!(response["output"][0]["content"][0]["text"], expected, "{response}");
    let options = json!({"num_predict": 8, "ignore_eos": true});
    let message = json!({"role": "user", "content": "what", "images": [data(40)]});
    let body = json!({"messages": [message], "stream": false, "options": options});
    assert_eq!(server.ask("/api/chat", &body)["message"]["content"], expected);
    let prompt = json!({"prompt_string": "<user><__media__>what<assistant>", "multimodal_data": [data(40)]});
    let body = json!({"prompt": prompt, "n_predict": 8, "ignore_eos": true});
    assert_eq!(server.ask("/completion", &body)["content"], expected);
    assert_eq!((counter(&server, ENCODED), counter(&server, CACHED)), (1, 4));
    assert_eq!(
        server.get("/props").json()["modalities"],
        json!({"vision": false, "audio": true})
    );
    let models = server.get("/v1/models").json();
    assert!(
        models["data"][0]["capabilities"]
            .as_array()
            .unwrap()
            .contains(&json!("audio")),
        "{models}"
    );
}

#[test]
fn images_and_audio_are_parts_of_one_message() {
    let server = Server::with(Options::with_images_and_audio());
    let image = STANDARD.encode(bitmap(IMAGE_SIDE, 0));
    let url = format!("data:image/bmp;base64,{image}");
    let image_part = json!({"type": "image_url", "image_url": {"url": url}});
    let body = chat(&[image_part, part(&data(40))], "what");
    let answer = server.ask(CHAT, &body);
    let counted = server.ask("/v1/chat/completions/input_tokens", &body);
    assert_eq!(answer["usage"]["prompt_tokens"], counted["input_tokens"]);
    // Ollama's list has no types.
    let message = json!({"role": "user", "content": "what", "images": [image, data(40)]});
    let options = json!({"num_predict": 8, "ignore_eos": true});
    let body = json!({"messages": [message], "stream": false, "options": options});
    assert_eq!(server.ask("/api/chat", &body)["message"]["content"], content(&answer));
    assert_eq!((counter(&server, ENCODED), counter(&server, CACHED)), (2, 2));
    assert_eq!(
        server.get("/props").json()["modalities"],
        json!({"vision": true, "audio": true})
    );
}

/// Prompts are counted from the headers of files.
#[test]
fn counted_tokens_are_those_of_the_prompt() {
    let server = server();
    for (n_samples, rate) in [
        (4000, 8000),
        (1, 8000),
        (22_051, 44_100),
        (44_099, 44_100),
        (31_999, 48_000),
        (90_000, 16_000),
    ] {
        let body = chat(&[part(&STANDARD.encode(tone(50, n_samples, rate)))], "what");
        let counted = server.ask("/v1/chat/completions/input_tokens", &body)["input_tokens"].clone();
        let answer = server.post(CHAT, &body);
        match answer.status {
            200 => assert_eq!(
                answer.json()["usage"]["prompt_tokens"],
                counted,
                "{n_samples} at {rate} Hz"
            ),
            // One sample is too short for a row.
            _ => assert!(
                answer.status == 400 && answer.body.contains("at least"),
                "{}",
                answer.body
            ),
        }
    }
}

#[test]
fn audio_in_tool_results_is_read() {
    let server = server();
    let results = |content: Json| {
        let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": content});
        json!({"max_tokens": 8, "ignore_eos": true, "messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]})
    };
    let block = |period: usize| json!({"type": "audio", "data": data(period), "mimeType": "audio/wav"});
    let [first, other] = [40, 23].map(|period| server.post("/v1/messages", &results(json!([block(period)]))));
    assert_eq!((first.status, first.header("warning")), (200, None), "{}", first.body);
    assert_ne!(first.json()["content"], other.json()["content"]);
    // An image becomes a note, as does audio for a model that reads text only.
    let image = json!({"type": "image", "data": STANDARD.encode(bitmap(IMAGE_SIDE, 0)), "mimeType": "image/bmp"});
    for (server, block) in [(&server, image), (&Server::new(), block(40))] {
        let noted = server.post("/v1/messages", &results(json!([block])));
        assert!(
            noted.status == 200 && noted.header("warning").is_some(),
            "{}",
            noted.body
        );
    }
}

#[test]
fn bad_audio_is_rejected_with_position_and_limit() {
    let server = Server::with(Options {
        media_bytes: 64 << 10,
        ..Options::with_audio()
    });
    let good = part(&data(40));
    let image =
        json!({"type": "image_url", "image_url": {"url": format!("data:;base64,{}", STANDARD.encode(bitmap(8, 0)))}});
    let mut fast = tone(40, 100, 8000);
    fast[24..28].copy_from_slice(&200_000_u32.to_le_bytes());
    for (bad, reason) in [
        (part("%%%"), "invalid base64"),
        (part("https://a/b.wav"), "are not fetched"),
        (part(&STANDARD.encode(b"no audio")), "WAV, MP3, FLAC, OGG Vorbis"),
        (part(&STANDARD.encode(bitmap(8, 0))), "an audio file is required"),
        (part(&STANDARD.encode(vec![0; 70 << 10])), "the limit is 65536"),
        (part(&STANDARD.encode(&fast)), "the limit is 192000"),
        (part(&STANDARD.encode(&tone(40, 100, 8000)[..30])), "damaged"),
        (image, "encodes audio, not images"),
    ] {
        let error = server.refused(CHAT, &chat(&[good.clone(), bad], "what"), 400);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains(" 2 of the request") && message.contains(reason),
            "{message}"
        );
        assert_eq!(error["param"], "messages[0].content");
    }
    let error = Server::new().refused(CHAT, &chat(std::slice::from_ref(&good), "what"), 400);
    assert!(error["message"].as_str().unwrap().contains("--mmproj"), "{error}");
    let vision = Server::with(Options::with_images());
    let error = vision.refused(CHAT, &chat(&[good], "what"), 400);
    assert!(
        error["message"].as_str().unwrap().contains("encodes images, not audio"),
        "{error}"
    );
}

/// The limit of 30 minutes applies before audio is decoded, and the length of the prompt before audio is encoded.
#[test]
fn long_audio_is_rejected_before_encoding() {
    let server = server();
    let minutes = |n: usize| part(&STANDARD.encode(tone(40, n * 60 * 1000, 1000)));
    for (n, reason) in [(31, "the limit is 1800"), (29, "context size of 1024")] {
        let error = server.refused(CHAT, &chat(&[minutes(n)], "what"), 400);
        assert!(error["message"].as_str().unwrap().contains(reason), "{error}");
    }
    assert_eq!(counter(&server, ENCODED), 0);
}

#[test]
fn disconnect_during_encoding_cancels_it() {
    let server = server();
    for i in 0..8 {
        let body = chat(&[part(&STANDARD.encode(tone(40 + i, 60_000, 16_000)))], "what").to_string();
        let mut stream = server.connect();
        stream.write_all(&head("POST", CHAT, &[], body.len())).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(3 * i as u64));
        drop(stream);
    }
    server.ask(CHAT, &chat(&[part(&data(40))], "what"));
    server.rest();
    let gauges = server.app.service.scheduler.gauges();
    assert_eq!((gauges.n_running, gauges.n_waiting, gauges.n_busy), (0, 0, 0));
}
