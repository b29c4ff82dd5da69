//! `/v1/messages`, as Anthropic's clients use it.

use serde_json::{Value as Json, json};

use crate::common::{Options, Server};

const PATH: &str = "/v1/messages";

fn hello(more: Json) -> Json {
    let mut body = json!({"model": "m", "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}], "system": "be brief"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn response_has_fields_that_clients_read() {
    let server = Server::new();
    let answer = server.ask(PATH, &hello(json!({})));
    assert_eq!(
        (&answer["type"], &answer["role"], &answer["stop_reason"]),
        (&json!("message"), &json!("assistant"), &json!("max_tokens"))
    );
    let text = answer["content"][0]["text"].as_str().unwrap();
    let counted = server.ask("/v1/messages/count_tokens", &hello(json!({})));
    assert_eq!(
        (&answer["usage"]["input_tokens"], &answer["usage"]["output_tokens"]),
        (&counted["input_tokens"], &json!(12))
    );
    let same = json!({"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}], "max_tokens": 12});
    let chat = server.ask("/v1/chat/completions", &same);
    assert_eq!(chat["choices"][0]["message"]["content"], text);
    let again = server.ask(PATH, &hello(json!({})))["usage"].clone();
    let n = counted["input_tokens"].as_u64().unwrap();
    assert_eq!(
        (&again["input_tokens"], &again["cache_read_input_tokens"]),
        (&json!(1), &json!(n - 1))
    );
    let stop: String = text.chars().skip(3).take(2).collect();
    let stopped = server.ask(PATH, &hello(json!({"stop_sequences": [stop]})));
    assert_eq!(
        (&stopped["stop_reason"], &stopped["stop_sequence"]),
        (&json!("stop_sequence"), &json!(stop))
    );
}

/// Returns the events of a stream; checks that event names equal their types.
fn events(server: &Server, body: &Json) -> Vec<Json> {
    let response = server.post(PATH, body);
    assert_eq!(response.status, 200, "{}", response.body);
    let event = |text: &str| {
        let (name, data) = text.split_once('\n').expect("two lines");
        let data: Json = serde_json::from_str(data.strip_prefix("data: ").expect("data")).unwrap();
        assert_eq!(name.strip_prefix("event: "), data["type"].as_str());
        data
    };
    response
        .body
        .split("\n\n")
        .filter(|text| !text.is_empty())
        .map(event)
        .collect()
}

fn kinds(events: &[Json]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    kinds.dedup();
    kinds
}

#[test]
fn stream_equals_response_in_blocks() {
    let server = Server::new();
    let whole = server.ask(PATH, &hello(json!({})));
    let events_of_stream = events(&server, &hello(json!({"stream": true})));
    let block = ["content_block_start", "content_block_delta", "content_block_stop"];
    assert_eq!(
        kinds(&events_of_stream),
        [&["message_start"], &block[..], &["message_delta", "message_stop"]].concat()
    );
    let text: String = events_of_stream
        .iter()
        .filter_map(|event| event["delta"]["text"].as_str())
        .collect();
    assert_eq!(whole["content"][0]["text"], text);
    assert_eq!(events_of_stream[0]["message"]["content"], json!([]));
    let last = &events_of_stream[events_of_stream.len() - 2];
    assert_eq!(
        (&last["delta"]["stop_reason"], &last["usage"]["output_tokens"]),
        (&json!("max_tokens"), &json!(12))
    );
}

#[test]
fn reasoning_is_a_separate_block() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>{% if false %}</think>{% endif %}";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let whole = server.ask(PATH, &hello(json!({})));
    assert_eq!(whole["content"][0]["type"], "thinking");
    let events_of_stream = events(&server, &hello(json!({"stream": true})));
    let thought: String = events_of_stream
        .iter()
        .filter_map(|event| event["delta"]["thinking"].as_str())
        .collect();
    assert_eq!(whole["content"][0]["thinking"], thought);
    // The client returns the block in its next request; this template ignores it.
    let messages = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": [whole["content"][0], {"type": "text", "text": "hi"}]}, {"role": "user", "content": "so?"}]);
    server.ask(
        PATH,
        &hello(json!({"messages": messages, "thinking": {"type": "enabled", "budget_tokens": 1024}})),
    );
}

#[test]
fn errors_use_anthropic_format() {
    let server = Server::with(Options {
        keys: vec!["k".to_owned()],
        ..Options::default()
    });
    let ask = |body: &Json, key: &str| server.request("POST", PATH, &[("X-Api-Key", key)], body.to_string().as_bytes());
    for (body, status, kind) in [
        (
            json!({"messages": [{"role": "user", "content": "a"}]}),
            400,
            "invalid_request_error",
        ),
        (hello(json!({"max_tokens": 0})), 400, "invalid_request_error"),
        (
            hello(json!({"thinking": {"type": "much"}})),
            400,
            "invalid_request_error",
        ),
        (hello(json!({"system": 7})), 400, "invalid_request_error"),
        (hello(json!({"temperatur": 7})), 400, "invalid_request_error"),
        (hello(json!({"tools": [{"name": ""}]})), 400, "invalid_request_error"),
    ] {
        let response = ask(&body, "k");
        let error = response.json();
        assert_eq!(response.status, status, "{error}");
        assert_eq!(
            (&error["type"], &error["error"]["type"]),
            (&json!("error"), &json!(kind))
        );
        assert_eq!(error["request_id"].as_str(), response.header("x-request-id"));
    }
    assert_eq!(
        ask(&hello(json!({})), "wrong").json()["error"]["type"],
        "authentication_error"
    );
    assert_eq!(
        ask(
            &hello(json!({"tools": [{"name": "f"}], "tool_choice": {"type": "none"}})),
            "k"
        )
        .status,
        200
    );
}

/// Earlier reasoning is passed to the template, which may include or drop it.
#[test]
fn earlier_reasoning_is_passed_to_template() {
    let template =
        "{% for m in messages %}<{{ m.role }}>{{ m.reasoning_content }}{{ m.content }}{% endfor %}<assistant>";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let count = |blocks: Json| {
        let messages = json!([{"role": "user", "content": "hello"}, {"role": "assistant", "content": blocks}, {"role": "user", "content": "so?"}]);
        server.ask("/v1/messages/count_tokens", &json!({ "messages": messages }))["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let text = json!({"type": "text", "text": "hi"});
    let thought = json!({"type": "thinking", "thinking": "what to say", "signature": ""});
    let redacted = json!({"type": "redacted_thinking", "data": "xyz"});
    assert_eq!(count(json!([redacted, text])), count(json!([text])));
    assert!(count(json!([thought, text])) > count(json!([text])));
}

/// Accepts the request settings of coding agents.
#[test]
fn agent_settings_are_accepted() {
    let server = Server::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    let format = json!({"effort": "high", "format": {"type": "json_schema", "schema": schema}});
    let answer = server.ask(PATH, &hello(json!({"output_config": format, "max_tokens": 60})));
    let text = answer["content"][0]["text"].as_str().unwrap();
    let document: Json = serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"));
    assert!(document["a"].is_boolean());
    let edits = json!({"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]});
    let response = server.post(PATH, &hello(json!({ "context_management": edits })));
    assert_eq!(response.status, 200, "{}", response.body);
    assert_eq!(
        response.header("warning"),
        Some("299 - \"ignored: context_management\"")
    );
    for wrong in [json!({"effort": 3}), json!({"format": {"type": "xml"}})] {
        server.refused(PATH, &hello(json!({ "output_config": wrong })), 400);
    }
}

/// Clients recognize a context overflow by Anthropic's wording and shorten the conversation.
#[test]
fn context_overflow_uses_anthropic_wording() {
    let server = Server::new();
    let messages = json!([{"role": "user", "content": "z".repeat(2000)}]);
    let response = server.post(PATH, &json!({"max_tokens": 10, "stream": true, "messages": messages}));
    let error = &response.json()["error"];
    assert_eq!(
        (response.status, &error["type"]),
        (400, &json!("invalid_request_error"))
    );
    let message = error["message"].as_str().unwrap();
    let numbers = message
        .strip_prefix("prompt is too long: ")
        .and_then(|rest| rest.strip_suffix(" maximum"))
        .and_then(|rest| rest.split_once(" tokens > "));
    let (n_prompt, n_ctx) = numbers.unwrap_or_else(|| panic!("{message}"));
    assert!(
        n_prompt.parse::<usize>().unwrap() > 1024 && n_ctx == "1024",
        "{message}"
    );
}

/// Coding agents send system messages in the middle of a conversation, after a tool result.
#[test]
fn mid_conversation_system_message_reaches_template() {
    let template = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}\
        <{{ m.role }}>{{ m.content }}{% endfor %}<assistant>";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let count = |messages: Json| {
        let body = json!({"model": "any", "system": [{"type": "text", "text": "Be brief."}], "messages": messages});
        server.ask("/v1/messages/count_tokens", &body)["input_tokens"]
            .as_u64()
            .unwrap()
    };
    let request = json!({"role": "user", "content": "hello"});
    let instruction = json!({"role": "system", "content": "Soon."});
    assert!(count(json!([request, instruction])) > count(json!([request])));
}

#[test]
fn model_list_has_fields_of_clients() {
    let server = Server::new();
    let version = [("anthropic-version", "2023-06-01")];
    let page = server.request("GET", "/v1/models", &version, b"").json();
    let entry = server.request("GET", "/v1/models/tiny", &version, b"").json();
    assert_eq!(
        (&page["first_id"], &page["last_id"], &page["has_more"], &page["data"][0]),
        (&json!("tiny"), &json!("tiny"), &json!(false), &entry)
    );
    assert_eq!(
        (&entry["type"], &entry["display_name"]),
        (&json!("model"), &json!("tiny"))
    );
    assert!(entry["created_at"].as_str().unwrap().ends_with('Z'), "{entry}");
    assert!(server.get("/v1/models").json()["has_more"].is_null());
}
