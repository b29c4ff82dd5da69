//! `/v1/chat/completions`: answers to conversations.

use axum::Extension;
use axum::extract::State;
use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use super::completions::MAX_TOP;
use super::logprobs::of_chat;
use super::{DONE, counted, event, failed, finish_reason, includes_usage, timings_json, usage_json};
use crate::answer::{Choice, Piece, Usage};
use crate::api::{
    ApiError, ApiResult, Field, Fields, Form, GENERATING, STRUCTURE, between, generating, ignored, limit, max_tokens,
    structure,
};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream, unique, warned};
use crate::messages::{is_begun, messages};
use crate::scheduler::{Finish, Request, TokenLogprob};
use crate::served::Conversation;
use crate::tools::tools;

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "messages",
        form: Form::List,
        doc: "What was said, oldest first: objects with `role` and `content`, a text or a list of parts that are text.",
    },
    Field {
        name: "model",
        form: Form::Text,
        doc: "The model; there is one, which answers whatever name is given.",
    },
    Field {
        name: "max_completion_tokens",
        form: Form::Integer,
        doc: "Most tokens of an answer, what is thought included.",
    },
    Field {
        name: "max_tokens",
        form: Form::Integer,
        doc: "The same, as it was called before.",
    },
    Field {
        name: "n_predict",
        form: Form::Integer,
        doc: "The same, as llama-server calls it; less than 0: no limit.",
    },
    ignored("id_slot", "Sequences are chosen by what they hold."),
    ignored("n_keep", "Nothing of a text is ever cut."),
    ignored("n_discard", "Nothing of a text is ever cut."),
    ignored("n_cache_reuse", "Beginnings of any length are used again."),
    Field {
        name: "n",
        form: Form::Integer,
        doc: "Answers, as many as are worked on at once at most (1).",
    },
    Field {
        name: "stream",
        form: Form::Flag,
        doc: "Tell answers as they come, as events.",
    },
    Field {
        name: "stream_options",
        form: Form::Object,
        doc: "`include_usage`: a last event with counts.",
    },
    Field {
        name: "logprobs",
        form: Form::Flag,
        doc: "Tell log probabilities of tokens.",
    },
    Field {
        name: "top_logprobs",
        form: Form::Integer,
        doc: "And those of so many most likely ones, up to 20.",
    },
    Field {
        name: "chat_template_kwargs",
        form: Form::Object,
        doc: "Variables of the model's template, such as `enable_thinking`.",
    },
    Field {
        name: "reasoning_effort",
        form: Form::Text,
        doc: "How much to think, where the template knows of it; `none`: not at all.",
    },
    Field {
        name: "reasoning_budget_tokens",
        form: Form::Integer,
        doc: "Most tokens that are thought before the answer has to begin, where the template has tags for that; -1: as many as it likes (`--reasoning-budget`).",
    },
    Field {
        name: "thinking_budget_tokens",
        form: Form::Integer,
        doc: "The same, as it was called before.",
    },
    Field {
        name: "reasoning_budget_message",
        form: Form::Text,
        doc: "What is thought last where thinking is cut off (`--reasoning-budget-message`).",
    },
    Field {
        name: "reasoning_format",
        form: Form::Text,
        doc: "`none` leaves what is thought in `content`; otherwise it is `reasoning_content`.",
    },
    Field {
        name: "continue_final_message",
        form: Form::Flag,
        doc: "The last message is the beginning of the answer.",
    },
    Field {
        name: "add_generation_prompt",
        form: Form::Flag,
        doc: "Begin an answer: the contrary of `continue_final_message`.",
    },
    Field {
        name: "tools",
        form: Form::List,
        doc: "Functions that may be called, in the form that the model's template writes calls in.",
    },
    Field {
        name: "tool_choice",
        form: Form::Any,
        doc: "`auto` (default), `none`, `required`, or a function that has to be called; arguments keep to its schema.",
    },
    Field {
        name: "parallel_tool_calls",
        form: Form::Flag,
        doc: "Several functions may be called in an answer (true).",
    },
    Field {
        name: "modalities",
        form: Form::List,
        doc: "`[\"text\"]`: what answers are made of.",
    },
    Field {
        name: "verbosity",
        form: Form::Text,
        doc: "Left out unless it is `medium`, which the header `warning` tells: messages say how long an answer is to be.",
    },
    Field {
        name: "prompt_cache_retention",
        form: Form::Ignored,
        doc: "What was computed stays until its place is needed.",
    },
    Field {
        name: "user",
        form: Form::Ignored,
        doc: "Who asks.",
    },
    Field {
        name: "metadata",
        form: Form::Ignored,
        doc: "Notes of the client.",
    },
    Field {
        name: "store",
        form: Form::Ignored,
        doc: "Nothing is stored.",
    },
    Field {
        name: "service_tier",
        form: Form::Ignored,
        doc: "There is one.",
    },
    Field {
        name: "safety_identifier",
        form: Form::Ignored,
        doc: "Who asks.",
    },
    Field {
        name: "prompt_cache_key",
        form: Form::Ignored,
        doc: "What was computed is found by its tokens.",
    },
    Field {
        name: "prediction",
        form: Form::Ignored,
        doc: "A guess at the answer, which does not change it.",
    },
];

/// A request as it was read.
struct Read {
    request: Request,
    conversation: Conversation,
    grammar: Option<Grammar>,
    /// Reasoning is told apart.
    splits: bool,
    is_stream: bool,
    told: Told,
    /// What is left out of it.
    left_out: Vec<String>,
}

/// What is told of answers besides themselves.
struct Told {
    id: String,
    created: u64,
    include_usage: bool,
    logprobs: bool,
    n: usize,
}

/// Answers a conversation.
pub async fn chat(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let of_app = app.clone();
    let begin = move || {
        let mut read = read(&of_app, client, body)?;
        let (conversation, request) = (std::mem::take(&mut read.conversation), read.request.clone());
        let answer = of_app
            .served
            .answer(conversation, request, read.grammar.as_ref(), read.splits)?;
        Ok((answer, read))
    };
    let (mut answer, read) = blocking(begin).await?;
    let told = read.told;
    if read.is_stream {
        return Ok(warned(stream(answer, Stream { app, told }), &read.left_out));
    }
    let (choices, _) = answer.whole().await?;
    let choice = |(index, choice): (usize, Choice)| {
        let mut message = json!({ "role": "assistant", "content": choice.content });
        let n_calls = choice.calls.len();
        if n_calls > 0 {
            let calls = choice.calls.iter().map(|call| call_json(&call.name, &call.arguments));
            message["tool_calls"] = calls.collect::<Vec<_>>().into();
            if choice.content.is_empty() {
                message["content"] = Json::Null;
            }
        }
        if !choice.reasoning.is_empty() {
            message["reasoning_content"] = choice.reasoning.into();
        }
        let logprobs = choice.logprobs.iter().map(|(logprob, _)| logprob);
        json!({
            "index": index,
            "message": message,
            "logprobs": logprobs_json(&app, &told, logprobs),
            "finish_reason": choice.finish.as_ref().map(|finish| reason(finish, n_calls)),
        })
    };
    let choices: Vec<Json> = choices.into_iter().enumerate().map(choice).collect();
    let mut body = head(&app, &told, "chat.completion", choices);
    body["usage"] = usage_json(&answer.usage);
    body["timings"] = timings_json(&answer.usage);
    Ok(warned(json(&body), &read.left_out))
}

/// Tells how many tokens a conversation's prompt has.
pub async fn count(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    blocking(move || {
        let read = read(&app, client, body)?;
        counted(&app.served, read.conversation, read.grammar.as_ref())
    })
    .await
}

/// What every object begins with.
fn head(app: &App, told: &Told, object: &str, choices: Vec<Json>) -> Json {
    json!({
        "id": told.id,
        "object": object,
        "created": told.created,
        "model": app.served.params.name,
        "system_fingerprint": app.served.params.build,
        "choices": choices,
    })
}

/// A call, with an id that no other has.
fn call_json(name: &str, arguments: &str) -> Json {
    json!({
        "id": unique("call_"),
        "type": "function",
        "function": { "name": name, "arguments": arguments },
    })
}

/// Why an answer ended: for its calls, unless it was cut off.
pub fn reason(finish: &Finish, n_calls: usize) -> &'static str {
    match finish_reason(finish) {
        "stop" if n_calls > 0 => "tool_calls",
        reason => reason,
    }
}

fn logprobs_json<'a>(app: &App, told: &Told, logprobs: impl Iterator<Item = &'a TokenLogprob>) -> Json {
    if !told.logprobs {
        return Json::Null;
    }
    let content: Vec<Json> = logprobs.map(|logprob| of_chat(app.served.vocab(), logprob)).collect();
    json!({ "content": content, "refusal": null })
}

/// The conversation that fields tell of, and whether reasoning is told apart.
pub fn conversation(fields: &mut Fields) -> ApiResult<(Conversation, bool)> {
    let list = fields
        .list("messages")?
        .ok_or_else(|| ApiError::field("messages", "there are none"))?;
    let mut variables = fields.object("chat_template_kwargs")?.unwrap_or_default();
    if let Some(effort) = fields.text("reasoning_effort")? {
        if effort == "none" {
            variables.insert("enable_thinking".to_owned(), false.into());
        }
        variables.insert("reasoning_effort".to_owned(), effort.into());
    }
    let splits = match fields.text("reasoning_format")?.as_deref() {
        None | Some("auto" | "deepseek") => true,
        Some("none") => false,
        Some(_) => return Err(ApiError::field("reasoning_format", "expected auto, deepseek or none")),
    };
    let tools = tools(fields)?;
    let mut conversation = Conversation {
        tools,
        messages: messages(list)?,
        variables,
        goes_on: fields.flag("continue_final_message")?.unwrap_or(false),
        without_reasoning: false,
        budget: match (
            fields.integer("reasoning_budget_tokens")?,
            fields.integer("thinking_budget_tokens")?,
        ) {
            (Some(n), _) | (None, Some(n)) => Some(n),
            (None, None) => None,
        },
        budget_message: None,
    };
    conversation.budget_message = fields.text("reasoning_budget_message")?;
    if fields.flag("add_generation_prompt")? == Some(conversation.goes_on) {
        return Err(ApiError::field(
            "add_generation_prompt",
            "expected the contrary of continue_final_message: an answer is begun or goes on",
        ));
    }
    if conversation.goes_on && !conversation.messages.last().is_some_and(is_begun) {
        return Err(ApiError::field(
            "continue_final_message",
            "the last message is not the assistant's",
        ));
    }
    Ok((conversation, splits))
}

fn read(app: &App, Client(client): Client, body: Map<String, Json>) -> ApiResult<Read> {
    let served = &app.served;
    let mut fields = Fields::new(body, &[FIELDS, GENERATING, STRUCTURE], true)?;
    fields.text("model")?;
    let mut request = generating(&mut fields, &served.params.defaults)?;
    request.client = client;
    let asked = max_tokens(&mut fields, &["max_completion_tokens", "max_tokens"], 1)?;
    let id = unique("chatcmpl-");
    request.id = Some(id.as_str().into());
    request.max_tokens = asked.or(fields.integer("n_predict")?.map(limit));
    let n_parallel = served.scheduler.settings().n_parallel;
    request.n = between("n", fields.integer("n")?, 1, n_parallel as i64)?.unwrap_or(1);
    let n_top = between("top_logprobs", fields.integer("top_logprobs")?, 0, MAX_TOP)?;
    match (fields.flag("logprobs")?.unwrap_or(false), n_top) {
        (true, n_top) => request.logprobs = Some(n_top.unwrap_or(0)),
        (false, None | Some(0)) => {}
        (false, Some(_)) => return Err(ApiError::field("top_logprobs", "logprobs has to be true")),
    }
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    let include_usage = includes_usage(fields.object("stream_options")?)?;
    let grammar = structure(&mut fields)?;
    let (conversation, splits) = conversation(&mut fields)?;
    let left_out = left_out(&mut fields)?;
    fields.finish()?;
    let told = Told {
        id,
        created: served.now(),
        include_usage,
        logprobs: request.logprobs.is_some(),
        n: request.n,
    };
    Ok(Read {
        request,
        conversation,
        grammar,
        splits,
        is_stream,
        told,
        left_out,
    })
}

/// Fields that ask for what only models of OpenAI's do.
fn left_out(fields: &mut Fields) -> ApiResult<Vec<String>> {
    if fields
        .list("modalities")?
        .is_some_and(|list| list.iter().any(|one| one != "text"))
    {
        return Err(ApiError::field("modalities", "this model says text"));
    }
    let verbosity = fields.text("verbosity")?.filter(|word| word != "medium");
    Ok(verbosity.map(|_| "verbosity".to_owned()).into_iter().collect())
}

struct Stream {
    app: Shared,
    told: Told,
}

impl Stream {
    fn chunk(&self, choice: usize, delta: Json, logprobs: Json, finish: Option<&str>) -> String {
        let choice = json!({ "index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        let mut chunk = head(&self.app, &self.told, "chat.completion.chunk", vec![choice]);
        if self.told.include_usage {
            chunk["usage"] = Json::Null;
        }
        event(&chunk)
    }
}

impl Teller for Stream {
    fn begin(&mut self) -> String {
        let role = || json!({ "role": "assistant", "content": "" });
        let chunks = (0..self.told.n).map(|choice| self.chunk(choice, role(), Json::Null, None));
        chunks.collect()
    }

    fn piece(&mut self, piece: Piece, _: &Usage) -> String {
        match piece {
            Piece::Prompt { .. } => String::new(),
            Piece::Text {
                choice,
                reasoning,
                content,
                logprob,
            } => {
                let mut delta = json!({});
                if !reasoning.is_empty() {
                    delta["reasoning_content"] = reasoning.into();
                }
                if !content.is_empty() || delta.as_object().is_some_and(Map::is_empty) {
                    delta["content"] = content.into();
                }
                let logprobs = match &logprob {
                    Some(logprob) => logprobs_json(&self.app, &self.told, std::iter::once(logprob)),
                    None => Json::Null,
                };
                self.chunk(choice, delta, logprobs, None)
            }
            Piece::Call { choice, index, name } => {
                let mut told = call_json(&name, "");
                told["index"] = index.into();
                self.chunk(choice, json!({ "tool_calls": [told] }), Json::Null, None)
            }
            Piece::Arguments { choice, index, text } => {
                let told = json!({ "index": index, "function": { "arguments": text } });
                self.chunk(choice, json!({ "tool_calls": [told] }), Json::Null, None)
            }
            Piece::End {
                choice,
                finish,
                n_calls,
            } => self.chunk(choice, json!({}), Json::Null, Some(reason(&finish, n_calls))),
            Piece::Failed(text) => failed(&text),
        }
    }

    fn end(&mut self, usage: &Usage) -> String {
        if !self.told.include_usage {
            return DONE.to_owned();
        }
        let mut chunk = head(&self.app, &self.told, "chat.completion.chunk", Vec::new());
        chunk["usage"] = usage_json(usage);
        chunk["timings"] = timings_json(usage);
        event(&chunk) + DONE
    }
}
