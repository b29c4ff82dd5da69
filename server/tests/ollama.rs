//! Ollama's API.

use serde_json::{Value as Json, json};

use crate::common::Server;

/// Returns the objects of a stream, one per line.
fn lines(server: &Server, path: &str, body: &Json) -> Vec<Json> {
    let response = server.post(path, body);
    assert_eq!(
        (response.status, response.header("content-type")),
        (200, Some("application/x-ndjson")),
        "{}",
        response.body
    );
    response
        .body
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn chat_streams_by_default() {
    let server = Server::new();
    let body = |more: Json| {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}], "options": {"num_predict": 12, "num_ctx": 4096}});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = server.ask("/api/chat", &body(json!({"stream": false})));
    let objects = lines(&server, "/api/chat", &body(json!({})));
    let text: String = objects
        .iter()
        .map(|line| line["message"]["content"].as_str().unwrap())
        .collect();
    assert_eq!(
        (&whole["message"]["role"], &whole["message"]["content"]),
        (&json!("assistant"), &json!(text))
    );
    let (last, before) = objects.split_last().unwrap();
    assert!(before.len() > 5 && before.iter().all(|line| line["done"] == false));
    for last in [last, &whole] {
        assert_eq!(
            (&last["done"], &last["done_reason"], &last["eval_count"]),
            (&json!(true), &json!("length"), &json!(12))
        );
        assert_eq!(last["prompt_eval_count"], 22);
    }
    let chat = server.ask(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12}),
    );
    assert_eq!(chat["choices"][0]["message"]["content"], text);
    let with_images =
        |images: Json| json!({"stream": false, "messages": [{"role": "user", "content": "hello", "images": images}]});
    let without = server.ask("/api/chat", &body(with_images(json!([]))));
    assert_eq!(without["message"]["content"], text);
    let refused = server.post("/api/chat", &body(with_images(json!(["aGVsbG8="]))));
    assert!(
        refused.status == 400 && refused.body.contains("reads text only"),
        "{}",
        refused.body
    );
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let bound = server.ask(
        "/api/chat",
        &body(json!({"stream": false, "format": schema, "options": {"num_predict": 100}})),
    );
    let document: Json = serde_json::from_str(bound["message"]["content"].as_str().unwrap()).unwrap();
    assert!(document["a"].is_boolean(), "{document}");
    // Without a pool, the model stays loaded.
    for body in [json!({"model": "m"}), json!({"model": "m", "keep_alive": 0})] {
        assert_eq!(server.ask("/api/chat", &body)["done_reason"], "load");
    }
}

#[test]
fn generate_applies_template_unless_raw() {
    let server = Server::new();
    let body = |raw: bool| json!({"model": "m", "prompt": "hello", "raw": raw, "stream": false, "options": {"num_predict": 8}});
    let answer = server.ask("/api/generate", &body(false));
    let chat = server.ask(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}),
    );
    assert_eq!(answer["response"], chat["choices"][0]["message"]["content"]);
    let plain = server.ask("/v1/completions", &json!({"prompt": "hello", "max_tokens": 8}));
    assert_eq!(
        server.ask("/api/generate", &body(true))["response"],
        plain["choices"][0]["text"]
    );
    let streamed = lines(
        &server,
        "/api/generate",
        &json!({"model": "m", "prompt": "hello", "options": {"num_predict": 8}}),
    );
    let text: String = streamed.iter().map(|line| line["response"].as_str().unwrap()).collect();
    assert_eq!(answer["response"], text);
}

#[test]
fn model_routes_describe_model() {
    let server = Server::new();
    let model = server.get("/api/tags").json()["models"][0].clone();
    assert_eq!(
        (&model["name"], &model["details"]["family"]),
        (&json!("tiny"), &json!("llama"))
    );
    assert_eq!(server.get("/api/ps").json()["models"][0]["context_length"], 1024);
    let shown = server.ask("/api/show", &json!({"model": "tiny"}));
    assert_eq!(
        (&shown["model_info"]["general.architecture"], &shown["capabilities"][0]),
        (&json!("llama"), &json!("completion"))
    );
    assert!(server.get("/api/version").json()["version"].is_string());
    let vectors = server.ask("/api/embed", &json!({"model": "m", "input": ["a", "hello"]}));
    let same = server.ask("/v1/embeddings", &json!({"input": ["a", "hello"]}));
    assert!(vectors["embeddings"][1] == same["data"][1]["embedding"]);
    let long = "x".repeat(5000);
    assert_eq!(
        server.ask("/api/embed", &json!({"input": long}))["embeddings"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    server.refused("/api/embed", &json!({"input": long, "truncate": false}), 400);
}

#[test]
fn errors_use_ollama_format() {
    let server = Server::new();
    for (path, body) in [
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a"}], "options": {"temprature": 1}}),
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a"}], "format": "xml"}),
        ),
        ("/api/generate", json!({"prompt": "a", "think": 7})),
        ("/api/generate", json!({"prompt": "", "keep_alive": "soon"})),
        ("/api/chat", json!({"messages": [], "keep_alive": true})),
        ("/api/embed", json!({"input": "a", "keep_alive": "5 minutes"})),
        ("/api/embed", json!({})),
    ] {
        let error = server.refused(path, &body, 400);
        assert!(error.is_string(), "{error}");
    }
}

/// Unknown options are ignored and listed in the warning header.
#[test]
fn unknown_options_are_ignored_with_warning() {
    let server = Server::new();
    let options =
        json!({"num_predict": 2, "tfs_z": 0.5, "reasoning_effort": "low", "a b": 1, "penalize_newline": null});
    let response = server.post(
        "/api/generate",
        &json!({"prompt": "hello", "options": options, "images": [], "suffix": ""}),
    );
    assert_eq!(response.status, 200, "{}", response.body);
    let warning = response.header("warning").unwrap();
    for part in ["option tfs_z", "option reasoning_effort", "another option"] {
        assert!(warning.contains(part), "{warning}");
    }
    assert!(
        !warning.contains("a b") && !warning.contains("newline") && !warning.contains("num_predict"),
        "{warning}"
    );
    server.refused("/api/generate", &json!({"prompt": "hello", "suffix": "x"}), 501);
    server.refused(
        "/api/generate",
        &json!({"prompt": "hello", "options": {"num_predictt": 2}}),
        400,
    );
}

#[test]
fn repeat_last_n_of_minus_one_is_the_context() {
    let server = Server::new();
    let text = |n: i32| {
        let options = json!({"num_predict": 24, "temperature": 0, "repeat_penalty": 1.5, "repeat_last_n": n});
        let body = json!({"prompt": "hello", "raw": true, "stream": false, "options": options});
        server.ask("/api/generate", &body)["response"].clone()
    };
    assert_eq!(text(-1), text(1000));
    assert_ne!(text(-1), text(0));
    let options = json!({"repeat_last_n": -2});
    server.refused("/api/generate", &json!({"prompt": "hello", "options": options}), 400);
}

#[test]
fn deprecated_embeddings_route_matches_embed_route() {
    let server = Server::new();
    let new = server.ask("/api/embed", &json!({"model": "m", "input": "hello"}));
    let old = server.ask(
        "/api/embeddings",
        &json!({"model": "m", "prompt": "hello", "options": {}}),
    );
    assert!(old["embedding"][0].is_number());
    assert_eq!(old["embedding"], new["embeddings"][0]);
    assert_eq!(
        server.ask("/api/embeddings", &json!({"model": "m"}))["embedding"],
        json!([])
    );
}

#[test]
fn routes_that_change_models_name_the_command() {
    let server = Server::new();
    for (path, command) in [
        ("/api/pull", "llama pull"),
        ("/api/create", "llama gguf"),
        ("/api/copy", "--alias"),
    ] {
        let response = server.post(path, &json!({"model": "x"}));
        assert_eq!(response.status, 501, "{path}");
        let error = response.json()["error"].as_str().unwrap().to_owned();
        assert!(error.contains(command), "{path}: {error}");
    }
}
