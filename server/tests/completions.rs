//! `/v1/completions`, `/completion`, tokenization, and embeddings.

use base64::Engine;
use serde_json::{Value as Json, json};

use crate::common::{Options, Server};

#[test]
fn string_and_token_prompts_are_equivalent() {
    let server = Server::new();
    let of = |prompt: Json| server.ask("/v1/completions", &json!({"prompt": prompt, "max_tokens": 8}));
    let one = of("once upon".into());
    assert_eq!(
        (&one["object"], &one["choices"][0]["index"]),
        (&json!("text_completion"), &json!(0))
    );
    let tokens = server.ask("/tokenize", &json!({"content": "once upon", "add_special": true}))["tokens"].clone();
    assert_eq!(of(tokens.clone())["choices"], one["choices"]);
    let many = of(json!(["once upon", "a time", "once upon"]));
    assert_eq!(many["choices"][0]["text"], one["choices"][0]["text"]);
    assert_eq!(many["choices"][2]["text"], one["choices"][0]["text"]);
    assert_ne!(many["choices"][1]["text"], one["choices"][0]["text"]);
    assert_eq!(of(json!([tokens]))["choices"], one["choices"]);
    for wrong in [
        json!([]),
        json!(7),
        json!([1.5]),
        json!([[1], "a", {}]),
        json!([-1]),
        json!([4_000_000_000_u64]),
        json!(""),
    ] {
        server.refused("/v1/completions", &json!({"prompt": wrong, "max_tokens": 2}), 400);
    }
}

/// vLLM's fields. Biases make token 2 (end of sequence) or 50 the most likely token at every position.
#[test]
fn min_tokens_and_stop_token_ids_control_the_end() {
    let server = Server::new();
    for path in ["/v1/completions", "/v1/chat/completions"] {
        let n_tokens = |token: u32, more: Json| {
            let mut body = json!({"max_tokens": 9, "temperature": 0, "logit_bias": [[token, 90]]});
            let input = if path.contains("chat") {
                ("messages", json!([{"role": "user", "content": "hello"}]))
            } else {
                ("prompt", "hello".into())
            };
            let all = [input].map(|(name, value)| (name.to_owned(), value));
            let object = body.as_object_mut().unwrap();
            object.extend(all);
            object.extend(more.as_object().unwrap().clone());
            let response = server.ask(path, &body);
            let finish = response["choices"][0]["finish_reason"].as_str().unwrap().to_owned();
            (response["usage"]["completion_tokens"].as_u64().unwrap(), finish)
        };
        let stop = |n: u64| (n, "stop".to_owned());
        assert_eq!(n_tokens(2, json!({})), stop(1));
        assert_eq!(n_tokens(2, json!({"min_tokens": 4})), stop(5));
        assert_eq!(n_tokens(2, json!({"min_tokens": 9})), (9, "length".to_owned()));
        assert_eq!(n_tokens(2, json!({"min_tokens": 4, "choice": ["a"]})).1, "stop");
        assert_eq!(n_tokens(50, json!({"ignore_eos": true})), (9, "length".to_owned()));
        assert_eq!(n_tokens(50, json!({"stop_token_ids": [7, 50]})), stop(1));
        let both = json!({"stop_token_ids": [50], "min_tokens": 3, "ignore_eos": true});
        assert_eq!(n_tokens(50, both), stop(4));
        let text = server.ask("/detokenize", &json!({"tokens": [50]}))["content"].clone();
        assert_eq!(n_tokens(50, json!({"stop": text})), stop(1));
        assert_eq!(n_tokens(50, json!({"stop": text, "min_tokens": 3})), stop(4));
    }
}

#[test]
fn stream_of_several_prompts_equals_response() {
    let server = Server::new();
    let body = |stream: bool| json!({"prompt": ["ab", "cd"], "n": 2, "max_tokens": 6, "temperature": 0.9, "seed": 5, "stream": stream, "echo": true});
    let whole = server.ask("/v1/completions", &body(false));
    let mut texts = vec![String::new(); 4];
    let events = server.events("/v1/completions", &body(true));
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    for event in &events[..events.len() - 1] {
        let event: Json = serde_json::from_str(event).unwrap();
        let choice = &event["choices"][0];
        texts[choice["index"].as_u64().unwrap() as usize] += choice["text"].as_str().unwrap();
    }
    for (i, text) in texts.iter().enumerate() {
        assert_eq!(whole["choices"][i]["text"], *text);
        assert!(text.starts_with(["ab", "cd"][i / 2]), "{text}");
    }
}

/// Evaluation harnesses request the log probabilities of a prompt.
#[test]
fn prompt_logprobs_match_generation() {
    let server = Server::new();
    let body = json!({"prompt": "hello abc", "max_tokens": 0, "echo": true, "logprobs": 2});
    let rated = server.ask("/v1/completions", &body);
    let choice = &rated["choices"][0];
    let list = |name: &str| choice["logprobs"][name].as_array().unwrap().clone();
    let n = list("tokens").len();
    assert!(choice["text"].as_str().unwrap().ends_with("hello abc"));
    assert_eq!(
        (
            list("token_logprobs").len(),
            list("top_logprobs").len(),
            list("text_offset").len()
        ),
        (n, n, n)
    );
    assert!(list("token_logprobs")[0].is_null() && list("token_logprobs")[1..].iter().all(Json::is_number));
    assert!(
        list("top_logprobs")[1..]
            .iter()
            .all(|top| top.as_object().unwrap().len() == 2)
    );
    assert_eq!(rated["usage"]["completion_tokens"], 0);
    // The prompt's values are the same if a completion follows.
    let longer = server.ask(
        "/v1/completions",
        &json!({"prompt": "hello abc", "max_tokens": 3, "echo": true, "logprobs": 2}),
    );
    let all = longer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
    assert_eq!(all.len(), n + 3);
    let near = |a: &Json, b: &Json| (a.as_f64().unwrap() - b.as_f64().unwrap()).abs() < 1e-3;
    assert!((1..n).all(|i| near(&all[i], &list("token_logprobs")[i])));
    server.refused("/v1/completions", &json!({"prompt": "a", "max_tokens": 0}), 400);
    server.refused("/v1/completions", &json!({"prompt": "a", "best_of": 129}), 400);
    server.refused(
        "/v1/completions",
        &json!({"prompt": "a", "best_of": 3, "stream": true}),
        400,
    );
    server.refused("/v1/completions", &json!({"prompt": "a", "n": 3, "best_of": 2}), 400);
    server.refused("/v1/completions", &json!({"prompt": "a", "suffix": "b"}), 501);
}

#[test]
fn completion_route_matches_openai_route() {
    let server = Server::new();
    let body = |more: Json| {
        let mut body = json!({"prompt": "once upon", "n_predict": 6});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let whole = server.ask("/completion", &body(json!({})));
    let plain = server.ask("/v1/completions", &json!({"prompt": "once upon", "max_tokens": 6}));
    assert_eq!(whole["content"], plain["choices"][0]["text"]);
    assert_eq!(
        (&whole["stop"], &whole["stop_type"], &whole["tokens_predicted"]),
        (&json!(true), &json!("limit"), &json!(6))
    );
    let events = server.events("/completion", &body(json!({"stream": true, "n_probs": 2})));
    let parsed: Vec<Json> = events
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let text: String = parsed.iter().map(|event| event["content"].as_str().unwrap()).collect();
    assert_eq!(whole["content"], text);
    let (last, before) = parsed.split_last().unwrap();
    assert_eq!((&last["stop"], &last["prompt"]), (&json!(true), &json!("once upon")));
    assert!(before.iter().all(|event| {
        event["completion_probabilities"][0]["top_logprobs"]
            .as_array()
            .unwrap()
            .len()
            == 2
    }));
    let word: String = text.chars().skip(2).take(2).collect();
    let stopped = server.ask("/completion", &body(json!({"stop": [word]})));
    assert_eq!(
        (&stopped["stop_type"], &stopped["stopping_word"]),
        (&json!("word"), &json!(word))
    );
    assert_eq!(server.ask("/completion", &body(json!({"n_predict": 0})))["content"], "");
}

#[test]
fn tokenize_and_detokenize_are_inverse() {
    let server = Server::new();
    let tokens = server.ask("/tokenize", &json!({"content": "hello abc"}))["tokens"].clone();
    assert_eq!(
        server.ask("/detokenize", &json!({"tokens": tokens}))["content"],
        "hello abc"
    );
    let pieces = server.ask("/tokenize", &json!({"content": "<s>", "with_pieces": true}));
    assert_eq!(
        pieces["tokens"].as_array().unwrap().last().unwrap(),
        &json!({"id": 1, "piece": "<s>"})
    );
    let plain = server.ask("/tokenize", &json!({"content": "<s>", "parse_special": false}));
    assert!(plain["tokens"].as_array().unwrap().len() > 2);
    // vLLM's clients use these field names.
    let request = json!({"model": "any", "prompt": "hello abc", "add_special_tokens": false});
    let found = server.ask("/tokenize", &request);
    assert_eq!(
        (&found["tokens"], &found["count"]),
        (&tokens, &json!(tokens.as_array().unwrap().len()))
    );
    let whole = server.ask("/tokenize", &json!({"prompt": "hello abc"}))["tokens"].clone();
    assert_eq!(
        whole,
        server.ask("/tokenize", &json!({"content": "hello abc", "add_special": true}))["tokens"]
    );
    assert_eq!(
        server.ask("/detokenize", &json!({"tokens": tokens}))["prompt"],
        "hello abc"
    );
    let info = server.get("/tokenizer_info").json();
    assert_eq!(
        (&info["bos_token"], &info["eos_token"]),
        (&json!("<s>"), &json!("</s>"))
    );
    server.refused("/tokenize", &json!({"prompt": "a", "content": "a"}), 400);
    server.refused("/detokenize", &json!({"tokens": [128]}), 400);
    server.refused("/detokenize", &json!({"tokens": "1"}), 400);
    server.refused("/tokenize", &json!({}), 400);
}

#[test]
fn embeddings_support_float_and_base64() {
    let server = Server::new();
    let of = |more: Json| {
        let mut body = json!({"input": ["abc", "hello"]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        server.ask("/v1/embeddings", &body)
    };
    let plain = of(json!({}));
    let vector: Vec<f32> = serde_json::from_value(plain["data"][1]["embedding"].clone()).unwrap();
    let length: f32 = vector.iter().map(|x| x * x).sum();
    assert!((length - 1.0).abs() < 1e-4, "{length}");
    assert_eq!(
        (&plain["object"], &plain["data"][1]["index"]),
        (&json!("list"), &json!(1))
    );
    let coded = of(json!({"encoding_format": "base64"}));
    let bytes = base64::engine::general_purpose::STANDARD.decode(coded["data"][1]["embedding"].as_str().unwrap());
    let floats: Vec<f32> = bytes
        .unwrap()
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect();
    assert_eq!(floats, vector);
    for (name, value) in [
        ("dimensions", json!(0)),
        ("encoding_format", json!("hex")),
        ("input", json!([])),
        ("input", json!([[]])),
        ("input", json!("x".repeat(5000))),
    ] {
        let mut body = json!({"input": "a"});
        body[name] = value;
        let error = server.refused("/v1/embeddings", &body, 400);
        assert_eq!(error["param"], name, "{error}");
    }
}

#[test]
fn best_of_returns_most_likely_choices() {
    let server = Server::new();
    let body =
        json!({"prompt": "hello", "max_tokens": 6, "temperature": 1.5, "seed": 9, "logprobs": 0, "ignore_eos": true});
    let ask = |n: usize, best_of: usize| {
        let mut body = body.clone();
        (body["n"], body["best_of"]) = (n.into(), best_of.into());
        server.ask("/v1/completions", &body)
    };
    let mean = |choice: &Json| {
        let all = choice["logprobs"]["token_logprobs"].as_array().unwrap();
        all.iter().map(|l| l.as_f64().unwrap()).sum::<f64>() / all.len() as f64
    };
    let all = ask(4, 4);
    let all = all["choices"].as_array().unwrap();
    let best = all.iter().max_by(|a, b| mean(a).total_cmp(&mean(b))).unwrap();
    let response = ask(1, 4);
    assert_eq!(response["choices"].as_array().unwrap().len(), 1);
    assert_eq!(response["choices"][0]["text"], best["text"]);
    assert_eq!(response["usage"]["completion_tokens"], 24);
}

/// A damaged model is an error, not a list of numbers that JSON cannot express.
#[test]
fn prompt_log_probabilities_that_are_not_numbers_are_an_error() {
    let mut model = tests::text_model("llama", None);
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &model).expect("writing a model");
    let file = engine::gguf::GgufFile::open(&path).expect("a model");
    let norm = file.tensor("output_norm.weight").expect("the model has this tensor");
    let at = file.tensor_offset(norm);
    model[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let server = Server::with(Options {
        model: Some(model),
        ..Options::default()
    });
    let body = json!({"prompt": "hello", "max_tokens": 0, "echo": true, "logprobs": 2});
    let error = server.refused("/v1/completions", &body, 500);
    assert!(
        error["message"].as_str().unwrap().contains("the model computed NaN"),
        "{error}"
    );
}
