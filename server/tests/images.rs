//! Images in the requests of all APIs.

use std::io::Write;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use engine::context::{Context, ContextParams};
use engine::model::{LoadParams, Model};
use engine::sample::SamplerParams;
use llama::parts::{GenerationParams, IMAGE_MARK, PromptTemplate, Session};
use serde_json::{Value as Json, json};
use tests::images::{IMAGE_ROWS, IMAGE_SIDE, bitmap};

use crate::common::{Options, Server, TEMPLATE, head, projector};

const CHAT: &str = "/v1/chat/completions";

fn server() -> Server {
    Server::with(Options::with_images())
}

/// Returns a test image as base64.
fn data(seed: usize) -> String {
    STANDARD.encode(bitmap(IMAGE_SIDE, seed))
}

fn url(seed: usize) -> String {
    format!("data:image/bmp;base64,{}", data(seed))
}

fn part(seed: usize) -> Json {
    json!({"type": "image_url", "image_url": {"url": url(seed)}})
}

/// Returns a chat completion request with images before the text.
fn chat(seeds: &[usize], text: &str) -> Json {
    let mut parts: Vec<Json> = seeds.iter().map(|&seed| part(seed)).collect();
    parts.push(json!({"type": "text", "text": text}));
    json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 8, "ignore_eos": true})
}

pub fn content(answer: &Json) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

/// Returns the value of a counter.
pub fn counter(server: &Server, name: &str) -> u64 {
    let page = server.get("/metrics").body;
    let line = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {page}")).parse().unwrap()
}

pub const ENCODED: &str = "llamacpp:media_encoded_total";
pub const CACHED: &str = "llamacpp:media_cached_total";

/// Answers a question about a medium as `llama run` does.
pub fn answer_of_session(options: &Options, file: &[u8], text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("model.gguf");
    let bytes = options.model.clone();
    std::fs::write(
        &path,
        bytes.unwrap_or_else(|| tests::text_model("llama", Some(TEMPLATE))),
    )
    .unwrap();
    let model = std::sync::Arc::new(Model::load(&path, archs::ALL, &LoadParams::default()).unwrap());
    let mut projector = projector(options.projector.as_ref().unwrap(), &path, &model);
    let params = ContextParams {
        n_ctx: 256,
        n_threads: 1,
        n_threads_batch: 1,
        media_rows: projector.n_rows(),
        ..ContextParams::default()
    };
    let medium = projector.medium_of(file);
    let rows = projector.rows(medium, file).unwrap();
    let template = PromptTemplate::new(TEMPLATE, model.vocab()).unwrap();
    let messages = [engine::chat::Message::user(format!("{IMAGE_MARK}{text}"))];
    let rendered = template
        .rendered(model.vocab(), &messages, true, &serde_json::Map::new())
        .unwrap();
    let prompt = projector.tokenized(model.vocab(), Some(&template), rendered, std::slice::from_ref(&rows));
    let sampler = SamplerParams::greedy();
    let params_of_answer = GenerationParams {
        max_tokens: Some(8),
        ignore_eos: true,
        images: vec![rows],
        loop_detection: false,
        ..GenerationParams::new(&sampler)
    };
    let mut session = Session::new(Context::new(model, &params).unwrap());
    let mut generation = session.start(&prompt.tokens, params_of_answer).unwrap();
    let mut text = String::new();
    while session.advance(&mut generation, &mut text).unwrap() {}
    text
}

#[test]
fn all_apis_give_the_answer_of_a_session() {
    let server = server();
    let expected = answer_of_session(&Options::with_images(), &bitmap(IMAGE_SIDE, 0), "what");
    let chat_answer = server.ask(CHAT, &chat(&[0], "what"));
    assert_eq!(content(&chat_answer), expected);
    let n_prompt = chat_answer["usage"]["prompt_tokens"].as_u64().unwrap();
    let input = json!([{"role": "user", "content": [
        {"type": "input_image", "image_url": url(0), "detail": "auto"}, {"type": "input_text", "text": "what"}]}]);
    let body = json!({"input": input, "max_output_tokens": 8, "ignore_eos": true});
    let response = server.ask("/v1/responses", &body);
    assert_eq!(response["output"][0]["content"][0]["text"], expected, "{response}");
    let source = json!({"type": "base64", "media_type": "image/bmp", "data": data(0)});
    let blocks = json!([{"type": "image", "source": source}, {"type": "text", "text": "what"}]);
    let messages = json!([{"role": "user", "content": blocks}]);
    let body = json!({"messages": messages, "max_tokens": 8, "ignore_eos": true});
    assert_eq!(server.ask("/v1/messages", &body)["content"][0]["text"], expected);
    let options = json!({"num_predict": 8, "ignore_eos": true});
    let message = json!({"role": "user", "content": "what", "images": [data(0)]});
    let body = json!({"messages": [message], "stream": false, "options": options});
    assert_eq!(server.ask("/api/chat", &body)["message"]["content"], expected);
    let body = json!({"prompt": "what", "images": [data(0)], "stream": false, "options": options});
    assert_eq!(server.ask("/api/generate", &body)["response"], expected);
    let prompt = json!({"prompt_string": "<user><__media__>what<assistant>", "multimodal_data": [data(0)]});
    let body = json!({"prompt": prompt, "n_predict": 8, "ignore_eos": true});
    let completion = server.ask("/completion", &body);
    assert_eq!(
        (&completion["content"], &completion["tokens_evaluated"]),
        (&json!(expected), &json!(n_prompt))
    );
    // The image is encoded once, and every route counts the same tokens.
    assert_eq!((counter(&server, ENCODED), counter(&server, CACHED)), (1, 5));
    for (path, body) in [
        ("/v1/chat/completions/input_tokens", chat(&[0], "what")),
        ("/v1/responses/input_tokens", json!({ "input": input })),
        ("/v1/messages/count_tokens", json!({ "messages": messages })),
    ] {
        assert_eq!(server.ask(path, &body)["input_tokens"], n_prompt, "{path}");
    }
    let prompt = server.ask(
        "/apply-template",
        &json!({ "messages": chat(&[0], "what")["messages"] }),
    );
    assert!(prompt["prompt"].as_str().unwrap().contains("[image]"), "{prompt}");
}

#[test]
fn prefix_cache_distinguishes_images() {
    let server = server();
    let first = server.ask(CHAT, &chat(&[0], "what"));
    let cached = |answer: &Json| {
        answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            .as_u64()
            .unwrap()
    };
    let n_prompt = first["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(n_prompt > IMAGE_ROWS as u64 && cached(&first) == 0);
    let again = server.ask(CHAT, &chat(&[0], "what"));
    assert_eq!((content(&again), cached(&again)), (content(&first), n_prompt - 1));
    // Another image shares only the tokens before the rows.
    let other = server.ask(CHAT, &chat(&[5], "what"));
    assert!(cached(&other) < 20, "{other}");
    assert_ne!(content(&other), content(&first));
    // A second question about an image neither encodes the image nor recomputes its rows.
    let n_encoded = counter(&server, ENCODED);
    let question = server.ask(CHAT, &chat(&[0], "where"));
    assert!(cached(&question) > IMAGE_ROWS as u64, "{question}");
    assert_eq!((n_encoded, counter(&server, ENCODED)), (2, 2));
    let both = server.ask(CHAT, &chat(&[5, 0], "what"));
    let swapped = server.ask(CHAT, &chat(&[0, 5], "what"));
    assert_ne!(content(&both), content(&swapped));
    assert_eq!(counter(&server, ENCODED), 2);
}

#[test]
fn image_cache_of_size_zero_caches_nothing() {
    let server = Server::with(Options {
        media_cache: 0,
        ..Options::with_images()
    });
    let first = server.ask(CHAT, &chat(&[0], "what"));
    let again = server.ask(CHAT, &chat(&[0], "what"));
    assert_eq!(content(&first), content(&again));
    assert_eq!((counter(&server, ENCODED), counter(&server, CACHED)), (2, 0));
}

#[test]
fn images_in_tool_results_are_read() {
    let server = server();
    let results = |content: Json| {
        let call = json!({"type": "tool_use", "id": "1", "name": "f", "input": {}});
        let result = json!({"type": "tool_result", "tool_use_id": "1", "content": content});
        json!({"max_tokens": 8, "ignore_eos": true, "messages": [
            {"role": "user", "content": "a"}, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]})
    };
    let block = |seed: usize| json!({"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": data(seed)}});
    let [first, other] = [0, 5].map(|seed| server.post("/v1/messages", &results(json!([block(seed)]))));
    assert_eq!((first.status, first.header("warning")), (200, None), "{}", first.body);
    assert_ne!(first.json()["content"], other.json()["content"]);
    let input = json!([
        {"role": "user", "content": "a"},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_image", "image_url": url(0)}]}]);
    server.ask("/v1/responses", &json!({ "input": input, "max_output_tokens": 4 }));
    assert_eq!(counter(&server, ENCODED), 2);
    // A model for text reads a note instead.
    let text_only = Server::new();
    let noted = text_only.post("/v1/messages", &results(json!([block(0)])));
    assert!(
        noted.status == 200 && noted.header("warning").is_some(),
        "{}",
        noted.body
    );
    let noted = text_only.post("/v1/responses", &json!({ "input": input, "max_output_tokens": 4 }));
    assert!(
        noted.status == 200 && noted.header("warning").is_some(),
        "{}",
        noted.body
    );
    let refused = text_only.refused(CHAT, &chat(&[0], "what"), 400);
    assert!(refused["message"].as_str().unwrap().contains("--mmproj"), "{refused}");
    text_only.refused("/api/generate", &json!({"prompt": "a", "images": [data(0)]}), 400);
}

#[test]
fn bad_images_are_rejected_with_position_and_limit() {
    let server = Server::with(Options {
        media_bytes: 64 << 10,
        ..Options::with_images()
    });
    let with = |image: &str| {
        let bad = json!({"type": "image_url", "image_url": {"url": image}});
        json!({"messages": [{"role": "user", "content": [part(0)]}, {"role": "user", "content": [bad]}]})
    };
    let encoded = |bytes: &[u8]| format!("data:image/png;base64,{}", STANDARD.encode(bytes));
    let mut wide = bitmap(4, 0);
    wide[18..22].copy_from_slice(&20_000_u32.to_le_bytes());
    let truncated = &bitmap(IMAGE_SIDE, 0)[..4000];
    for (image, reason) in [
        ("http://127.0.0.1/a.png".to_owned(), "are not fetched"),
        ("file:///etc/passwd".to_owned(), "files of the server are not read"),
        ("data:image/png;base64,%%%".to_owned(), "invalid base64"),
        (encoded(b"no image"), "PNG, JPEG, WebP, GIF, BMP"),
        (encoded(&vec![0; 70 << 10]), "the limit is 65536"),
        (encoded(&wide), "20000 pixels on its longer side; the limit is 16384"),
        (encoded(truncated), "is damaged"),
    ] {
        let error = server.refused(CHAT, &with(&image), 400);
        let message = error["message"].as_str().unwrap();
        assert!(
            message.contains("image 2 of the request") && message.contains(reason),
            "{message}"
        );
        assert_eq!(error["param"], "messages[1].content");
    }
    let small = format!("data:image/bmp;base64,{}", STANDARD.encode(bitmap(8, 0)));
    let parts = vec![json!({"type": "image_url", "image_url": {"url": small}}); 33];
    let many = json!({"messages": [{"role": "user", "content": parts}]});
    let many = server.refused(CHAT, &many, 400);
    assert!(
        many["message"].as_str().unwrap().contains("the limit is 32 images"),
        "{many}"
    );
    let raw = json!({"prompt": "a", "raw": true, "images": [data(0)]});
    assert!(server.refused("/api/generate", &raw, 400).to_string().contains("raw"));
    server.ask(CHAT, &chat(&[0], "what"));
}

#[test]
fn files_of_a_request_share_twice_the_limit() {
    // In base64, two of these files exceed the limit of other bodies.
    let media_bytes = 16 << 20;
    let server = Server::with(Options {
        media_bytes,
        ..Options::with_images()
    });
    // Bytes after the pixels do not count as pixels.
    let part = |seed: usize, n_bytes: usize| {
        let mut file = bitmap(IMAGE_SIDE, seed);
        file.resize(n_bytes, 0);
        let url = format!("data:image/bmp;base64,{}", STANDARD.encode(&file));
        json!({"type": "image_url", "image_url": {"url": url}})
    };
    let ask = |sizes: &[usize]| {
        let parts: Vec<Json> = sizes.iter().enumerate().map(|(seed, &n)| part(seed, n)).collect();
        json!({"messages": [{"role": "user", "content": parts}], "max_tokens": 2})
    };
    server.ask(CHAT, &ask(&[media_bytes, media_bytes]));
    let error = server.refused(CHAT, &ask(&[media_bytes, media_bytes - 20_000, 20_001]), 400);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("image 3 of the request: the files of a request have more than 33554432 bytes together"),
        "{message}"
    );
    // Routes that accept text only are named.
    let prompt = json!({"prompt_string": "<__media__>", "multimodal_data": [data(0)]});
    let error = server.refused("/v1/completions", &json!({ "prompt": prompt }), 400);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("this route accepts text only: /v1/completions"),
        "{message}"
    );
}

#[test]
fn body_limit_allows_images_in_base64() {
    let server = server();
    // 18 MiB of data after the pixels need 24 MiB of base64.
    let mut file = bitmap(IMAGE_SIDE, 0);
    file.resize(18 << 20, 0);
    let image = format!("data:image/bmp;base64,{}", STANDARD.encode(&file));
    let content = json!([{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "what"}]);
    let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 8, "ignore_eos": true});
    let large = server.ask(CHAT, &body);
    assert_eq!(
        self::content(&large),
        self::content(&server.ask(CHAT, &chat(&[0], "what")))
    );
}

#[test]
fn image_marks_in_text_are_not_images() {
    let server = server();
    let mark = IMAGE_MARK.to_string();
    let with_mark = server.ask(CHAT, &chat(&[0], &format!("{mark}what")));
    assert_ne!(content(&with_mark), content(&server.ask(CHAT, &chat(&[0], "what"))));
    let only_text = json!({"messages": [{"role": "user", "content": mark}], "max_tokens": 2});
    server.ask(CHAT, &only_text);
    // A mark in a field that the reader does not see is noticed in the prompt.
    let template = "{% for m in messages %}{{ m.content }}{{ m.x }}{% endfor %}";
    let server = Server::with(Options {
        other_template: Some(template),
        ..Options::with_images()
    });
    let body = json!({"messages": [{"role": "user", "content": [part(0)], "x": mark}]});
    let error = server.refused(CHAT, &body, 400);
    assert!(error["message"].as_str().unwrap().contains("1 images"), "{error}");
}

#[test]
fn capabilities_list_vision() {
    for (server, reads) in [(server(), true), (Server::new(), false)] {
        assert_eq!(
            server.get("/props").json()["modalities"],
            json!({"vision": reads, "audio": false})
        );
        let has_vision = |list: &Json| list.as_array().unwrap().contains(&json!("vision"));
        let models = server.get("/v1/models").json();
        assert_eq!(has_vision(&models["data"][0]["capabilities"]), reads);
        let shown = server.ask("/api/show", &json!({"model": "tiny"}));
        assert_eq!(has_vision(&shown["capabilities"]), reads);
    }
}

#[test]
fn disconnect_during_encoding_leaves_no_request() {
    let server = server();
    let body = |seed: usize| chat(&[seed, seed + 1, seed + 2], "what").to_string();
    for seed in 0..12 {
        let body = body(3 * seed);
        let mut stream = server.connect();
        stream.write_all(&head("POST", CHAT, &[], body.len())).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        std::thread::sleep(Duration::from_millis(seed as u64));
        drop(stream);
    }
    server.ask(CHAT, &chat(&[0], "what"));
    server.rest();
    let gauges = server.app.service.scheduler.gauges();
    assert_eq!((gauges.n_running, gauges.n_waiting, gauges.n_busy), (0, 0, 0));
}

#[test]
fn images_and_texts_of_several_clients_are_independent() {
    let server = server();
    let text = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "ignore_eos": true});
    let alone: Vec<String> = [text.clone(), chat(&[0], "what"), chat(&[5, 0], "a longer question")]
        .iter()
        .map(|body| content(&server.ask(CHAT, body)).to_owned())
        .collect();
    let server = self::server();
    std::thread::scope(|scope| {
        for i in 0..9 {
            let (server, alone, text) = (&server, &alone, &text);
            scope.spawn(move || {
                let body = [text.clone(), chat(&[0], "what"), chat(&[5, 0], "a longer question")][i % 3].clone();
                assert_eq!(content(&server.ask(CHAT, &body)), alone[i % 3], "{i}");
            });
        }
    });
    assert_eq!(counter(&server, ENCODED), 2);
}

/// Mutated requests never stop the server.
#[test]
fn mutated_requests_are_answered() {
    let server = server();
    let valid = chat(&[0], "what").to_string().into_bytes();
    let file = bitmap(IMAGE_SIDE, 0);
    let mut state = 7_u64;
    let mut random = |n: usize| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    for i in 0..1000 {
        let body = if i % 2 == 0 {
            let mut body = valid.clone();
            for _ in 0..=random(3) {
                // Most bytes are pixels; the remaining bytes are at both ends.
                let at = random(valid.len().min(160));
                let at = if random(2) == 0 { at } else { valid.len() - 1 - at };
                body[at] = random(256) as u8;
            }
            body
        } else {
            let mut file = file.clone();
            (0..=random(4)).for_each(|_| file[random(60)] = random(256) as u8);
            file.truncate(if random(4) == 0 { random(file.len()) } else { file.len() });
            let url = format!("data:image/bmp;base64,{}", STANDARD.encode(&file));
            let content = json!([{"type": "image_url", "image_url": {"url": url}}]);
            let body = json!({"messages": [{"role": "user", "content": content}], "max_tokens": 1});
            body.to_string().into_bytes()
        };
        let response = server.request("POST", CHAT, &[], &body);
        assert!(
            [200, 400].contains(&response.status),
            "{}: {}",
            response.status,
            response.body
        );
    }
    server.ask(CHAT, &chat(&[0], "what"));
}

#[test]
fn oversized_prompts_are_rejected_before_encoding_images() {
    let server = Server::with(Options {
        n_ctx: 64,
        ..Options::with_images()
    });
    let seeds: Vec<usize> = (0..4).collect();
    let prompt = json!({"prompt_string": "<__media__>".repeat(4), "multimodal_data": seeds.iter().map(|&seed| data(seed)).collect::<Vec<_>>()});
    for (path, body) in [
        (CHAT, chat(&seeds, "what")),
        ("/completion", json!({ "prompt": prompt })),
    ] {
        let error = server.refused(path, &body, 400);
        assert!(
            error["message"].as_str().unwrap().contains("context size of 64"),
            "{error}"
        );
    }
    assert_eq!(counter(&server, ENCODED), 0);
    server.ask(CHAT, &chat(&[0, 1], "what"));
    assert_eq!(counter(&server, ENCODED), 2);
}

#[test]
fn media_of_completions_replace_markers_in_order() {
    let server = server();
    let ask = |text: &str, seeds: &[usize]| {
        let files: Vec<String> = seeds.iter().map(|&seed| data(seed)).collect();
        let prompt = json!({"prompt_string": text, "multimodal_data": files});
        json!({"prompt": prompt, "n_predict": 8, "ignore_eos": true})
    };
    let answer = |text: &str, seeds: &[usize]| server.ask("/completion", &ask(text, seeds));
    let two = "a <__media__> b <__media__>";
    let first = answer(two, &[0, 5]);
    assert_ne!(first["content"], answer(two, &[5, 0])["content"]);
    assert_eq!(first["content"], answer(two, &[0, 5])["content"]);
    // A mark in the text is not a placeholder for an image.
    let marked = answer(&format!("{IMAGE_MARK}{two}"), &[0, 5]);
    assert!(marked["tokens_evaluated"].as_u64() > first["tokens_evaluated"].as_u64());
    // Each prompt of a list has its own media.
    let mut list = ask(two, &[0, 5]);
    list["prompt"] = json!([ask(two, &[5, 0])["prompt"], "hello", list["prompt"]]);
    let answers = server.ask("/completion", &list);
    assert_eq!(answers[2]["content"], first["content"]);
    assert_eq!(answers[0]["content"], answer(two, &[5, 0])["content"]);
    for (body, reason) in [
        (
            ask("a", &[0]),
            "expected 1 of <__media__> in prompt_string (one per file), found 0",
        ),
        (
            ask(two, &[0]),
            "expected 1 of <__media__> in prompt_string (one per file), found 2",
        ),
        (
            json!({"prompt": {"prompt_string": "<__media__>", "multimodal_data": ["!"]}}),
            "invalid base64",
        ),
        (
            json!({"prompt": {"prompt_string": "<__media__>", "multimodal_data": "a"}}),
            "expected a list",
        ),
    ] {
        let error = server.refused("/completion", &body, 400);
        assert!(error["message"].as_str().unwrap().contains(reason), "{error}");
        assert_eq!(error["param"], "prompt");
    }
    let refused = Server::new().refused("/completion", &ask("<__media__>", &[0]), 400);
    assert!(refused["message"].as_str().unwrap().contains("--mmproj"), "{refused}");
}

#[test]
fn images_are_embedded_with_texts() {
    let server = server();
    let input = |seed: usize| json!({"content": [part(seed), {"type": "text", "text": "what"}]});
    let marked = json!({"prompt_string": "<__media__>what", "multimodal_data": [data(0)]});
    let inputs = json!([input(0), "what", input(5), marked]);
    let answer = server.ask("/v1/embeddings", &json!({ "input": inputs }));
    let vector = |i: usize| -> Vec<f64> { serde_json::from_value(answer["data"][i]["embedding"].clone()).unwrap() };
    let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
    assert!(distance(&vector(0), &vector(3)) < 1e-8);
    assert!(distance(&vector(0), &vector(1)) > 1e-3 && distance(&vector(0), &vector(2)) > 1e-6);
    assert!(answer["usage"]["prompt_tokens"].as_u64().unwrap() > 3 * IMAGE_ROWS as u64);
    let alone = server.ask("/v1/embeddings", &json!({"input": "what"}));
    let alone: Vec<f64> = serde_json::from_value(alone["data"][0]["embedding"].clone()).unwrap();
    assert!(distance(&vector(1), &alone) < 1e-8);
    let native = server.ask("/embedding", &json!({ "content": input(0) }));
    let native: Vec<f64> = serde_json::from_value(native[0]["embedding"][0].clone()).unwrap();
    assert!(distance(&vector(0), &native) < 1e-8);
    assert_eq!(counter(&server, ENCODED), 2);
    // The input is too long before its images are encoded.
    let seeds: Vec<Json> = (10..42).map(part).collect();
    let error = server.refused("/v1/embeddings", &json!({"input": [{ "content": seeds }]}), 400);
    assert!(error["message"].as_str().unwrap().contains("at most 256"), "{error}");
    assert_eq!((&error["param"], counter(&server, ENCODED)), (&json!("input"), 2));
    for (server, path, input, reason) in [
        (&Server::new(), "/v1/embeddings", input(0), "--mmproj"),
        (
            &server,
            "/v1/embeddings",
            json!({"content": [{"type": "video_url"}]}),
            "of type \"video_url\"",
        ),
        (
            &server,
            "/api/embed",
            input(0),
            "this route accepts text only: /api/embed",
        ),
    ] {
        let refused = server.post(path, &json!({"input": [input]}));
        assert!(
            refused.status == 400 && refused.body.contains(reason.replace('"', "\\\"").as_str()),
            "{}",
            refused.body
        );
    }
}
