//! Generates `/openapi.json` from the tables that `docs/server.md` is generated from.

use std::sync::OnceLock;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json, json};

use crate::api::{Field, FieldType, name_of};
use crate::app::Shared;
use crate::routes::{ROUTES, Route};

/// Route of the document of a single model.
pub const OPENAPI_ROUTES: &[Route] = &[Route {
    method: "GET",
    paths: &["/openapi.json"],
    doc: "Returns this API as an OpenAPI 3.1 document.",
    fields: &[],
    sampling: false,
    query: &[],
    router: || get(openapi),
}];

async fn openapi(State(app): State<Shared>) -> Response {
    static DOCUMENT: OnceLock<Document> = OnceLock::new();
    let document = || document(&app.service.params.build);
    DOCUMENT.get_or_init(|| Document::new(&document())).response()
}

fn document(version: &str) -> Json {
    OpenApi::default().with(ROUTES).with(OPENAPI_ROUTES).finish(version)
}

/// Text of a document, which is generated once.
pub struct Document(Bytes);

impl Document {
    /// Formats a document.
    pub fn new(document: &Json) -> Document {
        Document(document.to_string().into())
    }

    /// Returns a response with the document.
    pub fn response(&self) -> Response {
        ([(CONTENT_TYPE, "application/json")], self.0.clone()).into_response()
    }
}

/// Builder of an OpenAPI document.
#[derive(Default)]
pub struct OpenApi {
    paths: Map<String, Json>,
}

impl OpenApi {
    /// Adds the routes of a table.
    pub fn with<S>(mut self, routes: &[Route<S>]) -> OpenApi {
        for route in routes {
            for path in route.paths {
                let entry = self.paths.entry(*path).or_insert_with(|| json!({}));
                entry[route.method.to_ascii_lowercase()] = operation(route, path);
            }
        }
        self
    }

    /// Returns the document of a server of this version.
    pub fn finish(self, version: &str) -> Json {
        json!({
            "openapi": "3.1.0",
            "info": { "title": "llama serve", "version": version },
            "components": { "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } } },
            // Requests need a key only if the server has API keys.
            "security": [{}, { "key": [] }],
            "paths": self.paths,
        })
    }
}

fn operation<S>(route: &Route<S>, path: &str) -> Json {
    let mut operation = json!({
        "summary": route.doc,
        "responses": {
            "200": { "description": "Success." },
            "default": { "description": "An error object with a message and the field that caused it." },
        },
    });
    let in_path = path
        .split('/')
        .filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let parameter =
        |name: &str| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } });
    let mut parameters: Vec<Json> = in_path.map(parameter).collect();
    let query = |(name, values, doc): &(&str, &[&str], &str)| {
        let mut schema = json!({ "type": "string" });
        if !values.is_empty() {
            schema["enum"] = (*values).into();
        }
        // Only the operation on a slot has no default.
        let required = *name == "action";
        json!({ "name": name, "in": "query", "required": required, "description": doc, "schema": schema })
    };
    parameters.extend(route.query.iter().map(query));
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    if route.method == "POST" {
        let mut fields = route.fields.iter().flat_map(|table| table.iter());
        let content_type = if fields.any(|field| field.form == FieldType::File) {
            "multipart/form-data"
        } else {
            "application/json"
        };
        operation["requestBody"] = json!({ "required": true, "content": { content_type: { "schema": body(route) } } });
    }
    operation
}

fn body<S>(route: &Route<S>) -> Json {
    if route.fields.is_empty() {
        return json!({});
    }
    let fields = route.fields.iter().flat_map(|table| table.iter());
    let mut properties: Map<String, Json> = fields.map(property).collect();
    if route.sampling {
        properties.extend(PARAMS.iter().map(|def| {
            let schema = if def.repeatable || def.name == "samplers" {
                json!({})
            } else if def.is_whole {
                json!({ "type": "integer" })
            } else {
                json!({ "type": "number" })
            };
            (name_of(def).to_owned(), described(schema, def.doc))
        }));
    }
    json!({ "type": "object", "properties": properties, "additionalProperties": false })
}

fn property(field: &Field) -> (String, Json) {
    let schema = match field.form {
        FieldType::Text => json!({ "type": "string" }),
        FieldType::Flag => json!({ "type": "boolean" }),
        FieldType::Integer => json!({ "type": "integer" }),
        FieldType::Number => json!({ "type": "number" }),
        FieldType::Object => json!({ "type": "object" }),
        FieldType::List => json!({ "type": "array", "items": {} }),
        FieldType::File => json!({ "type": "string", "format": "binary" }),
        FieldType::Any | FieldType::Ignored => json!({}),
    };
    (field.name.to_owned(), described(schema, field.doc))
}

fn described(mut schema: Json, doc: &str) -> Json {
    schema["description"] = doc.into();
    schema
}
