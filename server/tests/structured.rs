//! Structured output.

use serde_json::{Value as Json, json};

use crate::common::Server;

fn content(server: &Server, more: Json) -> String {
    let mut body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 200, "temperature": 1.0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = server.ask("/v1/chat/completions", &body);
    assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
    answer["choices"][0]["message"]["content"].as_str().unwrap().to_owned()
}

#[test]
fn structured_output_matches_constraint() {
    let server = Server::new();
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, "c"]}},
        "required": ["a", "b"], "additionalProperties": false});
    for seed in 0..4 {
        let of = |more: Json| {
            let mut more = more;
            more["seed"] = seed.into();
            content(&server, more)
        };
        let format = json!({"type": "json_schema", "json_schema": {"name": "x", "schema": schema}});
        for body in [json!({"response_format": format}), json!({"json_schema": schema})] {
            let document: Json = serde_json::from_str(&of(body)).unwrap();
            assert!(
                document["a"].is_boolean() && (document["b"] == 1 || document["b"] == "c"),
                "{document}"
            );
        }
        let digits = of(json!({"regex": "[0-9]{3}-[0-9]"}));
        assert!(digits.len() == 5 && digits.as_bytes()[3] == b'-', "{digits}");
        assert!(["yes", "no"].contains(&of(json!({"choice": ["yes", "no"]})).as_str()));
        assert_eq!(of(json!({"grammar": "root ::= \"x\" y\ny ::= \"z\"{2}"})), "xzz");
    }
}

#[test]
fn json_object_format_accepts_any_object() {
    let server = Server::new();
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 60, "response_format": {"type": "json_object"}});
    let answer = server.ask("/v1/chat/completions", &body);
    let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(text.starts_with('{'), "{text}");
}

/// Constraints that cannot be compiled are rejected, because an unconstrained completion would look valid.
#[test]
fn invalid_constraints_are_rejected() {
    let server = Server::new();
    let deep = "(".repeat(60_000);
    for more in [
        json!({"grammar": "root ::= \"a"}),
        json!({"grammar": "x ::= \"a\""}),
        json!({"regex": "("}),
        json!({"regex": deep}),
        json!({"choice": []}),
        json!({"json_schema": {"type": "no such type"}}),
        json!({"json_schema": "{"}),
        json!({"grammar": format!("root ::= {deep}")}),
    ] {
        let mut body = json!({"messages": [{"role": "user", "content": "hello"}]});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let error = server.refused("/v1/chat/completions", &body, 400);
        assert_eq!(error["code"], "invalid_grammar", "{error}");
    }
    server.rest();
}
