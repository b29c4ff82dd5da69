//! Output that combines reasoning, tool calls, and documents.

use serde_json::{Value as Json, json};

use crate::clients::{CHAT, hello, requiring};
use crate::common::{Options, Server, TEMPLATE};

/// Template with one tag for each argument.
pub const TAGGED_CALLS: &str = "{% if tools %}<s>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</s>{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}\n<tool_call>\n<function={{ c.function.name }}>\n\
    {% for k, v in c.function.arguments.items() %}<parameter={{ k }}>\n{{ v if v is string else v | tojson }}\n</parameter>\n{% endfor %}</function>\n</tool_call>{% endfor %}</s>\n{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

/// Template with the name outside of the arguments.
pub const NAMED_CALLS: &str = "{% if tools %}<s>{% for t in tools %}{{ t | tojson }}\n{% endfor %}</s>{% endif %}\
    {% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}[CALL]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}{% endfor %}</s>\n{% endfor %}\
    {% if add_generation_prompt %}<assistant>{% endif %}";

/// Template of the Harmony format.
const HARMONY: &str = "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}\
    {% for m in messages %}<|start|>{{ m.role }}{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant{% endif %}";

fn server(template: &'static str) -> Server {
    Server::with(Options {
        template: Some(template),
        n_ctx: 4096,
        ..Options::default()
    })
}

fn format() -> Json {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": false});
    json!({"type": "json_schema", "json_schema": {"name": "s", "strict": true, "schema": schema}})
}

fn is_document(text: &str) -> bool {
    serde_json::from_str::<Json>(text)
        .is_ok_and(|document| document["a"].is_boolean() && document.as_object().unwrap().len() == 1)
}

fn tools() -> Json {
    let function = json!({"name": "now", "description": "d", "parameters": {"type": "object", "properties": {}, "additionalProperties": false}});
    json!([{"type": "function", "function": function}])
}

fn is_empty(arguments: &Json) -> bool {
    let read = serde_json::from_str::<Json>(arguments.as_str().unwrap_or_default());
    read.is_ok_and(|arguments| arguments == json!({}))
}

/// Sends requests with tools and a restriction of the output. Each response must be a call or a document.
#[track_caller]
fn check_call_or_document(server: &Server, restriction: &Json, is_document: impl Fn(&str) -> bool) {
    let (mut n_calls, mut n_documents) = (0, 0);
    for seed in 0..12 {
        let mut more = json!({"tools": tools(), "seed": seed, "temperature": 2.0, "max_tokens": 400, "reasoning_budget_tokens": 6});
        more.as_object_mut()
            .unwrap()
            .extend(restriction.as_object().unwrap().clone());
        let answer = server.ask(CHAT, &hello(more));
        let choice = &answer["choices"][0];
        match choice["message"]["tool_calls"].as_array() {
            Some(calls) => {
                n_calls += 1;
                assert_eq!(calls[0]["function"]["name"], "now", "{answer}");
                if choice["finish_reason"] == "tool_calls" {
                    assert!(
                        calls.iter().all(|call| is_empty(&call["function"]["arguments"])),
                        "{answer}"
                    );
                }
            }
            None => {
                n_documents += 1;
                assert!(is_document(choice["message"]["content"].as_str().unwrap()), "{answer}");
            }
        }
    }
    assert!(
        n_calls > 0 && n_documents > 0,
        "{n_calls} calls, {n_documents} documents: {restriction}"
    );
    // A required call comes first.
    let mut more =
        json!({"tools": tools(), "tool_choice": "required", "max_tokens": 400, "reasoning_budget_tokens": 6});
    more.as_object_mut()
        .unwrap()
        .extend(restriction.as_object().unwrap().clone());
    let answer = server.ask(CHAT, &hello(more));
    assert_eq!(
        answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "now",
        "{answer}"
    );
}

#[test]
fn tools_and_response_format_allow_call_or_document() {
    for template in [TEMPLATE, TAGGED_CALLS, NAMED_CALLS, HARMONY] {
        check_call_or_document(&server(template), &json!({ "response_format": format() }), is_document);
    }
}

#[test]
fn tools_and_grammar_allow_call_or_document() {
    let is_word = |text: &str| ["yes", "no"].contains(&text);
    for template in [TEMPLATE, HARMONY] {
        let server = server(template);
        for restriction in [
            json!({"regex": "(yes|no)"}),
            json!({"grammar": "root ::= \"yes\" | \"no\""}),
            json!({"choice": ["yes", "no"]}),
        ] {
            check_call_or_document(&server, &restriction, is_word);
        }
    }
}

/// GPT-OSS reasons in separate messages, which come before output that a schema restricts.
#[test]
fn constrained_harmony_answer_follows_reasoning() {
    let server = server(HARMONY);
    let ask = |more: Json| server.ask(CHAT, &hello(more))["choices"][0]["message"].clone();
    let (mut n_thoughts, schema) = (0, format()["json_schema"]["schema"].clone());
    for seed in 0..8 {
        let more = json!({"response_format": format(), "seed": seed, "temperature": 2.0, "max_tokens": 400, "reasoning_budget_tokens": 6});
        let message = ask(more);
        assert!(is_document(message["content"].as_str().unwrap()), "{message}");
        n_thoughts += usize::from(message["reasoning_content"].is_string());
    }
    assert!(n_thoughts > 0, "no response has reasoning");
    for without in [json!({"reasoning_effort": "none"}), json!({"reasoning_format": "none"})] {
        let mut more = json!({"response_format": format(), "max_tokens": 200});
        more.as_object_mut()
            .unwrap()
            .extend(without.as_object().unwrap().clone());
        let message = ask(more);
        assert!(message.get("reasoning_content").is_none(), "{message}");
        assert!(is_document(message["content"].as_str().unwrap()), "{message}");
    }
    let mut n_thoughts = 0;
    for seed in 0..8 {
        let mut body = requiring(CHAT, &schema, seed);
        body["reasoning_budget_tokens"] = 6.into();
        let message = server.ask(CHAT, &body)["choices"][0]["message"].clone();
        let arguments = message["tool_calls"][0]["function"]["arguments"].as_str();
        assert!(arguments.is_some_and(is_document), "{message}");
        n_thoughts += usize::from(message["reasoning_content"].is_string());
    }
    assert!(n_thoughts > 0, "no required call follows reasoning");
}

/// A model that reasons does so before output that a schema restricts.
#[test]
fn constrained_answer_follows_reasoning() {
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>{% if enable_thinking is not false %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}";
    let server = Server::with(Options {
        template: Some(template),
        ..Options::default()
    });
    let schema = format()["json_schema"]["schema"].clone();
    let more = json!({"response_format": format(), "reasoning_budget_tokens": 6, "max_tokens": 200});
    let message = server.ask(CHAT, &hello(more.clone()))["choices"][0]["message"].clone();
    assert!(
        !message["reasoning_content"].as_str().unwrap_or_default().is_empty(),
        "{message}"
    );
    assert!(is_document(message["content"].as_str().unwrap()), "{message}");
    let mut without = more.clone();
    without["enable_thinking"] = false.into();
    let message = server.ask(CHAT, &hello(without))["choices"][0]["message"].clone();
    assert!(message.get("reasoning_content").is_none(), "{message}");
    assert!(is_document(message["content"].as_str().unwrap()), "{message}");
    // Reasoning that remains in the content would break the document.
    let mut raw = more;
    raw["reasoning_format"] = "none".into();
    let message = server.ask(CHAT, &hello(raw))["choices"][0]["message"].clone();
    assert!(is_document(message["content"].as_str().unwrap()), "{message}");
    // A required call can also follow reasoning.
    let mut body = requiring(CHAT, &schema, 1);
    body["reasoning_budget_tokens"] = 6.into();
    let message = server.ask(CHAT, &body)["choices"][0]["message"].clone();
    assert!(
        !message["reasoning_content"].as_str().unwrap_or_default().is_empty(),
        "{message}"
    );
    let arguments = message["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!(is_document(arguments), "{message}");
}
