//! `/v1/responses`: answers to conversations as lists of items, kept for a while so that a request can go on from one.

mod input;
mod items;
mod kept;
mod tools;

pub use input::FIELDS;
pub use kept::Kept;

use std::sync::Arc;

use axum::Extension;
use axum::extract::{Path, State};
use serde_json::{Map, Value as Json, json};

use crate::answer::{Answer, Piece, Usage};
use crate::api::{ApiError, ApiResult};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream, unique, warned};
use crate::openai::counted;
use crate::scheduler::Finish;
use input::Asked;
use items::{Item, Items};

/// Answers a conversation.
pub async fn responses(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let of_app = app.clone();
    let id = unique("resp_");
    let name = id.as_str().into();
    let (mut answer, asked) = blocking(move || ask(&of_app, client, name, body)).await?;
    let (is_stream, left_out) = (asked.is_stream, asked.left_out.clone());
    let mut telling = Telling {
        id,
        created: app.served.now(),
        app,
        client,
        items: Items::new(asked.kinds.clone()),
        asked,
        finish: None,
        n_events: 0,
    };
    let response = if is_stream {
        stream(answer, telling)
    } else {
        while let Some(piece) = answer.next().await {
            if let Piece::Failed(text) = piece {
                return Err(ApiError::server(text));
            }
            telling.piece(piece, &answer.usage);
        }
        json(&telling.done(&answer.usage))
    };
    Ok(warned(response, &left_out))
}

/// Tells how many tokens a conversation's prompt has.
pub async fn count(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let (_, conversation, _, grammar) = input::read(&app.served, client, body)?;
        counted(&app.served, conversation, grammar.as_ref())
    })
    .await
}

/// A response that is kept.
pub async fn response(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> ApiResult {
    let found = app.served.responses.get(client, &id);
    found.map(|kept| json(&kept.response)).ok_or_else(|| unknown(&id))
}

/// Forgets a response.
pub async fn forget(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Path(id): Path<String>,
) -> ApiResult {
    match app.served.responses.remove(client, &id) {
        true => Ok(json(&json!({ "id": id, "object": "response", "deleted": true }))),
        false => Err(unknown(&id)),
    }
}

fn unknown(id: &str) -> ApiError {
    let id: String = id.chars().take(64).collect();
    ApiError::not_found(format!(
        "there is no response {id:?}: those of late are kept, unless `store` is false"
    ))
}

fn ask(app: &App, client: Client, id: Arc<str>, body: Map<String, Json>) -> ApiResult<(Answer, Asked)> {
    let served = &app.served;
    let (mut asked, conversation, mut request, grammar) = input::read(served, client, body)?;
    request.client = client.0;
    request.id = Some(id);
    asked.max_tokens = request.max_tokens;
    let answer = served.answer(conversation, request, grammar.as_ref(), true)?;
    Ok((answer, asked))
}

/// A response on its way.
struct Telling {
    id: String,
    created: u64,
    app: Shared,
    client: Client,
    asked: Asked,
    items: Items,
    finish: Option<Finish>,
    n_events: usize,
}

impl Telling {
    /// The response as it stands.
    fn response(&self, status: &str, output: Vec<Json>, usage: Option<&Usage>) -> Json {
        let mut response = self.asked.echo.clone();
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
        response["model"] = self.app.served.params.name.as_str().into();
        response["max_output_tokens"] = self.asked.max_tokens.into();
        response["output"] = output.into();
        response["usage"] = usage.map(usage_json).into();
        response
    }

    /// The whole response, which is kept.
    fn done(&self, usage: &Usage) -> Json {
        let status = match self.finish {
            Some(Finish::Limit | Finish::ContextFull) => "incomplete",
            _ => "completed",
        };
        let output = self.items.all.iter().map(Item::json).collect();
        let response = self.response(status, output, Some(usage));
        if self.asked.is_stored {
            let mut said = self.asked.said.clone();
            said.extend(self.items.message());
            self.app
                .served
                .responses
                .keep(self.client, &self.id, said, response.clone());
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

impl Teller for Telling {
    fn begin(&mut self) -> String {
        let response = self.response("in_progress", Vec::new(), None);
        self.event("response.created", json!({ "response": response }))
            + &self.event("response.in_progress", json!({ "response": response }))
    }

    fn piece(&mut self, piece: Piece, _: &Usage) -> String {
        let events = match piece {
            Piece::Prompt { .. } => Vec::new(),
            Piece::Text { reasoning, content, .. } => {
                let mut events = self.items.reasoning(&reasoning);
                events.extend(self.items.text(&content));
                events
            }
            Piece::Call { name, .. } => self.items.call(name),
            Piece::Arguments { text, .. } => self.items.arguments(&text),
            Piece::End { finish, .. } => {
                self.finish = Some(finish);
                self.items.end()
            }
            Piece::Failed(text) => {
                let mut response = self.response("failed", Vec::new(), None);
                response["error"] = json!({ "code": "server_error", "message": text });
                vec![("response.failed", json!({ "response": response }))]
            }
        };
        self.events(events)
    }

    fn end(&mut self, usage: &Usage) -> String {
        // It has failed, which was told.
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
