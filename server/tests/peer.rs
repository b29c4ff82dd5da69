//! llama-server's requests, as its own tests and clients send them.

use serde_json::{Value as Json, json};

use server::api::Defaults;
use server::vertex::Vertex;

use crate::common::{Options, Server};

fn number(value: &Json) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number: {value}"))
}

/// Returns the JSON events of a stream of `/completion`.
fn events(server: &Server, body: &Json) -> Vec<Json> {
    let events = server.events("/completion", body);
    let read = |event: &String| serde_json::from_str(event).expect("JSON");
    events.iter().filter(|event| *event != "[DONE]").map(read).collect()
}

#[test]
fn list_of_prompts_returns_list_of_responses() {
    let server = Server::new();
    let ask = |prompt: Json| {
        let body = json!({"prompt": prompt, "n_predict": 6, "ignore_eos": true});
        server.ask("/completion", &body)
    };
    let tokens = |text: &str| {
        let body = json!({"content": text, "add_special": true});
        server.ask("/tokenize", &body)["tokens"].clone()
    };
    let alone = [ask(json!("once upon")), ask(json!("a lion"))];
    assert!(
        alone
            .iter()
            .all(|body| body["index"] == 0 && body["generation_settings"].is_object())
    );
    for prompts in [
        json!(["once upon", "a lion"]),
        json!([tokens("once upon"), {"prompt_string": "a lion"}]),
        json!([{"prompt_string": "once upon", "multimodal_data": []}, tokens("a lion")]),
    ] {
        let both = ask(prompts);
        for (i, alone) in alone.iter().enumerate() {
            assert_eq!(both[i]["index"], i);
            for name in ["content", "prompt", "tokens_evaluated", "tokens_predicted", "stop_type"] {
                assert_eq!(both[i][name], alone[name], "{name}");
            }
        }
        assert_eq!(both.as_array().map(Vec::len), Some(2));
    }
    // A list with one prompt gives a list of results. A prompt can mix tokens and strings.
    assert_eq!(ask(json!(["once upon"]))[0]["content"], alone[0]["content"]);
    let mut mixed = tokens("once").as_array().unwrap().clone();
    mixed.push(json!(" upon"));
    assert_eq!(ask(json!(mixed))["content"], ask(json!("once upon"))["content"]);
    for wrong in [
        json!([]),
        json!([[]]),
        json!({}),
        json!([true]),
        json!({"prompt_string": "a", "multimodal_data": ["x"]}),
    ] {
        let error = server.refused("/completion", &json!({ "prompt": wrong }), 400);
        assert_eq!(error["param"], "prompt", "{error}");
    }
    let two = json!({"prompt": ["a", "b"], "n_indent": 2});
    assert_eq!(server.refused("/completion", &two, 400)["param"], "n_indent");
}

#[test]
fn streamed_list_of_prompts_ends_each_prompt() {
    let server = Server::new();
    let body =
        |stream: bool| json!({"prompt": ["once upon", "a lion"], "n_predict": 6, "ignore_eos": true, "stream": stream});
    let whole = server.ask("/completion", &body(false));
    let events = events(&server, &body(true));
    for i in 0..2 {
        let of_prompt: Vec<&Json> = events.iter().filter(|event| event["index"] == i).collect();
        let (last, before) = of_prompt.split_last().unwrap();
        let text: String = of_prompt.iter().filter_map(|event| event["content"].as_str()).collect();
        assert_eq!(text, whole[i]["content"].as_str().unwrap());
        let n_tokens: usize = before
            .iter()
            .filter_map(|event| event["tokens"].as_array().map(Vec::len))
            .sum();
        assert_eq!(n_tokens, 6, "each event has the ids of its tokens");
        assert!(before.iter().all(|event| event["stop"] == false));
        assert_eq!((&last["stop"], &last["tokens_predicted"]), (&json!(true), &json!(6)));
        assert_eq!(last["timings"]["predicted_n"], 6);
    }
}

#[test]
fn response_has_settings_tokens_and_times() {
    let server = Server::new();
    let body = json!({"prompt": "once upon", "n_predict": 6, "temperature": 0.5, "seed": 7, "ignore_eos": true, "logit_bias": [[5, false], [6, 1.5]]});
    let answer = server.ask("/completion", &body);
    let settings = &answer["generation_settings"];
    assert_eq!(
        [
            &settings["n_predict"],
            &settings["seed"],
            &settings["temperature"],
            &settings["stream"],
            &settings["n_probs"]
        ],
        [&json!(6), &json!(7), &json!(0.5), &json!(false), &json!(0)]
    );
    let biases = settings["logit_bias"].as_array().unwrap();
    assert_eq!(
        biases[..2],
        [json!({"token": 5, "bias": null}), json!({"token": 6, "bias": 1.5})]
    );
    assert!(
        biases.len() > 2 && biases[2..].iter().all(|bias| bias["bias"].is_null()),
        "end tokens are banned"
    );
    assert_eq!((&answer["tokens"], &answer["truncated"]), (&json!([]), &json!(false)));
    assert!(answer["has_new_line"].is_boolean());
    for name in [
        "prompt_per_token_ms",
        "prompt_per_second",
        "predicted_per_token_ms",
        "predicted_per_second",
    ] {
        assert!(number(&answer["timings"][name]) > 0.0, "{name}");
    }
    let full = server.ask(
        "/completion",
        &json!({"prompt": "a", "n_predict": -1, "ignore_eos": true}),
    );
    assert_eq!(
        (&full["truncated"], &full["stop_type"]),
        (&json!(true), &json!("limit"))
    );
    let props = server.get("/props").json();
    assert!(props["model_path"].as_str().unwrap().ends_with("tiny.gguf"), "{props}");
}

#[test]
fn probabilities_have_token_ids() {
    let server = Server::new();
    let body = |more: Json| {
        let mut body = json!({"prompt": "once upon", "n_predict": 3, "n_probs": 30, "temperature": 0.8, "top_k": 5, "seed": 1, "return_tokens": true});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let raw = server.ask("/completion", &body(json!({})));
    for (i, token) in raw["completion_probabilities"].as_array().unwrap().iter().enumerate() {
        assert_eq!(token["id"], raw["tokens"][i]);
        assert_eq!(token["top_logprobs"].as_array().map(Vec::len), Some(30));
        assert!(token["top_logprobs"][0]["id"].is_u64() && number(&token["logprob"]) <= 0.0);
    }
    let sampled = server.ask("/completion", &body(json!({"post_sampling_probs": true})));
    assert_eq!(sampled["content"], raw["content"]);
    for token in sampled["completion_probabilities"].as_array().unwrap() {
        let top = token["top_probs"].as_array().unwrap();
        let sum: f64 = top.iter().map(|one| number(&one["prob"])).sum();
        assert!(top.len() <= 5 && (sum - 1.0).abs() < 1e-5, "{sum}");
        let own = top
            .iter()
            .find(|one| one["id"] == token["id"])
            .expect("the token itself");
        assert_eq!(own["prob"], token["prob"]);
    }
    let refused = server.refused("/completion", &json!({"prompt": "a", "n_probs": 1025}), 400);
    assert_eq!(refused["param"], "n_probs");
}

/// Biases of texts equal biases of their tokens, in all APIs.
#[test]
fn logit_bias_accepts_texts() {
    let server = Server::new();
    let first = server.ask(
        "/completion",
        &json!({"prompt": "once", "n_predict": 1, "return_tokens": true}),
    );
    let token = first["tokens"][0].clone();
    let text = server.ask("/detokenize", &json!({"tokens": [token]}))["content"].clone();
    let tokens = server.ask("/tokenize", &json!({"content": text}))["tokens"].clone();
    let by_id: Vec<Json> = tokens
        .as_array()
        .unwrap()
        .iter()
        .map(|token| json!([token, false]))
        .collect();
    let with = |bias: Json| {
        let body = json!({"prompt": "once", "n_predict": 4, "logit_bias": bias});
        server.ask("/completion", &body)["content"].clone()
    };
    let by_text = with(json!([[text, false]]));
    assert_eq!(by_text, with(json!(by_id)));
    assert_eq!(with(json!({text.as_str().unwrap(): -1e6})), by_text);
    let body = |bias: Json| json!({"prompt": "once", "max_tokens": 4, "logit_bias": bias});
    let of_openai = server.ask("/v1/completions", &body(json!([[text, false]])));
    assert_eq!(of_openai["choices"][0]["text"], by_text);
}

/// Streams report the progress of the prompt if the request asks for it.
#[test]
fn progress_of_prompt_is_streamed_on_request() {
    let server = Server::with(Options {
        n_ctx: 4096,
        ..Options::default()
    });
    let text = "once upon a time ".repeat(60);
    let told = events(
        &server,
        &json!({"prompt": text, "n_predict": 2, "stream": true, "return_progress": true}),
    );
    let progress: Vec<&Json> = told
        .iter()
        .map(|event| &event["prompt_progress"])
        .filter(|p| p.is_object())
        .collect();
    assert!(progress.len() > 2, "{progress:?}");
    assert_eq!(
        (&progress[0]["processed"], &progress[0]["cache"]),
        (&json!(0), &json!(0))
    );
    assert_eq!(progress.last().unwrap()["processed"], progress[0]["total"]);
    assert_eq!(told[0]["timings"]["prompt_ms"], 0.0);
    let chat = json!({"messages": [{"role": "user", "content": text}], "max_tokens": 2, "stream": true, "return_progress": true});
    let of_chat = server.events("/v1/chat/completions", &chat);
    assert!(of_chat.iter().any(|event| event.contains("prompt_progress")));
    let plain = events(&server, &json!({"prompt": "a b", "n_predict": 2, "stream": true}));
    assert!(plain.iter().all(|event| event.get("prompt_progress").is_none()));
}

#[test]
fn template_can_end_without_an_answer() {
    let server = Server::new();
    let prompt = |more: Json| {
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/apply-template", &body)["prompt"].clone()
    };
    assert_eq!(prompt(json!({"add_generation_prompt": false})), "<user>hello");
    assert_eq!(prompt(json!({"add_generation_prompt": true})), "<user>hello<assistant>");
    assert_eq!(prompt(json!({})), "<user>hello<assistant>");
}

#[test]
fn embeddings_take_mixed_inputs_and_are_shortened() {
    let server = Server::new();
    let vectors = |body: Json| server.ask("/v1/embeddings", &body)["data"].clone();
    let parts = json!({"content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]});
    let all = vectors(json!({"input": ["hello", parts, {"prompt_string": "hello"}, [1, 2, "a"]]}));
    assert_eq!(all.as_array().map(Vec::len), Some(4));
    assert!((1..3).all(|i| all[i]["embedding"] == all[0]["embedding"]));
    for wrong in [
        json!({"content": "a"}),
        json!({"content": [{"type": "image_url"}]}),
        json!([]),
    ] {
        server.refused("/v1/embeddings", &json!({ "input": wrong }), 400);
    }
    let floats = |value: &Json| -> Vec<f64> { value.as_array().unwrap().iter().map(number).collect() };
    let (whole, short) = (
        floats(&all[0]["embedding"]),
        floats(&vectors(json!({"input": "hello", "dimensions": 8}))[0]["embedding"]),
    );
    let length = whole[..8].iter().map(|x| x * x).sum::<f64>().sqrt();
    assert_eq!(short.len(), 8);
    assert!(
        short
            .iter()
            .zip(&whole)
            .all(|(short, x)| (short - x / length).abs() < 1e-6)
    );
    let of_ollama = server.ask("/api/embed", &json!({"input": "hello", "dimensions": 8}));
    assert_eq!(floats(&of_ollama["embeddings"][0]), short);
    let refused = server.refused("/v1/embeddings", &json!({"input": "a", "dimensions": 100_000}), 400);
    assert_eq!(refused["param"], "dimensions");
    let plain = server.ask("/embedding", &json!({"content": "hello", "embd_normalize": -1}));
    let largest = server.ask("/embedding", &json!({"content": "hello", "embd_normalize": 0}));
    let most = floats(&largest[0]["embedding"][0])
        .iter()
        .fold(0.0, |most: f64, x| most.max(x.abs()));
    assert!((most - 32760.0).abs() < 0.01, "{most}");
    let size = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    assert!((size(&floats(&plain[0]["embedding"][0])) - 1.0).abs() > 1e-3);
}

/// Choices above `n_parallel` wait for the others.
#[test]
fn more_choices_than_parallel_sequences_are_answered() {
    let server = Server::with(Options {
        n_parallel: 2,
        ..Options::default()
    });
    let body = |n: usize, seed: u64, stream: bool| json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "ignore_eos": true, "temperature": 1.0, "seed": seed, "n": n, "stream": stream});
    let path = "/v1/chat/completions";
    let all = server.ask(path, &body(5, 3, false));
    assert_eq!(all["choices"].as_array().map(Vec::len), Some(5));
    assert_eq!(
        (&all["usage"]["completion_tokens"], &all["usage"]["prompt_tokens"]),
        (&json!(25), &json!(22))
    );
    for i in 0..5 {
        let alone = server.ask(path, &body(1, 3 + i as u64, false));
        assert_eq!(
            alone["choices"][0]["message"]["content"], all["choices"][i]["message"]["content"],
            "{i}"
        );
    }
    let streamed = server.events(path, &body(5, 3, true));
    let n_ends = streamed
        .iter()
        .filter(|event| event.contains("\"finish_reason\":\"length\""))
        .count();
    assert_eq!(n_ends, 5);
    let refused = server.refused(path, &body(129, 3, false), 400);
    assert_eq!(refused["param"], "n");
    server.rest();
}

/// Clients with different API keys share neither cached prompts nor slots.
#[test]
fn caches_and_slots_belong_to_an_api_key() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with(Options {
        keys: vec!["one".to_owned(), "two".to_owned()],
        slot_save_path: Some(folder.path().to_owned()),
        ..Options::default()
    });
    let post = |key: &str, path: &str, body: Json| {
        let response = server.request("POST", path, &[("x-api-key", key)], body.to_string().as_bytes());
        (response.status, response.json())
    };
    let cached = |key: &str| {
        let body = json!({"prompt": "once upon a time there was", "n_predict": 2, "ignore_eos": true});
        number(&post(key, "/completion", body).1["tokens_cached"])
    };
    // The last token of the prompt is always computed.
    let n_prompt = 22.0;
    assert_eq!([cached("one"), cached("two"), cached("one")], [0.0, 0.0, n_prompt]);
    let held = |key: &str| {
        let slots = server.request("GET", "/slots", &[("x-api-key", key)], b"").json();
        let slots = slots.as_array().unwrap().clone();
        slots
            .iter()
            .position(|slot| number(&slot["n_held"]) > 0.0)
            .expect("a slot")
    };
    let (of_one, of_two) = (held("one"), held("two"));
    assert_ne!(of_one, of_two);
    let act = |key: &str, id: usize, action: &str| {
        post(
            key,
            &format!("/slots/{id}?action={action}"),
            json!({"filename": "a.bin"}),
        )
        .0
    };
    assert_eq!(
        ["erase", "save", "restore"].map(|action| act("two", of_one, action)),
        [403; 3]
    );
    assert_eq!(act("one", of_one, "save"), 200);
    assert_ne!(act("two", of_two, "restore"), 200, "the file belongs to the first key");
    assert_eq!(act("one", of_one, "restore"), 200);
    assert_eq!(act("one", of_one, "erase"), 200);
}

/// `verbose` shows how the server read a request.
#[test]
fn verbose_response_has_prompt_settings_and_raw_output() {
    let server = Server::new();
    let chat = |verbose: Json| json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "verbose": verbose});
    let answer = server.ask("/v1/chat/completions", &chat(json!(true)));
    let verbose = &answer["__verbose"];
    assert_eq!(verbose["prompt"], "<user>hello<assistant>", "{verbose}");
    assert_eq!(verbose["content"], answer["choices"][0]["message"]["content"]);
    assert_eq!(verbose["tokens_predicted"], 3);
    assert_eq!(verbose["generation_settings"]["n_predict"], 3);
    assert_eq!(verbose["stop_type"], "limit");
    for verbose in [json!(false), json!(null)] {
        assert!(
            server
                .ask("/v1/chat/completions", &chat(verbose))
                .get("__verbose")
                .is_none()
        );
    }
    let text = server.ask(
        "/v1/completions",
        &json!({"prompt": "once", "max_tokens": 3, "verbose": true}),
    );
    assert_eq!(text["__verbose"]["prompt"], "once");
    let mut streamed = chat(json!(true));
    streamed["stream"] = true.into();
    let events = server.events("/v1/chat/completions", &streamed);
    let verbose: Vec<Json> = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Json>(event).ok())
        .filter_map(|event| event.get("__verbose").cloned())
        .collect();
    assert_eq!(verbose.len(), 1);
    assert_eq!(verbose[0]["prompt"], "<user>hello<assistant>");
    let by_default = Server::with(Options {
        defaults: Defaults {
            verbose: true,
            ..Defaults::default()
        },
        ..Options::default()
    });
    assert!(by_default.ask("/v1/chat/completions", &chat(json!(null)))["__verbose"].is_object());
}

#[test]
fn timings_per_token_are_in_each_event() {
    let server = Server::new();
    let bodies = [
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}),
        ),
        ("/v1/completions", json!({"prompt": "hello", "max_tokens": 4})),
        ("/completion", json!({"prompt": "hello", "n_predict": 4})),
    ];
    for (path, mut body) in bodies {
        body["stream"] = true.into();
        let n_timed = |body: &Json| {
            let events = server.events(path, body);
            let timed = events
                .iter()
                .filter_map(|event| serde_json::from_str::<Json>(event).ok());
            let counts: Vec<f64> = timed
                .filter_map(|event| Some(number(event.get("timings")?.get("predicted_n")?)))
                .collect();
            assert!(counts.is_sorted(), "{path}: {counts:?}");
            counts.len()
        };
        let before = n_timed(&body);
        body["timings_per_token"] = true.into();
        assert!(n_timed(&body) >= before + 3, "{path}");
    }
}

#[test]
fn responses_report_progress_and_timings() {
    let server = Server::new();
    let body = json!({"input": "hello", "max_output_tokens": 4, "stream": true, "timings_per_token": true, "return_progress": true});
    let response = server.post("/v1/responses", &body);
    let data = response
        .body
        .split("\n\n")
        .filter_map(|event| event.split_once("data: "));
    let events: Vec<Json> = data
        .map(|(_, data)| serde_json::from_str(data).expect("JSON"))
        .collect();
    let progress: Vec<&Json> = events
        .iter()
        .filter(|event| event.get("prompt_progress").is_some())
        .collect();
    let last = progress.last().expect("progress");
    assert!(progress.iter().all(|event| event["type"] == "response.in_progress"));
    assert_eq!(last["prompt_progress"]["processed"], last["prompt_progress"]["total"]);
    let mut deltas = events
        .iter()
        .filter(|event| event["type"] == "response.output_text.delta");
    assert!(deltas.all(|event| event["timings"]["predicted_per_second"].is_number()));
    let end = events.last().expect("an event");
    assert!(
        end["timings"]["prompt_per_second"].is_number() && end["response"]["usage"].is_object(),
        "{end}"
    );
    let whole = server.ask("/v1/responses", &json!({"input": "hello", "max_output_tokens": 4}));
    assert_eq!(whole["timings"]["predicted_n"], 4);
}

#[test]
fn slots_can_be_disabled() {
    let server = Server::with(Options {
        has_slots: false,
        ..Options::default()
    });
    for response in [server.get("/slots"), server.post("/slots/0?action=erase", &json!({}))] {
        assert_eq!(response.status, 501, "{}", response.body);
        assert!(response.body.contains("--no-slots"), "{}", response.body);
    }
}

#[test]
fn metrics_count_embedded_tokens_and_rate_the_time_between_scrapes() {
    let server = Server::new();
    let value = |name: &str| -> f64 {
        let text = server.get("/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).expect("a number")
    };
    server.ask("/v1/embeddings", &json!({"input": ["hello", "bye"]}));
    assert!(value("llamacpp:prompt_tokens_total") > 0.0);
    assert!(value("llamacpp:n_decode_total") > 0.0);
    assert_eq!(value("llamacpp:tokens_predicted_total"), 0.0);
    server.ask(
        "/completion",
        &json!({"prompt": "hello", "n_predict": 6, "ignore_eos": true}),
    );
    assert!(value("llamacpp:predicted_tokens_seconds") > 0.0);
    assert_eq!(value("llamacpp:predicted_tokens_seconds"), 0.0);
}

#[test]
fn model_list_has_tags() {
    let server = Server::new();
    assert_eq!(server.get("/models").json()["data"][0]["tags"], json!(["small"]));
}

#[test]
fn header_names_have_conventional_case() {
    use std::io::{Read, Write};
    let server = Server::new();
    let mut stream = server.connect();
    stream
        .write_all(&crate::common::head("GET", "/metrics", &[], 0))
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    assert!(text.contains("\r\nProcess-Start-Time-Unix: "), "{text:.300}");
}

#[test]
fn vertex_predictions_are_responses_of_other_routes() {
    let vertex = Vertex::new("/predict", "/alive").unwrap();
    let server = Server::with(Options {
        vertex: Some(vertex),
        keys: vec!["secret".to_owned()],
        ..Options::default()
    });
    let key = [("Authorization", "Bearer secret"), ("Content-Type", "application/json")];
    let predict = |instances: Json| {
        let body = json!({ "instances": instances }).to_string();
        server.request("POST", "/predict", &key, body.as_bytes())
    };
    let chat = json!({"@requestFormat": "chatCompletions", "max_tokens": 3, "stream": true, "messages": [{"role": "user", "content": "hello"}]});
    let text = json!({"@requestFormat": "/v1/completions", "max_tokens": 3, "prompt": "hello"});
    let wrong = json!({"@requestFormat": "/v1/completions", "max_tokens": 3, "prompt": 7});
    let response = predict(json!([chat, text, wrong, {"@requestFormat": "noSuchRoute"}, {}, 7]));
    assert_eq!(response.status, 200, "{}", response.body);
    let all = response.json()["predictions"].clone();
    assert_eq!(all[0]["choices"][0]["message"]["role"], "assistant", "{all}");
    assert_eq!(all[1]["object"], "text_completion");
    assert_eq!(all[2]["error"]["param"], "prompt");
    assert_eq!(
        [3, 4, 5].map(|i| all[i]["error"]["type"].clone()),
        [(); 3].map(|()| json!("invalid_request_error"))
    );
    assert_eq!(predict(json!({})).status, 400);
    assert_eq!(predict(vec![json!({}); 129].into()).status, 400);
    assert_eq!(server.post("/predict", &json!({ "instances": [] })).status, 401);
    assert_eq!(server.get("/alive").status, 200, "probes have no key");
}
