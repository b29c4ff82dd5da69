//! `/api/chat` and `/api/generate`: answers as objects, one on each line.

use std::time::Instant;

use axum::Extension;
use axum::extract::State;
use engine::chat::Message;
use engine::grammar::Grammar;
use serde_json::{Map, Value as Json, json};

use super::{error_json, now};
use crate::answer::{Answer, Choice, Piece, Usage};
use crate::api::{ApiError, ApiResult, Field, Fields, Form, GENERATING, Known, generating, lenient, limit};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream, warned};
use crate::messages::messages;
use crate::native::Gap;
use crate::openai::finish_reason;
use crate::parser::OutputParser;
use crate::scheduler::{Finish, Request};
use crate::served::{Conversation, Served};
use crate::tools::{Call, ToolChoice, Tools, checked};

/// The fields of `/api/chat`.
pub const CHAT_FIELDS: &[Field] = &[
    Field {
        name: "messages",
        form: Form::List,
        doc: "What was said, oldest first: objects with `role` and `content`; without any, the model is only said to be there.",
    },
    Field {
        name: "tools",
        form: Form::List,
        doc: "Functions that may be called, in the form that the model's template writes calls in.",
    },
    MODEL,
    STREAM,
    FORMAT,
    OPTIONS,
    THINK,
    KEEP_ALIVE,
];

/// The fields of `/api/generate`.
pub const GENERATE_FIELDS: &[Field] = &[
    Field {
        name: "prompt",
        form: Form::Text,
        doc: "What to answer; without it, the model is only said to be there.",
    },
    Field {
        name: "system",
        form: Form::Text,
        doc: "Instructions.",
    },
    Field {
        name: "suffix",
        form: Form::Text,
        doc: "What stands behind a gap that is filled, with the prompt before it, by a model that was trained for that.",
    },
    Field {
        name: "images",
        form: Form::List,
        doc: "Must be empty: models take text.",
    },
    Field {
        name: "raw",
        form: Form::Flag,
        doc: "Continue the prompt as it stands.",
    },
    MODEL,
    STREAM,
    FORMAT,
    OPTIONS,
    THINK,
    KEEP_ALIVE,
];

const MODEL: Field = Field {
    name: "model",
    form: Form::Text,
    doc: "The model; there is one, which answers whatever name is given.",
};
const STREAM: Field = Field {
    name: "stream",
    form: Form::Flag,
    doc: "Tell the answer as it comes (true).",
};
const FORMAT: Field = Field {
    name: "format",
    form: Form::Any,
    doc: "`json`, or a JSON schema that the answer is a document of.",
};
const OPTIONS: Field = Field {
    name: "options",
    form: Form::Object,
    doc: "`num_predict` and the fields of all routes that generate text; those of loading, such as `num_ctx` and `num_gpu`, are ignored, and others are left out, which the header `warning` tells.",
};
const THINK: Field = Field {
    name: "think",
    form: Form::Any,
    doc: "Whether to think, or how much, where the template lets one choose.",
};
const KEEP_ALIVE: Field = Field {
    name: "keep_alive",
    form: Form::Ignored,
    doc: "The model stays.",
};

/// Options besides those of all interfaces.
const OPTION_FIELDS: &[Field] = &[
    Field {
        name: "num_predict",
        form: Form::Integer,
        doc: "Most tokens; less than 0: no limit.",
    },
    ignored("num_ctx"),
    ignored("num_keep"),
    ignored("num_batch"),
    ignored("num_gpu"),
    ignored("main_gpu"),
    ignored("num_thread"),
    ignored("num_gqa"),
    ignored("use_mmap"),
    ignored("use_mlock"),
    ignored("low_vram"),
    ignored("numa"),
];

const fn ignored(name: &'static str) -> Field {
    Field {
        name,
        form: Form::Ignored,
        doc: "The model is loaded already.",
    }
}

/// In which of the two forms an answer is told.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Interface {
    Chat,
    Generate,
}

struct Told {
    interface: Interface,
    start: Instant,
}

/// What is asked.
struct Asked {
    /// An answer under way, unless nothing is to be answered.
    answer: Option<Answer>,
    is_stream: bool,
    /// What is left out of the request.
    left_out: Vec<String>,
}

/// What both interfaces have in common of a request that nothing answers yet.
struct Common {
    asked: Asked,
    request: Request,
    grammar: Option<Grammar>,
    /// Variables of the template that say whether to think.
    variables: Map<String, Json>,
}

/// Answers a conversation.
pub async fn chat(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let of_app = app.clone();
    let asked = blocking(move || ask_chat(&of_app, client, body));
    tell(app, Interface::Chat, asked.await?).await
}

/// Answers a prompt.
pub async fn generate(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    let of_app = app.clone();
    let asked = blocking(move || ask_generate(&of_app, client, body));
    tell(app, Interface::Generate, asked.await?).await
}

async fn tell(app: Shared, interface: Interface, asked: Asked) -> ApiResult {
    let left_out = asked.left_out.clone();
    Ok(warned(answered(app, interface, asked).await?, &left_out))
}

async fn answered(app: Shared, interface: Interface, asked: Asked) -> ApiResult {
    let told = Told {
        interface,
        start: Instant::now(),
    };
    let Some(mut answer) = asked.answer else {
        let mut loaded = piece(&app, &told, "", "");
        loaded["done"] = true.into();
        loaded["done_reason"] = "load".into();
        return Ok(json(&loaded));
    };
    if asked.is_stream {
        return Ok(stream(
            answer,
            Stream {
                app,
                told,
                call: None,
                finish: None,
            },
        ));
    }
    let (mut choices, _) = answer.whole().await?;
    let Choice {
        content,
        reasoning,
        calls,
        finish,
        ..
    } = choices.pop().unwrap_or_default();
    let mut whole = piece(&app, &told, &content, &reasoning);
    if !calls.is_empty() {
        whole["message"]["tool_calls"] = calls.iter().map(call_json).collect::<Vec<_>>().into();
    }
    finished(&mut whole, &told, finish.as_ref(), &answer.usage);
    Ok(json(&whole))
}

fn ask_chat(app: &App, client: Client, body: Map<String, Json>) -> ApiResult<Asked> {
    let served = &app.served;
    let mut fields = Fields::new(body, &[CHAT_FIELDS], false)?;
    let common = common(&mut fields, served, client)?;
    let tools = checked(fields.list("tools")?.unwrap_or_default(), ToolChoice::Auto, true)?;
    let mut list = fields.list("messages")?.unwrap_or_default();
    fields.finish()?;
    if list.is_empty() {
        return Ok(common.asked);
    }
    for message in list.iter_mut().filter_map(Json::as_object_mut) {
        if let Some(thought) = message.remove("thinking") {
            message.insert("reasoning_content".to_owned(), thought);
        }
        // Some programs say so that there are none.
        if message.get("images") == Some(&Json::Array(Vec::new())) {
            message.remove("images");
        }
    }
    common.answered(served, messages(list)?, tools)
}

fn ask_generate(app: &App, client: Client, body: Map<String, Json>) -> ApiResult<Asked> {
    let served = &app.served;
    let mut fields = Fields::new(body, &[GENERATE_FIELDS], false)?;
    let mut common = common(&mut fields, served, client)?;
    let (prompt, system) = (fields.text("prompt")?.unwrap_or_default(), fields.text("system")?);
    let suffix = fields.text("suffix")?.filter(|text| !text.is_empty());
    if fields.list("images")?.is_some_and(|images| !images.is_empty()) {
        return Err(ApiError::field("images", "this model takes text: expected none"));
    }
    let is_raw = fields.flag("raw")?.unwrap_or(false);
    fields.finish()?;
    if prompt.is_empty() && suffix.is_none() {
        return Ok(common.asked);
    }
    if is_raw || suffix.is_some() || served.template().is_empty() {
        common.request.constraint = served.constraint(common.grammar.as_ref())?;
        common.request.prompt = match suffix {
            None => served.tokens(&prompt),
            Some(behind) => Gap {
                before: prompt,
                behind,
                ..Gap::default()
            }
            .prompt(served)?,
        };
        let events = served.submit(common.request)?;
        common.asked.answer = Some(Answer::new(vec![(events, 1)], &OutputParser::none()));
        return Ok(common.asked);
    }
    let mut said: Vec<Message> = system
        .filter(|text| !text.is_empty())
        .map(Message::system)
        .into_iter()
        .collect();
    said.push(Message::user(prompt));
    common.answered(served, said, None)
}

impl Common {
    /// With the answer to a conversation.
    fn answered(mut self, served: &Served, messages: Vec<Message>, tools: Option<Tools>) -> ApiResult<Asked> {
        let conversation = Conversation {
            messages,
            variables: self.variables,
            tools,
            ..Conversation::default()
        };
        let answer = served.answer(conversation, self.request, self.grammar.as_ref(), true)?;
        self.asked.answer = Some(answer);
        Ok(self.asked)
    }
}

/// What both have in common.
fn common(fields: &mut Fields, served: &Served, client: Client) -> ApiResult<Common> {
    fields.text("model")?;
    let is_stream = fields.flag("stream")?.unwrap_or(true);
    let grammar = match fields.take("format") {
        None => None,
        Some(Json::String(format)) if format.is_empty() => None,
        Some(Json::String(format)) if format == "json" => Some(Grammar::JsonSchema("{\"type\":\"object\"}".to_owned())),
        Some(Json::Object(schema)) => Some(Grammar::JsonSchema(Json::Object(schema).to_string())),
        Some(_) => return Err(ApiError::field("format", "expected \"json\" or a JSON schema")),
    };
    let options = fields.object("options")?.unwrap_or_default();
    let (mut options, left_out) = of_options(options)?;
    let mut request = generating(&mut options, &served.params.defaults)?;
    request.max_tokens = options.integer("num_predict")?.map(limit);
    options.finish()?;
    request.client = client.0;
    let asked = Asked {
        answer: None,
        is_stream,
        left_out,
    };
    Ok(Common {
        asked,
        request,
        grammar,
        variables: thinking(fields)?,
    })
}

/// The options, and what is told of others: programs send those of other versions and servers, and Ollama passes over them.
fn of_options(mut options: Map<String, Json>) -> ApiResult<(Fields, Vec<String>)> {
    // What llama-server ignores is no word of Ollama's.
    let is_ignored = |name: &str| {
        GENERATING
            .iter()
            .any(|field| field.name == name && field.form == Form::Ignored)
    };
    let mut left_out = Vec::new();
    options.retain(|name, _| {
        let stays = !is_ignored(name);
        left_out.extend((!stays).then(|| format!("the option {name}")));
        stays
    });
    let known = Known {
        tables: &[OPTION_FIELDS, GENERATING],
        sampling: true,
    };
    let (fields, others) = lenient(options, known, "option")?;
    left_out.extend(others);
    Ok((fields, left_out))
}

/// Variables of the template that say whether to think.
fn thinking(fields: &mut Fields) -> ApiResult<Map<String, Json>> {
    let mut variables = Map::new();
    match fields.take("think") {
        None => {}
        Some(Json::Bool(thinks)) => _ = variables.insert("enable_thinking".to_owned(), thinks.into()),
        Some(Json::String(effort)) => {
            variables.insert("enable_thinking".to_owned(), true.into());
            variables.insert("reasoning_effort".to_owned(), effort.into());
        }
        Some(_) => return Err(ApiError::field("think", "expected true, false, or how much")),
    }
    Ok(variables)
}

/// A piece of an answer.
fn piece(app: &App, told: &Told, content: &str, reasoning: &str) -> Json {
    let mut piece = json!({ "model": app.served.params.name, "created_at": now() });
    match told.interface {
        Interface::Chat => {
            piece["message"] = json!({ "role": "assistant", "content": content });
            if !reasoning.is_empty() {
                piece["message"]["thinking"] = reasoning.into();
            }
        }
        Interface::Generate => {
            piece["response"] = content.into();
            if !reasoning.is_empty() {
                piece["thinking"] = reasoning.into();
            }
        }
    }
    piece["done"] = false.into();
    piece
}

/// A call, whose arguments are an object.
fn call_json(call: &Call) -> Json {
    let arguments = serde_json::from_str::<Json>(&call.arguments).unwrap_or_else(|_| json!({}));
    json!({ "function": { "name": call.name, "arguments": arguments } })
}

/// What the last piece tells besides; times are in nanoseconds.
fn finished(piece: &mut Json, told: &Told, finish: Option<&Finish>, usage: &Usage) {
    let nanos = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    piece["done"] = true.into();
    piece["done_reason"] = finish.map(finish_reason).into();
    piece["total_duration"] = nanos(told.start.elapsed()).into();
    piece["load_duration"] = 0.into();
    piece["prompt_eval_count"] = usage.n_prompt.into();
    piece["prompt_eval_duration"] = nanos(usage.t_prompt).into();
    piece["eval_count"] = usage.n_generated.into();
    piece["eval_duration"] = nanos(usage.t_generated).into();
}

fn line(value: &Json) -> String {
    format!("{value}\n")
}

struct Stream {
    app: Shared,
    told: Told,
    /// The call whose arguments come: it is told whole.
    call: Option<Call>,
    finish: Option<Finish>,
}

impl Stream {
    fn called(&mut self) -> String {
        let Some(call) = self.call.take() else {
            return String::new();
        };
        let mut told = piece(&self.app, &self.told, "", "");
        told["message"]["tool_calls"] = vec![call_json(&call)].into();
        line(&told)
    }
}

impl Teller for Stream {
    fn content_type(&self) -> &'static str {
        "application/x-ndjson"
    }

    fn pause(&self) -> &'static str {
        ""
    }

    fn piece(&mut self, told: Piece, _: &Usage) -> String {
        match told {
            Piece::Prompt { .. } => String::new(),
            Piece::Text { content, reasoning, .. } => {
                self.called() + &line(&piece(&self.app, &self.told, &content, &reasoning))
            }
            Piece::Call { name, .. } => {
                let before = self.called();
                self.call = Some(Call {
                    name,
                    arguments: String::new(),
                });
                before
            }
            Piece::Arguments { text, .. } => {
                self.call.iter_mut().for_each(|call| call.arguments += &text);
                String::new()
            }
            Piece::End { finish, .. } => {
                self.finish = Some(finish);
                self.called()
            }
            Piece::Failed(text) => line(&error_json(&ApiError::server(text))),
        }
    }

    fn end(&mut self, usage: &Usage) -> String {
        if self.finish.is_none() {
            return String::new();
        }
        let mut last = piece(&self.app, &self.told, "", "");
        finished(&mut last, &self.told, self.finish.as_ref(), usage);
        line(&last)
    }
}
