//! Request fields: tables of the known fields, and a reader that rejects unknown fields by name.

use engine::model::nearest_names;
use engine::sample::{PARAMS, ParamDef};
use serde_json::{Map, Value as Json};

use super::compat::KnownFields;
use super::error::{ApiError, ApiResult};

/// Description of a request field, from which the reader, the OpenAPI document and `docs/server.md` are
/// generated.
#[derive(Debug)]
pub struct Field {
    pub name: &'static str,
    /// JSON type that the field accepts.
    pub form: FieldType,
    /// Description of the field in one or two sentences.
    pub doc: &'static str,
}

/// JSON type of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldType {
    Text,
    Flag,
    /// A number without a fractional part; 3.0 is accepted.
    Integer,
    Number,
    Object,
    List,
    /// Several JSON types; the description lists them.
    Any,
    /// Any JSON value; the field has no effect.
    Ignored,
}

impl FieldType {
    /// Returns the name used in the documentation.
    pub fn name(self) -> &'static str {
        match self {
            FieldType::Text => "string",
            FieldType::Flag => "boolean",
            FieldType::Integer => "integer",
            FieldType::Number => "number",
            FieldType::Object => "object",
            FieldType::List => "array",
            FieldType::Any => "any",
            FieldType::Ignored => "ignored",
        }
    }
}

/// Returns the request field that sets a sampling parameter.
pub fn name_of(def: &ParamDef) -> &'static str {
    match def.name {
        "temp" => "temperature",
        "penalty_last_n" => "repeat_last_n",
        "penalty_repeat" => "repeat_penalty",
        "penalty_frequency" => "frequency_penalty",
        "penalty_presence" => "presence_penalty",
        name => name,
    }
}

/// Fields of one request. Each field is removed when it is read.
#[derive(Debug)]
pub struct Fields {
    given: Map<String, Json>,
}

impl Fields {
    /// Validates the field names of a body against the tables in `known` and, with `sampling`, the sampling
    /// parameters. Null fields count as absent.
    pub fn new(given: Map<String, Json>, known: &[&[Field]], sampling: bool) -> ApiResult<Fields> {
        let mut accepted = Map::new();
        let of_route = KnownFields {
            tables: known,
            sampling,
        };
        for (name, value) in of_route.renamed(given)? {
            let field = known
                .iter()
                .flat_map(|table| table.iter())
                .find(|field| field.name == name);
            let is_sampling = sampling && PARAMS.iter().any(|def| name_of(def) == name);
            match field {
                Some(field) if field.form == FieldType::Ignored => {}
                None if !is_sampling => return Err(unknown(&name, known)),
                _ => {
                    accepted.insert(name, value);
                }
            }
        }
        Ok(Fields { given: accepted })
    }

    /// Returns a value without removing it.
    pub fn given(&self, name: &str) -> Option<&Json> {
        self.given.get(name)
    }

    /// Removes and returns a value of any type.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        self.given.remove(name)
    }

    /// Reads a string field.
    pub fn text(&mut self, name: &str) -> ApiResult<Option<String>> {
        self.typed(name, "a string", |value| match value {
            Json::String(text) => Some(text),
            _ => None,
        })
    }

    /// Reads a boolean field.
    pub fn flag(&mut self, name: &str) -> ApiResult<Option<bool>> {
        self.typed(name, "true or false", |value| value.as_bool())
    }

    /// Reads an integer. Accepts 3.0, because some clients write integers so.
    pub fn integer(&mut self, name: &str) -> ApiResult<Option<i64>> {
        self.typed(name, "an integer", |value| integer_of(&value))
    }

    /// Reads a finite number.
    pub fn number(&mut self, name: &str) -> ApiResult<Option<f64>> {
        self.typed(name, "a number", |value| value.as_f64().filter(|x| x.is_finite()))
    }

    /// Reads an object field.
    pub fn object(&mut self, name: &str) -> ApiResult<Option<Map<String, Json>>> {
        self.typed(name, "an object", |value| match value {
            Json::Object(object) => Some(object),
            _ => None,
        })
    }

    /// Reads a list field.
    pub fn list(&mut self, name: &str) -> ApiResult<Option<Vec<Json>>> {
        self.typed(name, "a list", |value| match value {
            Json::Array(list) => Some(list),
            _ => None,
        })
    }

    /// Reads a string or a list of strings.
    pub fn texts(&mut self, name: &str) -> ApiResult<Vec<String>> {
        let texts = self.typed(name, "a string or a list of strings", |value| match value {
            Json::String(text) => Some(vec![text]),
            Json::Array(list) => list.into_iter().map(text_of).collect(),
            _ => None,
        })?;
        Ok(texts.unwrap_or_default())
    }

    fn typed<T>(&mut self, name: &str, form: &str, read: impl FnOnce(Json) -> Option<T>) -> ApiResult<Option<T>> {
        let Some(value) = self.given.remove(name) else {
            return Ok(None);
        };
        let found = shown(&value);
        let wrong = || ApiError::field(name, format_args!("expected {form}, found {found}"));
        read(value).ok_or_else(wrong).map(Some)
    }

    /// Checks that every field was read. A known field that no handler reads is a bug in the server.
    pub fn finish(self) -> ApiResult<()> {
        match self.given.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::server(format!(
                "{name}: the field is known but not implemented"
            ))),
        }
    }
}

/// Returns the integer value of a number; accepts 3.0.
pub fn integer_of(value: &Json) -> Option<i64> {
    let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
    value
        .as_i64()
        .or_else(|| value.as_f64().filter(whole).map(|x| x as i64))
}

/// Returns the string if the value is one.
pub fn text_of(value: Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text),
        _ => None,
    }
}

/// Formats a value for error messages, abbreviated.
pub fn shown(value: &Json) -> String {
    const MAX: usize = 40;
    let text = match value {
        Json::Array(_) => return "a list".to_owned(),
        Json::Object(_) => return "an object".to_owned(),
        value => value.to_string(),
    };
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

fn unknown(name: &str, known: &[&[Field]]) -> ApiError {
    let names = known.iter().flat_map(|table| table.iter().map(|field| field.name));
    let names = names.chain(PARAMS.iter().map(name_of));
    let near = nearest_names(name, names);
    let near = match near.is_empty() {
        true => String::new(),
        false => format!("; similar fields: {}", near.join(", ")),
    };
    let name: String = name.chars().take(64).collect();
    ApiError::field(&name, format_args!("unknown field{near}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &[Field] = &[
        Field {
            name: "stream",
            form: FieldType::Flag,
            doc: "",
        },
        Field {
            name: "user",
            form: FieldType::Ignored,
            doc: "",
        },
    ];

    fn fields(body: Json) -> ApiResult<Fields> {
        let Json::Object(body) = body else { unreachable!() };
        Fields::new(body, &[TABLE], true)
    }

    #[test]
    fn unknown_field_is_rejected_by_name() {
        let error = fields(json!({ "strem": true })).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("strem"));
        assert!(error.message.contains("stream"), "{}", error.message);
        for fine in [json!({"user": {}}), json!({"stream": null}), json!({"unheard": null})] {
            fields(fine).unwrap().finish().unwrap();
        }
        assert!(fields(json!({"top_k": 3, "temperature": 1, "repeat_penalty": 1})).is_ok());
        assert!(fields(json!({"temp": 3})).is_err());
    }

    #[test]
    fn field_of_wrong_type_is_rejected() {
        let wrong = fields(json!({"stream": "yes"})).unwrap().flag("stream").unwrap_err();
        assert_eq!(wrong.message, "stream: expected true or false, found \"yes\"");
        assert_eq!(integer_of(&json!(3.0)), Some(3));
        assert_eq!(
            [
                integer_of(&json!(3.5)),
                integer_of(&json!(1e300)),
                integer_of(&json!("3"))
            ],
            [None; 3]
        );
        let mut some = fields(json!({"stream": ["a", "b"]})).unwrap();
        assert_eq!(some.texts("stream").unwrap(), ["a", "b"]);
        assert!(some.texts("stream").unwrap().is_empty());
    }
}
