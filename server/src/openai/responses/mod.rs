//! OpenAI's Responses API: `/v1/responses`. Recent responses are stored so that a request can continue them.

mod input;
mod items;
mod tools;

pub use input::FIELDS;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use serde_json::{Map, Value as Json, json};

use crate::api::{ApiError, ApiResult};
use crate::app::{App, Shared};
use crate::chat::{OutputDelta, OutputStream, Usage};
use crate::http::{Body, Client, EventEncoder, blocking, json, stream, unique, warned};
use crate::openai::counted;
use crate::scheduler::Finish;
use input::ParsedRequest;
use items::{Item, Items};

/// Handles `POST /v1/responses`.
pub async fn responses(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let shared_app = app.clone();
    let id = unique("resp_");
    let name = id.as_str().into();
    let (mut completion, request_fields) = blocking(move || ask(&shared_app, client, name, body)).await?;
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
    };
    let response = if is_stream {
        stream(completion, encoder)
    } else {
        while let Some(piece) = completion.next().await {
            if let OutputDelta::Failed(text) = piece {
                return Err(completion.error(text));
            }
            encoder.piece(piece, &completion.usage);
        }
        json(&encoder.done(&completion.usage))
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

/// Handles `GET /v1/responses/{id}`.
pub async fn response(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> ApiResult {
    let found = app.responses.get(client, &id);
    found.map(|stored| json(&stored.response)).ok_or_else(|| unknown(&id))
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

fn ask(app: &App, client: Client, id: Arc<str>, body: Map<String, Json>) -> ApiResult<(OutputStream, ParsedRequest)> {
    let (mut request_fields, conversation, mut request, grammar) = input::read(app, client, body)?;
    request.client = client.0;
    request.id = Some(id);
    request_fields.max_tokens = request.max_tokens;
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

    /// Returns the finished response and stores it.
    fn done(&self, usage: &Usage) -> Json {
        let status = match self.finish {
            Some(Finish::Limit | Finish::ContextFull) => "incomplete",
            _ => "completed",
        };
        let output = self.items.all.iter().map(Item::json).collect();
        let response = self.response(status, output, Some(usage));
        if self.request_fields.is_stored {
            let mut history = self.request_fields.history.clone();
            history.extend(self.items.message());
            self.app
                .responses
                .insert(self.client, &self.id, history, response.clone());
        }
        response
    }

    fn event(&mut self, kind: &str, mut data: Json) -> String {
        data["type"] = kind.into();
        data["sequence_number"] = self.n_events.into();
        self.n_events += 1;
        format!("event: {kind}\ndata: {data}\n\n")
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

    fn piece(&mut self, piece: OutputDelta, _: &Usage) -> String {
        let events = match piece {
            OutputDelta::Prompt { .. } => Vec::new(),
            OutputDelta::Text { reasoning, content, .. } => {
                let mut events = self.items.reasoning(&reasoning);
                events.extend(self.items.text(&content));
                events
            }
            OutputDelta::Call { name, .. } => self.items.call(name),
            OutputDelta::Arguments { text, .. } => self.items.arguments(&text),
            OutputDelta::End { finish, .. } => {
                self.finish = Some(finish);
                self.items.end()
            }
            OutputDelta::Failed(text) => {
                let mut response = self.response("failed", Vec::new(), None);
                response["error"] = json!({ "code": "server_error", "message": text });
                vec![("response.failed", json!({ "response": response }))]
            }
        };
        self.events(events)
    }

    fn end(&mut self, usage: &Usage) -> String {
        // The failure event was already sent.
        let Some(finish) = &self.finish else {
            return String::new();
        };
        let kind = match finish {
            Finish::Limit | Finish::ContextFull => "response.incomplete",
            _ => "response.completed",
        };
        let response = self.done(usage);
        self.event(kind, json!({ "response": response }))
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
