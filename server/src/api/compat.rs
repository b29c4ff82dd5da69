//! Compatibility with the fields of other servers: aliases, and fields that may be ignored.

use engine::model::nearest_names;
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json};

use super::error::{ApiError, ApiResult};
use super::fields::{Field, Fields, integer_of, name_of};

/// Names of fields in other servers, and the name of the equivalent field here.
const ALIASES: &[(&str, &str)] = &[
    ("repetition_penalty", "repeat_penalty"),
    ("typical", "typical_p"),
    ("typ_p", "typical_p"),
    ("guided_json", "json_schema"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
];

/// Fields of other servers that resemble a known field but are unrelated.
const UNRELATED: &[&str] = &[
    "dynamic_temperature",
    "dynatemp_high",
    "dynatemp_low",
    "max_length",
    "max_new_tokens",
    "min_length",
    "min_tokens",
    "mirostat_mode",
    "n_ctx",
    "reasoning_budget",
    "reasoning_effort",
    "reasoning_format",
    "rep_pen_range",
    "repetition_penalty_range",
    "sampler_order",
    "sampler_priority",
    "sampler_seed",
    "skip_special_tokens",
    "speculative.n_max",
    "speculative.n_min",
    "speculative.p_min",
    "stop_token_ids",
    "stopping_strings",
    "temperature_last",
    "top_a",
];

/// Fields of other servers that would change the output and must therefore not be ignored.
const REQUIRED: &[&str] = &[
    "best_of",
    "echo",
    "grammar_lazy",
    "image_data",
    "lora",
    "messages",
    "multimodal_data",
    "n",
    "n_cmpl",
    "post_sampling_probs",
    "tools",
];

/// Maximum number of ignored fields that the warning lists.
const MAX_NAMED: usize = 16;

/// Request fields that a route recognizes.
#[derive(Clone, Copy)]
pub struct KnownFields<'a> {
    /// Field tables.
    pub tables: &'a [&'a [Field]],
    /// True if the sampling parameters are known, too.
    pub sampling: bool,
}

impl KnownFields<'_> {
    fn names(&self) -> impl Iterator<Item = &'static str> {
        let fields = self
            .tables
            .iter()
            .flat_map(|table| table.iter().map(|field| field.name));
        fields.chain(PARAMS.iter().filter(|_| self.sampling).map(name_of))
    }

    fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Returns the name used here for another server's field.
    fn name_here(&self, name: &str) -> Option<&'static str> {
        let (_, here) = ALIASES.iter().find(|(other, _)| *other == name)?;
        (!self.has(name) && self.has(here)).then_some(here)
    }

    /// Returns true if the field must be understood or rejected.
    fn matters(&self, name: &str, value: &Json) -> bool {
        if self.has(name) || self.name_here(name).is_some() {
            return true;
        }
        if REQUIRED.contains(&name) {
            return !has_no_effect(value);
        }
        !UNRELATED.contains(&name) && !nearest_names(name, self.names()).is_empty()
    }

    /// Renames aliased fields to the names used here.
    pub fn renamed(&self, given: Map<String, Json>) -> ApiResult<Map<String, Json>> {
        let mut renamed = Map::new();
        for (name, value) in given.into_iter().filter(|(_, value)| !value.is_null()) {
            let name = self.name_here(&name).map_or(name, str::to_owned);
            if renamed.get(&name).is_some_and(|other| *other != value) {
                return Err(ApiError::field(
                    &name,
                    "set twice, under two names and with different values",
                ));
            }
            renamed.insert(name, value);
        }
        Ok(renamed)
    }
}

/// Reads the fields of a body whose client may send fields of other servers. Unknown fields are ignored and
/// listed in the returned warnings. Likely typos of known fields and fields that would change the output are
/// rejected. `what` names the kind of field in warnings.
pub fn lenient(given: Map<String, Json>, known: KnownFields, what: &str) -> ApiResult<(Fields, Vec<String>)> {
    let given = given.into_iter().filter(|(_, value)| !value.is_null());
    let (accepted, others): (Map<_, _>, Map<_, _>) = given.partition(|(name, value)| known.matters(name, value));
    let told = |name: &String| match is_word(name) {
        true => format!("{what} {name}"),
        false => format!("another {what}"),
    };
    let ignored_fields = others.keys().filter(|name| !REQUIRED.contains(&name.as_str()));
    let ignored_fields = ignored_fields.map(told).take(MAX_NAMED).collect();
    Ok((Fields::new(accepted, known.tables, known.sampling)?, ignored_fields))
}

fn has_no_effect(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(list) => list.is_empty(),
        value => integer_of(value) == Some(1),
    }
}

/// Returns true if a name can be put into an HTTP header.
fn is_word(name: &str) -> bool {
    name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::FieldType;

    const TABLE: &[Field] = &[Field {
        name: "stream",
        form: FieldType::Flag,
        doc: "",
    }];

    fn fields(body: Json) -> ApiResult<Fields> {
        let Json::Object(body) = body else { unreachable!() };
        Fields::new(body, &[TABLE], true)
    }

    fn read(body: Json) -> ApiResult<(Fields, Vec<String>)> {
        let Json::Object(body) = body else { unreachable!() };
        let known = KnownFields {
            tables: &[TABLE],
            sampling: true,
        };
        lenient(body, known, "field")
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
