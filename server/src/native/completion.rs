//! `/completion`: a text that is continued, as llama-server tells it.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use engine::vocab::Special;
use serde_json::{Map, Value as Json, json};

use crate::answer::{Answer, Choice, Piece, Usage};
use crate::api::{ApiError, ApiResult, Field, Fields, Form, GENERATING, STRUCTURE, between, generating, structure};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream};
use crate::openai::{event, failed, of_chat, prompts, timings_json};
use crate::parser::OutputParser;
use crate::scheduler::{Finish, TokenLogprob};
use crate::served::Served;

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
        doc: "Most tokens; -1 goes on until the model ends or the context is full.",
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

/// The fields of what fills a gap, besides those of completions.
pub const INFILL_FIELDS: &[Field] = &[
    Field {
        name: "input_prefix",
        form: Form::Text,
        doc: "What stands before the gap.",
    },
    Field {
        name: "input_suffix",
        form: Form::Text,
        doc: "What stands behind it.",
    },
    Field {
        name: "input_extra",
        form: Form::List,
        doc: "Other files: objects with `filename` and `text`.",
    },
];

/// What a request asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Continuation,
    Gap,
}

struct Told {
    prompt: Json,
    tokens: Vec<Token>,
    logprobs: bool,
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
    if is_stream {
        return Ok(stream(
            answer,
            Stream {
                app,
                told,
                finish: None,
            },
        ));
    }
    let (mut choices, _) = answer.whole().await?;
    let Choice {
        content,
        logprobs,
        finish,
        ..
    } = choices.pop().unwrap_or_default();
    let mut body = last(&app, &told, finish.as_ref(), &answer.usage);
    body["content"] = content.into();
    if told.logprobs {
        body["completion_probabilities"] = logprobs
            .iter()
            .map(|(l, _)| of_chat(app.served.vocab(), l))
            .collect::<Vec<_>>()
            .into();
    }
    Ok(json(&body))
}

fn ask(app: &App, Client(client): Client, body: Map<String, Json>, wanted: Wanted) -> ApiResult<(Answer, Told, bool)> {
    let served = &app.served;
    let known: &[&[Field]] = match wanted {
        Wanted::Continuation => &[FIELDS, GENERATING, STRUCTURE],
        Wanted::Gap => &[FIELDS, INFILL_FIELDS, GENERATING, STRUCTURE],
    };
    let mut fields = Fields::new(body, known, true)?;
    let prompt = fields.given("prompt").cloned().unwrap_or_default();
    let mut request = generating(&mut fields, &served.params.sampler)?;
    request.client = client;
    request.prompt = match wanted {
        Wanted::Gap => gap(&mut fields, served)?,
        Wanted::Continuation => match &mut prompts(&mut fields, "prompt", 1, served)?[..] {
            [prompt] => std::mem::take(prompt),
            _ => return Err(ApiError::field("prompt", "expected one text or one list of tokens")),
        },
    };
    let (n_predict, max_tokens) = (fields.integer("n_predict")?, fields.integer("max_tokens")?);
    // Less than nothing is no limit, as in llama-server.
    request.max_tokens = match n_predict.or(max_tokens) {
        None => served.params.max_tokens,
        Some(n) => usize::try_from(n).ok(),
    };
    let n_probs = between("n_probs", fields.integer("n_probs")?, 0, 20)?;
    request.logprobs = n_probs.filter(|&n| n > 0);
    let is_stream = fields.flag("stream")?.unwrap_or(false);
    if let Some(grammar) = structure(&mut fields)? {
        request.constraint = Some(served.constraints.constraint(&grammar, served.model())?);
    }
    fields.finish()?;
    let told = Told {
        prompt,
        tokens: request.prompt.clone(),
        logprobs: request.logprobs.is_some(),
    };
    let submitted = served.scheduler.submit(request);
    let events = submitted.map_err(|e| ApiError {
        param: Some("prompt".to_owned()),
        ..e.into()
    })?;
    Ok((Answer::new(vec![(events, 1)], &OutputParser::none()), told, is_stream))
}

/// The prompt that asks for what is missing between two texts, by the tokens that the model was trained with for it.
fn gap(fields: &mut Fields, served: &Served) -> ApiResult<Vec<Token>> {
    let vocab = served.vocab();
    let mark = |special: Special| {
        let refused =
            || ApiError::unsupported("this model was not trained to fill gaps: its vocabulary has no tokens for them");
        vocab.special(special).ok_or_else(refused)
    };
    let (before, behind, between) = (mark(Special::FimPre)?, mark(Special::FimSuf)?, mark(Special::FimMid)?);
    let tokens = |text: &str| vocab.tokenize(text, false, false);
    let mut prompt = Vec::new();
    if vocab.add_bos() {
        prompt.extend(vocab.bos());
    }
    for (i, extra) in fields.list("input_extra")?.unwrap_or_default().iter().enumerate() {
        let (Some(name), Some(text)) = (extra["filename"].as_str(), extra["text"].as_str()) else {
            return Err(ApiError::field(
                &format!("input_extra[{i}]"),
                "expected an object with filename and text",
            ));
        };
        match vocab.special(Special::FimSep) {
            Some(separator) => {
                prompt.push(separator);
                prompt.extend(tokens(&format!("{name}\n{text}\n")));
            }
            None => prompt.extend(tokens(&format!("{name}:\n{text}\n\n"))),
        }
    }
    prompt.push(before);
    prompt.extend(tokens(&fields.text("input_prefix")?.unwrap_or_default()));
    prompt.push(behind);
    prompt.extend(tokens(&fields.text("input_suffix")?.unwrap_or_default()));
    prompt.push(between);
    prompt.extend(tokens(&fields.text("prompt")?.unwrap_or_default()));
    Ok(prompt)
}

/// What is told when all is done.
fn last(app: &App, told: &Told, finish: Option<&Finish>, usage: &Usage) -> Json {
    let (stop_type, word) = match finish {
        None => ("none", ""),
        Some(Finish::Model(_)) => ("eos", ""),
        Some(Finish::Stop(word)) => ("word", word.as_str()),
        Some(Finish::Limit | Finish::ContextFull) => ("limit", ""),
    };
    let prompt = match &told.prompt {
        Json::String(text) => text.clone(),
        _ => app.served.vocab().detokenize(&told.tokens, false, true),
    };
    json!({
        "index": 0,
        "content": "",
        "stop": true,
        "model": app.served.params.name,
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

struct Stream {
    app: Shared,
    told: Told,
    finish: Option<Finish>,
}

impl Teller for Stream {
    fn piece(&mut self, piece: Piece, _: &Usage) -> String {
        match piece {
            Piece::Prompt { .. } | Piece::Call { .. } | Piece::Arguments { .. } => String::new(),
            Piece::Text { content, logprob, .. } => {
                let mut told = json!({ "index": 0, "content": content, "stop": false });
                if let Some(logprob) = &logprob {
                    let probability = |l: &TokenLogprob| of_chat(self.app.served.vocab(), l);
                    told["completion_probabilities"] = vec![probability(logprob)].into();
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

    fn end(&mut self, usage: &Usage) -> String {
        match &self.finish {
            // It has failed, which was told.
            None => String::new(),
            finish => event(&last(&self.app, &self.told, finish.as_ref(), usage)),
        }
    }
}
