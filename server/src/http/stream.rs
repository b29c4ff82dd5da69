//! Answers as they come: events of a stream, in whichever form an interface has them.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream::unfold;

use crate::answer::{Answer, Piece, Usage};

/// Says an answer in the form of an interface.
pub trait Teller: Send + 'static {
    /// The type of the content.
    fn content_type(&self) -> &'static str {
        "text/event-stream"
    }

    /// What is sent when there is nothing to say, so that nobody takes the connection for dead.
    fn pause(&self) -> &'static str {
        ": \n\n"
    }

    /// What comes before everything.
    fn begin(&mut self) -> String {
        String::new()
    }

    /// What a piece becomes.
    fn piece(&mut self, piece: Piece, usage: &Usage) -> String;

    /// True if nothing more is wanted: the answer's work ends then, and what comes after everything is said.
    fn is_over(&self) -> bool {
        false
    }

    /// What comes after everything.
    fn end(&mut self, usage: &Usage) -> String;
}

/// Silence after which a pause is sent.
const MAX_SILENCE: Duration = Duration::from_secs(15);

enum Stage {
    Begin,
    Going,
    Over,
}

/// A response that says an answer as it comes. When it is dropped because the client has gone, the answer's work ends.
pub fn stream(answer: Answer, teller: impl Teller) -> Response {
    let content_type = teller.content_type();
    let told = unfold(
        (answer, teller, Stage::Begin),
        |(mut answer, mut teller, stage)| async move {
            let (text, stage) = match stage {
                Stage::Begin => match teller.begin() {
                    text if text.is_empty() => next(&mut answer, &mut teller).await,
                    text => (text, Stage::Going),
                },
                Stage::Going => next(&mut answer, &mut teller).await,
                Stage::Over => return None,
            };
            let bytes = axum::body::Bytes::from(text);
            Some((Ok::<_, std::convert::Infallible>(bytes), (answer, teller, stage)))
        },
    );
    let mut response = Response::new(Body::from_stream(told));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies that collect what comes would make a stream none.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// What is to be said next: pieces that became nothing are passed over.
async fn next(answer: &mut Answer, teller: &mut impl Teller) -> (String, Stage) {
    loop {
        let Ok(piece) = tokio::time::timeout(MAX_SILENCE, answer.next()).await else {
            match teller.pause() {
                "" => continue,
                text => return (text.to_owned(), Stage::Going),
            }
        };
        let Some(piece) = piece else {
            return (teller.end(&answer.usage), Stage::Over);
        };
        let text = teller.piece(piece, &answer.usage);
        if teller.is_over() {
            return (text + &teller.end(&answer.usage), Stage::Over);
        }
        if !text.is_empty() {
            return (text, Stage::Going);
        }
    }
}
