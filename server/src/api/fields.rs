//! Reader of the fields of one request, which rejects unknown fields by name.

use engine::model::nearest_names;
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json};

use super::compat::KnownFields;
use super::error::{ApiError, ApiResult};
use super::field::{Field, FieldType, name_of};
use super::value::{integer_of, shown, text_of};

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

    /// Reads a body whose client may send fields of other servers. Unknown fields are ignored and listed in
    /// the returned warnings. Likely typos of known fields and fields that would change the output are
    /// rejected. `what` names the kind of field in warnings.
    pub fn lenient(given: Map<String, Json>, known: KnownFields, what: &str) -> ApiResult<(Fields, Vec<String>)> {
        let (accepted, ignored_fields) = known.split(given, what);
        Ok((Fields::new(accepted, known.tables, known.sampling)?, ignored_fields))
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

fn unknown(name: &str, known: &[&[Field]]) -> ApiError {
    let names = known.iter().flat_map(|table| table.iter().map(|field| field.name));
    let names = names.chain(PARAMS.iter().map(name_of));
    let near = nearest_names(name, names);
    let near = if near.is_empty() {
        String::new()
    } else {
        format!("; similar fields: {}", near.join(", "))
    };
    let name: String = name.chars().take(64).collect();
    ApiError::field(&name, format_args!("unknown field{near}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TABLE: &[Field] = &[Field::flag("stream", ""), Field::ignored("user", "")];

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
        let mut some = fields(json!({"stream": ["a", "b"]})).unwrap();
        assert_eq!(some.texts("stream").unwrap(), ["a", "b"]);
        assert!(some.texts("stream").unwrap().is_empty());
    }

    fn read(body: Json) -> ApiResult<(Fields, Vec<String>)> {
        let Json::Object(body) = body else { unreachable!() };
        let known = KnownFields {
            tables: &[TABLE],
            sampling: true,
        };
        Fields::lenient(body, known, "field")
    }

    #[test]
    fn aliases_are_renamed() {
        let mut some = fields(json!({"repetition_penalty": 1.5, "typical": null})).unwrap();
        assert_eq!(some.number("repeat_penalty").unwrap(), Some(1.5));
        some.finish().unwrap();
        assert!(fields(json!({"repetition_penalty": 1.5, "repeat_penalty": 1.5})).is_ok());
        let error = fields(json!({"repetition_penalty": 1.5, "repeat_penalty": 1.25})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("repeat_penalty"));
        assert!(
            fields(json!({"guided_json": {}})).is_err(),
            "guided_json has no equivalent in this table"
        );
    }

    #[test]
    fn unknown_foreign_fields_are_ignored_and_reported() {
        let body =
            json!({"stream": true, "typical": 1, "top_a": 0, "legacy_api": false, "smoothing": null, "very odd": 1});
        let (mut fields, mut ignored_fields) = read(body).unwrap();
        ignored_fields.sort();
        assert_eq!(ignored_fields, ["another field", "field legacy_api", "field top_a"]);
        assert_eq!(fields.flag("stream").unwrap(), Some(true));
        assert_eq!(fields.number("typical_p").unwrap(), Some(1.0));
        fields.finish().unwrap();
    }

    #[test]
    fn relevant_foreign_fields_are_rejected() {
        for (body, name) in [
            (json!({"strem": true}), "strem"),
            (json!({"n": 2}), "n"),
            (json!({"lora": [{"id": 0, "scale": 1}]}), "lora"),
            (json!({"echo": true}), "echo"),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(name));
        }
        assert!(read(json!({"n": 1, "lora": [], "echo": false})).unwrap().1.is_empty());
    }
}
