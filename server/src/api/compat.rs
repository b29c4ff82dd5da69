//! Compatibility with the fields of other servers: aliases, and fields that may be ignored.

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

/// Names of one setting in several servers. A name that the route lacks is replaced by the first name that the route
/// has, unless the request sets a known name as well.
const SYNONYMS: &[&[&str]] = &[
    &[
        "max_completion_tokens",
        "max_tokens",
        "n_predict",
        "max_output_tokens",
        "max_new_tokens",
        "num_predict",
    ],
    &["stop", "stop_sequences", "stopping_strings"],
    &["seed", "random_seed", "sampler_seed"],
    &["repeat_penalty", "rep_pen"],
    &["temperature", "temp"],
];

/// Values of another server's field that request the behavior of this server.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Neutral {
    /// Every value is neutral; the field does not affect the output.
    Any,
    /// False, 0, and empty values.
    Empty,
    /// True.
    True,
    /// 1.
    One,
}

/// Fields of other servers. Other values than the neutral ones are ignored with a warning.
const FOREIGN: &[(&str, Neutral)] = &[
    ("add_special_tokens", Neutral::Empty),
    ("allowed_token_ids", Neutral::Empty),
    ("bad_words", Neutral::Empty),
    ("beam_width", Neutral::One),
    ("best_of", Neutral::One),
    ("cache_salt", Neutral::Any),
    ("chat_id", Neutral::Any),
    ("conversation_id", Neutral::Any),
    ("detokenize", Neutral::True),
    ("disagg_prefill_resp", Neutral::Any),
    ("do_sample", Neutral::True),
    ("documents", Neutral::Empty),
    ("dynamic_temperature", Neutral::Empty),
    ("dynatemp_high", Neutral::Empty),
    ("dynatemp_low", Neutral::Empty),
    ("early_stopping", Neutral::Empty),
    ("echo", Neutral::Empty),
    ("extra_headers", Neutral::Any),
    ("extra_query", Neutral::Any),
    ("guided_decoding_backend", Neutral::Any),
    ("include_reasoning", Neutral::True),
    ("include_stop_str_in_output", Neutral::Empty),
    ("keep_alive", Neutral::Any),
    ("kv_transfer_params", Neutral::Any),
    ("length_penalty", Neutral::One),
    ("max_length", Neutral::Empty),
    ("min_length", Neutral::Empty),
    ("min_tokens", Neutral::Empty),
    ("mirostat_mode", Neutral::Empty),
    ("mm_processor_kwargs", Neutral::Empty),
    ("n_ctx", Neutral::Any),
    ("no_repeat_ngram_size", Neutral::Empty),
    ("num_beams", Neutral::One),
    ("num_ctx", Neutral::Any),
    ("num_return_sequences", Neutral::One),
    ("prompt_logprobs", Neutral::Empty),
    ("provider", Neutral::Any),
    ("raw_mode", Neutral::Empty),
    ("reasoning_budget", Neutral::Empty),
    ("reasoning_effort", Neutral::Empty),
    ("reasoning_format", Neutral::Empty),
    ("reasoning_split", Neutral::True),
    ("rep_pen_range", Neutral::Empty),
    ("repetition_penalty_range", Neutral::Empty),
    ("request_id", Neutral::Any),
    ("return_full_text", Neutral::Empty),
    ("return_prompt", Neutral::Empty),
    ("return_token_ids", Neutral::Empty),
    ("return_tokens_as_token_ids", Neutral::Empty),
    ("route", Neutral::Any),
    ("safe_prompt", Neutral::Empty),
    ("sampler_order", Neutral::Empty),
    ("sampler_priority", Neutral::Empty),
    ("separate_reasoning", Neutral::True),
    ("session_id", Neutral::Any),
    ("skip_special_tokens", Neutral::True),
    ("spaces_between_special_tokens", Neutral::True),
    ("speculative.n_max", Neutral::Any),
    ("speculative.n_min", Neutral::Any),
    ("speculative.p_min", Neutral::Any),
    ("stop_token_ids", Neutral::Empty),
    ("stream_reasoning", Neutral::True),
    ("temperature_last", Neutral::Empty),
    ("tfs_z", Neutral::One),
    ("top_a", Neutral::Empty),
    ("trace_id", Neutral::Any),
    ("transforms", Neutral::Empty),
    ("truncate_prompt_tokens", Neutral::Empty),
    ("truncation", Neutral::Any),
    ("ttl", Neutral::Any),
    ("usage", Neutral::Any),
    ("use_beam_search", Neutral::Empty),
    ("user_id", Neutral::Any),
];

/// Fields that carry part of the input or a restriction of the output. Without them, the response would answer a
/// different request, so routes that do not support them reject them.
const REQUIRED: &[&str] = &[
    "conversation",
    "grammar",
    "grammar_lazy",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "image_data",
    "input",
    "json_schema",
    "lora",
    "messages",
    "multimodal_data",
    "n",
    "n_cmpl",
    "post_sampling_probs",
    "previous_response_id",
    "prompt",
    "regex",
    "response_format",
    "structured_outputs",
    "tools",
];

/// Maximum number of ignored fields that the warning lists.
const MAX_NAMED: usize = 16;

/// Request fields that a route recognizes.
#[derive(Clone, Copy)]
pub struct KnownFields<'a> {
    /// Field tables.
    pub tables: &'a [&'a [Field]],
    /// True if the route also accepts the sampling parameters.
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

    /// Returns this server's name of a setting with several names; `None` if `given` also contains another of its names.
    fn synonym(&self, name: &str, given: &Map<String, Json>) -> Option<&'static str> {
        let names = SYNONYMS.iter().find(|names| names.contains(&name))?;
        if self.has(name) {
            return None;
        }
        let mut known = names.iter().copied().filter(|other| self.has(other));
        let first = known.clone().next()?;
        if known.any(|other| given.get(other).is_some_and(|value| !value.is_null())) {
            return None;
        }
        Some(first)
    }

    /// Returns true if the field must be understood or rejected.
    fn matters(&self, name: &str, value: &Json) -> bool {
        if self.has(name) {
            return true;
        }
        if REQUIRED.contains(&name) {
            return !has_no_effect(value);
        }
        let is_foreign = FOREIGN.iter().any(|(other, _)| *other == name) || SYNONYMS.iter().any(|n| n.contains(&name));
        !is_foreign && self.names().any(|known| is_typo(name, known))
    }

    /// Renames aliased fields to the names used here.
    pub fn renamed(&self, given: Map<String, Json>) -> ApiResult<Map<String, Json>> {
        let all = given.clone();
        let mut renamed = Map::new();
        for (name, value) in given.into_iter().filter(|(_, value)| !value.is_null()) {
            if let Some(here) = self.synonym(&name, &all) {
                renamed.entry(here).or_insert(value);
                continue;
            }
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
    /// field that could change the output.
    pub fn split(&self, given: Map<String, Json>, what: &str) -> (Map<String, Json>, Vec<String>) {
        let given = given.into_iter().filter(|(_, value)| !value.is_null());
        let (accepted, others): (Map<_, _>, Map<_, _>) = given.partition(|(name, value)| self.matters(name, value));
        let warning = |(name, _): (&String, &Json)| {
            if is_word(name) {
                format!("{what} {name}")
            } else {
                format!("another {what}")
            }
        };
        let ignored_fields = others.iter().filter(|(name, value)| !is_neutral(name, value));
        (accepted, ignored_fields.map(warning).take(MAX_NAMED).collect())
    }
}

/// Returns true if ignoring another server's field does not change the output.
fn is_neutral(name: &str, value: &Json) -> bool {
    if REQUIRED.contains(&name) || SYNONYMS.iter().any(|names| names.contains(&name)) {
        return true;
    }
    let is_empty = match value {
        Json::Null | Json::Bool(false) => true,
        Json::String(text) => text.is_empty(),
        Json::Array(list) => list.is_empty(),
        Json::Object(object) => object.is_empty(),
        Json::Bool(true) | Json::Number(_) => false,
    };
    match FOREIGN.iter().find(|(other, _)| *other == name) {
        None => is_empty,
        Some((_, Neutral::Any)) => true,
        Some((_, Neutral::Empty)) => is_empty || integer_of(value).is_some_and(|n| n == 0 || n == -1),
        Some((_, Neutral::True)) => *value == Json::Bool(true),
        Some((_, Neutral::One)) => integer_of(value) == Some(1),
    }
}

fn has_no_effect(value: &Json) -> bool {
    match value {
        Json::Null | Json::Bool(false) => true,
        Json::Array(list) => list.is_empty(),
        Json::Object(object) => object.is_empty(),
        value => integer_of(value) == Some(1),
    }
}

/// Returns true if one inserted, removed, replaced, or swapped character makes the names equal. Short names are too
/// similar to tell a typo from another field.
fn is_typo(name: &str, known: &str) -> bool {
    const MIN_LEN: usize = 6;
    let (a, b) = (name.as_bytes(), known.as_bytes());
    if a == b || a.len().max(b.len()) < MIN_LEN || a.len().abs_diff(b.len()) > 1 {
        return false;
    }
    let n_start = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    let n_end = a.iter().rev().zip(b.iter().rev()).take_while(|(x, y)| x == y).count();
    let n_same = |len: usize| (n_start + n_end).min(len);
    let (rest_a, rest_b) = (a.len() - n_same(a.len()), b.len() - n_same(b.len()));
    let is_swapped = rest_a == 2 && rest_b == 2 && a[n_start] == b[n_start + 1] && a[n_start + 1] == b[n_start];
    rest_a.max(rest_b) <= 1 || is_swapped
}

/// Returns true if a name can be put into an HTTP header.
fn is_word(name: &str) -> bool {
    name.len() <= 40 && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.".contains(&b))
}
