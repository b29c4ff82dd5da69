//! Offline batches in the format of OpenAI's Batch API. The input is a JSONL file of requests; the output
//! gets one JSON line per request. An interrupted batch resumes: requests whose result is already in the
//! output are skipped.

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
use crate::http::{BYTE_ORDER_MARK, json_error};

/// Maximum length of an input line in bytes.
const MAX_LINE: usize = 16 << 20;

/// Error that stops a batch.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The output file contains other data.
    #[error("cannot resume the batch: line {line} of the output is not a batch result; use another output file")]
    Output {
        /// Line number in the output file, from 1.
        line: usize,
    },
    /// The output file belongs to another input file.
    #[error(
        "cannot resume the batch: line {line} of the input has custom_id {found:?}, but its result in the output has {expected:?}; use the original input file"
    )]
    Other {
        /// Line number in the output file, from 1.
        line: usize,
        /// `custom_id` in the input.
        found: String,
        /// `custom_id` in the output.
        expected: String,
    },
    /// The scheduler has stopped.
    #[error("the model has stopped; finished results are saved, run the same command to resume")]
    Over,
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Progress of a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Number of requests finished in earlier runs.
    pub n_before: usize,
    /// Number of requests finished in this run.
    pub n_done: usize,
    /// Number of requests in this run that failed.
    pub n_failed: usize,
}

/// Finished requests: line number (from 1) to `custom_id`.
pub type FinishedRequests = HashMap<usize, String>;

/// Reads the finished requests from an output file. Truncates a partial last line, which an interrupted run
/// may have left.
pub fn finished(output: &mut File) -> Result<FinishedRequests, BatchError> {
    output.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(&mut *output);
    let (mut found, mut end, mut n) = (FinishedRequests::new(), 0, 0);
    let mut line = Vec::new();
    loop {
        line.clear();
        let len = reader.read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            break;
        }
        n += 1;
        let result: Option<Json> = serde_json::from_slice(&line).ok();
        let number = result
            .as_ref()
            .and_then(|result| result["id"].as_str()?.strip_prefix(ID)?.parse().ok());
        let (Some(result), Some(number)) = (result, number) else {
            return Err(BatchError::Output { line: n });
        };
        found.insert(number, result["custom_id"].as_str().unwrap_or_default().to_owned());
        end += len as u64;
    }
    drop(reader);
    output.set_len(end)?;
    output.seek(SeekFrom::Start(end))?;
    Ok(found)
}

/// Prefix of result ids; the line number follows.
const ID: &str = "batch_req_";

/// Runs all requests of `input` that are not in `finished`, up to `n_at_once` concurrently. Appends each
/// result to `output` and calls `on_progress` with the progress.
pub async fn batch(
    routes: Router,
    mut input: impl BufRead,
    output: &mut File,
    finished: &FinishedRequests,
    n_at_once: usize,
    mut on_progress: impl FnMut(Progress),
) -> Result<Progress, BatchError> {
    let mut progress = Progress::default();
    let mut in_flight: JoinSet<Option<(Json, bool)>> = JoinSet::new();
    let mut number = 0;
    let mut is_over = false;
    while !is_over || !in_flight.is_empty() {
        if !is_over && in_flight.len() < n_at_once {
            let Some(line) = next_line(&mut input)? else {
                is_over = true;
                continue;
            };
            number += 1;
            if line.as_ref().is_ok_and(|line| line.trim_ascii().is_empty()) {
                continue;
            }
            let mark = if number == 1 { BYTE_ORDER_MARK } else { &[] };
            let request = line.and_then(|line| BatchRequest::read(line.strip_prefix(mark).unwrap_or(&line)));
            let id = request.as_ref().map_or("", |request| &request.custom_id);
            if let Some(expected) = finished.get(&number) {
                if request.is_ok() && expected != id {
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
            in_flight.spawn(run_request(routes.clone(), number, request));
            continue;
        }
        // If the task panicked, its request has no result and runs again on resume.
        let Some(Ok(Some((result, is_fine)))) = in_flight.join_next().await else {
            return Err(BatchError::Over);
        };
        // A single call, so that an interruption leaves at most one partial line.
        output.write_all(format!("{result}\n").as_bytes())?;
        progress.n_done += 1;
        progress.n_failed += usize::from(!is_fine);
        on_progress(progress);
    }
    output.sync_all()?;
    Ok(progress)
}

/// Reads the next line. The inner result is an error if the line is invalid; `None` at end of file.
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
    Ok(match len {
        0 => None,
        1..=MAX_LINE => Some(Ok(line)),
        _ => Some(Err(format!("line too long: {len} bytes, maximum {MAX_LINE}"))),
    })
}

/// Request parsed from an input line.
struct BatchRequest {
    custom_id: String,
    method: Method,
    url: String,
    body: Json,
}

impl BatchRequest {
    fn read(line: &[u8]) -> Result<BatchRequest, String> {
        let wrong = |e| format!("the line is not valid JSON: {}", json_error(&e));
        let mut line: Json = serde_json::from_slice(line).map_err(wrong)?;
        let custom_id = line
            .get("custom_id")
            .cloned()
            .and_then(text_of)
            .ok_or("the line has no custom_id")?;
        let method = match line["method"].as_str() {
            None | Some("POST") => Method::POST,
            Some(_) => return Err("unsupported method: expected POST".to_owned()),
        };
        let url = line
            .get("url")
            .cloned()
            .and_then(text_of)
            .ok_or("the line has no url")?;
        if !url.starts_with("/v1/") {
            return Err("unsupported url: expected a path such as /v1/chat/completions".to_owned());
        }
        let body = line["body"].take();
        if body["stream"] == true {
            return Err("streaming is not supported in a batch; remove `stream`".to_owned());
        }
        Ok(BatchRequest {
            custom_id,
            method,
            url,
            body,
        })
    }
}

/// Runs one request. Returns the output line and whether the request succeeded; `None` if the scheduler has
/// stopped.
async fn run_request(routes: Router, number: usize, request: Result<BatchRequest, String>) -> Option<(Json, bool)> {
    let id = format!("{ID}{number}");
    let refused = |custom_id: Option<String>, message: String| {
        let error = json!({ "code": "invalid_line", "message": format!("line {number}: {message}") });
        Some((
            json!({ "id": id, "custom_id": custom_id, "response": null, "error": error }),
            false,
        ))
    };
    let line = match request {
        Ok(line) => line,
        Err(message) => return refused(None, message),
    };
    let request = Request::builder()
        .method(line.method)
        .uri(&line.url)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Body::from(line.body.to_string()));
    let request = match request {
        Ok(request) => request,
        Err(error) => return refused(Some(line.custom_id), error.to_string()),
    };
    // The router's error type is `Infallible`.
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
    let result = json!({ "id": id, "custom_id": line.custom_id, "response": response, "error": null });
    Some((result, status.is_success()))
}
