//! `/v1/chat/completions`, as OpenAI's clients expect it.

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
fn an_answer_has_what_clients_read() {
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
    // A token that begins, and a space before the first text, for "<user>hello<assistant>".
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(22), &json!(12))
    );
    assert_eq!(
        (&usage["total_tokens"], &usage["prompt_tokens_details"]["cached_tokens"]),
        (&json!(34), &json!(0))
    );
    // Again: the same, and nothing but the last token of the prompt is computed.
    let again = server.ask("/v1/chat/completions", &hello());
    assert_eq!(again["choices"], answer["choices"]);
    assert_eq!(again["usage"]["prompt_tokens_details"]["cached_tokens"], 21);
    assert_ne!(again["id"], answer["id"]);
}

/// The texts of a stream by choice, and their ends.
fn told(events: &[String]) -> Vec<(String, String, Option<String>)> {
    let mut told: Vec<(String, String, Option<String>)> = Vec::new();
    for event in events.iter().filter(|event| *event != "[DONE]") {
        let event: Json = serde_json::from_str(event).unwrap();
        for choice in event["choices"].as_array().unwrap() {
            let at = choice["index"].as_u64().unwrap() as usize;
            told.resize(told.len().max(at + 1), Default::default());
            let text = |name: &str| choice["delta"][name].as_str().unwrap_or_default().to_owned();
            told[at].0 += &text("content");
            told[at].1 += &text("reasoning_content");
            assert!(told[at].2.is_none(), "nothing follows the end");
            told[at].2 = choice["finish_reason"].as_str().map(str::to_owned);
        }
    }
    told
}

#[test]
fn a_stream_says_the_same() {
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
        json!({"role": "assistant", "content": ""}),
        "the role comes first"
    );
    assert!(parsed.len() > 5, "it comes in pieces");
    for event in &parsed {
        assert_eq!(
            (&event["object"], &event["id"]),
            (&json!("chat.completion.chunk"), &parsed[0]["id"])
        );
        assert!(event.get("usage").is_none(), "nobody asked for it");
        assert_eq!(event["choices"].as_array().unwrap().len(), 1);
    }
    let [(text, _, finish)] = &told(&events)[..] else {
        panic!("one choice")
    };
    assert_eq!(whole["choices"][0]["message"]["content"], *text);
    assert_eq!(finish.as_deref(), Some("length"));
}

#[test]
fn counts_come_last_where_they_are_asked_for() {
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
fn stop_texts_end_an_answer_before_them() {
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
        let streamed = told(&server.events("/v1/chat/completions", &body));
        assert_eq!(streamed, [(before.to_owned(), String::new(), Some("stop".to_owned()))]);
    }
}

#[test]
fn several_answers_to_one_prompt() {
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
        "seeds follow one another"
    );
    let events = server.events("/v1/chat/completions", &with(body(3, 3), "stream", true.into()));
    let streamed = told(&events);
    assert_eq!(streamed.len(), 3);
    assert!((0..3).all(|i| text(&many, i) == streamed[i].0));
    assert_eq!(events.iter().filter(|event| event.contains("\"role\"")).count(), 3);
}

#[test]
fn probabilities_are_told_where_they_are_asked_for() {
    let server = Server::new();
    let body = with(with(hello(), "logprobs", true.into()), "top_logprobs", 3.into());
    let answer = server.ask("/v1/chat/completions", &body);
    let choice = &answer["choices"][0];
    let content = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 12);
    let mut text = Vec::new();
    for told in content {
        let top = told["top_logprobs"].as_array().unwrap();
        assert_eq!(top.len(), 3);
        // The most likely token is what was chosen.
        assert_eq!(
            (&top[0]["token"], &top[0]["logprob"]),
            (&told["token"], &told["logprob"])
        );
        assert!(told["logprob"].as_f64().unwrap() <= 0.0);
        text.extend(
            told["bytes"]
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

/// A bias that makes one token certain, and one that bans it.
#[test]
fn tokens_can_be_favoured_and_banned() {
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
fn what_is_wrong_is_named() {
    let server = Server::new();
    let path = "/v1/chat/completions";
    for (name, value) in [
        ("messages", json!([])),
        ("messages", json!("hello")),
        ("max_tokens", json!(0)),
        ("max_completion_tokens", json!(-1)),
        ("temperature", json!("hot")),
        ("top_p", json!(2)),
        ("n", json!(0)),
        ("n", json!(5)),
        ("n", json!(1e12)),
        ("stream", json!(1)),
        ("frobnicate", json!(1)),
        ("stream_options", json!({"x": 1})),
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
    // Fields that change nothing are taken.
    server.ask(path, &with(with(hello(), "user", "me".into()), "model", "gpt-9".into()));
}

#[test]
fn a_prompt_that_is_too_long_is_told_so() {
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
    // Without a limit an answer goes on to the end of the context.
    let filled = server.ask(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "z".repeat(900)}], "ignore_eos": true}),
    );
    assert_eq!(filled["choices"][0]["finish_reason"], "length");
    assert_eq!(filled["usage"]["total_tokens"], 1025, "the last one takes no place");
}

#[test]
fn an_answer_can_be_begun() {
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

/// The prompt opens what is thought; with what an answer has to be there is none of it.
#[test]
fn reasoning_is_told_apart() {
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
    let streamed = told(&server.events(path, &with(hello(), "stream", true.into())));
    assert_eq!(message["reasoning_content"], streamed[0].1);
    let plain = server.ask(path, &with(hello(), "reasoning_format", "none".into()));
    assert_eq!(plain["choices"][0]["message"]["content"], message["reasoning_content"]);
    let bound = server.ask(path, &with(hello(), "regex", "[0-9]{4}".into()));
    let content = bound["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(
        content.len() == 4 && content.bytes().all(|b| b.is_ascii_digit()),
        "{content}"
    );
}

#[test]
fn a_model_without_a_template_takes_no_messages() {
    let server = Server::with(Options {
        template: None,
        ..Options::default()
    });
    let error = server.refused("/v1/chat/completions", &hello(), 400);
    assert!(
        error["message"].as_str().unwrap().contains("no chat template"),
        "{error}"
    );
    let server = Server::with(Options {
        template: Some("{{ raise_exception('only poems') }}"),
        ..Options::default()
    });
    let error = server.refused("/v1/chat/completions", &hello(), 400);
    assert!(error["message"].as_str().unwrap().contains("only poems"), "{error}");
    assert!(TEMPLATE.contains("assistant"));
}

/// Where thinking has to end, its tag follows, and then the answer.
#[test]
fn thinking_has_a_budget() {
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
    let (said, _) = parts(&with(limited(4), "reasoning_budget_message", "enough".into()));
    assert_eq!(said.trim_end(), format!("{}\nenough", some.trim_end()));
    let (none, answer) = parts(&limited(0));
    assert!(none.trim().is_empty() && !answer.is_empty(), "{none} {answer}");
    let streamed = told(&server.events(path, &with(limited(4), "stream", true.into())));
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

/// The next event of a stream whose first choice has this field in its delta.
fn next_with(lines: &mut impl Iterator<Item = std::io::Result<String>>, field: &str) -> Json {
    for line in lines {
        let line = line.expect("the stream goes on");
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

/// Who has read enough of what is thought asks for the answer.
#[test]
fn thinking_ends_when_it_is_asked_to() {
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
            .expect("it is read");
        BufReader::new(stream).lines()
    };
    let mut lines = begin(true);
    let id = next_with(&mut lines, "reasoning_content")["id"].clone();
    let end = json!({"id": id, "action": "reasoning_end"});
    let (status, told) = control("two", &end);
    assert_eq!((status, &told["success"]), (200, &json!(false)), "it is nobody else's");
    assert_eq!(control("one", &end), (200, json!({"success": true})));
    assert_eq!(next_with(&mut lines, "content")["id"], id);
    let (_, told) = control("one", &end);
    assert!(
        told["message"].as_str().is_some_and(|why| why.contains("thought")),
        "{told}"
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

/// What is counted before is what is counted then.
#[test]
fn prompts_are_counted_by_every_interface() {
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
fn what_only_others_do_is_left_out_and_told() {
    let server = Server::new();
    let path = "/v1/chat/completions";
    let warning = |body: &Json| {
        let response = server.post(path, body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.header("warning").map(str::to_owned)
    };
    assert_eq!(warning(&with(hello(), "modalities", json!(["text"]))), None);
    assert_eq!(warning(&with(hello(), "verbosity", "medium".into())), None);
    let told = warning(&with(hello(), "verbosity", "low".into()));
    assert_eq!(told.as_deref(), Some("299 - \"left out: verbosity\""));
    let body = with(with(hello(), "verbosity", "low".into()), "stream", true.into());
    assert_eq!(warning(&body), told);
    server.refused(path, &with(hello(), "modalities", json!(["text", "audio"])), 400);
}

/// As clients of llama-server send them.
#[test]
fn fields_of_llama_server_are_taken() {
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
    assert!(n_told(-1) > 900, "it goes on to the end of the context");
    let begun = json!({
        "messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "on"}],
        "add_generation_prompt": false, "continue_final_message": true, "max_tokens": 1,
    });
    server.ask(path, &begun);
    let error = server.refused(path, &with(begun, "add_generation_prompt", true.into()), 400);
    assert_eq!(error["param"], "add_generation_prompt");
    server.refused(path, &with(hello(), "add_generation_prompt", false.into()), 400);
}
