//! `docs/server.md` in step with the table of routes. `LLAMA_UPDATE=1 cargo test -p llama-server` rewrites its generated part.

use std::fmt::Write;
use std::path::Path;

use engine::sample::PARAMS;
use serde_json::json;
use server::api::{Field, Form, name_of};
use server::fleet::FLEET;
use server::routes::{PAGE, ROUTES, Route};

use crate::common::Server;

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

fn rows(text: &mut String, fields: &[Field]) {
    for field in fields {
        let (name, form) = (field.name, field.form.name());
        writeln!(text, "| `{name}` | {form} | {} |", cell(field.doc)).unwrap();
    }
}

/// What a route is, in a table.
fn row<S>(route: &Route<S>) -> String {
    let paths: Vec<String> = route
        .paths
        .iter()
        .map(|path| format!("`{} {path}`", route.method))
        .collect();
    format!("| {} | {} |\n", paths.join(", "), cell(route.doc))
}

/// The routes, and the fields of each; tables that several have in common stand once.
fn reference() -> String {
    let is_same = |a: &[Field], b: &[Field]| a.iter().map(|field| field.name).eq(b.iter().map(|field| field.name));
    let has = |route: &Route, table: &[Field]| route.fields.iter().any(|of_route| is_same(of_route, table));
    let shared = |table: &&&[Field]| ROUTES.iter().filter(|route| has(route, table)).count() > 2;
    let mut text = String::from("| request | what it does |\n|---|---|\n");
    text.extend(ROUTES.iter().map(row));
    text.extend(FLEET.iter().map(row));
    text.extend(PAGE.iter().map(row));
    let head = "\n\n| field | form | what it does |\n|---|---|---|\n";
    for route in ROUTES.iter().filter(|route| !route.fields.is_empty()) {
        write!(text, "\n### `{}`{head}", route.paths[0]).unwrap();
        route
            .fields
            .iter()
            .filter(|table| !shared(table))
            .for_each(|table| rows(&mut text, table));
        if route.sampling {
            text += "\nand those of all routes that generate text, below.\n";
        }
    }
    write!(text, "\n### Fields of all routes that generate text{head}").unwrap();
    let generating = ROUTES.iter().find(|route| route.sampling).expect("there is one");
    generating
        .fields
        .iter()
        .filter(shared)
        .for_each(|table| rows(&mut text, table));
    for def in PARAMS {
        let form = match (def.is_whole, def.repeatable || def.name == "samplers") {
            (_, true) => "see there",
            (true, _) => Form::Integer.name(),
            (false, _) => Form::Number.name(),
        };
        writeln!(text, "| `{}` | {form} | {}. |", name_of(def), cell(def.doc)).unwrap();
    }
    text
}

#[test]
fn the_page_is_in_step_with_the_routes() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/server.md");
    let text = std::fs::read_to_string(&path).expect("the page is readable");
    let (begin, end) = (
        "<!-- routes: generated, see server/tests/docs.rs -->\n",
        "<!-- end of routes -->",
    );
    let (before, rest) = text.split_once(begin).expect("the page marks the routes");
    let (part, after) = rest.split_once(end).expect("the page ends the routes");
    if part.trim() == reference().trim() {
        return;
    }
    assert!(
        std::env::var_os("LLAMA_UPDATE").is_some(),
        "docs/server.md is not what the routes say; LLAMA_UPDATE=1 rewrites it"
    );
    let new = format!("{before}{begin}{}\n{end}{after}", reference().trim());
    std::fs::write(&path, new).expect("the page is writable");
}

#[test]
fn fields_have_a_sentence_and_one_meaning_in_a_route() {
    for route in ROUTES {
        let names: Vec<&str> = route
            .fields
            .iter()
            .flat_map(|table| table.iter().map(|field| field.name))
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{}: {name} stands twice", route.paths[0]);
        }
        let fields = route.fields.iter().flat_map(|table| table.iter());
        assert!(
            fields.clone().all(|field| field.doc.ends_with('.')),
            "{}",
            route.paths[0]
        );
    }
}

/// A field that is listed is read wherever it is listed, or has no effect: none is an error of the server.
#[test]
fn every_field_of_every_route_is_read() {
    let server = Server::new();
    for route in ROUTES.iter().filter(|route| !route.fields.is_empty()) {
        let fields = route.fields.iter().flat_map(|table| table.iter());
        let sampling = PARAMS
            .iter()
            .filter(|_| route.sampling)
            .map(|def| (name_of(def), Form::Number));
        for (name, form) in fields.map(|field| (field.name, field.form)).chain(sampling) {
            let mut body = json!({"messages": [{"role": "user", "content": "a"}], "prompt": "a", "input": "a", "content": "a", "tokens": [5],
                "max_tokens": 1, "options": {"num_predict": 1}, "stream": false});
            let known = |name: &str| {
                route
                    .fields
                    .iter()
                    .any(|table| table.iter().any(|field| field.name == name))
            };
            body.as_object_mut().unwrap().retain(|name, _| known(name));
            body[name] = match form {
                Form::Text => "a".into(),
                Form::Flag => false.into(),
                Form::Integer | Form::Number => 1.into(),
                Form::Object | Form::Ignored => json!({}),
                Form::List => json!([]),
                Form::Any => "a".into(),
            };
            let response = server.post(route.paths[0], &body);
            // 501: what this model cannot do.
            assert!(
                [200, 501].contains(&response.status) || (400..500).contains(&response.status),
                "{body}: {}",
                response.body
            );
            let told = response.body.contains("there is no such field");
            assert!(!told, "{}: {name}: {}", route.paths[0], response.body);
        }
    }
}

/// Programs are told of the same routes and fields as people.
#[test]
fn the_document_for_programs_has_every_route_and_field() {
    let document = Server::new().get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for route in ROUTES {
        for path in route.paths {
            let operation = &document["paths"][path][route.method.to_ascii_lowercase()];
            assert_eq!(operation["summary"], route.doc, "{path}");
            let properties = &operation["requestBody"]["content"]["application/json"]["schema"]["properties"];
            let fields = route.fields.iter().flat_map(|table| table.iter());
            for field in fields {
                assert_eq!(
                    properties[field.name]["description"], field.doc,
                    "{path}: {}",
                    field.name
                );
            }
            assert_eq!(route.sampling, !properties["temperature"].is_null(), "{path}");
        }
    }
}
