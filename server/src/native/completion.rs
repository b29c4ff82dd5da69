//! `/completion`: a text that is continued, as llama-server tells it.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use serde_json::{Map, Value as Json, json};

use super::gap::{INFILL_FIELDS, asked_gap};
use super::indent::Indent;
use crate::answer::{Answer, Piece, Usage};
use crate::api::{
    ApiError, ApiResult, Field, Fields, Form, GENERATING, Known, STRUCTURE, between, generating, lenient, limit,
    structure, text_of,
};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream, warned};
use crate::openai::{event, failed, of_chat, prompts, timings_json};
use crate::parser::OutputParser;
use crate::scheduler::{Finish, TokenLogprob};

/// The fields.
pub const FIELDS: &[Field] = &[
    Field {
        name: "prompt",
        form: Form::Any,
        doc: "A text, or a list of tokens.",
    },
    Field {
        name: "n_predict",
        form: Form::Integer,
        doc: "Most tokens; -1 goes on until the model ends or the context is full. None given: as many as `-n` says.",
    },
    Field {
        name: "max_tokens",
        form: Form::Integer,
        doc: "The same.",
    },
    Field {
        name: "stream",
        form: Form::Flag,
        doc: "Tell the text as it comes, as events.",
    },
    Field {
        name: "n_probs",
        form: Form::Integer,
        doc: "Log probabilities of tokens, and of so many most likely ones, up to 20.",
    },
    Field {
        name: "n_indent",
        form: Form::Integer,
        doc: "The text ends before a line that has fewer blanks before it; the line that it begins in does not count (0).",
    },
    Field {
        name: "response_fields",
        form: Form::List,
        doc: "What is told of the answer, such as `content` and `timings/prompt_n`, each under that name (all).",
    },
    Field {
        name: "return_tokens",
        form: Form::Flag,
        doc: "Tell the tokens of the text, too: `tokens`.",
    },
    Field {
        name: "t_max_prompt_ms",
        form: Form::Ignored,
        doc: "Prompts are computed to their end, as with llama-server.",
    },
    Field {
        name: "n_keep",
        form: Form::Ignored,
        doc: "Nothing is ever cut.",
    },
    Field {
        name: "n_discard",
        form: Form::Ignored,
        doc: "The same.",
    },
    Field {
        name: "n_cache_reuse",
        form: Form::Ignored,
        doc: "Beginnings of any length are reused.",
    },
    Field {
        name: "model",
        form: Form::Ignored,
        doc: "The model, of which there is one.",
    },
    Field {
        name: "id_slot",
        form: Form::Ignored,
        doc: "Sequences are chosen by what they hold.",
    },
];

/// Names in `response_fields`.
const MAX_NAMES: usize = 64;

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Continuation,
    Gap,
}

struct Told {
    prompt: Json,
    prompt_tokens: Vec<Token>,
    logprobs: bool,
    /// Tell the tokens.
    tokens: bool,
    n_indent: usize,
    /// What is told of the answer; `None` is all.
    only: Option<Vec<String>>,
    /// What is left out of the request.
    left_out: Vec<String>,
}

/// Continues a text.
pub async fn completion(
    State(app): State<Shared>,
    Extension(client): Extension<Client>,
    Body(body): Body,
) -> ApiResult {
    tell(app, client, body, Wanted::Continuation).await
}

/// Fills a gap in a text.
pub async fn infill(State(app): State<Shared>, Extension(client): Extension<Client>, Body(body): Body) -> ApiResult {
    tell(app, client, body, Wanted::Gap).await
}

async fn tell(app: Shared, client: Client, body: Map<String, Json>, wanted: Wanted) -> ApiResult {
    let of_app = app.clone();
    let (mut answer, told, is_stream) = blocking(move || ask(&of_app, client, body, wanted)).await?;
    let left_out = told.left_out.clone();
    let mut telling = Telling {
        indent: Indent::new(told.n_indent),
        finish: None,
        app,
        told,
    };
    if is_stream {
        return Ok(warned(stream(answer, telling), &left_out));
    }
    let (mut content, mut logprobs) = (String::new(), Vec::new());
    while let Some(piece) = answer.next().await {
        match piece {
            Piece::Text {
                content: text, logprob, ..
            } => {
                content += &telling.indent.push(&text, false);
                logprobs.extend(logprob);
            }
            Piece::End { finish, .. } => telling.finish = Some(finish),
            Piece::Failed(text) => return Err(ApiError::server(text)),
            Piece::Prompt { .. } | Piece::Call { .. } | Piece::Arguments { .. } => {}
        }
        if telling.is_over() {
            break;
        }
    }
    content += &telling.indent.push("", true);
    let mut body = telling.last(&answer.usage);
    body["content"] = content.into();
    telling.add(&mut body, &logprobs);
    Ok(warned(json(&telling.only(body)), &left_out))
}

fn ask(app: &App, Client(client): Client, body: Map<String, Json>, wanted: Wanted) -> ApiResult<(Answer, Told, bool)> {
    let served = &app.served;
    let tables: &[&[Field]] = match wanted {
        Wanted::Continuation => &[FIELDS, GENERATING, STRUCTURE],
        Wanted::Gap => &[FIELDS, INFILL_FIELDS, GENERATING, STRUCTURE],
    };
    let known = Known { tables, sampling: true };
    let (mut fields, left_out) = lenient(body, known, "field")?;
    let prompt = fields.given("prompt").cloned().unwrap_or_default();
    let mut request = generating(&mut fields, &served.params.defaults)?;
    request.client = client;
    request.prompt = match wanted {
        Wanted::Gap => asked_gap(&mut fields)?.prompt(served)?,
        Wanted::Continuation => match &mut prompts(&mut fields, "prompt", 1, served)?[..] {
            [prompt] => std::mem::take(prompt),
            _ => return Err(ApiError::field("prompt", "expected one text or one list of tokens")),
        },
    };
    let (n_predict, max_tokens) = (fields.integer("n_predict")?, fields.integer("max_tokens")?);
    request.max_tokens = n_predict.or(max_tokens).map(limit);
    let n_probs = between("n_probs", fields.integer("n_probs")?, 0, 20)?;
    let n_probs = n_probs.filter(|&n| n > 0);
    let tokens = fields.flag("return_tokens")?.unwrap_or(false);
    // With how likely they were tokens are told one by one.
    request.logprobs = n_probs.or(tokens.then_some(0));
    // Less than nothing is nothing.
    let n_indent = fields.integer("n_indent")?.and_then(|n| usize::try_from(n).ok());
    let only = only(&mut fields)?;
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    request.constraint = served.constraint(structure(&mut fields)?.as_ref())?;
    fields.finish()?;
    let told = Told {
        prompt,
        prompt_tokens: request.prompt.clone(),
        logprobs: n_probs.is_some(),
        tokens,
        n_indent: n_indent.unwrap_or(0),
        only,
        left_out,
    };
    let submitted = served.submit(request);
    let events = submitted.map_err(|e| ApiError {
        param: Some("prompt".to_owned()),
        ..e.into()
    })?;
    Ok((Answer::new(vec![(events, 1)], &OutputParser::none()), told, is_stream))
}

/// What is told of the answer, if not all. An empty name is nothing.
fn only(fields: &mut Fields) -> ApiResult<Option<Vec<String>>> {
    let Some(list) = fields.list("response_fields")?.filter(|list| !list.is_empty()) else {
        return Ok(None);
    };
    let names: Option<Vec<String>> = list.into_iter().take(MAX_NAMES).map(text_of).collect();
    let wrong = || ApiError::field("response_fields", "expected a list of names");
    names.ok_or_else(wrong).map(Some)
}

/// An answer on its way.
struct Telling {
    app: Shared,
    told: Told,
    indent: Indent,
    finish: Option<Finish>,
}

impl Telling {
    /// What is told when all is done.
    fn last(&self, usage: &Usage) -> Json {
        let (stop_type, word) = match &self.finish {
            _ if self.indent.is_over() => ("limit", ""),
            None => ("none", ""),
            Some(Finish::Model(_)) => ("eos", ""),
            Some(Finish::Stop(word)) => ("word", word.as_str()),
            Some(Finish::Limit | Finish::ContextFull) => ("limit", ""),
        };
        let prompt = match &self.told.prompt {
            Json::String(text) => text.clone(),
            _ => self
                .app
                .served
                .vocab()
                .detokenize(&self.told.prompt_tokens, false, true),
        };
        json!({
            "index": 0,
            "content": "",
            "stop": true,
            "model": self.app.served.params.name,
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

    /// Adds how likely tokens were and which they are, as far as that is asked for.
    fn add(&self, body: &mut Json, logprobs: &[TokenLogprob]) {
        if self.told.logprobs {
            let probability = |l: &TokenLogprob| of_chat(self.app.served.vocab(), l);
            body["completion_probabilities"] = logprobs.iter().map(probability).collect::<Vec<_>>().into();
        }
        if self.told.tokens {
            body["tokens"] = logprobs.iter().map(|l| l.token).collect::<Vec<_>>().into();
        }
    }

    /// What is asked for of all that could be told.
    fn only(&self, body: Json) -> Json {
        let Some(names) = &self.told.only else { return body };
        let found = names.iter().filter_map(|name| {
            let found = name.split('/').try_fold(&body, |body, part| body.get(part))?;
            Some((name.clone(), found.clone()))
        });
        Json::Object(found.collect())
    }
}

impl Teller for Telling {
    fn piece(&mut self, piece: Piece, _: &Usage) -> String {
        match piece {
            Piece::Prompt { .. } | Piece::Call { .. } | Piece::Arguments { .. } => String::new(),
            Piece::Text { content, logprob, .. } => {
                let content = self.indent.push(&content, false);
                let mut told = json!({ "index": 0, "content": content, "stop": false });
                if let Some(logprob) = logprob {
                    self.add(&mut told, &[logprob]);
                }
                event(&told)
            }
            Piece::End { finish, .. } => {
                self.finish = Some(finish);
                String::new()
            }
            Piece::Failed(text) => failed(&text),
        }
    }

    fn is_over(&self) -> bool {
        self.indent.is_over()
    }

    fn end(&mut self, usage: &Usage) -> String {
        // It has failed, which was told.
        if self.finish.is_none() && !self.is_over() {
            return String::new();
        }
        let mut last = self.last(usage);
        last["content"] = self.indent.push("", true).into();
        event(&self.only(last))
    }
}
