//! Fields of other servers: which are fields of here under another name, and which can be left out.

use engine::model::nearest_names;
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json};

use super::error::{ApiError, ApiResult};
use super::fields::{Field, Fields, integer_of, name_of};

/// What other servers and programs call a field, and its name here.
const ALSO_CALLED: &[(&str, &str)] = &[
    ("repetition_penalty", "repeat_penalty"),
    ("typical", "typical_p"),
    ("typ_p", "typical_p"),
    ("guided_json", "json_schema"),
    ("guided_regex", "regex"),
    ("guided_choice", "choice"),
    ("guided_grammar", "grammar"),
];

/// Fields of others whose names are like ones of here by chance.
const LOOK_ALIKE: &[&str] = &[
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

/// Fields of others without which an answer would be another one, or told in another way.
const NEEDED: &[&str] = &[
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

/// Fields that are told of those that are left out.
const MAX_NAMED: usize = 16;

/// The fields of a route.
#[derive(Clone, Copy)]
pub struct Known<'a> {
    /// Its tables.
    pub tables: &'a [&'a [Field]],
    /// Those of the sampler chain, too.
    pub sampling: bool,
}

impl Known<'_> {
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

    /// What it is called here.
    fn name_here(&self, name: &str) -> Option<&'static str> {
        let (_, here) = ALSO_CALLED.iter().find(|(other, _)| *other == name)?;
        (!self.has(name) && self.has(here)).then_some(here)
    }

    /// True of what has to be understood, or be refused.
    fn matters(&self, name: &str, value: &Json) -> bool {
        if self.has(name) || self.name_here(name).is_some() {
            return true;
        }
        if NEEDED.contains(&name) {
            return !asks_for_nothing(value);
        }
        !LOOK_ALIKE.contains(&name) && !nearest_names(name, self.names()).is_empty()
    }

    /// The fields under the names that they have here.
    pub fn renamed(&self, given: Map<String, Json>) -> ApiResult<Map<String, Json>> {
        let mut renamed = Map::new();
        for (name, value) in given.into_iter().filter(|(_, value)| !value.is_null()) {
            let name = self.name_here(&name).map_or(name, str::to_owned);
            if renamed.get(&name).is_some_and(|other| *other != value) {
                return Err(ApiError::field(&name, "it is given under two names, with two values"));
            }
            renamed.insert(name, value);
        }
        Ok(renamed)
    }
}

/// The fields of a body of a program that sends those of other servers along: they are left out, and told. What is nearly a field of here is refused, as is
/// what has to be understood. `what` they are called, such as fields.
pub fn lenient(given: Map<String, Json>, known: Known, what: &str) -> ApiResult<(Fields, Vec<String>)> {
    let given = given.into_iter().filter(|(_, value)| !value.is_null());
    let (kept, others): (Map<_, _>, Map<_, _>) = given.partition(|(name, value)| known.matters(name, value));
    let told = |name: &String| match is_word(name) {
        true => format!("the {what} {name}"),
        false => format!("one more {what}"),
    };
    let left_out = others.keys().filter(|name| !NEEDED.contains(&name.as_str()));
    let left_out = left_out.map(told).take(MAX_NAMED).collect();
    Ok((Fields::new(kept, known.tables, known.sampling)?, left_out))
}

fn asks_for_nothing(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(list) => list.is_empty(),
        value => integer_of(value) == Some(1),
    }
}

/// Fit for a header.
fn is_word(name: &str) -> bool {
    name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Form;

    const TABLE: &[Field] = &[Field {
        name: "stream",
        form: Form::Flag,
        doc: "",
    }];

    fn fields(body: Json) -> ApiResult<Fields> {
        let Json::Object(body) = body else { unreachable!() };
        Fields::new(body, &[TABLE], true)
    }

    fn read(body: Json) -> ApiResult<(Fields, Vec<String>)> {
        let Json::Object(body) = body else { unreachable!() };
        let known = Known {
            tables: &[TABLE],
            sampling: true,
        };
        lenient(body, known, "field")
    }

    #[test]
    fn fields_of_other_servers_have_their_name_here() {
        let mut some = fields(json!({"repetition_penalty": 1.5, "typical": null})).unwrap();
        assert_eq!(some.number("repeat_penalty").unwrap(), Some(1.5));
        some.finish().unwrap();
        assert!(fields(json!({"repetition_penalty": 1.5, "repeat_penalty": 1.5})).is_ok());
        let error = fields(json!({"repetition_penalty": 1.5, "repeat_penalty": 1.25})).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("repeat_penalty"));
        assert!(fields(json!({"guided_json": {}})).is_err(), "the table has no schemas");
    }

    #[test]
    fn what_others_send_along_is_left_out_and_told() {
        let body =
            json!({"stream": true, "typical": 1, "top_a": 0, "legacy_api": false, "smoothing": null, "very odd": 1});
        let (mut fields, mut left_out) = read(body).unwrap();
        left_out.sort();
        assert_eq!(left_out, ["one more field", "the field legacy_api", "the field top_a"]);
        assert_eq!(fields.flag("stream").unwrap(), Some(true));
        assert_eq!(fields.number("typical_p").unwrap(), Some(1.0));
        fields.finish().unwrap();
    }

    #[test]
    fn what_matters_is_refused() {
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
