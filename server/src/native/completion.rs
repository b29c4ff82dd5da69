//! `/completion`: a text that is continued, as llama-server tells it.

use axum::Extension;
use axum::extract::State;
use engine::sample::Token;
use serde_json::{Map, Value as Json, json};

use crate::answer::{Answer, Choice, Piece, Usage};
use crate::api::{ApiError, ApiResult, Field, Fields, Form, GENERATING, STRUCTURE, between, generating, structure};
use crate::http::{App, Body, Client, Shared, Teller, blocking, json, stream};
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
    let of_app = app.clone();
    let (mut answer, told, is_stream) = blocking(move || ask(&of_app, client, body)).await?;
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

fn ask(app: &App, Client(client): Client, body: Map<String, Json>) -> ApiResult<(Answer, Told, bool)> {
    let served = &app.served;
    let mut fields = Fields::new(body, &[FIELDS, GENERATING, STRUCTURE], true)?;
    let prompt = fields.given("prompt").cloned().unwrap_or_default();
    let mut request = generating(&mut fields, &served.params.sampler)?;
    request.client = client;
    request.prompt = match &mut prompts(&mut fields, "prompt", 1, served)?[..] {
        [prompt] => std::mem::take(prompt),
        _ => return Err(ApiError::field("prompt", "expected one text or one list of tokens")),
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
