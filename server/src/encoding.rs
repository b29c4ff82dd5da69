//! Starts requests whose images must be encoded first.

use crate::api::ApiResult;
use crate::app::{App, Shared};
use crate::chat::Conversation;
use crate::http::{Client, blocking};

/// Reads a request, encodes the images of its conversation, and starts the request.
///
/// Reading and starting run on a blocking thread. A request that waits for the encoder needs no thread.
pub async fn begin<R, T>(
    app: &Shared,
    client: Client,
    read: impl FnOnce(&App) -> ApiResult<(Conversation, R)> + Send + 'static,
    start: impl FnOnce(&App, Conversation, R) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T>
where
    R: Send + 'static,
    T: Send + 'static,
{
    let reader = app.clone();
    let begun = blocking(move || {
        let (conversation, rest) = read(&reader)?;
        if conversation.images.is_empty() {
            return Ok(Begun::Started(start(&reader, conversation, rest)?));
        }
        Ok(Begun::Read(conversation, rest, start))
    });
    let (mut conversation, rest, start) = match begun.await? {
        Begun::Started(started) => return Ok(started),
        Begun::Read(conversation, rest, start) => (conversation, rest, start),
    };
    app.service.encode_images(&mut conversation, client.0).await?;
    let starter = app.clone();
    blocking(move || start(&starter, conversation, rest)).await
}

/// A request that has started, or that waits for its images.
#[expect(clippy::large_enum_variant, reason = "short-lived")]
enum Begun<R, S, T> {
    Started(T),
    Read(Conversation, R, S),
}
