//! `/v1/completions`: texts that are continued as they stand.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use super::logprobs::{Lists, token_text};
use super::{DONE, event, failed, finish_reason, includes_usage, timings_json, usage_json};
use crate::answer::{Answer, Choice, Piece, Usage};
use crate::api::{
    ApiError, ApiResult, Field, Fields, Form, GENERATING, STRUCTURE, between, generating, integer_of, max_tokens,
    structure, text_of,
};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream, unique};
use crate::native::Gap;
use crate::parser::OutputParser;
use crate::scheduler::{PromptDone, Request, TokenLogprob};
use crate::served::Served;

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "prompt",
        form: Form::Any,
        doc: "A text, a list of texts, a list of tokens, or a list of such lists.",
    },
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "max_tokens",
        form: Form::Integer,
        doc: "Most tokens of each text; 0 only rates the prompt.",
    },
    Field {
        name: "n",
        form: Form::Integer,
        doc: "Texts for each prompt, as many as are worked on at once at most (1).",
    },
    Field {
        name: "best_of",
        form: Form::Integer,
        doc: "Texts that are made for each prompt, of which the `n` likeliest by the token are told (as many as `n`); not in a stream.",
    },
    Field {
        name: "stream",
        form: Form::Flag,
        doc: "Tell texts as they come, as events.",
    },
    Field {
        name: "stream_options",
        form: Form::Object,
        doc: "`include_usage`: a last event with counts.",
    },
    Field {
        name: "logprobs",
        form: Form::Integer,
        doc: "Log probabilities of tokens, and of so many most likely ones, up to 20.",
    },
    Field {
        name: "echo",
        form: Form::Flag,
        doc: "The prompt is the beginning of the text.",
    },
    Field {
        name: "suffix",
        form: Form::Text,
        doc: "What stands behind a gap that is filled, with the prompt before it, by a model that was trained for that.",
    },
    Field {
        name: "user",
        form: Form::Ignored,
        doc: "Who asks.",
    },
];

/// Prompts in one request.
const MAX_PROMPTS: usize = 256;
/// Most likely tokens that are told beside each one.
pub(super) const MAX_TOP: i64 = 20;

/// What is told of texts besides themselves.
struct Told {
    id: String,
    created: u64,
    include_usage: bool,
    logprobs: bool,
    /// The prompts, if they are told too.
    echo: Option<Vec<Vec<Token>>>,
    n: usize,
    /// Texts that are made of each prompt.
    n_made: usize,
}

/// Continues texts.
pub async fn completions(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Body(body): Body,
) -> ApiResult {
    let of_app = app.clone();
    let (mut answer, told, is_stream) = blocking(move || ask(&of_app, client, body)).await?;
    if is_stream {
        return Ok(stream(
            answer,
            Stream {
                app,
                told,
                n_chars: Vec::new(),
            },
        ));
    }
    let (choices, prompts) = answer.whole().await?;
    let choices: Vec<Choice> = choices
        .chunks(told.n_made)
        .flat_map(|made| best(made, told.n))
        .collect();
    let choice = |(index, choice): (usize, &Choice)| {
        let prompt = index / told.n;
        let finish = choice.finish.as_ref().map(finish_reason);
        let (begin, logprobs) = begun(&app.served, &told, prompt, &prompts[prompt]);
        let mut lists = logprobs;
        let offset = begin.chars().count();
        for (logprob, at) in &choice.logprobs {
            let at = offset + choice.content[..*at].chars().count();
            lists.push(app.served.vocab(), logprob.token, Some(logprob), at);
        }
        let logprobs = if told.logprobs { lists.json() } else { Json::Null };
        json!({ "index": index, "text": begin + &choice.content, "logprobs": logprobs, "finish_reason": finish })
    };
    let choices: Vec<Json> = choices.iter().enumerate().map(choice).collect();
    let mut body = head(&app, &told, choices);
    body["usage"] = usage_json(&answer.usage);
    body["timings"] = timings_json(&answer.usage);
    Ok(json(&body))
}

/// The likeliest by the token of some texts, best first; all of them as they are.
fn best(made: &[Choice], n: usize) -> Vec<Choice> {
    if made.len() == n {
        return made.to_vec();
    }
    let mean = |choice: &Choice| {
        let sum: f64 = choice
            .logprobs
            .iter()
            .map(|(logprob, _)| f64::from(logprob.logprob))
            .sum();
        sum / choice.logprobs.len().max(1) as f64
    };
    let mut ranked: Vec<&Choice> = made.iter().collect();
    ranked.sort_by(|a, b| mean(b).total_cmp(&mean(a)));
    ranked.into_iter().take(n).cloned().collect()
}

/// What every object begins with.
fn head(app: &App, told: &Told, choices: Vec<Json>) -> Json {
    json!({
        "id": told.id,
        "object": "text_completion",
        "created": told.created,
        "model": app.served.params.name,
        "system_fingerprint": app.served.params.build,
        "choices": choices,
    })
}

/// The prompt as the beginning of the text, with its tokens' log probabilities, if it is told.
fn begun(served: &Served, told: &Told, prompt: usize, done: &PromptDone) -> (String, Lists) {
    let mut lists = Lists::default();
    let Some(tokens) = told.echo.as_ref().map(|prompts| &prompts[prompt]) else {
        return (String::new(), lists);
    };
    let vocab = served.vocab();
    let mut offset = 0;
    for (i, &token) in tokens.iter().enumerate() {
        let logprob: Option<&TokenLogprob> = i.checked_sub(1).and_then(|i| done.logprobs.get(i));
        lists.push(vocab, token, logprob, offset);
        offset += token_text(vocab, token).chars().count();
    }
    (vocab.detokenize(tokens, true, true), lists)
}

fn ask(app: &App, Client(client): Client, body: serde_json::Map<String, Json>) -> ApiResult<(Answer, Told, bool)> {
    let served = &app.served;
    let mut fields = Fields::new(body, &[FIELDS, GENERATING, STRUCTURE], true)?;
    fields.text("model")?;
    let mut request = generating(&mut fields, &served.params.defaults)?;
    request.client = client;
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let prompts = match &suffix {
        None => prompts(&mut fields, "prompt", MAX_PROMPTS, served)?,
        Some(suffix) => gaps(&mut fields, suffix, served)?,
    };
    let n_parallel = served.scheduler.settings().n_parallel;
    request.n = between("n", fields.integer("n")?, 1, n_parallel as i64)?.unwrap_or(1);
    let n_told = request.n;
    let best_of = between("best_of", fields.integer("best_of")?, n_told as i64, n_parallel as i64)?;
    request.n = best_of.unwrap_or(n_told);
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && suffix.is_some() {
        return Err(ApiError::field("echo", "what fills a gap has no prompt before it"));
    }
    request.max_tokens = max_tokens(&mut fields, &["max_tokens"], i64::from(!echo))?;
    request.logprobs = between("logprobs", fields.integer("logprobs")?, 0, MAX_TOP)?;
    request.prompt_logprobs = echo && request.logprobs.is_some();
    let logprobs = request.logprobs.is_some();
    if request.n > n_told {
        // Texts are chosen by them.
        request.logprobs = request.logprobs.or(Some(0));
    }
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    if is_stream && request.n > n_told {
        return Err(ApiError::field(
            "best_of",
            "texts that come piece by piece cannot be chosen from",
        ));
    }
    let include_usage = includes_usage(fields.object("stream_options")?)?;
    request.constraint = served.constraint(structure(&mut fields)?.as_ref())?;
    fields.finish()?;
    let asked = |prompt: &Vec<Token>| -> ApiResult<_> {
        let request = Request {
            prompt: prompt.clone(),
            ..request.clone()
        };
        let (n, submitted) = (request.n, served.submit(request));
        submitted.map(|events| (events, n)).map_err(|e| ApiError {
            param: Some("prompt".to_owned()),
            ..e.into()
        })
    };
    let asked = prompts.iter().map(asked).collect::<ApiResult<Vec<_>>>()?;
    let told = Told {
        id: unique("cmpl-"),
        created: served.now(),
        include_usage,
        logprobs,
        echo: echo.then_some(prompts),
        n: n_told,
        n_made: request.n,
    };
    Ok((Answer::new(asked, &OutputParser::none()), told, is_stream))
}

/// Prompts of gaps between texts and a suffix.
fn gaps(fields: &mut Fields, suffix: &str, served: &Served) -> ApiResult<Vec<Vec<Token>>> {
    let texts = fields.texts("prompt")?;
    if texts.is_empty() || texts.len() > MAX_PROMPTS {
        let what = format_args!("expected 1 to {MAX_PROMPTS} texts, found {}", texts.len());
        return Err(ApiError::field("prompt", what));
    }
    let gap = |before: String| Gap {
        before,
        behind: suffix.to_owned(),
        ..Gap::default()
    };
    texts.into_iter().map(|text| gap(text).prompt(served)).collect()
}

/// Prompts as texts or as tokens.
pub fn prompts(fields: &mut Fields, name: &str, max: usize, served: &Served) -> ApiResult<Vec<Vec<Token>>> {
    let wrong = || {
        ApiError::field(
            name,
            "expected a text, a list of texts, a list of tokens, or a list of such lists",
        )
    };
    let token = |value: &Json| integer_of(value).and_then(|id| Token::try_from(id).ok());
    let tokens = |list: &[Json]| list.iter().map(token).collect::<Option<Vec<Token>>>();
    let all = match fields
        .take(name)
        .ok_or_else(|| ApiError::field(name, "there is none"))?
    {
        Json::String(text) => vec![served.tokens(&text)],
        Json::Array(list) if list.is_empty() => return Err(wrong()),
        Json::Array(list) if list[0].is_number() => vec![tokens(&list).ok_or_else(wrong)?],
        Json::Array(list) if list.len() > max => {
            return Err(ApiError::field(
                name,
                format_args!("expected at most {max}, found {}", list.len()),
            ));
        }
        Json::Array(list) => {
            let one = |value: Json| match value {
                Json::Array(list) => tokens(&list),
                value => text_of(value).map(|text| served.tokens(&text)),
            };
            list.into_iter()
                .map(one)
                .collect::<Option<Vec<_>>>()
                .ok_or_else(wrong)?
        }
        _ => return Err(wrong()),
    };
    Ok(all)
}

struct Stream {
    app: Shared,
    told: Told,
    /// Characters told of each choice.
    n_chars: Vec<usize>,
}

impl Stream {
    fn chunk(&mut self, choice: usize, text: &str, lists: Option<Lists>, finish: Option<&str>) -> String {
        let logprobs = lists.filter(|_| self.told.logprobs).map(Lists::json);
        *self.n_chars(choice) += text.chars().count();
        let choice = json!({ "index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish });
        let mut chunk = head(&self.app, &self.told, vec![choice]);
        if self.told.include_usage {
            chunk["usage"] = Json::Null;
        }
        event(&chunk)
    }

    fn n_chars(&mut self, choice: usize) -> &mut usize {
        let len = self.n_chars.len().max(choice + 1);
        self.n_chars.resize(len, 0);
        &mut self.n_chars[choice]
    }
}

impl Teller for Stream {
    fn piece(&mut self, piece: Piece, _: &Usage) -> String {
        match piece {
            Piece::Prompt { choice, done } => {
                let mut all = String::new();
                let n_echoed = self.told.echo.as_ref().map_or(0, |_| self.told.n);
                for choice in choice..choice + n_echoed {
                    let (text, lists) = begun(&self.app.served, &self.told, choice / self.told.n, &done);
                    all += &self.chunk(choice, &text, Some(lists), None);
                }
                all
            }
            Piece::Text {
                choice,
                content,
                logprob,
                ..
            } => {
                let offset = *self.n_chars(choice);
                let lists = logprob.map(|logprob| {
                    let mut lists = Lists::default();
                    lists.push(self.app.served.vocab(), logprob.token, Some(&logprob), offset);
                    lists
                });
                self.chunk(choice, &content, lists, None)
            }
            Piece::Call { .. } | Piece::Arguments { .. } => String::new(),
            Piece::End { choice, finish, .. } => self.chunk(choice, "", None, Some(finish_reason(&finish))),
            Piece::Failed(text) => failed(&text),
        }
    }

    fn end(&mut self, usage: &Usage) -> String {
        if !self.told.include_usage {
            return DONE.to_owned();
        }
        let mut chunk = head(&self.app, &self.told, Vec::new());
        chunk["usage"] = usage_json(usage);
        chunk["timings"] = timings_json(usage);
        event(&chunk) + DONE
    }
}
