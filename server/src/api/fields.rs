//! The fields of a request: tables of those that there are, and a reader that refuses all others by name.

use engine::model::nearest_names;
use engine::sample::{PARAMS, ParamDef};
use serde_json::{Map, Value as Json};

use super::error::{ApiError, ApiResult};
use super::others::Known;

/// A field of a request: a row of a table from which the reader and `docs/server.md` come.
#[derive(Debug)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// What it may be.
    pub form: Form,
    /// What it does, in one sentence.
    pub doc: &'static str,
}

/// What a field may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A text.
    Text,
    /// True or false.
    Flag,
    /// A number without a fraction.
    Integer,
    /// A number.
    Number,
    /// An object.
    Object,
    /// A list.
    List,
    /// One of several, as its sentence says.
    Any,
    /// Anything: it has no effect on the answer, and none here.
    Ignored,
}

impl Form {
    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Form::Text => "text",
            Form::Flag => "true or false",
            Form::Integer => "integer",
            Form::Number => "number",
            Form::Object => "object",
            Form::List => "list",
            Form::Any => "see there",
            Form::Ignored => "ignored",
        }
    }
}

/// The name that clients know a parameter of the sampler chain by.
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

/// The fields of a request as they are read, each once.
#[derive(Debug)]
pub struct Fields {
    given: Map<String, Json>,
}

impl Fields {
    /// The fields of a body, of which `known` lists those that there are; `sampling`: those of the sampler chain, too. Null is as if it were not given.
    pub fn new(given: Map<String, Json>, known: &[&[Field]], sampling: bool) -> ApiResult<Fields> {
        let mut kept = Map::new();
        let of_route = Known {
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
                Some(field) if field.form == Form::Ignored => {}
                None if !is_sampling => return Err(unknown(&name, known)),
                _ => {
                    kept.insert(name, value);
                }
            }
        }
        Ok(Fields { given: kept })
    }

    /// The value as it is, which stays to be read.
    pub fn given(&self, name: &str) -> Option<&Json> {
        self.given.get(name)
    }

    /// The value as it is.
    pub fn take(&mut self, name: &str) -> Option<Json> {
        self.given.remove(name)
    }

    /// A text.
    pub fn text(&mut self, name: &str) -> ApiResult<Option<String>> {
        self.typed(name, "a text", |value| match value {
            Json::String(text) => Some(text),
            _ => None,
        })
    }

    /// True or false.
    pub fn flag(&mut self, name: &str) -> ApiResult<Option<bool>> {
        self.typed(name, "true or false", |value| value.as_bool())
    }

    /// A number without a fraction, as other languages write it: 3.0 is one.
    pub fn integer(&mut self, name: &str) -> ApiResult<Option<i64>> {
        self.typed(name, "a whole number", |value| integer_of(&value))
    }

    /// A number.
    pub fn number(&mut self, name: &str) -> ApiResult<Option<f64>> {
        self.typed(name, "a number", |value| value.as_f64().filter(|x| x.is_finite()))
    }

    /// An object.
    pub fn object(&mut self, name: &str) -> ApiResult<Option<Map<String, Json>>> {
        self.typed(name, "an object", |value| match value {
            Json::Object(object) => Some(object),
            _ => None,
        })
    }

    /// A list.
    pub fn list(&mut self, name: &str) -> ApiResult<Option<Vec<Json>>> {
        self.typed(name, "a list", |value| match value {
            Json::Array(list) => Some(list),
            _ => None,
        })
    }

    /// A text or several.
    pub fn texts(&mut self, name: &str) -> ApiResult<Vec<String>> {
        let texts = self.typed(name, "a text or a list of texts", |value| match value {
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

    /// All have been read: a field of the tables that nothing reads would be dropped in silence, and is an error.
    pub fn finish(self) -> ApiResult<()> {
        match self.given.keys().next() {
            None => Ok(()),
            Some(name) => Err(ApiError::server(format!(
                "{name}: the field is known, and nothing reads it"
            ))),
        }
    }
}

/// A whole number, 3.0 being one.
pub fn integer_of(value: &Json) -> Option<i64> {
    let whole = |x: &f64| x.fract() == 0.0 && x.abs() < 9e15;
    value
        .as_i64()
        .or_else(|| value.as_f64().filter(whole).map(|x| x as i64))
}

/// The text of a value that is one.
pub fn text_of(value: Json) -> Option<String> {
    match value {
        Json::String(text) => Some(text),
        _ => None,
    }
}

/// The beginning of a value, for messages.
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
        false => format!("; the nearest are {}", near.join(", ")),
    };
    let name: String = name.chars().take(64).collect();
    ApiError::field(
        &name,
        format_args!("there is no such field, and leaving it out might change the answer{near}"),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &[Field] = &[
        Field {
            name: "stream",
            form: Form::Flag,
            doc: "",
        },
        Field {
            name: "user",
            form: Form::Ignored,
            doc: "",
        },
    ];

    fn fields(body: Json) -> ApiResult<Fields> {
        let Json::Object(body) = body else { unreachable!() };
        Fields::new(body, &[TABLE], true)
    }

    #[test]
    fn unknown_fields_are_named() {
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
    fn forms_are_checked() {
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
