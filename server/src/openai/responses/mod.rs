//! OpenAI's Responses API: `/v1/responses`. Recent responses are stored, so that a request can continue one.

mod input;
mod items;
mod tools;

pub use input::FIELDS;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use axum::http::{Uri, header};
use axum::response::IntoResponse;
use engine::grammar::Grammar;
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult};
use crate::app::{App, Shared};
use crate::chat::{Conversation, OutputDelta, OutputStream, Usage};
use crate::encoding::begin;
use crate::http::{Body, Client, EventEncoder, blocking, json, stream, unique, warned};
use crate::openai::{chat_logprob_json, counted, progress_json, timings_json};
use crate::response_store::StoredResponse;
use crate::scheduler::{Finish, PromptProgress, Request};
use input::ParsedRequest;
use items::{Item, Items};

/// Handles `POST /v1/responses`.
pub async fn responses(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let id = unique("resp_");
    let name: Arc<str> = id.as_str().into();
    let read = move |app: &App| {
        let (request_fields, conversation, request, grammar) = input::read(app, client, body)?;
        Ok((conversation, (request_fields, request, grammar)))
    };
    let start = move |app: &App, conversation: Conversation, read: (ParsedRequest, Request, Option<Grammar>)| {
        ask(app, client, name, conversation, read)
    };
    let (mut completion, request_fields) = begin(&app, client, read, start).await?;
    let (is_stream, ignored_fields) = (request_fields.is_stream, request_fields.ignored_fields.clone());
    let mut encoder = ResponseStream {
        id,
        created: app.service.now(),
        app,
        client,
        items: Items::new(request_fields.kinds.clone()),
        request_fields,
        finish: None,
        n_events: 0,
        log: String::new(),
    };
    let response = if is_stream {
        stream(completion, encoder)
    } else {
        encoder.begin();
        while let Some(piece) = completion.next().await {
            if let OutputDelta::Failed(error) = piece {
                return Err(error);
            }
            encoder.piece(piece, &completion.usage);
        }
        let mut response = encoder.done(&completion.usage);
        response["timings"] = timings_json(&completion.usage);
        encoder.finished(&response, &completion.usage);
        json(&response)
    };
    Ok(warned(response, &ignored_fields))
}

/// Handles `POST /v1/responses/input_tokens`.
pub async fn count(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let (_, conversation, _, grammar) = input::read(&app, client, body)?;
        counted(&app.service, conversation, grammar.as_ref())
    })
    .await
}

/// Handles `GET /v1/responses/{id}`. With `stream=true`, repeats the events of the response, after the one
/// numbered `starting_after`.
pub async fn response(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
    uri: Uri,
) -> ApiResult {
    let stored = app.responses.get(client, &id).ok_or_else(|| unknown(&id))?;
    if query(&uri, "stream") != Some("true") {
        return Ok(json(&stored.response));
    }
    let after = match query(&uri, "starting_after") {
        None => 0,
        Some(number) => {
            let wrong = |_| ApiError::field("starting_after", "expected the number of an event");
            number.parse::<usize>().map_err(wrong)? + 1
        }
    };
    let gone = "the events of this response are no longer stored; retrieve it without `stream`";
    let log = stored.events.ok_or_else(|| ApiError::field("stream", gone))?;
    let rest: String = log.split_inclusive("\n\n").skip(after).collect();
    let content = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    Ok((content, rest).into_response())
}

/// Handles `GET /v1/responses/{id}/input_items`.
pub async fn input_items(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
    uri: Uri,
) -> ApiResult {
    let mut items = app.responses.get(client, &id).ok_or_else(|| unknown(&id))?.input;
    match query(&uri, "order") {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::field("order", "expected asc or desc")),
    }
    if let Some(after) = query(&uri, "after") {
        let at = items.iter().position(|item| item["id"] == after);
        let at = at.ok_or_else(|| ApiError::field("after", "the response has no item with this id"))?;
        items.drain(..=at);
    }
    let limit = query(&uri, "limit").map_or(Ok(20), str::parse::<usize>);
    let limit = limit.ok().filter(|limit| (1..=100).contains(limit));
    let limit = limit.ok_or_else(|| ApiError::field("limit", "expected 1 to 100"))?;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Json>| item.map_or(Json::Null, |item| item["id"].clone());
    Ok(json(&json!({
        "object": "list",
        "first_id": id_of(items.first()),
        "last_id": id_of(items.last()),
        "has_more": has_more,
        "data": items,
    })))
}

/// Returns the value of a query parameter.
fn query<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    let mut pairs = uri.query().unwrap_or_default().split('&');
    pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
}

/// Handles `DELETE /v1/responses/{id}`.
pub async fn forget(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> ApiResult {
    if !app.responses.remove(client, &id) {
        return Err(unknown(&id));
    }
    Ok(json(&json!({ "id": id, "object": "response", "deleted": true })))
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(64).collect();
    ApiError::not_found(format!(
        "no stored response {id:?}; it may have expired, or its request set `store` to false"
    ))
}

fn ask(
    app: &App,
    client: Client,
    id: Arc<str>,
    conversation: Conversation,
    (mut request_fields, mut request, grammar): (ParsedRequest, Request, Option<Grammar>),
) -> ApiResult<(OutputStream, ParsedRequest)> {
    request.client = client.0;
    request.id = Some(id);
    request_fields.max_tokens = request.max_tokens;
    request_fields.timings_per_token = request.diagnostics.timings_per_token;
    let completion = app.service.start_chat(conversation, request, grammar.as_ref(), true)?;
    Ok((completion, request_fields))
}

/// A response in progress.
struct ResponseStream {
    id: String,
    created: u64,
    app: Shared,
    client: Client,
    request_fields: ParsedRequest,
    items: Items,
    finish: Option<Finish>,
    n_events: usize,
    /// All sent events, for a stored response.
    log: String,
}

impl ResponseStream {
    /// Returns the response object in its current state.
    fn response(&self, status: &str, output: Vec<Json>, usage: Option<&Usage>) -> Json {
        let mut response = self.request_fields.echo.clone();
        let why = match &self.finish {
            Some(Finish::Limit | Finish::ContextFull) => json!({ "reason": "max_output_tokens" }),
            _ => Json::Null,
        };
        response["id"] = self.id.as_str().into();
        response["object"] = "response".into();
        response["created_at"] = self.created.into();
        response["status"] = status.into();
        response["error"] = Json::Null;
        response["incomplete_details"] = why;
        response["model"] = self.app.service.params.name.as_str().into();
        response["max_output_tokens"] = self.request_fields.max_tokens.into();
        response["output"] = output.into();
        response["usage"] = usage.map(usage_json).into();
        response
    }

    /// Returns the finished response.
    fn done(&self, usage: &Usage) -> Json {
        let status = match self.finish {
            Some(Finish::Limit | Finish::ContextFull) => "incomplete",
            _ => "completed",
        };
        let output = self.items.all.iter().map(Item::json).collect();
        self.response(status, output, Some(usage))
    }

    /// Returns the last event of a finished response, and stores the response.
    fn finished(&mut self, response: &Json, usage: &Usage) -> String {
        let kind = match self.finish {
            Some(Finish::Limit | Finish::ContextFull) => "response.incomplete",
            _ => "response.completed",
        };
        let last = self.event(kind, json!({ "response": response, "timings": timings_json(usage) }));
        if self.request_fields.is_stored {
            let mut history = self.request_fields.history.clone();
            history.extend(self.items.message());
            let stored = StoredResponse {
                history,
                input: self.request_fields.input.clone(),
                events: Some(std::mem::take(&mut self.log)),
                response: response.clone(),
            };
            self.app.responses.insert(self.client, &self.id, stored);
        }
        last
    }

    fn event(&mut self, kind: &str, mut data: Json) -> String {
        data["type"] = kind.into();
        data["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        let event = format!("event: {kind}\ndata: {data}\n\n");
        if self.request_fields.is_stored {
            self.log += &event;
        }
        event
    }

    fn events(&mut self, all: Vec<(&'static str, Json)>) -> String {
        all.into_iter().map(|(kind, data)| self.event(kind, data)).collect()
    }
}

impl EventEncoder for ResponseStream {
    fn begin(&mut self) -> String {
        let response = self.response("in_progress", Vec::new(), None);
        self.event("response.created", json!({ "response": response }))
            + &self.event("response.in_progress", json!({ "response": response }))
    }

    fn progress(&mut self, _: usize, progress: &PromptProgress) -> String {
        let response = self.response("in_progress", Vec::new(), None);
        let data = json!({
            "response": response,
            "prompt_progress": progress_json(progress),
            "timings": timings_json(&Usage::of_progress(progress)),
        });
        self.event("response.in_progress", data)
    }

    fn piece(&mut self, piece: OutputDelta, usage: &Usage) -> String {
        let mut events = match piece {
            OutputDelta::Prompt { .. } => Vec::new(),
            OutputDelta::Text {
                reasoning,
                content,
                logprob,
                ..
            } => {
                let mut events = self.items.reasoning(&reasoning);
                // Only tokens of the content have log probabilities.
                let logprob = match logprob {
                    Some(logprob) if reasoning.is_empty() || !content.is_empty() => {
                        Some(chat_logprob_json(self.app.service.vocab(), &logprob))
                    }
                    _ => None,
                };
                events.extend(self.items.text(&content, logprob));
                events
            }
            OutputDelta::Call { name, .. } => self.items.call(name),
            OutputDelta::Arguments { text, .. } => self.items.arguments(&text),
            OutputDelta::End { finish, .. } => {
                self.finish = Some(finish);
                self.items.end()
            }
            OutputDelta::Failed(error) => {
                let mut response = self.response("failed", Vec::new(), None);
                let code = if error.status.is_client_error() {
                    "invalid_prompt"
                } else {
                    "server_error"
                };
                response["error"] = json!({ "code": code, "message": error.message });
                vec![("response.failed", json!({ "response": response }))]
            }
        };
        if self.request_fields.timings_per_token {
            events
                .iter_mut()
                .for_each(|(_, data)| data["timings"] = timings_json(usage));
        }
        self.events(events)
    }

    fn end(&mut self, usage: &Usage) -> String {
        // The failure event was already sent.
        if self.finish.is_none() {
            return String::new();
        }
        let response = self.done(usage);
        self.finished(&response, usage)
    }
}

fn usage_json(usage: &Usage) -> Json {
    json!({
        "input_tokens": usage.n_prompt,
        "input_tokens_details": { "cached_tokens": usage.n_cached },
        "output_tokens": usage.n_generated,
        "output_tokens_details": { "reasoning_tokens": usage.n_reasoning },
        "total_tokens": usage.n_prompt + usage.n_generated,
    })
}
