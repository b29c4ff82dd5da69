//! Fields that all interfaces have in common which generate text: how tokens are chosen, and where texts end.

use std::time::Duration;

use engine::grammar::Grammar;
use engine::sample::{Allowed, LogitBias, PARAMS, SamplerParams, Token};
use serde_json::Value as Json;

use super::error::{ApiError, ApiResult};
use super::fields::{Field, Fields, Form, integer_of, name_of, shown, text_of};
use crate::scheduler::Request;

/// The fields; those of the sampler chain come from the engine's table.
pub const GENERATING: &[Field] = &[
    Field {
        name: "stop",
        form: Form::Any,
        doc: "A text or up to 16 that end an answer before them.",
    },
    Field {
        name: "ignore_eos",
        form: Form::Flag,
        doc: "Never end an answer by itself, unless it has to be something that is complete.",
    },
    Field {
        name: "cache_prompt",
        form: Form::Flag,
        doc: "Use what other requests have computed of the same beginning (true).",
    },
    Field {
        name: "priority",
        form: Form::Integer,
        doc: "Requests with greater numbers are begun first (0).",
    },
    Field {
        name: "t_max_predict_ms",
        form: Form::Integer,
        doc: "Most milliseconds from the first token on.",
    },
    Field {
        name: "t_max_ms",
        form: Form::Integer,
        doc: "Most milliseconds from the request on, waiting included: the answer then ends with what it has, as if it had all its tokens.",
    },
    Field {
        name: "reasoning_control",
        form: Form::Flag,
        doc: "What is thought in the answer to a conversation can be ended by `/v1/chat/completions/control` (false).",
    },
    ignored("timings_per_token", "The end of an answer has its times."),
    ignored("return_progress", "The end of an answer has its times."),
    ignored("verbose", "All is told that there is."),
    ignored(
        "sse_ping_interval",
        "A stream has a sign of life after 15 s without a word.",
    ),
    ignored("backend_sampling", "Where tokens are chosen changes none."),
];

/// A field of llama-server's that changes no answer.
pub const fn ignored(name: &'static str, doc: &'static str) -> Field {
    Field {
        name,
        form: Form::Ignored,
        doc,
    }
}

/// Texts that end an answer.
const MAX_STOPS: usize = 16;
/// Bytes of each.
const MAX_STOP: usize = 1024;

/// Most tokens of an answer where neither the request nor the server says how many: some fifteen pages, more than answers have that end.
pub const USUAL_LIMIT: usize = 8192;
/// The same of models that think before they answer, with what they think: as many as their makers give hard questions.
pub const USUAL_LIMIT_OF_THINKING: usize = 32_768;
/// The limit of an answer that has none but the context.
pub const NO_LIMIT: usize = usize::MAX;

/// What holds for requests that say nothing else.
#[derive(Clone, Debug, Default)]
pub struct Defaults {
    /// How tokens are chosen.
    pub sampler: SamplerParams,
    /// Texts that end an answer.
    pub stop: Vec<String>,
    /// Never end an answer by itself.
    pub ignore_eos: bool,
    /// Most tokens of an answer, [`NO_LIMIT`] for as many as there is room for; `None`: as many as is usual.
    pub max_tokens: Option<usize>,
    /// What answers have to be that call no functions.
    pub grammar: Option<Grammar>,
}

impl Defaults {
    /// Most tokens of an answer. A model that finds no end would otherwise go on until the context is full, and keep the others' place meanwhile.
    pub fn limit(&self, thinks: bool) -> usize {
        self.max_tokens.unwrap_or(match thinks {
            true => USUAL_LIMIT_OF_THINKING,
            false => USUAL_LIMIT,
        })
    }
}

/// Reads the fields into a request that has defaults; `prompt` is yet to come.
pub fn generating(fields: &mut Fields, defaults: &Defaults) -> ApiResult<Request> {
    let mut request = Request::new(Vec::new());
    request.sampler = sampler(fields, &defaults.sampler)?;
    request.stop = match fields.given("stop") {
        None => defaults.stop.clone(),
        Some(_) => stops(fields)?,
    };
    request.ignore_eos = fields.flag("ignore_eos")?.unwrap_or(defaults.ignore_eos);
    request.reuse = fields.flag("cache_prompt")?.unwrap_or(true);
    request.reasoning_control = fields.flag("reasoning_control")?.unwrap_or(false);
    let priority = fields.integer("priority")?.unwrap_or(0);
    request.priority = priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
    // Less than nothing is no limit, as in other servers.
    let mut time = |name| -> ApiResult<Option<Duration>> {
        let ms = fields.integer(name)?.and_then(|ms| u64::try_from(ms).ok());
        Ok(ms.filter(|&ms| ms > 0).map(Duration::from_millis))
    };
    request.t_max = time("t_max_predict_ms")?;
    request.deadline = time("t_max_ms")?;
    Ok(request)
}

/// Most tokens, by the first of these names that is given; `least` is the least that makes sense.
pub fn max_tokens(fields: &mut Fields, names: &[&str], least: i64) -> ApiResult<Option<usize>> {
    let mut found = None;
    for name in names {
        let Some(n) = fields.integer(name)? else { continue };
        let wrong = || ApiError::field(name, format_args!("expected at least {least}, found {n}"));
        let n = usize::try_from(n).ok().filter(|_| n >= least).ok_or_else(wrong)?;
        found = found.or(Some(n));
    }
    Ok(found)
}

/// Most tokens as llama-server and Ollama have them: less than nothing is no limit.
pub fn limit(n: i64) -> usize {
    usize::try_from(n).unwrap_or(NO_LIMIT)
}

/// The least and the greatest number that a field may have.
pub fn between(name: &str, value: Option<i64>, least: i64, most: i64) -> ApiResult<Option<usize>> {
    match value {
        Some(n) if !(least..=most).contains(&n) => Err(ApiError::field(
            name,
            format_args!("expected {least} to {most}, found {n}"),
        )),
        n => Ok(n.map(|n| n as usize)),
    }
}

fn sampler(fields: &mut Fields, defaults: &SamplerParams) -> ApiResult<SamplerParams> {
    let mut params = defaults.clone();
    for def in PARAMS {
        let name = name_of(def);
        let Some(value) = fields.take(name) else { continue };
        if def.name == "logit_bias" {
            params.logit_bias.extend(biases(&value)?);
            continue;
        }
        let found = shown(&value);
        let wrong = || ApiError::field(name, format_args!("found {found}: {}", def.doc));
        let texts = match (def.name, value) {
            ("samplers", Json::Array(list)) => {
                let names: Option<Vec<String>> = list.into_iter().map(text_of).collect();
                vec![names.ok_or_else(wrong)?.join(";")]
            }
            (_, Json::Array(list)) if matches!(def.allowed, Allowed::Count(_)) => {
                let texts: Option<Vec<String>> = list.into_iter().map(text_of).collect();
                texts.ok_or_else(wrong)?
            }
            (_, Json::String(text)) => vec![text],
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
    Ok(params)
}

/// Biases as OpenAI's object of token ids, or as llama.cpp's list of pairs, where false bans a token.
fn biases(value: &Json) -> ApiResult<Vec<LogitBias>> {
    let wrong = |what: &dyn std::fmt::Display| {
        ApiError::field("logit_bias", format_args!("expected numbers by token id, found {what}"))
    };
    let bias = |token: Option<Token>, bias: &Json| -> Option<LogitBias> {
        let bias = match bias {
            Json::Bool(false) => f32::NEG_INFINITY,
            bias => bias.as_f64().filter(|x| x.is_finite())? as f32,
        };
        Some(LogitBias { token: token?, bias })
    };
    let id = |value: &Json| value.as_u64().and_then(|id| Token::try_from(id).ok());
    match value {
        Json::Object(by_token) => {
            let read = |(token, value): (&String, &Json)| bias(token.parse().ok(), value).ok_or_else(|| wrong(token));
            by_token.iter().map(read).collect()
        }
        Json::Array(pairs) => {
            let read = |pair: &Json| match pair.as_array().map(Vec::as_slice) {
                Some([token, value]) => bias(id(token), value),
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
            format_args!("expected at most {MAX_STOPS} texts of at most {MAX_STOP} bytes"),
        ));
    }
    Ok(stops)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Json) -> ApiResult<Request> {
        let Json::Object(body) = body else { unreachable!() };
        let mut fields = Fields::new(body, &[GENERATING], true)?;
        let request = generating(&mut fields, &Defaults::default())?;
        fields.finish()?;
        Ok(request)
    }

    /// Every parameter of the chain has a field that takes its default.
    #[test]
    fn parameters_of_the_chain_are_fields() {
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
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        for (body, name) in [
            (json!({"top_p": 1.5}), "top_p"),
            (json!({"top_k": "many"}), "top_k"),
            (json!({"temperature": []}), "temperature"),
            (json!({"seed": -2}), "seed"),
            (json!({"stop": 3}), "stop"),
            (json!({"stop": vec!["a"; 17]}), "stop"),
            (json!({"logit_bias": {"a": 1}}), "logit_bias"),
            (json!({"logit_bias": [[1]]}), "logit_bias"),
            (json!({"samplers": [1]}), "samplers"),
        ] {
            let error = read(body).err().expect(name);
            assert_eq!(error.param.as_deref(), Some(name), "{}", error.message);
        }
    }

    #[test]
    fn biases_come_in_two_forms() {
        let of = |body| read(json!({ "logit_bias": body })).unwrap().sampler.logit_bias;
        let expected = [LogitBias { token: 5, bias: -1.5 }];
        assert_eq!(of(json!({"5": -1.5})), expected);
        assert_eq!(of(json!([[5, -1.5]])), expected);
        assert_eq!(of(json!([[5, false]]))[0].bias, f32::NEG_INFINITY);
    }

    #[test]
    fn limits_of_tokens() {
        let read = |body: Json, least| {
            let Json::Object(body) = body else { unreachable!() };
            const TABLE: &[Field] = &[
                Field {
                    name: "max_tokens",
                    form: Form::Integer,
                    doc: "",
                },
                Field {
                    name: "n_predict",
                    form: Form::Integer,
                    doc: "",
                },
            ];
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
        assert_eq!([limit(0), limit(7), limit(-1)], [0, 7, NO_LIMIT]);
        let said = |max_tokens| Defaults {
            max_tokens,
            ..Defaults::default()
        };
        assert_eq!([false, true].map(|thinks| said(None).limit(thinks)), [8192, 32_768]);
        assert_eq!([false, true].map(|thinks| said(Some(3)).limit(thinks)), [3, 3]);
    }
}
