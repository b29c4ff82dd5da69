//! Streaming responses, independent of the event format of an API.

use std::time::Duration;

use crate::chat::{OutputDelta, OutputStream, StreamItem, Usage};
use crate::scheduler::PromptProgress;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;

/// Encodes output deltas in the event format of an API.
pub trait EventEncoder: Send + 'static {
    /// Returns the content type of the stream.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// Returns the keep-alive data that is sent while the stream is silent.
    fn pause(&self) -> &'static str {
        ": \n\n"
    }

    /// Returns the data at the start of the stream.
    fn begin(&mut self) -> String {
        String::new()
    }

    /// Encodes an output delta as a stream event.
    fn piece(&mut self, piece: OutputDelta, usage: &Usage) -> String;

    /// Encodes the progress of the prompt whose first choice is `choice`.
    fn progress(&mut self, choice: usize, progress: &PromptProgress) -> String {
        let _ = (choice, progress);
        String::new()
    }

    /// Returns true if no further output is needed. The completion is then cancelled and the stream ends
    /// normally.
    fn is_over(&self) -> bool {
        false
    }

    /// Returns the data at the end of the stream.
    fn end(&mut self, usage: &Usage) -> String;
}

/// Silence after which keep-alive data is sent.
const MAX_SILENCE: Duration = Duration::from_secs(15);

enum Stage {
    Begin,
    Going,
    Over,
}

/// Creates a response that streams a completion. Dropping the response, as on a client disconnect, cancels
/// the completion.
pub fn stream(output: OutputStream, encoder: impl EventEncoder) -> Response {
    let content_type = encoder.content_type();
    let body = unfold(
        (output, encoder, Stage::Begin),
        |(mut output, mut encoder, stage)| async move {
            let (text, stage) = match stage {
                Stage::Begin => match encoder.begin() {
                    text if text.is_empty() => next(&mut output, &mut encoder).await,
                    text => (text, Stage::Going),
                },
                Stage::Going => next(&mut output, &mut encoder).await,
                Stage::Over => return None,
            };
            let bytes = axum::body::Bytes::from(text);
            Some((Ok::<_, std::convert::Infallible>(bytes), (output, encoder, stage)))
        },
    );
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables response buffering in nginx, which would defeat streaming.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Returns the next non-empty piece of the stream.
async fn next(output: &mut OutputStream, encoder: &mut impl EventEncoder) -> (String, Stage) {
    loop {
        let Ok(piece) = tokio::time::timeout(MAX_SILENCE, output.next_item()).await else {
            match encoder.pause() {
                "" => continue,
                text => return (text.to_owned(), Stage::Going),
            }
        };
        let Some(piece) = piece else {
            return (encoder.end(&output.usage), Stage::Over);
        };
        let text = match piece {
            StreamItem::Delta(piece) => encoder.piece(piece, &output.usage),
            StreamItem::Progress(choice, progress) => encoder.progress(choice, &progress),
        };
        if encoder.is_over() {
            return (text + &encoder.end(&output.usage), Stage::Over);
        }
        if !text.is_empty() {
            return (text, Stage::Going);
        }
    }
}
