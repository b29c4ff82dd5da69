//! llama-server's `/completion` and `/infill`.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use llama::parts::MediaPrompt;
use serde_json::{Map, Value as Json, json};

use super::answer::{Finished, stop};
use super::indent::Indent;
use super::infill::{INFILL_FIELDS, read_infill};
use super::settings::settings_json;
use crate::api::{
    ApiError, ApiResult, Field, Fields, GENERATION_FIELDS, KnownFields, STRUCTURE_FIELDS, between, generating, limit,
    structure, text_of,
};
use crate::app::{App, Shared};
use crate::chat::{OutputDelta, OutputParser, OutputStream, Usage};
use crate::encoding::begin;
use crate::http::{Body, Client, EventEncoder, json, stream, warned};
use crate::openai::{
    Prompts, chat_logprob_json, event, failed, probability_json, progress_json, prompt_list, timings_json,
};
use crate::scheduler::{Finish, LogprobSource, PromptProgress, Request, TokenLogprob};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any(
        "prompt",
        "String, list of tokens and strings, or object with `prompt_string` and `multimodal_data`, a list of images or audio files as base64. Each `<__media__>` in the string is replaced by the next file. A list of prompts returns a list of responses.",
    ),
    Field::integer(
        "n_predict",
        "Maximum completion tokens; -1: until the model stops or the context is full (`-n`).",
    ),
    Field::integer("max_tokens", "Alias of `n_predict`."),
    Field::flag("stream", "Stream the output (false; in Ollama's API true)."),
    Field::integer(
        "n_probs",
        "Return log probabilities of tokens and of this number of alternatives, up to 1024 (0).",
    ),
    Field::flag(
        "post_sampling_probs",
        "Return the probabilities after all samplers instead (false).",
    ),
    Field::integer(
        "n_indent",
        "Stop before a line with fewer leading whitespace characters; the first line is exempt (0: off).",
    ),
    Field::list(
        "response_fields",
        "Response fields to return, such as `content` or `timings/prompt_n`; each keeps its path as key (all).",
    ),
    Field::flag(
        "return_tokens",
        "Return the output tokens in `tokens`; streams always have them (false).",
    ),
    Field::ignored("t_max_prompt_ms", "Ignored; prefill always completes."),
    Field::ignored("n_keep", "Ignored; prompts are never truncated."),
    Field::ignored("n_discard", "Ignored; prompts are never truncated."),
    Field::ignored("n_cache_reuse", "Ignored; cached prefixes of any length are reused."),
    Field::ignored("model", "Ignored."),
    Field::ignored("id_slot", "Ignored; the slot is chosen by its cached prefix."),
];

/// Maximum number of entries in `response_fields`.
const MAX_NAMES: usize = 64;
/// Maximum number of prompts per request.
const MAX_PROMPTS: usize = 256;
/// Maximum number of alternative tokens per position.
const MAX_PROBABILITIES: i64 = 1024;

/// Kind of completion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CompletionKind {
    Plain,
    Infill,
}

struct ResponseMeta {
    /// Tokens of the prompts.
    prompts: Vec<Vec<Token>>,
    /// True if the request has a list of prompts.
    is_list: bool,
    /// Source of the returned probabilities; `None` returns none.
    probabilities: Option<LogprobSource>,
    /// Return the output tokens.
    tokens: bool,
    is_stream: bool,
    /// Each event has the times up to that event.
    timings_per_token: bool,
    n_indent: usize,
    /// Names of the response fields to return; `None` returns all.
    only: Option<Vec<String>>,
    /// Settings of the request, as `generation_settings`.
    settings: Json,
    /// Names of ignored fields for the warning header.
    ignored_fields: Vec<String>,
}

/// Handles `POST /completion`.
pub async fn completion(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Body(body): Body,
) -> ApiResult {
    run(app, client, body, CompletionKind::Plain).await
}

/// Handles `POST /infill`.
pub async fn infill(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    run(app, client, body, CompletionKind::Infill).await
}

async fn run(app: Shared, client: Client, body: Map<String, Json>, kind: CompletionKind) -> ApiResult {
    let read = move |app: &App| read(app, client, body, kind);
    let (mut completion, meta) = begin(&app, client, read, start).await?;
    let (ignored_fields, is_list) = (meta.ignored_fields.clone(), meta.is_list);
    let mut encoder = CompletionStream {
        answer: Answer::new(0, &meta, Usage::default()),
        app,
        meta,
    };
    if encoder.meta.is_stream {
        return Ok(warned(stream(completion, encoder), &ignored_fields));
    }
    let mut bodies = Vec::new();
    while let Some(piece) = completion.next().await {
        if let OutputDelta::Failed(error) = piece {
            return Err(error);
        }
        bodies.extend(encoder.take(piece, &completion.usage));
        if encoder.is_over() {
            bodies.push(encoder.last(&completion.usage));
            break;
        }
    }
    let body = match bodies.pop() {
        Some(body) if !is_list => body,
        last => bodies.into_iter().chain(last).collect::<Vec<Json>>().into(),
    };
    Ok(warned(json(&body), &ignored_fields))
}

/// Reads the prompts and all other fields.
fn read(
    app: &App,
    Client(client): Client,
    body: Map<String, Json>,
    kind: CompletionKind,
) -> ApiResult<(Prompts, (Request, ResponseMeta))> {
    let service = &app.service;
    let tables: &[&[Field]] = match kind {
        CompletionKind::Plain => &[FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
        CompletionKind::Infill => &[FIELDS, INFILL_FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
    };
    let known = KnownFields { tables, sampling: true };
    let (mut fields, ignored_fields) = Fields::lenient(body, known, "field")?;
    let mut request = generating(&mut fields, &service.params.defaults)?;
    request.client = client;
    let prompts = match kind {
        CompletionKind::Infill => Prompts::one(read_infill(&mut fields)?.prompt(service)?),
        CompletionKind::Plain => prompt_list(&mut fields, "prompt", MAX_PROMPTS, service)?,
    };
    let (n_predict, max_tokens) = (fields.integer("n_predict")?, fields.integer("max_tokens")?);
    request.max_tokens = n_predict.or(max_tokens).map(limit);
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let tokens = fields.flag("return_tokens")?.unwrap_or(false);
    let probabilities = probabilities(&mut fields, &mut request, tokens || is_stream)?;
    // Negative values count as 0.
    let n_indent = fields.integer("n_indent")?.and_then(|n| usize::try_from(n).ok());
    if n_indent.is_some_and(|n| n > 0) && prompts.n_prompts() > 1 {
        return Err(ApiError::field("n_indent", "cannot be combined with several prompts"));
    }
    let only = only(&mut fields)?;
    request.constraint = service.constraint(structure(&mut fields)?.as_ref())?;
    fields.finish()?;
    service.resolve_biases(&mut request);
    let meta = ResponseMeta {
        settings: settings_json(service, &request, is_stream),
        probabilities,
        tokens,
        is_stream,
        timings_per_token: request.diagnostics.timings_per_token,
        n_indent: n_indent.unwrap_or(0),
        only,
        ignored_fields,
        is_list: prompts.is_list,
        prompts: Vec::new(),
    };
    Ok((prompts, (request, meta)))
}

/// Starts the completions of all prompts.
fn start(
    app: &App,
    prompts: Prompts,
    (request, mut meta): (Request, ResponseMeta),
) -> ApiResult<(OutputStream, ResponseMeta)> {
    let service = &app.service;
    let prompts = prompts.tokenized(service)?;
    let submit = |prompt: &MediaPrompt| -> ApiResult<_> {
        let request = Request {
            prompt: prompt.tokens.clone(),
            images: prompt.media.clone(),
            ..request.clone()
        };
        let submitted = service.submit(request).map_err(|e| ApiError::from(e).of_prompt());
        submitted.map(|events| (events, 1))
    };
    let submitted = prompts.iter().map(submit).collect::<ApiResult<Vec<_>>>()?;
    meta.prompts = prompts.into_iter().map(|prompt| prompt.tokens).collect();
    Ok((OutputStream::new(submitted, &OutputParser::none()), meta))
}

/// Reads the fields of probabilities into the request. Returns their source if the response has them.
fn probabilities(fields: &mut Fields, request: &mut Request, wants_tokens: bool) -> ApiResult<Option<LogprobSource>> {
    let n_probs = between("n_probs", fields.integer("n_probs")?, 0, MAX_PROBABILITIES)?;
    let source = match fields.flag("post_sampling_probs")? {
        Some(true) => LogprobSource::Samplers,
        _ => LogprobSource::Model,
    };
    match n_probs {
        Some(n) if n > 0 => {
            (request.logprobs, request.logprob_source) = (Some(n), source);
            return Ok(Some(source));
        }
        // Events carry token ids only with log probabilities.
        _ if wants_tokens => (request.logprobs, request.logprob_source) = (Some(0), LogprobSource::Ids),
        _ => {}
    }
    Ok(None)
}

/// Reads `response_fields`; an empty list selects all.
fn only(fields: &mut Fields) -> ApiResult<Option<Vec<String>>> {
    let Some(list) = fields.list("response_fields")?.filter(|list| !list.is_empty()) else {
        return Ok(None);
    };
    let names: Option<Vec<String>> = list.into_iter().take(MAX_NAMES).map(text_of).collect();
    let wrong = || ApiError::field("response_fields", "expected a list of strings");
    names.ok_or_else(wrong).map(Some)
}

/// A response in progress.
struct CompletionStream {
    app: Shared,
    meta: ResponseMeta,
    answer: Answer,
}

/// Answer to the current prompt.
struct Answer {
    /// Index of the prompt.
    index: usize,
    indent: Indent,
    finish: Option<Finish>,
    /// Text and log probabilities that are returned at the end; a stream has sent them before.
    content: String,
    logprobs: Vec<TokenLogprob>,
    has_new_line: bool,
    /// Usage of the earlier prompts.
    before: Usage,
}

impl Answer {
    fn new(index: usize, meta: &ResponseMeta, before: Usage) -> Answer {
        Answer {
            index,
            indent: Indent::new(meta.n_indent),
            finish: None,
            content: String::new(),
            logprobs: Vec::new(),
            has_new_line: false,
            before,
        }
    }

    fn stop(&self) -> (&'static str, &str) {
        if self.indent.is_over() {
            return ("limit", "");
        }
        stop(self.finish.as_ref())
    }
}

impl CompletionStream {
    /// Adds a piece of output. Returns the object of a stream's event, or the final object of a prompt.
    fn take(&mut self, piece: OutputDelta, usage: &Usage) -> Option<Json> {
        match piece {
            OutputDelta::Text { content, logprob, .. } => {
                let content = self.answer.indent.push(&content, false);
                self.answer.has_new_line |= content.contains('\n');
                if self.meta.is_stream {
                    let mut part = self.part(content);
                    self.add(&mut part, logprob.as_slice(), true);
                    if self.meta.timings_per_token {
                        part["timings"] = timings_json(&usage.since(&self.answer.before));
                    }
                    return Some(part);
                }
                self.answer.content += &content;
                self.answer.logprobs.extend(logprob);
                None
            }
            OutputDelta::End { finish, .. } => {
                self.answer.finish = Some(finish);
                let last = self.last(usage);
                self.answer = Answer::new(self.answer.index + 1, &self.meta, usage.clone());
                Some(last)
            }
            _ => None,
        }
    }

    /// Returns the object of an event before the end.
    fn part(&self, content: String) -> Json {
        json!({ "index": self.answer.index, "content": content, "tokens": [], "stop": false })
    }

    /// Returns the final object of the current prompt.
    fn last(&mut self, usage: &Usage) -> Json {
        let usage = usage.since(&self.answer.before);
        self.answer.content += &self.answer.indent.push("", true);
        let answer = &self.answer;
        let prompt = self.meta.prompts.get(answer.index).map(Vec::as_slice);
        let finished = Finished {
            index: answer.index,
            content: &answer.content,
            prompt: prompt.unwrap_or_default(),
            settings: &self.meta.settings,
            stop: answer.stop(),
            is_truncated: answer.finish == Some(Finish::ContextFull),
            has_new_line: answer.has_new_line,
            usage: &usage,
        };
        let mut last = finished.json(&self.app.service);
        if !self.meta.is_stream {
            self.add(&mut last, &answer.logprobs, self.meta.tokens);
        }
        self.only(last)
    }

    /// Adds log probabilities and token ids, if requested.
    fn add(&self, body: &mut Json, logprobs: &[TokenLogprob], tokens: bool) {
        if let Some(source) = self.meta.probabilities {
            let vocab = self.app.service.vocab();
            let probability = |l: &TokenLogprob| match source {
                LogprobSource::Samplers => probability_json(vocab, l),
                _ => chat_logprob_json(vocab, l),
            };
            body["completion_probabilities"] = logprobs.iter().map(probability).collect::<Vec<_>>().into();
        }
        if tokens {
            body["tokens"] = logprobs.iter().map(|l| l.token).collect::<Vec<_>>().into();
        }
    }

    /// Reduces a response object to the requested fields.
    fn only(&self, body: Json) -> Json {
        let Some(names) = &self.meta.only else { return body };
        let found = names.iter().filter_map(|name| {
            let found = name.split('/').try_fold(&body, |body, part| body.get(part))?;
            Some((name.clone(), found.clone()))
        });
        Json::Object(found.collect())
    }
}

impl EventEncoder for CompletionStream {
    fn piece(&mut self, piece: OutputDelta, usage: &Usage) -> String {
        if let OutputDelta::Failed(error) = piece {
            return failed(&error);
        }
        self.take(piece, usage).map_or_else(String::new, |body| event(&body))
    }

    fn progress(&mut self, choice: usize, progress: &PromptProgress) -> String {
        let mut part = json!({ "index": choice, "content": "", "tokens": [], "stop": false });
        part["prompt_progress"] = progress_json(progress);
        part["timings"] = timings_json(&Usage::of_progress(progress));
        event(&part)
    }

    fn is_over(&self) -> bool {
        self.answer.indent.is_over()
    }

    fn end(&mut self, usage: &Usage) -> String {
        // The last event of each prompt was already sent.
        if self.is_over() {
            event(&self.last(usage))
        } else {
            String::new()
        }
    }
}
