//! llama-server's API: saved slots, reranking, infill.

use serde_json::{Value as Json, json};

use crate::common::{Options, Server};

fn with_folder(folder: &tempfile::TempDir) -> Server {
    Server::with(Options {
        slot_save_path: Some(folder.path().to_owned()),
        ..Options::default()
    })
}

/// Creates a completion that is long enough to be cached.
fn continued(server: &Server) -> Json {
    server.ask(
        "/completion",
        &json!({"prompt": "once upon a time there was a lion", "n_predict": 8, "temperature": 0, "ignore_eos": true}),
    )
}

fn slot(server: &Server, id: usize, action: &str, name: &str, status: u16) -> Json {
    let response = server.post(&format!("/slots/{id}?action={action}"), &json!({ "filename": name }));
    assert_eq!(response.status, status, "{action} {name}: {}", response.body);
    response.json()
}

#[test]
fn saved_slot_survives_restart() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(&folder);
    let first = continued(&server);
    let slots = server.get("/slots").json();
    let id = slots
        .as_array()
        .unwrap()
        .iter()
        .position(|slot| slot["n_held"].as_u64() > Some(0))
        .expect("one slot has cached tokens");
    let n_held = slots[id]["n_held"].clone();
    let saved = slot(&server, id, "save", "lion.bin", 200);
    assert_eq!((&saved["n_saved"], &saved["filename"]), (&n_held, &json!("lion.bin")));
    let path = folder.path().join("lion.bin");
    assert_eq!(saved["n_written"], std::fs::metadata(&path).unwrap().len());
    drop(server);
    let server = with_folder(&folder);
    let restored = slot(&server, 3, "restore", "lion.bin", 200);
    assert_eq!(restored["n_restored"], n_held);
    let again = continued(&server);
    assert_eq!(again["content"], first["content"]);
    assert!(again["tokens_cached"].as_u64() > Some(3), "{again}");
    assert_eq!(slot(&server, 3, "erase", "", 200)["id_slot"], 3);
    // A truncated file is reported by name, and the slot is empty afterwards.
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let error = slot(&server, 3, "restore", "lion.bin", 422);
    assert!(
        error["error"]["message"].as_str().unwrap().contains("lion.bin"),
        "{error}"
    );
    assert_eq!(continued(&server)["content"], first["content"]);
}

#[test]
fn slot_files_and_ids_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    let server = with_folder(&folder);
    for name in ["../x", "a/b", ".hidden", "", "a\u{0}b"] {
        slot(&server, 0, "save", name, 400);
    }
    slot(&server, 0, "save", "empty.bin", 400);
    slot(&server, 0, "restore", "missing.bin", 422);
    slot(&server, 99, "save", "x.bin", 404);
    slot(&server, 0, "dance", "x.bin", 400);
    assert_eq!(server.post("/slots/a?action=save", &json!({})).status, 404);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    // An unwritable directory fails the request, not the server.
    drop(folder);
    continued(&server);
    let slots = server.get("/slots").json();
    let id = slots
        .as_array()
        .unwrap()
        .iter()
        .position(|slot| slot["n_held"].as_u64() > Some(0))
        .expect("one slot has cached tokens");
    slot(&server, id, "save", "x.bin", 422);
    slot(&Server::new(), 0, "save", "x.bin", 501);
}

#[test]
fn adapter_routes_require_adapters() {
    let server = Server::new();
    assert_eq!(server.get("/lora-adapters").json(), json!([]));
    assert_eq!(server.post("/lora-adapters", &json!([])).json()["success"], true);
    assert_eq!(
        server.post("/lora-adapters", &json!([{"id": 0, "scale": 1}])).status,
        404
    );
    for body in [
        json!({}),
        json!([{"id": -1, "scale": 1}]),
        json!([{"id": 0}]),
        json!([7]),
    ] {
        assert_eq!(server.post("/lora-adapters", &body).status, 400, "{body}");
    }
}

/// The scales of a request equal those of a server, and do not affect other requests.
#[test]
fn request_sets_scales_of_adapters() {
    let with = |scales: [f32; 2]| {
        let weights = ["blk.0.attn_q.weight", "blk.1.ffn_down.weight"];
        Server::with(Options {
            adapters: weights.into_iter().zip(scales).collect(),
            ..Options::default()
        })
    };
    let server = with([0.0, 2.0]);
    let request = |server: &Server, lora: Json| {
        let body =
            json!({"prompt": "once upon a time there was a lion", "n_predict": 12, "ignore_eos": true, "lora": lora});
        server.ask("/completion", &body)
    };
    let content = |answer: &Json| answer["content"].as_str().unwrap().to_owned();
    let plain = content(&request(&server, Json::Null));
    let adapted = request(&server, json!([{"id": 0, "scale": 3}]));
    assert_eq!(adapted["generation_settings"]["lora"], json!([{"id": 0, "scale": 3.0}]));
    assert_eq!(content(&adapted), content(&request(&with([3.0, 0.0]), Json::Null)));
    assert_ne!(content(&adapted), plain);
    assert_eq!(content(&request(&server, Json::Null)), plain);
    for (path, mut body) in [
        ("/completion", json!({"prompt": "a"})),
        ("/v1/completions", json!({"prompt": "a"})),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hi"}]}),
        ),
    ] {
        body["lora"] = json!([{"id": 2, "scale": 1}]);
        let error = server.refused(path, &body, 400);
        assert_eq!(error["param"], "lora", "{path}: {error}");
        assert!(
            error["message"].as_str().unwrap().contains("loaded adapters is 2"),
            "{error}"
        );
    }
}

#[test]
fn unsupported_infill_and_rerank_are_rejected() {
    let server = Server::new();
    let error = server.refused(
        "/infill",
        &json!({"input_prefix": "a", "input_suffix": "b", "n_predict": 4}),
        501,
    );
    assert!(
        error["message"].as_str().unwrap().contains("fill-in-the-middle"),
        "{error}"
    );
    let error = server.refused("/v1/rerank", &json!({"query": "a", "documents": ["b"]}), 501);
    assert!(
        error["message"].as_str().unwrap().contains("this model does not"),
        "{error}"
    );
    for (body, param) in [
        (json!({"documents": ["a"]}), "query"),
        (json!({"query": "a"}), "documents"),
        (json!({"query": "a", "documents": []}), "documents"),
        (json!({"query": "a", "documents": [7]}), "documents"),
        (json!({"query": "a", "documents": ["a"], "top_n": 0}), "top_n"),
    ] {
        assert_eq!(server.refused("/rerank", &body, 400)["param"], param);
    }
}

#[test]
fn encoder_supports_rerank_and_embeddings_only() {
    let server = Server::with(Options {
        model: Some(tests::seeded_file("bert-dense", None)),
        ..Options::default()
    });
    let documents = json!(["a", {"text": "b c"}, "d"]);
    let ranked = server.ask(
        "/v1/rerank",
        &json!({"query": "q", "documents": documents, "return_documents": true}),
    );
    let results = ranked["results"].as_array().unwrap();
    let scores: Vec<f64> = results.iter().map(|r| r["relevance_score"].as_f64().unwrap()).collect();
    assert!(scores.len() == 3 && scores.is_sorted_by(|a, b| a >= b), "{scores:?}");
    let second = results.iter().find(|r| r["index"] == 1).unwrap();
    assert_eq!(second["document"]["text"], "b c");
    let best = server.ask("/rerank", &json!({"query": "q", "documents": documents, "top_n": 1}));
    assert_eq!(best["results"][0]["index"], results[0]["index"]);
    assert_eq!(
        (
            best["results"].as_array().unwrap().len(),
            best["results"][0].get("document")
        ),
        (1, None)
    );
    assert!(server.ask("/v1/embeddings", &json!({"input": "a"}))["data"][0]["embedding"].is_array());
    let error = server.refused("/v1/completions", &json!({"prompt": "a"}), 501);
    assert!(
        error["message"].as_str().unwrap().contains("cannot generate text"),
        "{error}"
    );
    assert_eq!(
        (server.get("/health").status, server.get("/slots").json()),
        (200, json!([]))
    );
}

/// Starts a server with a fill-in-the-middle model, whose marker tokens are words of the vocabulary.
fn filling(suffix_first: bool) -> Server {
    let ids = [("fim_pre", 5_u32), ("fim_suf", 6), ("fim_mid", 7), ("fim_sep", 8)];
    let model = tests::text_model_with("llama", None, |metadata| {
        for (name, id) in ids {
            metadata.insert(format!("tokenizer.ggml.{name}_token_id"), id);
        }
    });
    Server::with(Options {
        model: Some(model),
        suffix_first,
        ..Options::default()
    })
}

/// The suffix can precede the prefix.
#[test]
fn infill_order_is_configurable() {
    let server = filling(true);
    let body = json!({"input_prefix": "ab", "input_suffix": "no", "n_predict": 4, "temperature": 0});
    let filled = server.ask("/infill", &body);
    let tokens = |text: &str, special: bool| {
        let response = server.ask("/tokenize", &json!({"content": text, "add_special": special}));
        response["tokens"].as_array().unwrap().clone()
    };
    let mark = |id: u32| vec![json!(id)];
    let prompt = [
        tokens("", true),
        mark(6),
        tokens("no", false),
        mark(5),
        tokens("ab", false),
        mark(7),
    ]
    .concat();
    let plain = server.ask(
        "/completion",
        &json!({"prompt": prompt, "n_predict": 4, "temperature": 0}),
    );
    let result = |answer: &Json| (answer["content"].clone(), answer["tokens_evaluated"].clone());
    assert_eq!(result(&filled), result(&plain));
    let other = filling(false).ask("/infill", &body);
    assert_ne!(result(&filled).0, result(&other).0);
}

#[test]
fn infill_prompt_uses_fim_tokens() {
    let server = filling(false);
    let body = json!({"input_prefix": "ab", "input_suffix": "no", "prompt": "on", "n_predict": 4, "temperature": 0,
        "input_extra": [{"filename": "x", "text": "yes"}]});
    let filled = server.ask("/infill", &body);
    let tokens = |text: &str| {
        server.ask("/tokenize", &json!({"content": text}))["tokens"]
            .as_array()
            .unwrap()
            .clone()
    };
    let begin = server.ask("/tokenize", &json!({"content": "", "add_special": true}));
    let mut prompt = begin["tokens"].as_array().unwrap().clone();
    prompt.push(json!(8));
    for (text, mark) in [("x\nyes\n", Some(5)), ("ab", Some(6)), ("no", Some(7)), ("on", None)] {
        prompt.extend(tokens(text));
        prompt.extend(mark.map(Json::from));
    }
    let plain = server.ask(
        "/completion",
        &json!({"prompt": prompt, "n_predict": 4, "temperature": 0}),
    );
    assert_eq!(
        (&filled["content"], &filled["tokens_evaluated"]),
        (&plain["content"], &plain["tokens_evaluated"])
    );
    server.refused("/infill", &json!({"input_extra": [{"text": "a"}]}), 400);
    // OpenAI's and Ollama's APIs take a suffix.
    let filled = server.ask(
        "/infill",
        &json!({"input_prefix": "ab", "input_suffix": "no", "n_predict": 4}),
    )["content"]
        .clone();
    let body = json!({"prompt": "ab", "suffix": "no", "max_tokens": 4});
    assert_eq!(server.ask("/v1/completions", &body)["choices"][0]["text"], filled);
    let body = json!({"prompt": "ab", "suffix": "no", "stream": false, "options": {"num_predict": 4}});
    assert_eq!(server.ask("/api/generate", &body)["response"], filled);
    server.refused(
        "/v1/completions",
        &json!({"prompt": "ab", "suffix": "no", "echo": true}),
        400,
    );
    server.refused("/v1/completions", &json!({"prompt": [1, 2], "suffix": "no"}), 400);
    // Requests of editor plugins.
    let fields = json!([
        "content",
        "timings/predicted_n",
        "truncated",
        "tokens_cached",
        "nothing/here"
    ]);
    let request = json!({"id_slot": 0, "input_prefix": "ab", "input_suffix": "no", "input_extra": [{"filename": "x", "text": "yes"}],
        "prompt": "on", "n_predict": 4, "stop": ["zzz"], "n_indent": 0, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"],
        "temperature": 0, "stream": false, "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 60000, "response_fields": fields});
    let response = server.post("/infill", &request);
    assert_eq!(response.header("warning"), None);
    let body_json = response.json();
    // Without a temperature sampler, the output is not greedy.
    assert!(
        body_json["content"].is_string()
            && body_json["timings/predicted_n"]
                .as_u64()
                .is_some_and(|n| (1..=4).contains(&n))
    );
    assert_eq!(body_json.as_object().map(serde_json::Map::len), Some(4));
    let warming = json!({"input_prefix": "", "input_suffix": "", "input_extra": [{"filename": "x", "text": "yes"}], "prompt": "", "n_predict": 0,
        "temperature": 0.0, "samplers": [], "t_max_prompt_ms": 1, "t_max_predict_ms": 1, "response_fields": [""]});
    assert_eq!(server.ask("/infill", &warming), json!({}));
}

/// The completion stops at the first less-indented line.
#[test]
fn n_indent_ends_completion() {
    let server = Server::new();
    let body = json!({"prompt": "a", "n_predict": 4, "grammar": "root ::= \"x\\n  y\\n z\" [a-z]+", "n_indent": 2, "return_tokens": true});
    let body = |stream: bool| {
        let mut body = body.clone();
        body["n_predict"] = 200.into();
        body["stream"] = stream.into();
        body
    };
    let whole = server.ask("/completion", &body(false));
    assert_eq!(
        (&whole["content"], &whole["stop_type"]),
        (&json!("x\n  y\n"), &json!("limit"))
    );
    let n = whole["tokens_predicted"].as_u64().unwrap();
    assert!(n > 4 && n < 100, "{n}");
    assert!(whole["tokens"].as_array().is_some_and(|tokens| tokens.len() > 4));
    let events = server.events("/completion", &body(true));
    let events: Vec<Json> = events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let text: String = events.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(text, "x\n  y\n");
    assert_eq!(events.last().unwrap()["stop"], true);
    server.rest();
}

#[test]
fn embedding_route_wraps_vectors_in_lists() {
    let server = Server::new();
    let vectors = server.ask("/embedding", &json!({"content": ["hello", "there"]}));
    let plain = server.ask("/v1/embeddings", &json!({"input": ["hello", "there"]}));
    for i in 0..2 {
        assert_eq!(vectors[i]["index"], i);
        assert_eq!(vectors[i]["embedding"][0], plain["data"][i]["embedding"]);
    }
    let again = server.ask("/embedding", &json!({"input": ["hello", "there"]}));
    assert_eq!(again, vectors);
    server.refused("/embedding", &json!({"content": "a", "embd_normalize": -2}), 400);
    server.refused("/embedding", &json!({"content": "a", "input": "a"}), 400);
}

#[test]
fn slot_files_are_limited_in_total() {
    let folder = tempfile::tempdir().unwrap();
    let saving = |limit: u64, name: &str, status: u16| {
        let server = Server::with(Options {
            slot_save_path: Some(folder.path().to_owned()),
            slot_save_limit: limit,
            ..Options::default()
        });
        continued(&server);
        let slots = server.get("/slots").json();
        let has_tokens = |slot: &Json| slot["n_held"].as_u64() > Some(0);
        let id = slots.as_array().unwrap().iter().position(has_tokens);
        slot(&server, id.expect("one slot has cached tokens"), "save", name, status)
    };
    let size = saving(u64::MAX, "a", 200)["n_written"].as_u64().unwrap();
    let names = || {
        let entries = std::fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    let error = saving(2 * size - 1, "b", 507);
    let message = error["error"]["message"].as_str().unwrap();
    assert!(message.contains("--slot-save-limit"), "{message}");
    assert_eq!(names(), ["a"], "the refused file is gone");
    // A file can be replaced, and others fit under a higher limit.
    saving(2 * size - 1, "a", 200);
    saving(2 * size, "b", 200);
    assert_eq!(names(), ["a", "b"]);
}
