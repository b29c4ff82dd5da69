//! Requests from lines of a file, answered through the same routes as those of clients, in the format of OpenAI's batches. Each answer is a line that is
//! written whole, and lines that are there already are not done again.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};

use axum::Router;
use axum::body::Body;
use axum::http::{Method, Request, StatusCode, header};
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use tokio::task::JoinSet;
use tower::ServiceExt;

use crate::api::text_of;

/// Most bytes of a line.
const MAX_LINE: usize = 16 << 20;

/// Why a batch cannot be done or gone on with.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The file with the answers has something else in it.
    #[error("line {line} of the output is no answer of a batch: the file is something else")]
    Output {
        /// Its number, from 1.
        line: usize,
    },
    /// The files do not belong together.
    #[error(
        "line {line} of the input has the custom_id {found:?}; the output has an answer to {expected:?} there: it is of another input"
    )]
    Other {
        /// Its number, from 1.
        line: usize,
        /// As the input has it.
        found: String,
        /// As the output has it.
        expected: String,
    },
    /// The model cannot be computed any more.
    #[error("the model is not computed any more; what is finished is kept, and the same command goes on from there")]
    Over,
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Lines that were answered before.
    pub n_before: usize,
    /// Lines that were answered now.
    pub n_done: usize,
    /// Those of them with an error.
    pub n_failed: usize,
}

/// Answers by the number of their line, from 1, with their custom id.
pub type Finished = HashMap<usize, String>;

/// Reads which lines are answered in a file, which then ends behind the last whole one: half a line is what a program leaves that was killed.
pub fn finished(output: &mut File) -> Result<Finished, BatchError> {
    output.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(&mut *output);
    let (mut found, mut end, mut n) = (Finished::new(), 0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let len = reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            break;
        }
        n += 1;
        let answer: Option<Json> = serde_json::from_slice(&line).ok();
        let number = answer
            .as_ref()
            .and_then(|answer| answer["id"].as_str()?.strip_prefix(ID)?.parse().ok());
        let (Some(answer), Some(number)) = (answer, number) else {
            return Err(BatchError::Output { line: n });
        };
        found.insert(number, answer["custom_id"].as_str().unwrap_or_default().to_owned());
        end += len as u64;
    }
    drop(reader);
    output.set_len(end)?;
    output.seek(SeekFrom::Start(end))?;
    Ok(found)
}

/// What ids of answers begin with; the number of the line follows.
const ID: &str = "batch_req_";

/// Answers all lines of `input` that are not among `finished`, `n_at_once` at a time, and writes each answer to `output` as it comes. `tell` is told how
/// far it is.
pub async fn batch(
    routes: Router,
    mut input: impl BufRead,
    output: &mut File,
    finished: &Finished,
    n_at_once: usize,
    mut tell: impl FnMut(Progress),
) -> Result<Progress, BatchError> {
    let mut progress = Progress::default();
    let mut under_way: JoinSet<Option<(Json, bool)>> = JoinSet::new();
    let mut number = 0;
    let mut is_over = false;
    while !is_over || !under_way.is_empty() {
        if !is_over && under_way.len() < n_at_once {
            let Some(line) = next_line(&mut input)? else {
                is_over = true;
                continue;
            };
            number += 1;
            if line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty()) {
                continue;
            }
            let asked = line.and_then(|line| Asked::read(&line));
            let id = asked.as_ref().map_or("", |asked| &asked.custom_id);
            if let Some(expected) = finished.get(&number) {
                if asked.is_ok() && expected != id {
                    let (found, expected) = (id.to_owned(), expected.clone());
                    return Err(BatchError::Other {
                        line: number,
                        found,
                        expected,
                    });
                }
                progress.n_before += 1;
                continue;
            }
            under_way.spawn(answered(routes.clone(), number, asked));
            continue;
        }
        // A task that panicked is one whose line has no answer, as of one that was not begun.
        let Some(Ok(Some((answer, is_fine)))) = under_way.join_next().await else {
            return Err(BatchError::Over);
        };
        // One call: what is written by halves is found and cut off by whoever goes on.
        output.write_all(format!("{answer}\n").as_bytes())?;
        progress.n_done += 1;
        progress.n_failed += usize::from(!is_fine);
        tell(progress);
    }
    output.sync_all()?;
    Ok(progress)
}

/// The next line, or what is wrong with it; `None` at the end.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut line = Vec::new();
    let mut len = 0;
    loop {
        let part = input.fill_buf()?;
        if part.is_empty() {
            break;
        }
        let end = part.iter().position(|&byte| byte == b'\n');
        let n = end.map_or(part.len(), |at| at + 1);
        len += n;
        if len <= MAX_LINE {
            line.extend_from_slice(&part[..n]);
        }
        input.consume(n);
        if end.is_some() {
            break;
        }
    }
    let too_long = || format!("the line has {len} bytes, expected at most {MAX_LINE}");
    Ok((len > 0).then(|| if len <= MAX_LINE { Ok(line) } else { Err(too_long()) }))
}

/// A line as it was read.
struct Asked {
    custom_id: String,
    method: Method,
    url: String,
    body: Json,
}

impl Asked {
    fn read(line: &[u8]) -> Result<Asked, String> {
        let mut line: Json = serde_json::from_slice(line).map_err(|e| format!("the line is not JSON: {e}"))?;
        let custom_id = line
            .get("custom_id")
            .cloned()
            .and_then(text_of)
            .ok_or("the line has no custom_id")?;
        let method = match line["method"].as_str() {
            None | Some("POST") => Method::POST,
            Some(_) => return Err("expected the method POST".to_owned()),
        };
        let url = line
            .get("url")
            .cloned()
            .and_then(text_of)
            .ok_or("the line has no url")?;
        if !url.starts_with("/v1/") {
            return Err("expected a url such as /v1/chat/completions".to_owned());
        }
        let body = line["body"].take();
        if body["stream"] == true {
            return Err("answers of a batch are no streams".to_owned());
        }
        Ok(Asked {
            custom_id,
            method,
            url,
            body,
        })
    }
}

/// The answer to a line, and whether it is one; `None` if nobody computes any more.
async fn answered(routes: Router, number: usize, asked: Result<Asked, String>) -> Option<(Json, bool)> {
    let id = format!("{ID}{number}");
    let refused = |custom_id: Option<String>, message: String| {
        let error = json!({ "code": "invalid_line", "message": format!("line {number}: {message}") });
        Some((
            json!({ "id": id, "custom_id": custom_id, "response": null, "error": error }),
            false,
        ))
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(message) => return refused(None, message),
    };
    let request = Request::builder()
        .method(asked.method)
        .uri(&asked.url)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(asked.body.to_string()));
    let request = match request {
        Ok(request) => request,
        Err(error) => return refused(Some(asked.custom_id), error.to_string()),
    };
    // The router answers everything.
    let response = routes.oneshot(request).await.ok()?;
    let status = response.status();
    if status == StatusCode::SERVICE_UNAVAILABLE {
        return None;
    }
    let request_id = response
        .headers()
        .get("x-request-id")
        .and_then(|id| id.to_str().ok())
        .map(str::to_owned);
    let bytes = response.into_body().collect().await.ok()?.to_bytes();
    let body: Json = serde_json::from_slice(&bytes).unwrap_or(Json::Null);
    let response = json!({ "status_code": status.as_u16(), "request_id": request_id, "body": body });
    let answer = json!({ "id": id, "custom_id": asked.custom_id, "response": response, "error": null });
    Some((answer, status.is_success()))
}
