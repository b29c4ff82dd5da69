//! Structured output: request fields that constrain a completion.

use engine::grammar::Grammar;
use serde_json::{Map, Value as Json};

use super::error::{ApiError, ApiResult};
use super::field::Field;
use super::fields::Fields;
use super::value::{shown, text_of};

/// Fields for structured output.
pub const STRUCTURE_FIELDS: &[Field] = &[
    Field::object(
        "response_format",
        "Output format: `{\"type\": \"json_object\"}`, `{\"type\": \"json_schema\", \"json_schema\": {\"schema\": …}}`, or `{\"type\": \"text\"}`.",
    ),
    Field::any("json_schema", "JSON schema that the output must match."),
    Field::text(
        "grammar",
        "GBNF grammar that the output must match; the start rule is `root`.",
    ),
    Field::text("regex", "Regular expression that the whole output must match."),
    Field::list("choice", "List of strings; the output is one of them."),
    Field::object(
        "structured_outputs",
        "vLLM's form: an object with one of `json`, `regex`, `choice`, and `grammar`.",
    ),
];

/// Reads the requested structure. At most one of the fields may be set.
pub fn structure(fields: &mut Fields) -> ApiResult<Option<Grammar>> {
    let mut found: Vec<(&str, Grammar)> = Vec::new();
    if let Some(format) = fields.object("response_format")? {
        found.extend(of_format(format)?.map(|grammar| ("response_format", grammar)));
    }
    if let Some(schema) = fields.take("json_schema") {
        found.push(("json_schema", of_schema("json_schema", schema)?));
    }
    if let Some(text) = fields.text("grammar")?.filter(|text| !text.is_empty()) {
        found.push(("grammar", Grammar::Gbnf(text)));
    }
    if let Some(text) = fields.text("regex")? {
        found.push(("regex", Grammar::Regex(text)));
    }
    if let Some(list) = fields.list("choice")? {
        found.push(("choice", request_for_choice("choice", list)?));
    }
    if let Some(options) = fields.object("structured_outputs")? {
        found.extend(of_options(options)?);
    }
    match &found[..] {
        [_, .., (name, _)] => Err(ApiError::field(
            name,
            format_args!("cannot be combined with {}", found[0].0),
        )),
        _ => Ok(found.pop().map(|(_, grammar)| grammar)),
    }
}

fn of_format(mut format: Map<String, Json>) -> ApiResult<Option<Grammar>> {
    let name = "response_format";
    let wrong = |what: &str| ApiError::field(name, what);
    let kind = format.remove("type").and_then(text_of);
    let schema = match (kind.as_deref(), format.remove("json_schema"), format.remove("schema")) {
        (Some("text"), None, None) => return Ok(None),
        (Some("json_object"), None, None) => Json::Object(Map::from_iter([("type".to_owned(), "object".into())])),
        // llama-server's form.
        (Some("json_object"), None, Some(schema)) => schema,
        (Some("json_schema"), Some(Json::Object(mut described)), None) => {
            let no_schema = || wrong("json_schema has no schema");
            described.remove("schema").ok_or_else(no_schema)?
        }
        _ => {
            return Err(wrong(
                "expected type text, json_object, or json_schema (with json_schema.schema)",
            ));
        }
    };
    of_schema(name, schema).map(Some)
}

fn of_schema(name: &str, schema: Json) -> ApiResult<Grammar> {
    match schema {
        Json::Object(_) | Json::Bool(_) => Ok(Grammar::JsonSchema(schema.to_string())),
        Json::String(text) => Ok(Grammar::JsonSchema(text)),
        other => Err(ApiError::field(
            name,
            format_args!("expected a JSON schema, found {}", shown(&other)),
        )),
    }
}

fn request_for_choice(name: &str, list: Vec<Json>) -> ApiResult<Grammar> {
    let texts: Option<Vec<String>> = list.into_iter().map(text_of).collect();
    texts
        .map(Grammar::Choice)
        .ok_or_else(|| ApiError::field(name, "expected a list of strings"))
}

fn of_options(options: Map<String, Json>) -> ApiResult<Vec<(&'static str, Grammar)>> {
    const NAME: &str = "structured_outputs";
    let text = |value: Json| text_of(value).ok_or_else(|| ApiError::field(NAME, "expected a string"));
    let mut found = Vec::new();
    for (kind, value) in options.into_iter().filter(|(_, value)| !value.is_null()) {
        let grammar = match (kind.as_str(), value) {
            ("json", schema) => of_schema(NAME, schema)?,
            ("regex", value) => Grammar::Regex(text(value)?),
            ("grammar", value) => Grammar::Gbnf(text(value)?),
            ("choice", Json::Array(list)) => request_for_choice(NAME, list)?,
            _ => {
                let kind: String = kind.chars().take(64).collect();
                return Err(ApiError::field(
                    NAME,
                    format_args!("unknown key {kind:?}: expected json, regex, choice, or grammar"),
                ));
            }
        };
        found.push((NAME, grammar));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Json) -> ApiResult<Option<Grammar>> {
        let Json::Object(body) = body else { unreachable!() };
        structure(&mut Fields::new(body, &[STRUCTURE_FIELDS], false)?)
    }

    #[test]
    fn structure_accepts_all_equivalent_fields() {
        let schema = || Some(Grammar::JsonSchema("{\"type\":\"number\"}".to_owned()));
        let number = json!({"type": "number"});
        for body in [
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": true, "schema": number}}}),
            json!({"response_format": {"type": "json_object", "schema": number}}),
            json!({"json_schema": number}),
            json!({"json_schema": "{\"type\":\"number\"}"}),
            json!({"structured_outputs": {"json": number, "regex": null}}),
        ] {
            assert_eq!(read(body.clone()).unwrap(), schema(), "{body}");
        }
        assert_eq!(read(json!({"response_format": {"type": "text"}})).unwrap(), None);
        assert_eq!(read(json!({"grammar": ""})).unwrap(), None);
        let choice = Some(Grammar::Choice(vec!["a".into(), "b".into()]));
        assert_eq!(read(json!({"choice": ["a", "b"]})).unwrap(), choice);
    }

    #[test]
    fn invalid_structure_is_rejected() {
        for body in [
            json!({"response_format": {"type": "xml"}}),
            json!({"response_format": {}}),
            json!({"response_format": {"type": "json_schema"}}),
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}),
            json!({"json_schema": 3}),
            json!({"choice": [1]}),
            json!({"structured_outputs": {"xml": "a"}}),
            json!({"regex": "a", "grammar": "root ::= \"a\""}),
        ] {
            assert!(read(body.clone()).is_err(), "{body}");
        }
    }
}
