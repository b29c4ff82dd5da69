//! Starts requests whose images or audio must be encoded first.

use crate::api::ApiResult;
use crate::app::{App, Shared};
use crate::chat::{Conversation, MediaFile};
use crate::http::{Client, blocking};

/// Input of a request that can have media.
pub trait MediaInput: Clone + Send + 'static {
    /// Returns the images and audio files.
    fn media(&mut self) -> &mut [MediaFile];

    /// Checks the lengths of the prompts. The media have rows of zeros.
    ///
    /// # Errors
    /// Returns status 400 if a prompt exceeds the context.
    fn check_length(&self, app: &App) -> ApiResult<()>;
}

impl MediaInput for Conversation {
    fn media(&mut self) -> &mut [MediaFile] {
        &mut self.media
    }

    fn check_length(&self, app: &App) -> ApiResult<()> {
        let service = &app.service;
        service.check_length(&service.chat.prompt(self)?.tokens)
    }
}

/// Reads a request, encodes the media of its input, and starts the request.
///
/// `read` and `start` run on a blocking thread. A request that waits for the encoder occupies no thread. A prompt that
/// exceeds the context is rejected before its media are encoded.
pub async fn begin<I, R, T>(
    app: &Shared,
    client: Client,
    read: impl FnOnce(&App) -> ApiResult<(I, R)> + Send + 'static,
    start: impl FnOnce(&App, I, R) -> ApiResult<T> + Send + 'static,
) -> ApiResult<T>
where
    I: MediaInput,
    R: Send + 'static,
    T: Send + 'static,
{
    let reader = app.clone();
    let begun = blocking(move || {
        let (mut input, rest) = read(&reader)?;
        if input.media().is_empty() {
            return Ok(Begun::Started(start(&reader, input, rest)?));
        }
        check_length(&reader, &input)?;
        Ok(Begun::Read(input, rest, start))
    });
    let (mut input, rest, start) = match begun.await? {
        Begun::Started(started) => return Ok(started),
        Begun::Read(input, rest, start) => (input, rest, start),
    };
    app.service.encode_media(input.media(), client.0).await?;
    let starter = app.clone();
    blocking(move || start(&starter, input, rest)).await
}

/// Reads a request and encodes the media of its input, like [`begin`].
pub async fn read_encoded<I: MediaInput, R: Send + 'static>(
    app: &Shared,
    client: Client,
    read: impl FnOnce(&App) -> ApiResult<(I, R)> + Send + 'static,
) -> ApiResult<(I, R)> {
    let reader = app.clone();
    let (mut input, rest) = blocking(move || {
        let (mut input, rest) = read(&reader)?;
        if !input.media().is_empty() {
            check_length(&reader, &input)?;
        }
        Ok((input, rest))
    })
    .await?;
    app.service.encode_media(input.media(), client.0).await?;
    Ok((input, rest))
}

/// Checks the length of prompts from the headers of their media.
fn check_length(app: &App, input: &impl MediaInput) -> ApiResult<()> {
    let mut measured = input.clone();
    measured.media().iter_mut().for_each(MediaFile::measure);
    measured.check_length(app)
}

/// A request that has started, or that waits for its media.
enum Begun<I, R, S, T> {
    Started(T),
    Read(I, R, S),
}
