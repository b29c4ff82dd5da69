//! Request fields of all routes that generate text: sampling, stop conditions, and limits.

use std::time::Duration;

use engine::grammar::Grammar;
use engine::sample::{LogitBias, NumberRange, PARAMS, SamplerParams, Token};
use serde_json::Value as Json;

use super::error::{ApiError, ApiResult};
use super::field::{Field, name_of};
use super::fields::Fields;
use super::value::{adapter_scales, integer_of, shown, text_of};
use crate::scheduler::{Diagnostics, Request};

/// Fields of all generating routes. The sampling parameters are listed in the engine.
pub const GENERATION_FIELDS: &[Field] = &[
    Field::any(
        "stop",
        "String or list of up to 16 strings; generation stops before the first that occurs.",
    ),
    Field::list(
        "stop_token_ids",
        "Up to 64 token ids; each ends the completion and is not part of it.",
    ),
    Field::integer(
        "min_tokens",
        "Number of tokens before the model, a stop token or a stop string may end the completion, except where structured output is complete (0).",
    ),
    Field::flag(
        "ignore_eos",
        "Ignore end-of-sequence tokens and keep generating, except where structured output is complete (false).",
    ),
    Field::flag("cache_prompt", "Reuse the cached prefix of earlier requests (true)."),
    Field::list(
        "lora",
        "LoRA adapters of the request: objects with `id` and `scale`; omitted adapters get scale 0 (the scales of the server).",
    ),
    Field::integer("priority", "Scheduling priority; higher values start first (0)."),
    Field::integer(
        "t_max_predict_ms",
        "Time limit for generation in milliseconds, from the first token.",
    ),
    Field::integer(
        "t_max_ms",
        "Time limit for the request in milliseconds, including queueing; the partial output is returned with finish reason `length`.",
    ),
    Field::flag(
        "reasoning_control",
        "Let `/v1/chat/completions/control` end the reasoning of this completion (false).",
    ),
    Field::flag(
        "timings_per_token",
        "Send the times with each event, not only with the last one; with `stream` (false).",
    ),
    Field::flag(
        "return_progress",
        "Send events with the progress of the prompt; with `stream` (false).",
    ),
    Field::flag(
        "verbose",
        "Return the prompt, the settings, and the unparsed output in `__verbose`; on `/v1/chat/completions` and `/v1/completions` (`-v`).",
    ),
    Field::ignored(
        "sse_ping_interval",
        "Ignored; a stream sends a ping after 15 s of silence.",
    ),
    Field::ignored(
        "backend_sampling",
        "Ignored; the output does not depend on the sampling backend.",
    ),
];

/// Maximum number of stop strings.
const MAX_STOPS: usize = 16;
/// Maximum number of token ids that end a completion.
const MAX_STOP_TOKENS: usize = 64;
/// Maximum length of a stop string in bytes.
const MAX_STOP: usize = 1024;

/// Default limit of a completion in tokens, about fifteen pages. It stops models that never emit an
/// end-of-sequence token.
pub const DEFAULT_MAX_TOKENS: usize = 8192;
/// Default limit for reasoning models in tokens, reasoning included. Matches the vendors' recommendation for
/// hard questions.
pub const DEFAULT_MAX_TOKENS_REASONING: usize = 32_768;
/// Limit of a completion that only the context size bounds.
pub const NO_LIMIT: usize = usize::MAX;

/// Default values for requests that do not set a field.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// Sampling parameters.
    pub sampler: SamplerParams,
    /// Stop strings.
    pub stop: Vec<String>,
    /// Whether to ignore end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Maximum tokens per completion, [`NO_LIMIT`] for the context size. `None` selects
    /// [`DEFAULT_MAX_TOKENS`] or [`DEFAULT_MAX_TOKENS_REASONING`].
    pub max_tokens: Option<usize>,
    /// Grammar for completions without tools.
    pub grammar: Option<Grammar>,
    /// Whether to reject requests with unknown fields that could change the output.
    pub strict_fields: bool,
    /// Whether responses have the prompt, the settings, and the unparsed output.
    pub verbose: bool,
}

impl Defaults {
    /// Returns the maximum tokens per completion. Without a limit, a model that never stops would fill the
    /// context and block other requests.
    pub fn limit(&self, has_reasoning: bool) -> usize {
        self.max_tokens.unwrap_or(if has_reasoning {
            DEFAULT_MAX_TOKENS_REASONING
        } else {
            DEFAULT_MAX_TOKENS
        })
    }
}

/// Reads the fields into a request without a prompt.
pub fn generating(fields: &mut Fields, defaults: &Defaults) -> ApiResult<Request> {
    if defaults.strict_fields {
        fields.refuse_ignored()?;
    }
    let mut request = Request::new(Vec::new());
    (request.sampler, request.text_biases) = sampler(fields, &defaults.sampler)?;
    request.stop = match fields.given("stop") {
        None => defaults.stop.clone(),
        Some(_) => stops(fields)?,
    };
    request.stop_tokens = stop_tokens(fields)?.into();
    request.min_tokens = between("min_tokens", fields.integer("min_tokens")?, 0, i32::MAX.into())?.unwrap_or(0);
    request.ignore_eos = fields.flag("ignore_eos")?.unwrap_or(defaults.ignore_eos);
    request.reuse = fields.flag("cache_prompt")?.unwrap_or(true);
    request.lora = match fields.list("lora")? {
        None => None,
        Some(list) => Some(adapter_scales(&list).map_err(|wrong| ApiError::field("lora", wrong))?),
    };
    request.progress = fields.flag("return_progress")?.unwrap_or(false);
    request.diagnostics = Diagnostics {
        timings_per_token: fields.flag("timings_per_token")?.unwrap_or(false),
        verbose: fields.flag("verbose")?.unwrap_or(defaults.verbose),
    };
    request.reasoning_control = fields.flag("reasoning_control")?.unwrap_or(false);
    let priority = fields.integer("priority")?.unwrap_or(0);
    request.priority = priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    // As in other servers, a negative value means no limit.
    let mut time = |name| -> ApiResult<Option<Duration>> {
        let ms = fields.integer(name)?.and_then(|ms| u64::try_from(ms).ok());
        Ok(ms.filter(|&ms| ms > 0).map(Duration::from_millis))
    };
    request.t_max = time("t_max_predict_ms")?;
    request.deadline = time("t_max_ms")?;
    Ok(request)
}

/// Reads a token limit from the first of several alias fields that is set. -1 means no limit; other values
/// below `least` are rejected.
pub fn max_tokens(fields: &mut Fields, names: &[&str], least: i64) -> ApiResult<Option<usize>> {
    let mut found = None;
    for name in names {
        let Some(n) = fields.integer(name)? else { continue };
        match usize::try_from(n) {
            Ok(limit) if n >= least => found = found.or(Some(limit)),
            _ if n == -1 => found = found.or(Some(NO_LIMIT)),
            _ => {
                return Err(ApiError::field(
                    name,
                    format_args!("expected at least {least}, found {n}"),
                ));
            }
        }
    }
    Ok(found)
}

/// Converts a token limit of llama-server or Ollama; negative means no limit.
pub fn limit(n: i64) -> usize {
    usize::try_from(n).unwrap_or(NO_LIMIT)
}

/// Checks that a value is within `least..=most`.
pub fn between(name: &str, value: Option<i64>, least: i64, most: i64) -> ApiResult<Option<usize>> {
    match value {
        Some(n) if !(least..=most).contains(&n) => Err(ApiError::field(
            name,
            format_args!("expected {least} to {most}, found {n}"),
        )),
        n => Ok(n.map(|n| n as usize)),
    }
}

/// Reads the sampling parameters, and biases of texts.
fn sampler(fields: &mut Fields, defaults: &SamplerParams) -> ApiResult<(SamplerParams, Vec<(String, f32)>)> {
    let (mut params, mut texts_with_bias) = (defaults.clone(), Vec::new());
    for def in PARAMS {
        let name = name_of(def);
        let Some(value) = fields.take(name) else { continue };
        if def.name == "logit_bias" {
            for (key, bias) in biases(&value)? {
                match key {
                    BiasKey::Token(token) => params.logit_bias.push(LogitBias { token, bias }),
                    BiasKey::Text(text) => texts_with_bias.push((text, bias)),
                }
            }
            continue;
        }
        let found = shown(&value);
        let wrong = || ApiError::field(name, format_args!("found {found}: {}", def.doc));
        let texts = match (def.name, value) {
            ("samplers", Json::Array(list)) => {
                let names: Option<Vec<String>> = list.into_iter().map(text_of).collect();
                vec![names.ok_or_else(wrong)?.join(";")]
            }
            (_, Json::Array(list)) if matches!(def.allowed, NumberRange::Count(_)) => {
                let texts: Option<Vec<String>> = list.into_iter().map(text_of).collect();
                texts.ok_or_else(wrong)?
            }
            (_, Json::String(text)) => vec![text],
            (_, Json::Number(number)) if def.name == "seed" && number.is_u64() => vec![number.to_string()],
            (_, value) if def.is_whole || def.name == "seed" => {
                vec![integer_of(&value).ok_or_else(wrong)?.to_string()]
            }
            (_, Json::Number(number)) => vec![number.to_string()],
            _ => return Err(wrong()),
        };
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        params.set(def.name, &texts).map_err(|e| ApiError::field(name, e))?;
    }
    params.check().map_err(|e| ApiError::invalid(e.to_string()))?;
    Ok((params, texts_with_bias))
}

/// Key of a logit bias.
#[derive(Debug, PartialEq)]
enum BiasKey {
    Token(Token),
    /// All tokens of this text.
    Text(String),
}

/// Parses logit biases: OpenAI's object keyed by token id, or llama.cpp's list of pairs. The value `false`
/// bans a token. Both may have texts in place of token ids.
fn biases(value: &Json) -> ApiResult<Vec<(BiasKey, f32)>> {
    let wrong = |what: &dyn std::fmt::Display| {
        ApiError::field(
            "logit_bias",
            format_args!("expected numbers by token id or text, found {what}"),
        )
    };
    let bias = |key: Option<BiasKey>, bias: &Json| -> Option<(BiasKey, f32)> {
        let bias = match bias {
            Json::Bool(false) => f32::NEG_INFINITY,
            bias => bias.as_f64().filter(|x| x.is_finite())? as f32,
        };
        Some((key?, bias))
    };
    let key = |value: &Json| match value {
        Json::String(text) => Some(BiasKey::Text(text.clone())),
        value => value.as_u64().and_then(|id| Some(BiasKey::Token(id.try_into().ok()?))),
    };
    match value {
        Json::Object(by_key) => {
            let key = |text: &str| match text.parse() {
                Ok(token) => BiasKey::Token(token),
                Err(_) => BiasKey::Text(text.to_owned()),
            };
            let read = |(text, value): (&String, &Json)| bias(Some(key(text)), value).ok_or_else(|| wrong(text));
            by_key.iter().map(read).collect()
        }
        Json::Array(pairs) => {
            let read = |pair: &Json| match pair.as_array().map(Vec::as_slice) {
                Some([token, value]) => bias(key(token), value),
                _ => None,
            };
            pairs.iter().map(|pair| read(pair).ok_or_else(|| wrong(pair))).collect()
        }
        other => Err(wrong(&shown(other))),
    }
}

fn stops(fields: &mut Fields) -> ApiResult<Vec<String>> {
    let stops = fields.texts("stop")?;
    if stops.len() > MAX_STOPS || stops.iter().any(|stop| stop.len() > MAX_STOP) {
        return Err(ApiError::field(
            "stop",
            format_args!("expected at most {MAX_STOPS} strings of at most {MAX_STOP} bytes"),
        ));
    }
    Ok(stops)
}

fn stop_tokens(fields: &mut Fields) -> ApiResult<Vec<Token>> {
    let list = fields.list("stop_token_ids")?.unwrap_or_default();
    let ids = list.iter().map(|id| Token::try_from(integer_of(id)?).ok());
    match ids.collect::<Option<Vec<Token>>>() {
        Some(ids) if ids.len() <= MAX_STOP_TOKENS => Ok(ids),
        _ => Err(ApiError::field(
            "stop_token_ids",
            format_args!("expected at most {MAX_STOP_TOKENS} token ids"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Json) -> ApiResult<Request> {
        let Json::Object(body) = body else { unreachable!() };
        let mut fields = Fields::new(body, &[GENERATION_FIELDS], true)?;
        let request = generating(&mut fields, &Defaults::default())?;
        fields.finish()?;
        Ok(request)
    }

    /// Each sampling parameter has a field that accepts its default.
    #[test]
    fn sampling_parameters_are_fields() {
        let mut body = serde_json::Map::new();
        for def in PARAMS.iter().filter(|def| !def.repeatable && def.name != "samplers") {
            let value: Json = serde_json::from_str(&def.default()).expect("a number");
            body.insert(name_of(def).to_owned(), value);
        }
        assert_eq!(read(Json::Object(body)).unwrap().sampler, SamplerParams::default());
        let some =
            read(json!({"samplers": ["top_k", "temperature"], "dry_sequence_breakers": ["x", "\n"], "seed": 7.0}));
        let some = some.unwrap().sampler;
        assert_eq!(
            (some.samplers.len(), some.dry_sequence_breakers.len(), some.seed),
            (2, 2, Some(7))
        );
        for (seed, expected) in [(json!(-2), 4_294_967_294), (json!(u64::MAX), u64::MAX)] {
            assert_eq!(read(json!({"seed": seed})).unwrap().sampler.seed, Some(expected));
        }
    }

    #[test]
    fn out_of_range_field_is_rejected_by_name() {
        for (body, name) in [
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": "many"}), "top_k"),
            (json!({"temperature": []}), "temperature"),
            (json!({"seed": -2.5}), "seed"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"stop_token_ids": 2}), "stop_token_ids"),
            (json!({"stop_token_ids": [-2]}), "stop_token_ids"),
            (json!({"min_tokens": -1}), "min_tokens"),
            (json!({"lora": {"0": 1}}), "lora"),
            (json!({"lora": [{"id": -1, "scale": 1}]}), "lora"),
            (json!({"lora": [{"id": 0}]}), "lora"),
            (json!({"logit_bias": {"a": "b"}}), "logit_bias"),
            (json!({"logit_bias": [[1]]}), "logit_bias"),
            (json!({"samplers": [1]}), "samplers"),
        ] {
            let error = read(body).err().expect(name);
            assert_eq!(error.param.as_deref(), Some(name), "{}", error.message);
        }
    }

    #[test]
    fn logit_bias_accepts_object_and_pairs() {
        let of = |body| read(json!({ "logit_bias": body })).unwrap().sampler.logit_bias;
        let expected = [LogitBias { token: 5, bias: -1.5 }];
        assert_eq!(of(json!({"5": -1.5})), expected);
        assert_eq!(of(json!([[5, -1.5]])), expected);
        assert_eq!(of(json!([[5, false]]))[0].bias, f32::NEG_INFINITY);
        let texts = |body| read(json!({ "logit_bias": body })).unwrap().text_biases;
        assert_eq!(texts(json!([[" the ", -100], [5, 1]])), [(" the ".to_owned(), -100.0)]);
        assert_eq!(texts(json!({" the ": -100, "5": 1})), [(" the ".to_owned(), -100.0)]);
    }

    #[test]
    fn token_limits_use_first_alias() {
        let read = |body: Json, least| {
            let Json::Object(body) = body else { unreachable!() };
            const TABLE: &[Field] = &[Field::integer("max_tokens", ""), Field::integer("n_predict", "")];
            max_tokens(
                &mut Fields::new(body, &[TABLE], false).unwrap(),
                &["max_tokens", "n_predict"],
                least,
            )
        };
        assert_eq!(read(json!({"n_predict": 3, "max_tokens": 5}), 1).unwrap(), Some(5));
        assert_eq!(read(json!({}), 1).unwrap(), None);
        assert_eq!(read(json!({"max_tokens": 0}), 0).unwrap(), Some(0));
        assert!(read(json!({"max_tokens": 0}), 1).is_err());
        assert!(read(json!({"max_tokens": -5}), 1).is_err());
        assert_eq!(read(json!({"max_tokens": -1}), 1).unwrap(), Some(NO_LIMIT));
        assert_eq!([limit(0), limit(7), limit(-1)], [0, 7, NO_LIMIT]);
        let defaults_with = |max_tokens| Defaults {
            max_tokens,
            ..Defaults::default()
        };
        assert_eq!(
            [false, true].map(|has_reasoning| defaults_with(None).limit(has_reasoning)),
            [8192, 32_768]
        );
        assert_eq!(
            [false, true].map(|has_reasoning| defaults_with(Some(3)).limit(has_reasoning)),
            [3, 3]
        );
    }
}
