//! Keeps `docs/server.md` up to date with the route table. `LLAMA_UPDATE=1 cargo test -p llama-server`
//! rewrites its generated part.

use std::fmt::Write;
use std::path::Path;

use engine::sample::PARAMS;
use serde_json::json;
use server::api::{Field, FieldType, name_of};
use server::model_pool::POOL_ROUTES;
use server::openapi::OPENAPI_ROUTES;
use server::routes::{ROUTES, Route};

use crate::common::Server;

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Appends a list of fields.
fn list<'a>(text: &mut String, fields: impl IntoIterator<Item = &'a Field>) {
    let items: String = fields
        .into_iter()
        .map(|field| format!("- `{}`: {}\n", field.name, field.doc))
        .collect();
    if !items.is_empty() {
        write!(text, "\n{items}").unwrap();
    }
}

/// Appends a line that lists fields by name, if there are any.
fn names<'a>(text: &mut String, label: &str, fields: impl IntoIterator<Item = &'a Field>) {
    let names: Vec<String> = fields.into_iter().map(|field| format!("`{}`", field.name)).collect();
    if !names.is_empty() {
        writeln!(text, "\n{label}: {}.", names.join(", ")).unwrap();
    }
}

/// Returns the row of a route in the table of routes.
fn row<S>(route: &Route<S>) -> String {
    let (first, others) = route.paths.split_first().expect("a route has a path");
    let others: Vec<String> = others.iter().map(|path| format!("`{path}`")).collect();
    let others = if others.is_empty() {
        String::new()
    } else {
        format!(" ({})", others.join(", "))
    };
    format!("| `{} {first}`{others} | {} |\n", route.method, cell(route.doc))
}

/// Returns the generated part of the page. Fields that several routes share are described once.
fn reference() -> String {
    let is_same = |a: &[Field], b: &[Field]| a.iter().map(|field| field.name).eq(b.iter().map(|field| field.name));
    let uses = |route: &Route, fields: &[Field]| route.fields.iter().any(|other| is_same(other, fields));
    let is_generating = |fields: &[Field]| ROUTES.iter().filter(|route| uses(route, fields)).count() > 2;
    let is_ignored = |field: &&Field| field.form == FieldType::Ignored;
    let own = |route: &'static Route| route.fields.iter().filter(move |fields| !is_generating(fields));
    let user_before = |i: usize, fields: &[Field]| ROUTES[..i].iter().find(|other| uses(other, fields));
    let new = |(i, route): (usize, &'static Route)| own(route).filter(move |fields| user_before(i, fields).is_none());
    let all = || ROUTES.iter().enumerate().flat_map(new).flat_map(|fields| fields.iter());
    let is_equal = |a: &Field, b: &Field| a.name == b.name && a.doc == b.doc;
    let is_common = |field: &&Field| all().filter(|other| is_equal(other, field)).count() > 1;

    let mut text = String::from("| route | description |\n|---|---|\n");
    text.extend(ROUTES.iter().chain(OPENAPI_ROUTES).map(row));
    text.extend(POOL_ROUTES.iter().map(row));
    let mut common: Vec<&Field> = Vec::new();
    for field in all().filter(|field| !is_ignored(field) && is_common(field)) {
        if !common.iter().any(|other| is_equal(other, field)) {
            common.push(field);
        }
    }
    text += "\n### Common fields\n\nA route has those that it lists after \"Plus\".\n";
    list(&mut text, common);
    for (i, route) in ROUTES.iter().enumerate().filter(|(_, route)| !route.fields.is_empty()) {
        writeln!(text, "\n### `{}`", route.paths[0]).unwrap();
        for other in own(route).filter_map(|fields| user_before(i, fields)) {
            writeln!(text, "\nAll fields of `{}`, and:", other.paths[0]).unwrap();
        }
        let fields = || new((i, route)).flat_map(|fields| fields.iter());
        list(
            &mut text,
            fields().filter(|field| !is_ignored(field) && !is_common(field)),
        );
        let mut shared: Vec<String> = fields()
            .filter(|field| !is_ignored(field) && is_common(field))
            .map(|field| format!("`{}`", field.name))
            .collect();
        if route.sampling {
            shared.push("the [generation fields](#generation-fields)".into());
        }
        if !shared.is_empty() {
            writeln!(text, "\nPlus {}.", shared.join(", ")).unwrap();
        }
        names(&mut text, "Ignored", fields().filter(is_ignored));
    }
    text += "\n### Generation fields\n";
    let route = ROUTES
        .iter()
        .find(|route| route.sampling)
        .expect("a route generates text");
    let shared = || {
        let tables = route.fields.iter().filter(|fields| is_generating(fields));
        tables.flat_map(|fields| fields.iter())
    };
    list(&mut text, shared().filter(|field| !is_ignored(field)));
    let sampling: Vec<String> = PARAMS.iter().map(|def| format!("`{}`", name_of(def))).collect();
    writeln!(
        text,
        "\nSampling parameters, described with the [command-line options](cli.md#llama-run): {}.",
        sampling.join(", ")
    )
    .unwrap();
    names(&mut text, "Ignored", shared().filter(is_ignored));
    text
}

#[test]
fn server_md_matches_route_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/server.md");
    let text = std::fs::read_to_string(&path).expect("docs/server.md is readable");
    let (begin, end) = (
        "<!-- routes: generated, see server/tests/docs.rs -->\n",
        "<!-- end of routes -->",
    );
    let (before, rest) = text.split_once(begin).expect("docs/server.md has the start marker");
    let (part, after) = rest.split_once(end).expect("docs/server.md has the end marker");
    if part.trim() == reference().trim() {
        return;
    }
    assert!(
        std::env::var_os("LLAMA_UPDATE").is_some(),
        "docs/server.md is out of date; run the test with LLAMA_UPDATE=1"
    );
    let new = format!("{before}{begin}{}\n{end}{after}", reference().trim());
    std::fs::write(&path, new).expect("docs/server.md is writable");
}

#[test]
fn field_docs_are_sentences_and_names_unique_per_route() {
    for route in ROUTES {
        let names: Vec<&str> = route
            .fields
            .iter()
            .flat_map(|table| table.iter().map(|field| field.name))
            .collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{}: {name} is listed twice", route.paths[0]);
        }
        let fields = route.fields.iter().flat_map(|table| table.iter());
        assert!(
            fields.clone().all(|field| field.doc.ends_with('.')),
            "{}",
            route.paths[0]
        );
    }
}

/// Each listed field is read by each route that lists it.
#[test]
fn listed_fields_are_accepted_by_every_route() {
    let server = Server::new();
    for route in ROUTES.iter().filter(|route| !route.fields.is_empty()) {
        let fields = route.fields.iter().flat_map(|table| table.iter());
        let sampling = if route.sampling { PARAMS } else { &[] };
        let sampling = sampling.iter().map(|def| (name_of(def), FieldType::Number));
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
                FieldType::Text => "a".into(),
                FieldType::Flag => false.into(),
                FieldType::Integer | FieldType::Number => 1.into(),
                FieldType::Object | FieldType::Ignored => json!({}),
                FieldType::List => json!([]),
                FieldType::Any | FieldType::File => "a".into(),
            };
            let response = server.post(route.paths[0], &body);
            // 501: the model lacks the feature.
            assert!(
                [200, 501].contains(&response.status) || (400..500).contains(&response.status),
                "{body}: {}",
                response.body
            );
            let is_unknown = response.body.contains("unknown field");
            assert!(!is_unknown, "{}: {name}: {}", route.paths[0], response.body);
        }
    }
}

/// The OpenAPI document has the routes and fields of `docs/server.md`.
#[test]
fn openapi_document_lists_every_route_and_field() {
    let document = Server::new().get("/openapi.json").json();
    assert_eq!(document["openapi"], "3.1.0");
    for route in ROUTES.iter().chain(OPENAPI_ROUTES) {
        for path in route.paths {
            let operation = &document["paths"][path][route.method.to_ascii_lowercase()];
            assert_eq!(operation["summary"], route.doc, "{path}");
            // Only these routes take files.
            let content_type = if route.paths[0].starts_with("/v1/audio/") {
                "multipart/form-data"
            } else {
                "application/json"
            };
            let properties = &operation["requestBody"]["content"][content_type]["schema"]["properties"];
            let fields = route.fields.iter().flat_map(|table| table.iter());
            for field in fields {
                assert_eq!(
                    properties[field.name]["description"], field.doc,
                    "{path}: {}",
                    field.name
                );
            }
            let is_listed = route
                .fields
                .iter()
                .flat_map(|table| table.iter())
                .any(|field| field.name == "temperature");
            assert_eq!(
                route.sampling || is_listed,
                !properties["temperature"].is_null(),
                "{path}"
            );
        }
    }
}
