//! Reader of the fields of one request. Unknown fields are ignored with a warning; typos are rejected by name.

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
    /// Unknown fields that could change the output.
    ignored: Vec<String>,
}

impl Fields {
    /// Compares the field names of a body with the tables in `known` and, with `sampling`, the sampling
    /// parameters. Null fields count as absent. Fields of other servers are renamed to their equivalents or
    /// ignored. Likely typos, and unknown fields without which the response would answer another request,
    /// are rejected.
    pub fn new(given: Map<String, Json>, known: &[&[Field]], sampling: bool) -> ApiResult<Fields> {
        let of_route = KnownFields {
            tables: known,
            sampling,
        };
        Fields::of_route(given, of_route, "field")
    }

    fn of_route(given: Map<String, Json>, of_route: KnownFields, what: &str) -> ApiResult<Fields> {
        let (known, sampling) = (of_route.tables, of_route.sampling);
        let mut accepted = Map::new();
        let (given, ignored) = of_route.split(of_route.renamed(given)?, what);
        for (name, value) in given {
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
        Ok(Fields {
            given: accepted,
            ignored,
        })
    }

    /// Like [`Fields::new`], and returns the warnings about ignored fields. `what` names the kind of field in
    /// warnings.
    pub fn lenient(given: Map<String, Json>, known: KnownFields, what: &str) -> ApiResult<(Fields, Vec<String>)> {
        let fields = Fields::of_route(given, known, what)?;
        let ignored = fields.ignored.clone();
        Ok((fields, ignored))
    }

    /// Rejects a request with ignored fields, for servers in strict mode.
    pub fn refuse_ignored(&self) -> ApiResult<()> {
        match self.ignored.first() {
            None => Ok(()),
            Some(name) => Err(ApiError::invalid(format!(
                "unknown {name}: it would be ignored, and this server runs with --strict-fields"
            ))),
        }
    }

    /// Adds the members of an object as fields, unless the request sets them itself.
    pub fn merge(&mut self, members: Fields) {
        for (name, value) in members.given {
            self.given.entry(name).or_insert(value);
        }
        self.ignored.extend(members.ignored);
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

    /// Checks that every field was read, and returns the warnings about ignored fields. A known field that no
    /// handler reads is a bug in the server.
    pub fn finish(self) -> ApiResult<Vec<String>> {
        match self.given.keys().next() {
            None => Ok(self.ignored),
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
    let hint = match name {
        "lora" => {
            "; only routes that generate text have this field; POST /lora-adapters sets the scales for all requests"
                .to_owned()
        }
        _ if near.is_empty() => String::new(),
        _ => format!("; similar fields: {}", near.join(", ")),
    };
    let name: String = name.chars().take(64).collect();
    ApiError::field(&name, format_args!("unknown field{hint}"))
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
            fields(json!({"guided_json": {"type": "object"}})).is_err(),
            "guided_json has no equivalent in this table"
        );
    }

    #[test]
    fn unknown_foreign_fields_are_ignored_and_reported() {
        let body =
            json!({"stream": true, "typical": 1, "top_a": 0.5, "legacy_api": true, "smoothing": null, "very odd": 1});
        let (mut fields, mut ignored_fields) = read(body).unwrap();
        ignored_fields.sort();
        assert_eq!(ignored_fields, ["another field", "field legacy_api", "field top_a"]);
        assert_eq!(fields.flag("stream").unwrap(), Some(true));
        assert_eq!(fields.number("typical_p").unwrap(), Some(1.0));
        fields.finish().unwrap();
    }

    #[test]
    fn fields_with_another_input_or_restriction_are_rejected() {
        for (body, name) in [
            (json!({"strem": true}), "strem"),
            (json!({"n": 2}), "n"),
            (json!({"lora": [{"id": 0, "scale": 1}]}), "lora"),
            (json!({"image_data": [{"data": "", "id": 1}]}), "image_data"),
            (json!({"response_format": {"type": "json_object"}}), "response_format"),
        ] {
            assert_eq!(read(body).unwrap_err().param.as_deref(), Some(name));
        }
        assert!(read(json!({"n": 1, "lora": [], "echo": false})).unwrap().1.is_empty());
        let error = read(json!({"lora": [{"id": 0, "scale": 1}]})).unwrap_err();
        assert!(error.message.contains("POST /lora-adapters"), "{}", error.message);
    }

    #[test]
    fn foreign_fields_without_effect_are_ignored_silently() {
        let body = json!({
            "best_of": 1, "documents": [], "echo": false, "extra_headers": {}, "include_reasoning": true, "keep_alive": "5m",
            "length_penalty": 1.0, "min_tokens": 0, "provider": {"order": ["x"]}, "request_id": "x", "return_token_ids": false,
            "session_id": "x", "skip_special_tokens": true, "stop_token_ids": [], "ttl": 300, "usage": {"include": true},
            "use_beam_search": false, "top_a": 0, "never_heard": "", "never_seen": {}, "truncate_prompt_tokens": -1,
        });
        assert_eq!(read(body).unwrap().1, [""; 0]);
    }

    #[test]
    fn foreign_fields_with_effect_are_named() {
        for (name, value) in [
            ("best_of", json!(3)),
            ("documents", json!([{"text": "a"}])),
            ("echo", json!(true)),
            ("include_reasoning", json!(false)),
            ("length_penalty", json!(1.5)),
            ("min_tokens", json!(4)),
            ("skip_special_tokens", json!(false)),
            ("stop_token_ids", json!([2])),
            ("use_beam_search", json!(true)),
            ("never_heard", json!(0)),
        ] {
            assert_eq!(read(json!({name: value})).unwrap().1, [format!("field {name}")]);
        }
    }

    #[test]
    fn synonyms_stand_for_the_known_name() {
        let temperature = |body: Json| read(body).unwrap().0.number("temperature").unwrap();
        assert_eq!(temperature(json!({"temp": 0.5})), Some(0.5));
        assert_eq!(temperature(json!({"temp": 0.5, "temperature": 1})), Some(1.0));
        assert_eq!(temperature(json!({"temp": 0.5, "temperature": null})), Some(0.5));
    }

    #[test]
    fn strict_mode_rejects_ignored_fields() {
        let check = |body: Json| read(body).unwrap().0.refuse_ignored();
        assert!(check(json!({"best_of": 1, "ttl": 3})).is_ok());
        let message = check(json!({"never_heard": 1})).unwrap_err().message;
        assert!(message.contains("never_heard"), "{message}");
    }
}
