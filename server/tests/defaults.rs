//! Server defaults apply unless a request sets the field.

use engine::grammar::Grammar;
use serde_json::{Value as Json, json};
use server::api::{Defaults, NO_LIMIT};

use crate::common::{Options, Server, TEMPLATE};

fn server(defaults: Defaults) -> Server {
    Server::with(Options {
        defaults,
        ..Options::default()
    })
}

/// Returns the completion of a fixed prompt.
fn text(server: &Server, more: Json) -> String {
    let mut body = json!({"prompt": "hello", "n_predict": 30, "ignore_eos": true});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    server.ask("/completion", &body)["content"].as_str().unwrap().to_owned()
}

#[test]
fn default_stop_strings_apply() {
    let all = text(&Server::new(), json!({}));
    let (at, _) = all.char_indices().nth(all.chars().count() / 2).expect("a string");
    let (before, stop) = all.split_at(at);
    let end = stop.to_owned();
    let server = server(Defaults {
        stop: vec![end],
        ..Defaults::default()
    });
    assert_eq!(text(&server, json!({})), before);
    assert_eq!(text(&server, json!({"stop": ["\u{1}"]})), all);
    assert_eq!(text(&server, json!({"stop": []})), all);
    let chat = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 30, "ignore_eos": true});
    assert_ne!(server.ask("/v1/chat/completions", &chat), Json::Null);
}

#[test]
fn default_grammar_applies() {
    let yes_or_no = Grammar::Choice(vec!["yes".to_owned(), "no".to_owned()]);
    let server = server(Defaults {
        grammar: Some(yes_or_no),
        ..Defaults::default()
    });
    let is_kept = |text: &Json| ["yes", "no"].contains(&text.as_str().expect("a string"));
    let messages = json!([{"role": "user", "content": "hello"}]);
    for (path, body, pointer) in [
        ("/completion", json!({"prompt": "hello"}), "/content"),
        ("/v1/completions", json!({"prompt": "hello"}), "/choices/0/text"),
        (
            "/v1/chat/completions",
            json!({"messages": messages}),
            "/choices/0/message/content",
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 9}),
            "/content/0/text",
        ),
        ("/v1/responses", json!({"input": "hello"}), "/output/0/content/0/text"),
        (
            "/api/generate",
            json!({"prompt": "hello", "stream": false}),
            "/response",
        ),
        (
            "/api/generate",
            json!({"prompt": "hello", "raw": true, "stream": false}),
            "/response",
        ),
    ] {
        let answer = server.ask(path, &body);
        assert!(answer.pointer(pointer).is_some_and(is_kept), "{path}: {answer}");
    }
    assert_eq!(text(&server, json!({"choice": ["one"]})), "one");
    // A default grammar must not prevent tool calls.
    let tools = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}}}]);
    let body = json!({"messages": messages, "tools": tools, "tool_choice": "required", "max_tokens": 60});
    let called = server.ask("/v1/chat/completions", &body);
    assert_eq!(
        called["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "f",
        "{called}"
    );
}

/// In all APIs, a completion without a token limit gets the server's limit and finish reason `length`.
#[test]
fn default_token_limit_applies() {
    let server = server(Defaults {
        max_tokens: Some(7),
        ignore_eos: true,
        ..Defaults::default()
    });
    let messages = json!([{"role": "user", "content": "hello"}]);
    let chat = |more: Json| {
        let mut body = json!({ "messages": messages });
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let answer = server.ask("/v1/chat/completions", &body);
        assert_eq!(answer["choices"][0]["finish_reason"], "length", "{answer}");
        answer["usage"]["completion_tokens"].as_u64().unwrap()
    };
    assert_eq!(chat(json!({})), 7);
    assert_eq!(chat(json!({"max_completion_tokens": 9})), 9);
    assert!(
        chat(json!({"n_predict": -1})) > 900,
        "the completion continues to the end of the context"
    );
    let prompt = json!({"prompt": "hello"});
    let answer = server.ask("/v1/completions", &prompt);
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 7);
    let answer = server.ask("/completion", &prompt);
    assert_eq!(
        (&answer["tokens_predicted"], &answer["stop_type"]),
        (&json!(7), &json!("limit"))
    );
    let answer = server.ask("/v1/responses", &json!({"input": "hello"}));
    assert_eq!(answer["incomplete_details"]["reason"], "max_output_tokens");
    assert_eq!(answer["usage"]["output_tokens"], 7);
    assert_eq!(answer["max_output_tokens"], Json::Null, "the request did not set it");
    let ollama = |options: Json| {
        let body = json!({"prompt": "hello", "stream": false, "options": options});
        let answer = server.ask("/api/generate", &body);
        assert_eq!(answer["done_reason"], "length");
        answer["eval_count"].as_u64().unwrap()
    };
    assert_eq!(ollama(json!({})), 7);
    assert!(ollama(json!({"num_predict": -1})) > 900);
    let limits = |server: &Server| server.get("/props").json()["default_generation_settings"]["params"].clone();
    assert_eq!(
        (&limits(&server)["n_predict"], &limits(&server)["max_tokens"]),
        (&json!(7), &json!(7))
    );
}

/// A model that never stops is limited, however long the context is.
#[test]
fn completion_without_limit_gets_server_limit() {
    let service = |template: Option<&'static str>, max_tokens: Option<usize>| {
        Server::with(Options {
            n_ctx: 16_384,
            template,
            defaults: Defaults {
                ignore_eos: true,
                max_tokens,
                ..Defaults::default()
            },
            ..Options::default()
        })
    };
    let n_predict = |server: &Server| {
        let props = server.get("/props").json();
        props["default_generation_settings"]["params"]["n_predict"].clone()
    };
    let usual = service(Some(TEMPLATE), None);
    assert_eq!(n_predict(&usual), 8192);
    let answer = usual.ask(
        "/v1/chat/completions",
        &json!({"messages": [{"role": "user", "content": "hello"}]}),
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["usage"]["completion_tokens"], 8192);
    let has_reasoning = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n{% if false %}</think>{% endif %}";
    assert_eq!(n_predict(&service(Some(has_reasoning), None)), 32_768);
    assert_eq!(n_predict(&service(Some(TEMPLATE), Some(NO_LIMIT))), -1);
}

#[test]
fn special_tokens_are_shown_if_enabled() {
    let begins = |show_special_tokens: bool| {
        let server = Server::with(Options {
            show_special_tokens,
            ..Options::default()
        });
        text(&server, json!({"n_predict": 1, "logit_bias": [[1, 1000]]}))
    };
    assert_eq!((begins(false).as_str(), begins(true).as_str()), ("", "<s>"));
}

#[test]
fn raw_output_is_not_split() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant><think>\n{% if false %}</think>{% endif %}";
    let message = |raw_output: bool| {
        let server = Server::with(Options {
            template: Some(template),
            raw_output,
            ..Options::default()
        });
        let body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 20, "ignore_eos": true});
        server.ask("/v1/chat/completions", &body)["choices"][0]["message"].clone()
    };
    let (apart, plain) = (message(false), message(true));
    assert!(plain.get("reasoning_content").is_none_or(Json::is_null), "{plain}");
    assert_eq!(
        apart["reasoning_content"].as_str().map(str::trim),
        plain["content"].as_str().map(str::trim)
    );
}
