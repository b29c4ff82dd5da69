//! `/v1/chat/completions`, as OpenAI's clients use it.

use std::io::{BufRead, BufReader, Write};

use serde_json::{Value as Json, json};

use crate::common::{Options, Server, TEMPLATE, head};

fn hello() -> Json {
    json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12})
}

fn with(mut body: Json, name: &str, value: Json) -> Json {
    body[name] = value;
    body
}

#[test]
fn response_has_fields_that_clients_read() {
    let server = Server::new();
    let answer = server.ask("/v1/chat/completions", &hello());
    assert_eq!(
        (&answer["object"], &answer["model"]),
        (&json!("chat.completion"), &json!("tiny"))
    );
    assert!(answer["id"].as_str().unwrap().starts_with("chatcmpl-") && answer["created"].is_u64());
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["index"], &choice["message"]["role"]),
        (&json!(0), &json!("assistant"))
    );
    assert!(!choice["message"]["content"].as_str().unwrap().is_empty());
    assert_eq!(
        (&choice["finish_reason"], &choice["logprobs"]),
        (&json!("length"), &Json::Null)
    );
    let usage = &answer["usage"];
    // BOS token and leading space in addition to "<user>hello<assistant>".
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(22), &json!(12))
    );
    assert_eq!(
        (&usage["total_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]),
        (&json!(34), &json!(0))
    );
    // A repeated request returns an equal result and recomputes only the last prompt token.
    let again = server.ask("/v1/chat/completions", &hello());
    assert_eq!(again["choices"], answer["choices"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 21);
    assert_ne!(again["id"], answer["id"]);
}

/// Returns content, reasoning, and finish reason of each choice of a stream.
fn choices_of(events: &[String]) -> Vec<(String, String, Option<String>)> {
    let mut choices: Vec<(String, String, Option<String>)> = Vec::new();
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Json = serde_json::from_str(event).unwrap();
        for choice in event["choices"].as_array().unwrap() {
            let at = choice["index"].as_u64().unwrap() as usize;
            choices.resize(choices.len().max(at + 1), Default::default());
            let text = |name: &str| choice["delta"][name].as_str().unwrap_or_default().to_owned();
            choices[at].0 += &text("content");
            choices[at].1 += &text("reasoning_content");
            assert!(choices[at].2.is_none(), "no delta follows the finish reason");
            choices[at].2 = choice["finish_reason"].as_str().map(str::to_owned);
        }
    }
    choices
}

#[test]
fn stream_equals_response() {
    let server = Server::new();
    let whole = server.ask("/v1/chat/completions", &hello());
    let events = server.events("/v1/chat/completions", &with(hello(), "stream", true.into()));
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
    let parsed: Vec<Json> = events[..events.len() - 1]
        .iter()
        .map(|e| serde_json::from_str(e).unwrap())
        .collect();
    assert_eq!(
        parsed[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": null}),
        "the role comes first"
    );
    assert!(parsed.len() > 5, "the content arrives in several chunks");
    for event in &parsed {
        assert_eq!(
            (&event["object"], &event["id"]),
            (&json!("chat.completion.chunk"), &parsed[0]["id"])
        );
        assert!(event.get("usage").is_none(), "usage was not requested");
        assert_eq!(event["choices"].as_array().unwrap().len(), 1);
    }
    let [(text, _, finish)] = &choices_of(&events)[..] else {
        panic!("one choice")
    };
    assert_eq!(whole["choices"][0]["message"]["content"], *text);
    assert_eq!(finish.as_deref(), Some("length"));
}

#[test]
fn usage_event_is_last_if_requested() {
    let server = Server::new();
    let body = with(
        with(hello(), "stream", true.into()),
        "stream_options",
        json!({"include_usage": true}),
    );
    let events = server.events("/v1/chat/completions", &body);
    let parsed: Vec<Json> = events[..events.len() - 1]
        .iter()
        .map(|e| serde_json::from_str(e).unwrap())
        .collect();
    let (last, before) = parsed.split_last().unwrap();
    assert_eq!(
        (&last["choices"], &last["usage"]["completion_tokens"]),
        (&json!([]), &json!(12))
    );
    assert!(
        before
            .iter()
            .all(|event| event["usage"].is_null() && event.get("usage").is_some())
    );
}

#[test]
fn stop_string_ends_output_before_match() {
    let server = Server::new();
    let whole = server.ask("/v1/chat/completions", &hello());
    let text = whole["choices"][0]["message"]["content"].as_str().unwrap();
    let half = &text[text.char_indices().nth(4).unwrap().0..];
    let stop: String = half.chars().take(3).collect();
    let before = &text[..text.find(&stop).unwrap()];
    for stop in [json!(stop), json!(["no such text", stop])] {
        let stopped = server.ask("/v1/chat/completions", &with(hello(), "stop", stop.clone()));
        let choice = &stopped["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&json!(before), &json!("stop"))
        );
        let body = with(with(hello(), "stop", stop), "stream", true.into());
        let streamed = choices_of(&server.events("/v1/chat/completions", &body));
        assert_eq!(streamed, [(before.to_owned(), String::new(), Some("stop".to_owned()))]);
    }
}

#[test]
fn n_returns_several_choices() {
    let server = Server::new();
    let body = |seed: u64, n: u64| json!({"messages": hello()["messages"], "max_tokens": 10, "temperature": 1.0, "seed": seed, "n": n});
    let many = server.ask("/v1/chat/completions", &body(3, 3));
    let text = |answer: &Json, i: usize| answer["choices"][i]["message"]["content"].clone();
    assert_eq!(many["choices"].as_array().unwrap().len(), 3);
    assert_eq!(many["usage"]["prompt_tokens"], 22, "the prompt counts once");
    assert_eq!(many["usage"]["completion_tokens"], 30);
    assert!(text(&many, 0) != text(&many, 1) && text(&many, 1) != text(&many, 2));
    assert_eq!(
        text(&server.ask("/v1/chat/completions", &body(4, 1)), 0),
        text(&many, 1),
        "choices use consecutive seeds"
    );
    let events = server.events("/v1/chat/completions", &with(body(3, 3), "stream", true.into()));
    let streamed = choices_of(&events);
    assert_eq!(streamed.len(), 3);
    assert!((0..3).all(|i| text(&many, i) == streamed[i].0));
    assert_eq!(events.iter().filter(|event| event.contains("\"role\"")).count(), 3);
}

#[test]
fn logprobs_are_returned_if_requested() {
    let server = Server::new();
    let body = with(with(hello(), "logprobs", true.into()), "top_logprobs", 3.into());
    let answer = server.ask("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    let mut text = Vec::new();
    for token in content {
        let top = token["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // Greedy sampling chooses the most likely token.
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&token["token"], &token["logprob"])
        );
        assert!(token["logprob"].as_f64().unwrap() <= 0.0);
        text.extend(
            token["bytes"]
                .as_array()
                .unwrap()
                .iter()
                .map(|b| b.as_u64().unwrap() as u8),
        );
    }
    assert_eq!(choice["message"]["content"], String::from_utf8(text).unwrap());
    let events = server.events("/v1/chat/completions", &with(body, "stream", true.into()));
    let streamed: usize = events
        .iter()
        .filter_map(|event| serde_json::from_str::<Json>(event).ok())
        .map(|event| {
            event["choices"][0]["logprobs"]["content"]
                .as_array()
                .map_or(0, Vec::len)
        })
        .sum();
    assert_eq!(streamed, 12);
    server.refused("/v1/chat/completions", &with(hello(), "top_logprobs", 3.into()), 400);
    server.refused(
        "/v1/chat/completions",
        &with(with(hello(), "logprobs", true.into()), "top_logprobs", 21.into()),
        400,
    );
}

/// Logit biases can force and ban tokens.
#[test]
fn logit_bias_forces_and_bans_tokens() {
    let server = Server::new();
    let tokens = server.ask("/tokenize", &json!({"content": "x", "with_pieces": true}));
    let id = tokens["tokens"].as_array().unwrap().last().unwrap()["id"].to_string();
    let answer = server.ask(
        "/v1/chat/completions",
        &with(hello(), "logit_bias", json!({&id: 100.0})),
    );
    assert_eq!(answer["choices"][0]["message"]["content"], "xxxxxxxxxxxx");
    let body = with(hello(), "logit_bias", json!([[id.parse::<u32>().unwrap(), false]]));
    let answer = server.ask("/v1/chat/completions", &body);
    assert!(
        !answer["choices"][0]["message"]["content"]
            .as_str()
            .unwrap()
            .contains('x')
    );
}

#[test]
fn invalid_fields_are_rejected_by_name() {
    let server = Server::new();
    let path = "/v1/chat/completions";
    for (name, value) in [
        ("messages", json!([])),
        ("messages", json!("hello")),
        ("max_tokens", json!(0)),
        ("max_completion_tokens", json!(-2)),
        ("temperature", json!("hot")),
        ("top_p", json!(2)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("n", json!(1e12)),
        ("stream", json!(1)),
        ("temperatur", json!(1)),
        ("stream_options", json!({"include_usage": 1})),
        ("response_format", json!({"type": "xml"})),
        ("continue_final_message", json!(true)),
    ] {
        let error = server.refused(path, &with(hello(), name, value), 400);
        assert_eq!(
            (&error["param"], &error["type"]),
            (&json!(name), &json!("invalid_request_error")),
            "{error}"
        );
    }
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    server.ask(path, &with(with(hello(), "tools", tools), "tool_choice", "none".into()));
    // Fields without effect are accepted.
    server.ask(path, &with(with(hello(), "user", "me".into()), "model", "gpt-9".into()));
}

#[test]
fn prompt_longer_than_context_is_rejected() {
    let server = Server::new();
    let body = json!({"messages": [{"role": "user", "content": "z".repeat(2000)}]});
    for stream in [false, true] {
        let error = server.refused(
            "/v1/chat/completions",
            &with(body.clone(), "stream", stream.into()),
            400,
        );
        assert_eq!(error["code"], "context_length_exceeded");
        assert_eq!(
            (error["n_prompt_tokens"].as_u64() > Some(1024), &error["n_ctx"]),
            (true, &json!(1024))
        );
        assert!(error["message"].as_str().unwrap().contains("1024"), "{error}");
    }
    // Without a limit, a completion continues to the end of the context.
    let filled = server.ask(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "z".repeat(900)}], "ignore_eos": true}),
    );
    assert_eq!(filled["choices"][0]["finish_reason"], "length");
    assert_eq!(filled["usage"]["total_tokens"], 1025, "the last token needs no cell");
}

#[test]
fn final_assistant_message_is_continued() {
    let server = Server::new();
    let messages = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "I am"}]);
    let body = json!({"messages": messages, "continue_final_message": true, "max_tokens": 5});
    let rendered = server.ask(
        "/apply-template",
        &json!({"messages": messages, "continue_final_message": true}),
    );
    assert_eq!(rendered["prompt"], "<user>hello<assistant>I am");
    let chat = server.ask("/v1/chat/completions", &body);
    let plain = server.ask(
        "/v1/completions",
        &json!({"prompt": rendered["prompt"], "max_tokens": 5}),
    );
    assert_eq!(chat["choices"][0]["message"]["content"], plain["choices"][0]["text"]);
}

/// The prompt opens a reasoning section, which constrained completions skip if reasoning is disabled.
#[test]
fn reasoning_is_split_from_content() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n{% if false %}</think>{% endif %}";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let path = "/v1/chat/completions";
    let thought = server.ask(path, &hello());
    let message = &thought["choices"][0]["message"];
    assert_eq!(message["content"], "");
    assert!(!message["reasoning_content"].as_str().unwrap().is_empty());
    let streamed = choices_of(&server.events(path, &with(hello(), "stream", true.into())));
    assert_eq!(message["reasoning_content"], streamed[0].1);
    let plain = server.ask(path, &with(hello(), "reasoning_format", "none".into()));
    assert_eq!(plain["choices"][0]["message"]["content"], message["reasoning_content"]);
    let body = with(hello(), "regex", "[0-9]{4}".into());
    let bound = server.ask(path, &with(body, "enable_thinking", false.into()));
    let content = bound["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        content.len() == 4 && content.bytes().all(|b| b.is_ascii_digit()),
        "{content}"
    );
}

#[test]
fn model_without_template_uses_chatml() {
    let server = Server::with(Options {
        template: None,
        ..Options::default()
    });
    let prompt = server.ask(
        "/apply-template",
        &json!({"messages": [{"role": "user", "content": "Hi"}]}),
    );
    assert_eq!(
        prompt["prompt"],
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    );
    server.ask("/v1/chat/completions", &hello());
}

/// A template that cannot render any message is an error of the server.
#[test]
fn broken_template_is_a_server_error() {
    let server = |fails: &str| {
        let template = format!("{{% for m in messages %}}{{{{ m.content }}}}{fails}{{% endfor %}}");
        Server::with(Options {
            template: Some(Box::leak(template.into_boxed_str())),
            ..Options::default()
        })
    };
    let error = server("{{ m.nothing.more }}").refused("/v1/chat/completions", &hello(), 500);
    assert_eq!(error["type"], "server_error", "{error}");
    let server = server("{% if odd %}{{ m.nothing.more }}{% endif %}");
    server.ask("/v1/chat/completions", &hello());
    let mut odd = hello();
    odd["chat_template_kwargs"] = json!({"odd": true});
    server.refused("/v1/chat/completions", &odd, 400);
}

#[test]
fn failing_template_rejects_messages() {
    let server = Server::with(Options {
        template: Some("{{ raise_exception('only poems') }}"),
        ..Options::default()
    });
    let error = server.refused("/v1/chat/completions", &hello(), 400);
    assert!(error["message"].as_str().unwrap().contains("only poems"), "{error}");
    assert!(TEMPLATE.contains("assistant"));
}

/// At the end of the budget, the closing tag is forced and the content follows.
#[test]
fn reasoning_ends_at_budget() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n{% if false %}</think>{% endif %}";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let path = "/v1/chat/completions";
    let limited = |n: i64| {
        with(
            with(hello(), "max_tokens", 40.into()),
            "reasoning_budget_tokens",
            n.into(),
        )
    };
    let parts = |body: &Json| {
        let message = server.ask(path, body)["choices"][0]["message"].clone();
        let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
        (text("reasoning_content"), text("content"))
    };
    let (all, nothing) = parts(&limited(-1));
    assert!(!all.is_empty() && nothing.is_empty());
    let (some, answer) = parts(&limited(4));
    assert!(
        all.starts_with(some.trim_end()) && some.len() < all.len() && !answer.is_empty(),
        "{some} {answer}"
    );
    let (reasoning, _) = parts(&with(limited(4), "reasoning_budget_message", "enough".into()));
    assert_eq!(reasoning.trim_end(), format!("{}\nenough", some.trim_end()));
    let (none, answer) = parts(&limited(0));
    assert!(none.trim().is_empty() && !answer.is_empty(), "{none} {answer}");
    let streamed = choices_of(&server.events(path, &with(limited(4), "stream", true.into())));
    assert_eq!(streamed[0].1, some);
    let anthropic = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 40, "temperature": 0,
        "thinking": {"type": "enabled", "budget_tokens": 4}});
    let blocks = server.ask("/v1/messages", &anthropic)["content"].clone();
    assert_eq!(
        (&blocks[0]["thinking"], &blocks[1]["type"]),
        (&json!(some), &json!("text"))
    );
    server.refused(path, &with(hello(), "reasoning_budget_tokens", "much".into()), 400);
}

/// Returns the next event whose first choice has `field` in its delta.
fn next_with(lines: &mut impl Iterator<Item = std::io::Result<String>>, field: &str) -> Json {
    for line in lines {
        let line = line.expect("the stream continues");
        let Some(event) = line.strip_prefix("data: {") else {
            continue;
        };
        let event: Json = serde_json::from_str(&format!("{{{event}")).expect("JSON");
        let text = event["choices"][0]["delta"][field].as_str();
        if text.is_some_and(|text| !text.trim().is_empty()) {
            return event;
        }
    }
    panic!("the stream has no {field}");
}

/// Clients can end the reasoning of a running completion.
#[test]
fn control_ends_reasoning() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n{% if false %}</think>{% endif %}";
    let server = Server::with(Options {
        template: Some(template),
        n_ctx: 16_384,
        keys: vec!["one".to_owned(), "two".to_owned()],
        ..Options::default()
    });
    let control = |key: &str, body: &Json| {
        let headers = [("x-api-key", key)];
        let path = "/v1/chat/completions/control";
        let response = server.request("POST", path, &headers, body.to_string().as_bytes());
        (response.status, response.json())
    };
    let begin = |is_controlled: bool| {
        let body = json!({"messages": [{"role": "user", "content": "hello"}], "stream": true, "ignore_eos": true, "reasoning_control": is_controlled});
        let body = body.to_string();
        let mut stream = server.connect();
        let head = head("POST", "/v1/chat/completions", &[("x-api-key", "one")], body.len());
        stream
            .write_all(&[&head[..], body.as_bytes()].concat())
            .expect("the server reads the request");
        BufReader::new(stream).lines()
    };
    let mut lines = begin(true);
    let id = next_with(&mut lines, "reasoning_content")["id"].clone();
    let end = json!({"id": id, "action": "reasoning_end"});
    let (status, result) = control("two", &end);
    assert_eq!(
        (status, &result["success"]),
        (200, &json!(false)),
        "clients cannot control requests of others"
    );
    assert_eq!(control("one", &end), (200, json!({"success": true})));
    assert_eq!(next_with(&mut lines, "content")["id"], id);
    let (_, result) = control("one", &end);
    assert!(
        result["message"].as_str().is_some_and(|why| why.contains("reasoning")),
        "{result}"
    );
    drop(lines);
    let mut lines = begin(false);
    let id = next_with(&mut lines, "reasoning_content")["id"].clone();
    assert_eq!(
        control("one", &json!({"id": id, "action": "reasoning_end"})).1["success"],
        false
    );
    assert_eq!(
        control("one", &json!({"id": "chatcmpl-0", "action": "reasoning_end"})).1["success"],
        false
    );
    assert_eq!(control("one", &json!({"id": id, "action": "stop"})).0, 400);
    assert_eq!(control("one", &json!({"action": "reasoning_end"})).0, 400);
}

/// Token counts of prompts equal the usage of the actual request.
#[test]
fn token_counts_match_usage_in_every_api() {
    let server = Server::new();
    let messages = json!([{"role": "user", "content": "hello there"}]);
    let chat = json!({"messages": messages, "max_tokens": 1, "temperature": 0.5, "stop": ["x"], "stream": true, "regex": "[ab]"});
    let n = server.ask("/v1/chat/completions", &with(chat.clone(), "stream", false.into()))["usage"]["prompt_tokens"]
        .clone();
    assert!(n.as_u64().is_some_and(|n| n > 10));
    for path in ["/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"] {
        assert_eq!(server.ask(path, &chat)["input_tokens"], n);
    }
    let items = json!({"input": messages, "max_output_tokens": 1, "temperature": 0.5});
    let counted = server.ask("/v1/responses/input_tokens", &items);
    assert_eq!(
        (&counted["object"], &counted["input_tokens"]),
        (&json!("response.input_tokens"), &n)
    );
    let anthropic = json!({"model": "m", "messages": messages, "max_tokens": 1, "temperature": 0.5, "stop_sequences": ["x"], "top_k": 3});
    assert_eq!(server.ask("/v1/messages/count_tokens", &anthropic)["input_tokens"], n);
    server.refused(
        "/v1/chat/completions/input_tokens",
        &with(chat, "strem", true.into()),
        400,
    );
}

#[test]
fn unsupported_openai_fields_are_ignored_with_warning() {
    let server = Server::new();
    let path = "/v1/chat/completions";
    let warning = |body: &Json| {
        let response = server.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.header("warning").map(str::to_owned)
    };
    assert_eq!(warning(&with(hello(), "modalities", json!(["text"]))), None);
    assert_eq!(warning(&with(hello(), "verbosity", "medium".into())), None);
    let ignored = warning(&with(hello(), "verbosity", "low".into()));
    assert_eq!(ignored.as_deref(), Some("299 - \"ignored: verbosity\""));
    let body = with(with(hello(), "verbosity", "low".into()), "stream", true.into());
    assert_eq!(warning(&body), ignored);
    server.refused(path, &with(hello(), "modalities", json!(["text", "audio"])), 400);
}

/// Accepts the fields that llama-server's clients send.
#[test]
fn llama_server_fields_are_accepted() {
    let server = Server::new();
    let path = "/v1/chat/completions";
    let n_told = |n: i64| {
        let body = json!({
            "messages": [{"role": "user", "content": "hello"}], "n_predict": n, "ignore_eos": true, "t_max_ms": 60_000, "id_slot": -1,
            "timings_per_token": true, "return_progress": true, "reasoning_control": true, "backend_sampling": false, "verbose": false,
            "cache_prompt": true, "n_keep": -1, "n_discard": 0, "n_cache_reuse": 256, "add_generation_prompt": true,
        });
        server.ask(path, &body)["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!(n_told(3), 3);
    assert!(n_told(-1) > 900, "the completion continues to the end of the context");
    let continued = json!({
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "on"}],
        "add_generation_prompt": false, "continue_final_message": true, "max_tokens": 1,
    });
    server.ask(path, &continued);
    let error = server.refused(path, &with(continued, "add_generation_prompt", true.into()), 400);
    assert_eq!(error["param"], "add_generation_prompt");
    server.refused(path, &with(hello(), "add_generation_prompt", false.into()), 400);
}
