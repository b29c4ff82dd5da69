//! Compatibility with the fields of other servers: aliases, and fields that may be ignored.

use engine::model::nearest_names;
use engine::sample::PARAMS;
use serde_json::{Map, Value as Json};

use super::error::{ApiError, ApiResult};
use super::field::{Field, name_of};
use super::value::integer_of;

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
        let sampling = if self.sampling { PARAMS } else { &[] };
        fields.chain(sampling.iter().map(name_of))
    }

    fn has(&self, name: &str) -> bool {
        self.names().any(|known| known == name)
    }

    /// Returns the name used here for another server's field.
    fn name_here(&self, name: &str) -> Option<&'static str> {
        let (_, here) = ALIASES.iter().find(|(other, _)| *other == name)?;
        if self.has(name) || !self.has(here) {
            return None;
        }
        Some(here)
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

    /// Splits a body into the fields that must be understood or rejected, and a warning for each ignored
    /// field of another server.
    pub fn split(&self, given: Map<String, Json>, what: &str) -> (Map<String, Json>, Vec<String>) {
        let given = given.into_iter().filter(|(_, value)| !value.is_null());
        let (accepted, others): (Map<_, _>, Map<_, _>) = given.partition(|(name, value)| self.matters(name, value));
        let warning = |name: &String| {
            if is_word(name) {
                format!("{what} {name}")
            } else {
                format!("another {what}")
            }
        };
        let ignored_fields = others.keys().filter(|name| !REQUIRED.contains(&name.as_str()));
        (accepted, ignored_fields.map(warning).take(MAX_NAMED).collect())
    }
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
