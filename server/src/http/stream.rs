//! Streaming responses, independent of the event format of an API.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::chat::{OutputDelta, OutputStream, StreamItem, Usage};
use crate::scheduler::PromptProgress;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::future::pending;
use futures_util::stream::unfold;

use super::listen::Cutoff;

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

/// Cutoff of a streaming response. The response contains a clone as an extension, so that the middleware can set the
/// cutoff before the stream is polled.
#[derive(Clone, Default)]
pub struct StreamCutoff(Arc<OnceLock<Cutoff>>);

impl StreamCutoff {
    /// Sets the cutoff, at which the stream ends with an error. Only the first call has an effect.
    pub fn set(&self, cutoff: Cutoff) {
        self.0.get_or_init(|| cutoff);
    }

    /// Resolves at the cutoff; never if there is none.
    async fn reached(&self) {
        match self.0.get() {
            Some(cutoff) => cutoff.clone().reached().await,
            None => pending().await,
        }
    }
}

enum Stage {
    Begin,
    Going,
    Over,
}

/// Creates a response that streams a completion. Dropping the response, as on a client disconnect, cancels
/// the completion.
pub fn stream(output: OutputStream, encoder: impl EventEncoder) -> Response {
    let content_type = encoder.content_type();
    let cutoff = StreamCutoff::default();
    let source = Source {
        output,
        cutoff: Some(cutoff.clone()),
    };
    let body = unfold(
        (source, encoder, Stage::Begin),
        |(mut source, mut encoder, stage)| async move {
            let (text, stage) = match stage {
                Stage::Begin => match encoder.begin() {
                    text if text.is_empty() => next(&mut source, &mut encoder).await,
                    text => (text, Stage::Going),
                },
                Stage::Going => next(&mut source, &mut encoder).await,
                Stage::Over => return None,
            };
            let bytes = axum::body::Bytes::from(text);
            Some((Ok::<_, std::convert::Infallible>(bytes), (source, encoder, stage)))
        },
    );
    let mut response = Response::new(Body::from_stream(body));
    response.extensions_mut().insert(cutoff);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Disables response buffering in nginx, which would defeat streaming.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Output that a cutoff ends.
struct Source {
    output: OutputStream,
    /// `None` after the cutoff.
    cutoff: Option<StreamCutoff>,
}

impl Source {
    /// Returns the next item, or `None` at the end. The last item after the cutoff is an error.
    async fn next_item(&mut self) -> Option<StreamItem> {
        if let Some(cutoff) = &self.cutoff {
            tokio::select! {
                item = self.output.next_item() => return item,
                () = cutoff.reached() => {}
            }
            self.cutoff = None;
            self.output.fail(Cutoff::error());
        }
        self.output.next_item().await
    }
}

/// Returns the next non-empty piece of the stream.
async fn next(source: &mut Source, encoder: &mut impl EventEncoder) -> (String, Stage) {
    loop {
        let Ok(piece) = tokio::time::timeout(MAX_SILENCE, source.next_item()).await else {
            match encoder.pause() {
                "" => continue,
                text => return (text.to_owned(), Stage::Going),
            }
        };
        let Some(piece) = piece else {
            return (encoder.end(&source.output.usage), Stage::Over);
        };
        let text = match piece {
            StreamItem::Delta(piece) => encoder.piece(piece, &source.output.usage),
            StreamItem::Progress(choice, progress) => encoder.progress(choice, &progress),
        };
        if encoder.is_over() {
            return (text + &encoder.end(&source.output.usage), Stage::Over);
        }
        if !text.is_empty() {
            return (text, Stage::Going);
        }
    }
}
