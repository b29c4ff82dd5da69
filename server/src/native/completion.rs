//! llama-server's `/completion` and `/infill`.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use serde_json::{Map, Value as Json, json};

use super::indent::Indent;
use super::infill::{INFILL_FIELDS, read_infill};
use crate::api::{
    ApiError, ApiResult, Field, Fields, GENERATION_FIELDS, KnownFields, STRUCTURE_FIELDS, between, generating, limit,
    structure, text_of,
};
use crate::app::{App, Shared};
use crate::chat::{OutputDelta, OutputParser, OutputStream, Usage};
use crate::http::{Body, Client, EventEncoder, blocking, json, stream, warned};
use crate::openai::{chat_logprob_json, event, failed, prompts, timings_json};
use crate::scheduler::{Finish, TokenLogprob};

/// Request fields.
pub const FIELDS: &[Field] = &[
    Field::any("prompt", "String or list of tokens."),
    Field::integer(
        "n_predict",
        "Maximum completion tokens; -1: until the model stops or the context is full (`-n`).",
    ),
    Field::integer("max_tokens", "Alias of `n_predict`."),
    Field::flag("stream", "Stream the output (false; in Ollama's API true)."),
    Field::integer(
        "n_probs",
        "Return log probabilities of tokens and of this number of alternatives, up to 20 (0).",
    ),
    Field::integer(
        "n_indent",
        "Stop before a line with fewer leading whitespace characters; the first line is exempt (0: off).",
    ),
    Field::list(
        "response_fields",
        "Response fields to return, such as `content` or `timings/prompt_n`; each keeps its path as key (all).",
    ),
    Field::flag("return_tokens", "Return the output tokens in `tokens` (false)."),
    Field::ignored("t_max_prompt_ms", "Ignored; prefill always completes."),
    Field::ignored("n_keep", "Ignored; prompts are never truncated."),
    Field::ignored("n_discard", "Ignored; prompts are never truncated."),
    Field::ignored("n_cache_reuse", "Ignored; cached prefixes of any length are reused."),
    Field::ignored("model", "Ignored."),
    Field::ignored("id_slot", "Ignored; the slot is chosen by its cached prefix."),
];

/// Maximum number of entries in `response_fields`.
const MAX_NAMES: usize = 64;

/// Kind of completion.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CompletionKind {
    Plain,
    Infill,
}

struct ResponseMeta {
    prompt: Json,
    prompt_tokens: Vec<Token>,
    logprobs: bool,
    /// Return the output tokens.
    tokens: bool,
    n_indent: usize,
    /// Names of the response fields to return; `None` returns all.
    only: Option<Vec<String>>,
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
    let shared_app = app.clone();
    let (mut completion, meta, is_stream) = blocking(move || ask(&shared_app, client, body, kind)).await?;
    let ignored_fields = meta.ignored_fields.clone();
    let mut encoder = CompletionStream {
        indent: Indent::new(meta.n_indent),
        finish: None,
        app,
        meta,
    };
    if is_stream {
        return Ok(warned(stream(completion, encoder), &ignored_fields));
    }
    let (mut content, mut logprobs) = (String::new(), Vec::new());
    while let Some(piece) = completion.next().await {
        match piece {
            OutputDelta::Text {
                content: text, logprob, ..
            } => {
                content += &encoder.indent.push(&text, false);
                logprobs.extend(logprob);
            }
            OutputDelta::End { finish, .. } => encoder.finish = Some(finish),
            OutputDelta::Failed(text) => return Err(completion.error(text)),
            OutputDelta::Prompt { .. } | OutputDelta::Call { .. } | OutputDelta::Arguments { .. } => {}
        }
        if encoder.is_over() {
            break;
        }
    }
    content += &encoder.indent.push("", true);
    let mut body = encoder.last(&completion.usage);
    body["content"] = content.into();
    encoder.add(&mut body, &logprobs);
    Ok(warned(json(&encoder.only(body)), &ignored_fields))
}

fn ask(
    app: &App,
    Client(client): Client,
    body: Map<String, Json>,
    kind: CompletionKind,
) -> ApiResult<(OutputStream, ResponseMeta, bool)> {
    let service = &app.service;
    let tables: &[&[Field]] = match kind {
        CompletionKind::Plain => &[FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
        CompletionKind::Infill => &[FIELDS, INFILL_FIELDS, GENERATION_FIELDS, STRUCTURE_FIELDS],
    };
    let known = KnownFields { tables, sampling: true };
    let (mut fields, ignored_fields) = Fields::lenient(body, known, "field")?;
    let prompt = fields.given("prompt").cloned().unwrap_or_default();
    let mut request = generating(&mut fields, &service.params.defaults)?;
    request.client = client;
    request.prompt = match kind {
        CompletionKind::Infill => read_infill(&mut fields)?.prompt(service)?,
        CompletionKind::Plain => match &mut prompts(&mut fields, "prompt", 1, service)?[..] {
            [prompt] => std::mem::take(prompt),
            _ => return Err(ApiError::field("prompt", "expected one string or one list of tokens")),
        },
    };
    let (n_predict, max_tokens) = (fields.integer("n_predict")?, fields.integer("max_tokens")?);
    request.max_tokens = n_predict.or(max_tokens).map(limit);
    let n_probs = between("n_probs", fields.integer("n_probs")?, 0, 20)?;
    let n_probs = n_probs.filter(|&n| n > 0);
    let tokens = fields.flag("return_tokens")?.unwrap_or(false);
    // Events carry token ids only with log probabilities.
    request.logprobs = match n_probs {
        None if tokens => Some(0),
        n_probs => n_probs,
    };
    // Negative values count as 0.
    let n_indent = fields.integer("n_indent")?.and_then(|n| usize::try_from(n).ok());
    let only = only(&mut fields)?;
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    request.constraint = service.constraint(structure(&mut fields)?.as_ref())?;
    fields.finish()?;
    let meta = ResponseMeta {
        prompt,
        prompt_tokens: request.prompt.clone(),
        logprobs: n_probs.is_some(),
        tokens,
        n_indent: n_indent.unwrap_or(0),
        only,
        ignored_fields,
    };
    let submitted = service.submit(request);
    let events = submitted.map_err(|e| ApiError {
        param: Some("prompt".to_owned()),
        ..e.into()
    })?;
    Ok((
        OutputStream::new(vec![(events, 1)], &OutputParser::none()),
        meta,
        is_stream,
    ))
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

/// A completion in progress.
struct CompletionStream {
    app: Shared,
    meta: ResponseMeta,
    indent: Indent,
    finish: Option<Finish>,
}

impl CompletionStream {
    /// Returns the final response object.
    fn last(&self, usage: &Usage) -> Json {
        let (stop_type, word) = match &self.finish {
            _ if self.indent.is_over() => ("limit", ""),
            None => ("none", ""),
            Some(Finish::Model(_)) => ("eos", ""),
            Some(Finish::Stop(word)) => ("word", word.as_str()),
            Some(Finish::Limit | Finish::ContextFull) => ("limit", ""),
        };
        let prompt = match &self.meta.prompt {
            Json::String(text) => text.clone(),
            _ => self
                .app
                .service
                .vocab()
                .detokenize(&self.meta.prompt_tokens, false, true),
        };
        json!({
            "index": 0,
            "content": "",
            "stop": true,
            "model": self.app.service.params.name,
            "prompt": prompt,
            "tokens_predicted": usage.n_generated,
            "tokens_evaluated": usage.n_prompt,
            "tokens_cached": usage.n_cached,
            "truncated": false,
            "stop_type": stop_type,
            "stopping_word": word,
            "timings": timings_json(usage),
        })
    }

    /// Adds log probabilities and token ids, if requested.
    fn add(&self, body: &mut Json, logprobs: &[TokenLogprob]) {
        if self.meta.logprobs {
            let probability = |l: &TokenLogprob| chat_logprob_json(self.app.service.vocab(), l);
            body["completion_probabilities"] = logprobs.iter().map(probability).collect::<Vec<_>>().into();
        }
        if self.meta.tokens {
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
    fn piece(&mut self, piece: OutputDelta, _: &Usage) -> String {
        match piece {
            OutputDelta::Prompt { .. } | OutputDelta::Call { .. } | OutputDelta::Arguments { .. } => String::new(),
            OutputDelta::Text { content, logprob, .. } => {
                let content = self.indent.push(&content, false);
                let mut meta = json!({ "index": 0, "content": content, "stop": false });
                if let Some(logprob) = logprob {
                    self.add(&mut meta, &[logprob]);
                }
                event(&meta)
            }
            OutputDelta::End { finish, .. } => {
                self.finish = Some(finish);
                String::new()
            }
            OutputDelta::Failed(text) => failed(&text),
        }
    }

    fn is_over(&self) -> bool {
        self.indent.is_over()
    }

    fn end(&mut self, usage: &Usage) -> String {
        // The failure event was already sent.
        if self.finish.is_none() && !self.is_over() {
            return String::new();
        }
        let mut last = self.last(usage);
        last["content"] = self.indent.push("", true).into();
        event(&self.only(last))
    }
}
