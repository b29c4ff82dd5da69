//! Requests as client libraries of other servers send them.

use serde_json::{Value as Json, json};

use crate::combined::{NAMED_CALLS, TAGGED_CALLS};
use crate::common::{Options, Response, Server};

pub const CHAT: &str = "/v1/chat/completions";

pub fn hello(more: Json) -> Json {
    let mut body = json!({"model": "x", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[track_caller]
fn answered(server: &Server, path: &str, body: &Json) -> Response {
    let response = server.post(path, body);
    assert_eq!(response.status, 200, "{body}: {}", response.body);
    response
}

#[track_caller]
fn warning(server: &Server, path: &str, body: &Json) -> String {
    let response = answered(server, path, body);
    response.header("warning").unwrap_or_default().to_owned()
}

/// Fields that request the behavior of this server are accepted on every route, without a warning.
#[test]
fn fields_with_default_behavior_are_ignored() {
    let server = Server::new();
    let fields = json!({
        "best_of": 1, "documents": [], "echo": false, "include_reasoning": true, "include_stop_str_in_output": false,
        "keep_alive": "5m", "length_penalty": 1.0, "min_tokens": 0, "provider": {"order": ["x"]}, "request_id": "x",
        "return_token_ids": false, "session_id": "x", "skip_special_tokens": true, "stop_token_ids": [], "ttl": 300,
        "usage": {"include": true}, "use_beam_search": false, "unheard_of": {},
    });
    let with = |mut body: Json| {
        body.as_object_mut()
            .unwrap()
            .extend(fields.as_object().unwrap().clone());
        body
    };
    for (path, body) in [
        (
            CHAT,
            hello(
                json!({"enable_thinking": false, "think": false, "thinking": {"type": "disabled"}, "reasoning": {"effort": "low"}}),
            ),
        ),
        (CHAT, hello(json!({"extra_body": {}, "functions": []}))),
        ("/v1/messages", hello(json!({}))),
        ("/v1/completions", json!({"prompt": "a", "max_tokens": 4})),
        ("/v1/responses", json!({"input": "a", "max_output_tokens": 4})),
        ("/completion", json!({"prompt": "a", "n_predict": 4})),
    ] {
        assert_eq!(warning(&server, path, &with(body)), "", "{path}");
    }
}

#[test]
fn fields_that_would_change_output_are_named() {
    let server = Server::new();
    let named = "299 - \"ignored: field early_stopping\"";
    for (path, body) in [
        (CHAT, hello(json!({"early_stopping": true}))),
        (CHAT, hello(json!({"early_stopping": true, "stream": true}))),
        (CHAT, hello(json!({"extra_body": {"early_stopping": true}}))),
        ("/v1/messages", hello(json!({"early_stopping": true}))),
        ("/v1/messages", hello(json!({"early_stopping": true, "stream": true}))),
        (
            "/v1/completions",
            json!({"prompt": "a", "max_tokens": 4, "early_stopping": true}),
        ),
        (
            "/v1/responses",
            json!({"input": "a", "max_output_tokens": 4, "early_stopping": true}),
        ),
        (
            "/completion",
            json!({"prompt": "a", "n_predict": 4, "early_stopping": true}),
        ),
        (
            "/api/chat",
            json!({"messages": [{"role": "user", "content": "a"}], "stream": false, "options": {"num_predict": 4}, "early_stopping": true}),
        ),
    ] {
        assert_eq!(warning(&server, path, &body), named, "{path}");
    }
    let error = server.refused(CHAT, &hello(json!({"conversation": "c"})), 400);
    assert_eq!(error["param"], "conversation");
}

#[test]
fn fields_with_equivalents_are_mapped() {
    let server = Server::new();
    let n_tokens = |body: &Json| server.ask(CHAT, body)["usage"]["completion_tokens"].clone();
    let plain = json!({"messages": [{"role": "user", "content": "hello"}], "ignore_eos": true});
    for name in ["max_new_tokens", "num_predict", "max_output_tokens"] {
        let mut body = plain.clone();
        body[name] = 3.into();
        assert_eq!(n_tokens(&body), 3, "{name}");
    }
    let mut body = plain;
    body["extra_body"] = json!({"max_tokens": 2});
    assert_eq!(n_tokens(&body), 2);
    let stopped = server.ask(CHAT, &hello(json!({"max_tokens": -1, "stop": ["w", "1", " "]})));
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let usage = json!({"include_usage": true, "continuous_usage_stats": true});
    let events = server.events(CHAT, &hello(json!({"stream": true, "stream_options": usage})));
    let event: Json = serde_json::from_str(&events[events.len() - 3]).unwrap();
    assert_eq!(event["usage"]["completion_tokens"], 4, "{event}");
}

#[test]
fn strict_server_rejects_fields_that_would_change_output() {
    let mut options = Options::default();
    options.defaults.strict_fields = true;
    let server = Server::with(options);
    answered(&server, CHAT, &hello(json!({"best_of": 1, "ttl": 3})));
    for (path, body) in [
        (CHAT, hello(json!({"early_stopping": true}))),
        ("/v1/messages", hello(json!({"early_stopping": true}))),
        ("/v1/responses", json!({"input": "a", "early_stopping": true})),
        ("/completion", json!({"prompt": "a", "early_stopping": true})),
    ] {
        let response = server.post(path, &body);
        assert!(
            response.status == 400 && response.body.contains("early_stopping"),
            "{}",
            response.body
        );
    }
}

#[test]
fn message_fields_and_parts_of_other_servers_are_accepted() {
    let server = Server::new();
    let prompt = |messages: Json| server.ask("/apply-template", &json!({ "messages": messages }))["prompt"].clone();
    let plain = prompt(json!([{"role": "user", "content": "hi"}]));
    let marked = json!({"role": "user", "content": "hi", "id": "msg_1", "cache_control": {"type": "ephemeral"}, "created_at": 1, "x": {}});
    assert_eq!(prompt(json!([marked])), plain);
    let refusal = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, {"role": "user", "content": "b"}]);
    assert_eq!(prompt(refusal), "<user>a<assistant>no<user>b<assistant>");
    let image = json!([{"type": "text", "text": "Look: "}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]);
    let with_image =
        |role: &str| hello(json!({"messages": [{"role": "user", "content": "a"}, {"role": role, "content": image}]}));
    assert_eq!(
        answered(&server, CHAT, &with_image("tool")).header("warning"),
        Some("299 - \"ignored: content of type image_url\"")
    );
    let refused = server.refused(CHAT, &with_image("user"), 400);
    assert!(
        refused["message"].as_str().unwrap().contains("reads text only"),
        "{refused}"
    );
    let document = json!({"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello doc"}, "title": "t"});
    let blocks = json!([document, {"type": "text", "text": "?"}]);
    let answer = answered(
        &server,
        "/v1/messages",
        &hello(json!({"messages": [{"role": "user", "content": blocks}]})),
    );
    assert_eq!(answer.header("warning"), None);
    // An image in the result of a tool.
    let result = json!([{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}]}]);
    let messages = json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "f", "input": {}}]}, {"role": "user", "content": result}]);
    let answer = answered(&server, "/v1/messages", &hello(json!({ "messages": messages })));
    assert_eq!(
        answer.header("warning"),
        Some("299 - \"ignored: content of type image\"")
    );
}

#[test]
fn tools_of_other_servers_are_omitted() {
    let server = Server::new();
    let tools = json!([{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}, {"name": "f", "input_schema": {"type": "object", "properties": {}}}]);
    let left_out = "299 - \"ignored: tools of types web_search_20250305\"";
    assert_eq!(
        warning(&server, "/v1/messages", &hello(json!({ "tools": tools }))),
        left_out
    );
    assert_eq!(
        warning(&server, "/v1/messages", &hello(json!({"tools": [tools[0]]}))),
        left_out
    );
    let forced = hello(json!({"tools": [tools[0]], "tool_choice": {"type": "any"}}));
    assert_eq!(server.post("/v1/messages", &forced).status, 400);
    let thread = hello(json!({"thread": {"type": "create"}, "tools": [tools[1]]}));
    assert_eq!(warning(&server, "/v1/messages", &thread), "299 - \"ignored: thread\"");
}

/// Returns the arguments of the first call by the response of a route.
fn arguments(path: &str, response: &Json) -> Json {
    let text = |text: &Json| serde_json::from_str::<Json>(text.as_str().expect("arguments")).expect("JSON");
    match path {
        CHAT => text(&response["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]),
        "/v1/messages" => {
            let blocks = response["content"].as_array().expect("blocks");
            blocks.iter().find(|block| block["type"] == "tool_use").expect("a call")["input"].clone()
        }
        _ => {
            let items = response["output"].as_array().expect("items");
            text(
                &items
                    .iter()
                    .find(|item| item["type"] == "function_call")
                    .expect("a call")["arguments"],
            )
        }
    }
}

/// Returns a request that requires a call of a function with these parameters.
pub fn requiring(path: &str, parameters: &Json, seed: usize) -> Json {
    let function = json!({"name": "f", "description": "d", "parameters": parameters});
    let messages = json!([{"role": "user", "content": "hello"}]);
    let common = json!({"temperature": 1.0, "seed": seed, "logit_bias": {}});
    let mut body = match path {
        CHAT => {
            json!({"messages": messages, "max_tokens": 900, "tools": [{"type": "function", "function": function}], "tool_choice": "required"})
        }
        "/v1/messages" => json!({"messages": messages, "max_tokens": 900, "tool_choice": {"type": "any"},
            "tools": [{"name": "f", "description": "d", "input_schema": parameters}]}),
        _ => {
            let mut tool = function;
            tool["type"] = "function".into();
            json!({"input": "hello", "max_output_tokens": 900, "tools": [tool], "tool_choice": "required"})
        }
    };
    body.as_object_mut()
        .unwrap()
        .extend(common.as_object().unwrap().clone());
    body
}

/// A function's schema that refers to its root or to a part of it is enforced within the grammar of a call.
#[test]
fn recursive_tools_are_called_with_valid_arguments() {
    let list = json!({"type": "object", "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": false});
    let named = json!({"$defs": {"Node": list_of_definition()}, "$ref": "#/$defs/Node"});
    let property = json!({"type": "object", "properties": {
        "start": {"type": "object", "properties": {"id": {"type": "boolean"}}, "required": ["id"], "additionalProperties": false},
        "end": {"$ref": "#/properties/start"}}, "required": ["start", "end"], "additionalProperties": false});
    for template in [crate::common::TEMPLATE, TAGGED_CALLS, NAMED_CALLS] {
        let server = Server::with(Options {
            template: Some(template),
            n_ctx: 4096,
            ..Options::default()
        });
        for path in [CHAT, "/v1/messages", "/v1/responses"] {
            for seed in 0..3 {
                let ask = |parameters: &Json| {
                    let response = server.ask(path, &requiring(path, parameters, seed));
                    arguments(path, &response)
                };
                for parameters in [&list, &named] {
                    let found = ask(parameters);
                    assert!(is_list(&found), "{path}: {found}");
                }
                let found = ask(&property);
                let is_id = |value: &Json| value["id"].is_boolean() && value.as_object().unwrap().len() == 1;
                assert!(is_id(&found["start"]) && is_id(&found["end"]), "{path}: {found}");
            }
        }
    }
}

fn list_of_definition() -> Json {
    json!({"type": "object", "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}},
        "required": ["v", "next"], "additionalProperties": false})
}

fn is_list(value: &Json) -> bool {
    let Some(fields) = value.as_object() else { return false };
    fields.len() == 2 && fields["v"].is_boolean() && (fields["next"].is_null() || is_list(&fields["next"]))
}

#[test]
fn schema_that_cannot_be_enforced_is_rejected_with_location() {
    let server = Server::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": true}}});
    let format = json!({"type": "json_schema", "json_schema": {"name": "s", "schema": schema}});
    let error = server.refused(CHAT, &hello(json!({ "response_format": format })), 400);
    assert!(error["message"].as_str().unwrap().contains("#/properties/a"), "{error}");
    assert_eq!(error["code"], "invalid_grammar");
    let error = server.refused(CHAT, &requiring(CHAT, &schema, 0), 400);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("\"f\"") && message.contains("#/properties/a"),
        "{error}"
    );
}
