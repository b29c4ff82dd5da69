//! OpenAI's Completions API: `/v1/completions`.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use serde_json::{Value as Json, json};

use super::logprobs::{LogprobLists, token_text};
use super::prompts::prompts;
use super::{DONE, StreamUsage, event, failed, finish_reason, progress_json, stream_usage, timings_json, usage_json};
use crate::api::{
    ApiError, ApiResult, Field, Fields, GENERATION_FIELDS, STRUCTURE_FIELDS, between, generating, limit, max_tokens,
    structure,
};
use crate::app::{App, Shared};
use crate::chat::{Choice, OutputDelta, OutputParser, OutputStream, Usage};
use crate::http::{Body, Client, EventEncoder, blocking, json, stream, unique, warned};
use crate::infill::InfillPrompt;
use crate::native::{settings_json, verbose_json};
use crate::scheduler::{MAX_CHOICES, PromptDone, PromptProgress, Request, TokenLogprob};
use crate::service::ModelService;

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any(
        "prompt",
        "String, list of strings, list of tokens, or list of token lists.",
    ),
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::integer("max_tokens", "Maximum completion tokens; 0 only evaluates the prompt."),
    Field::integer("n", "Choices per prompt, up to 128 (1)."),
    Field::integer("n_predict", "llama-server's name of `max_tokens`; negative: unlimited."),
    Field::integer(
        "best_of",
        "Completions generated per prompt; the `n` with the highest mean log probability are returned (`n`). Not with `stream`.",
    ),
    Field::flag("stream", "Stream the output (false; in Ollama's API true)."),
    Field::object(
        "stream_options",
        "`include_usage`: send a final event with token counts.",
    ),
    Field::integer(
        "logprobs",
        "Return log probabilities of tokens and of this number of alternatives, up to 20.",
    ),
    Field::flag("echo", "Include the prompt in the output (false)."),
    Field::text(
        "suffix",
        "Text after the completion; requires a fill-in-the-middle model.",
    ),
    Field::ignored("user", "Ignored."),
];

/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 256;
/// Maximum number of alternative tokens per position.
pub const MAX_TOP: i64 = 20;

/// Request settings that affect only the format of the response.
struct ResponseMeta {
    id: String,
    created: u64,
    usage: StreamUsage,
    /// Warnings about ignored fields.
    ignored_fields: Vec<String>,
    logprobs: bool,
    /// Prompts to echo in the response.
    echo: Option<Vec<Vec<Token>>>,
    n: usize,
    /// Number of completions generated per prompt.
    n_made: usize,
    /// Each event of a stream has the times up to that event.
    timings_per_token: bool,
    /// Settings of the request, if the response has them.
    settings: Option<Json>,
}

/// Handles `POST /v1/completions`.
pub async fn completions(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Body(body): Body,
) -> ApiResult {
    let shared_app = app.clone();
    let (mut completion, meta, is_stream) = blocking(move || ask(&shared_app, client, body)).await?;
    let ignored_fields = meta.ignored_fields.clone();
    if is_stream {
        let encoder = Stream {
            app,
            meta,
            n_chars: Vec::new(),
            usage: Json::Null,
            timings: None,
        };
        return Ok(warned(stream(completion, encoder), &ignored_fields));
    }
    let (choices, prompts) = completion.whole().await?;
    let choices: Vec<Choice> = choices
        .chunks(meta.n_made)
        .flat_map(|made| best(made, meta.n))
        .collect();
    let choice = |(index, choice): (usize, &Choice)| {
        let prompt = index / meta.n;
        let finish = choice.finish.as_ref().map(finish_reason);
        let (begin, logprobs) = echoed(&app.service, &meta, prompt, &prompts[prompt]);
        let mut lists = logprobs;
        let offset = begin.chars().count();
        for (logprob, at) in &choice.logprobs {
            let at = offset + choice.content[..*at].chars().count();
            lists.push(app.service.vocab(), logprob.token, Some(logprob), at);
        }
        let logprobs = if meta.logprobs { lists.json() } else { Json::Null };
        json!({ "index": index, "text": begin + &choice.content, "logprobs": logprobs, "finish_reason": finish })
    };
    let finish = choices.first().and_then(|choice| choice.finish.clone());
    let choices: Vec<Json> = choices.iter().enumerate().map(choice).collect();
    let mut body = head(&app, &meta, choices);
    if let Some((trace, settings)) = completion.trace.as_deref().zip(meta.settings.as_ref()) {
        body["__verbose"] = verbose_json(&app.service, trace, settings, finish.as_ref(), &completion.usage);
    }
    body["usage"] = usage_json(&completion.usage);
    body["timings"] = timings_json(&completion.usage);
    Ok(warned(json(&body), &ignored_fields))
}

/// Returns the `n` choices with the highest mean log probability, best first; all choices in order if there
/// are only `n`.
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

/// Returns a completion object with the given choices.
fn head(app: &App, meta: &ResponseMeta, choices: Vec<Json>) -> Json {
    json!({
        "id": meta.id,
        "object": "text_completion",
        "created": meta.created,
        "model": app.service.params.name,
        "system_fingerprint": app.service.params.build,
        "choices": choices,
    })
}

/// Returns the echoed prompt with its log probabilities; empty if `echo` is off.
fn echoed(service: &ModelService, meta: &ResponseMeta, prompt: usize, done: &PromptDone) -> (String, LogprobLists) {
    let mut lists = LogprobLists::default();
    let Some(tokens) = meta.echo.as_ref().map(|prompts| &prompts[prompt]) else {
        return (String::new(), lists);
    };
    let vocab = service.vocab();
    let mut offset = 0;
    for (i, &token) in tokens.iter().enumerate() {
        let logprob: Option<&TokenLogprob> = i.checked_sub(1).and_then(|i| done.logprobs.get(i));
        lists.push(vocab, token, logprob, offset);
        offset += token_text(vocab, token).chars().count();
    }
    (vocab.detokenize(tokens, true, true), lists)
}

fn ask(
    app: &App,
    Client(client): Client,
    body: serde_json::Map<String, Json>,
) -> ApiResult<(OutputStream, ResponseMeta, bool)> {
    let service = &app.service;
    let mut fields = Fields::new(body, &[FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS], true)?;
    fields.text("model")?;
    let mut request = generating(&mut fields, &service.params.defaults)?;
    request.client = client;
    let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty());
    let prompts = match &suffix {
        None => prompts(&mut fields, "prompt", MAX_PROMPTS, service, "/v1/completions")?,
        Some(suffix) => gaps(&mut fields, suffix, service)?,
    };
    request.n = between("n", fields.integer("n")?, 1, MAX_CHOICES as i64)?.unwrap_or(1);
    let n_told = request.n;
    let best_of = between("best_of", fields.integer("best_of")?, n_told as i64, MAX_CHOICES as i64)?;
    request.n = best_of.unwrap_or(n_told);
    let echo = fields.flag("echo")?.unwrap_or(false);
    if echo && suffix.is_some() {
        return Err(ApiError::field("echo", "cannot be combined with suffix"));
    }
    let n_predict = fields.integer("n_predict")?.map(limit);
    request.max_tokens = max_tokens(&mut fields, &["max_tokens"], i64::from(!echo))?.or(n_predict);
    request.logprobs = between("logprobs", fields.integer("logprobs")?, 0, MAX_TOP)?;
    request.prompt_logprobs = echo && request.logprobs.is_some();
    let logprobs = request.logprobs.is_some();
    if request.n > n_told {
        // Candidates are ranked by their log probabilities.
        request.logprobs = request.logprobs.or(Some(0));
    }
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    if is_stream && request.n > n_told {
        return Err(ApiError::field("best_of", "cannot be combined with stream"));
    }
    let usage = stream_usage(fields.object("stream_options")?)?;
    request.constraint = service.constraint(structure(&mut fields)?.as_ref())?;
    let ignored_fields = fields.finish()?;
    let submitted = |prompt: &Vec<Token>| -> ApiResult<_> {
        let request = Request {
            prompt: prompt.clone(),
            ..request.clone()
        };
        let (n, submitted) = (request.n, service.submit(request));
        submitted
            .map(|events| (events, n))
            .map_err(|e| ApiError::from(e).of_prompt())
    };
    let submitted = prompts.iter().map(submitted).collect::<ApiResult<Vec<_>>>()?;
    let is_verbose = request.diagnostics.verbose && !is_stream;
    let first = if is_verbose { prompts.first().cloned() } else { None };
    let meta = ResponseMeta {
        id: unique("cmpl-"),
        created: service.now(),
        usage,
        ignored_fields,
        logprobs,
        echo: if echo { Some(prompts) } else { None },
        n: n_told,
        n_made: request.n,
        timings_per_token: request.diagnostics.timings_per_token,
        settings: is_verbose.then(|| settings_json(service, &request, is_stream)),
    };
    let output = OutputStream::new(submitted, &OutputParser::none()).traced(first);
    Ok((output, meta, is_stream))
}

/// Builds fill-in-the-middle prompts from prefixes and a suffix.
fn gaps(fields: &mut Fields, suffix: &str, service: &ModelService) -> ApiResult<Vec<Vec<Token>>> {
    let texts = fields.texts("prompt")?;
    if texts.is_empty() || texts.len() > MAX_PROMPTS {
        let what = format_args!("expected 1 to {MAX_PROMPTS} strings, found {}", texts.len());
        return Err(ApiError::field("prompt", what));
    }
    let gap = |before: String| InfillPrompt {
        before,
        behind: suffix.to_owned(),
        ..InfillPrompt::default()
    };
    texts.into_iter().map(|text| gap(text).prompt(service)).collect()
}

struct Stream {
    app: Shared,
    meta: ResponseMeta,
    /// Number of sent characters by choice.
    n_chars: Vec<usize>,
    /// Value of `usage` in the next event.
    usage: Json,
    /// Times for the next event.
    timings: Option<Json>,
}

impl Stream {
    fn chunk(&mut self, choice: usize, text: &str, lists: Option<LogprobLists>, finish: Option<&str>) -> String {
        let logprobs = match lists {
            Some(lists) if self.meta.logprobs => lists.json(),
            _ => Json::Null,
        };
        *self.n_chars(choice) += text.chars().count();
        let choice = json!({ "index": choice, "text": text, "logprobs": logprobs, "finish_reason": finish });
        let mut chunk = head(&self.app, &self.meta, vec![choice]);
        if self.meta.usage.is_included {
            chunk["usage"] = self.usage.clone();
        }
        if let Some(timings) = &self.timings {
            chunk["timings"] = timings.clone();
        }
        event(&chunk)
    }

    fn n_chars(&mut self, choice: usize) -> &mut usize {
        let len = self.n_chars.len().max(choice + 1);
        self.n_chars.resize(len, 0);
        &mut self.n_chars[choice]
    }
}

impl EventEncoder for Stream {
    fn progress(&mut self, choice: usize, progress: &PromptProgress) -> String {
        let choice = json!({ "index": choice, "text": "", "logprobs": null, "finish_reason": null });
        let mut chunk = head(&self.app, &self.meta, vec![choice]);
        chunk["prompt_progress"] = progress_json(progress);
        event(&chunk)
    }

    fn piece(&mut self, piece: OutputDelta, usage: &Usage) -> String {
        if self.meta.usage.is_continuous {
            self.usage = usage_json(usage);
        }
        if self.meta.timings_per_token {
            self.timings = Some(timings_json(usage));
        }
        match piece {
            OutputDelta::Prompt { choice, done } => {
                let mut all = String::new();
                let n_echoed = self.meta.echo.as_ref().map_or(0, |_| self.meta.n);
                for choice in choice..choice + n_echoed {
                    let (text, lists) = echoed(&self.app.service, &self.meta, choice / self.meta.n, &done);
                    all += &self.chunk(choice, &text, Some(lists), None);
                }
                all
            }
            OutputDelta::Text {
                choice,
                content,
                logprob,
                ..
            } => {
                let offset = *self.n_chars(choice);
                let lists = logprob.map(|logprob| {
                    let mut lists = LogprobLists::default();
                    lists.push(self.app.service.vocab(), logprob.token, Some(&logprob), offset);
                    lists
                });
                self.chunk(choice, &content, lists, None)
            }
            OutputDelta::Call { .. } | OutputDelta::Arguments { .. } => String::new(),
            OutputDelta::End { choice, finish, .. } => self.chunk(choice, "", None, Some(finish_reason(&finish))),
            OutputDelta::Failed(error) => failed(&error),
        }
    }

    fn end(&mut self, usage: &Usage) -> String {
        if !self.meta.usage.is_included {
            return DONE.to_owned();
        }
        let mut chunk = head(&self.app, &self.meta, Vec::new());
        chunk["usage"] = usage_json(usage);
        chunk["timings"] = timings_json(usage);
        event(&chunk) + DONE
    }
}
