//! Fields that say what an answer has to be, and constraints made of them. Making one takes time, so those used last are kept.

use std::sync::{Mutex, OnceLock, PoisonError};

use engine::grammar::{Compiler, Constraint, Grammar, GrammarError};
use engine::model::Model;
use serde_json::{Map, Value as Json};

use super::error::{ApiError, ApiResult};
use super::fields::{Field, Fields, Form, shown, text_of};

/// The fields.
pub const STRUCTURE: &[Field] = &[
    Field {
        name: "response_format",
        form: Form::Object,
        doc: "`{\"type\": \"json_object\"}`, `{\"type\": \"json_schema\", \"json_schema\": {\"schema\": …}}` or `{\"type\": \"text\"}`.",
    },
    Field {
        name: "json_schema",
        form: Form::Any,
        doc: "A JSON schema that the answer is a document of.",
    },
    Field {
        name: "grammar",
        form: Form::Text,
        doc: "A grammar as for llama.cpp (GBNF), whose rule `root` the answer matches.",
    },
    Field {
        name: "regex",
        form: Form::Text,
        doc: "A regular expression that the answer matches as a whole.",
    },
    Field {
        name: "choice",
        form: Form::List,
        doc: "The answer is one of these texts.",
    },
    Field {
        name: "structured_outputs",
        form: Form::Object,
        doc: "The same as vLLM has it: an object with one of `json`, `regex`, `choice` and `grammar`.",
    },
];

/// What the answer has to be: at most one of the fields.
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
        found.push(("choice", of_choice("choice", list)?));
    }
    if let Some(options) = fields.object("structured_outputs")? {
        found.extend(of_options(options)?);
    }
    match &found[..] {
        [_, .., (name, _)] => Err(ApiError::field(
            name,
            format_args!("the answer is told what to be by {} too", found[0].0),
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
        // As llama-server has it.
        (Some("json_object"), None, Some(schema)) => schema,
        (Some("json_schema"), Some(Json::Object(mut described)), None) => {
            let no_schema = || wrong("json_schema has no schema");
            described.remove("schema").ok_or_else(no_schema)?
        }
        _ => {
            return Err(wrong(
                "expected a type of text, json_object, or json_schema with json_schema.schema",
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

fn of_choice(name: &str, list: Vec<Json>) -> ApiResult<Grammar> {
    let texts: Option<Vec<String>> = list.into_iter().map(text_of).collect();
    texts
        .map(Grammar::Choice)
        .ok_or_else(|| ApiError::field(name, "expected a list of texts"))
}

fn of_options(options: Map<String, Json>) -> ApiResult<Vec<(&'static str, Grammar)>> {
    const NAME: &str = "structured_outputs";
    let text = |value: Json| text_of(value).ok_or_else(|| ApiError::field(NAME, "expected a text"));
    let mut found = Vec::new();
    for (kind, value) in options.into_iter().filter(|(_, value)| !value.is_null()) {
        let grammar = match (kind.as_str(), value) {
            ("json", schema) => of_schema(NAME, schema)?,
            ("regex", value) => Grammar::Regex(text(value)?),
            ("grammar", value) => Grammar::Gbnf(text(value)?),
            ("choice", Json::Array(list)) => of_choice(NAME, list)?,
            _ => {
                let kind: String = kind.chars().take(64).collect();
                return Err(ApiError::field(
                    NAME,
                    format_args!("{kind:?} is none of json, regex, choice and grammar"),
                ));
            }
        };
        found.push((NAME, grammar));
    }
    Ok(found)
}

/// Makes constraints for a model's answers, and keeps the ones used last.
#[derive(Default)]
pub struct Constraints {
    /// Made when first needed: it looks at the whole vocabulary.
    compiler: OnceLock<Result<Compiler, GrammarError>>,
    /// The one used last stands last.
    kept: Mutex<Vec<(Grammar, Constraint)>>,
}

/// Constraints that are kept.
const MAX_KEPT: usize = 32;
/// Bytes of a grammar whose constraint is kept.
const MAX_KEPT_LEN: usize = 64 << 10;

impl Constraints {
    /// The constraint of a grammar. Takes as long as compiling does, so it is nothing for a thread that others wait for.
    pub fn constraint(&self, grammar: &Grammar, model: &Model) -> ApiResult<Constraint> {
        if let Some(kept) = self.kept(grammar) {
            return Ok(kept);
        }
        let refused = |e: &GrammarError| ApiError {
            code: Some("invalid_grammar"),
            ..ApiError::invalid(format!("the answer cannot be constrained so: {e}"))
        };
        let make = || Compiler::new(model.vocab(), model.base().n_vocab());
        let compiler = self.compiler.get_or_init(make).as_ref().map_err(refused)?;
        let made = compiler.compile(grammar, model.vocab()).map_err(|e| refused(&e))?;
        if length(grammar) <= MAX_KEPT_LEN {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            if kept.len() == MAX_KEPT {
                kept.remove(0);
            }
            kept.push((grammar.clone(), made.clone()));
        }
        Ok(made)
    }

    fn kept(&self, grammar: &Grammar) -> Option<Constraint> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let at = kept.iter().position(|(known, _)| known == grammar)?;
        let found = kept.remove(at);
        let constraint = found.1.clone();
        kept.push(found);
        Some(constraint)
    }
}

fn length(grammar: &Grammar) -> usize {
    match grammar {
        Grammar::Gbnf(text) | Grammar::JsonSchema(text) | Grammar::Regex(text) => text.len(),
        Grammar::Choice(texts) => texts.iter().map(String::len).sum(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Json) -> ApiResult<Option<Grammar>> {
        let Json::Object(body) = body else { unreachable!() };
        structure(&mut Fields::new(body, &[STRUCTURE], false)?)
    }

    #[test]
    fn the_same_can_be_said_in_many_ways() {
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
    fn what_is_not_understood_is_refused() {
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
