//! Speech recognition with Whisper. The recognizer is created on the first request and serves one request at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::body::Bytes;
use engine::context::{ContextParams, DecodeError};
use engine::model::Model;
use llama::parts::{SPEECH_RATE, TranscribeError, TranscribeOptions, Transcriber, Transcription};
use media::Limits;
use tokio::sync::Mutex;

use crate::api::{ApiError, ApiResult};
use crate::http::blocking;

/// Speech recognizer of a model.
pub struct SpeechRecognizer {
    model: Arc<Model>,
    params: ContextParams,
    transcriber: Arc<Mutex<Option<Transcriber>>>,
}

impl SpeechRecognizer {
    /// Creates a recognizer without allocating its context.
    pub fn new(model: Arc<Model>, params: ContextParams) -> SpeechRecognizer {
        SpeechRecognizer {
            model,
            params: ContextParams {
                pooling: None,
                ..params
            },
            transcriber: Arc::default(),
        }
    }

    /// Transcribes the speech of an audio file. Also returns the duration of the audio in seconds.
    ///
    /// # Errors
    /// Returns status 400 if the file is damaged or exceeds a limit, and 501 if the model does not recognize speech.
    pub async fn transcribe(
        &self,
        file: Bytes,
        limits: Limits,
        options: TranscribeOptions,
    ) -> ApiResult<(Transcription, f64)> {
        if !Transcriber::supports(&self.model) {
            let arch = self.model.arch().name;
            let message = format!("architecture {arch} cannot transcribe audio; serve a Whisper model");
            return Err(ApiError::unsupported(message));
        }
        // The guard moves to the blocking thread, so that a disconnected client does not free the recognizer early.
        let mut slot = self.transcriber.clone().lock_owned().await;
        let cancel = CancelOnDrop::default();
        let (flag, model, params) = (cancel.0.clone(), self.model.clone(), self.params.clone());
        blocking(move || {
            let pcm = media::audio::decode(&file, SPEECH_RATE, &limits);
            let samples = pcm.map_err(|e| ApiError::field("file", e))?.samples;
            let transcriber = match &mut *slot {
                Some(transcriber) => transcriber,
                empty => empty.insert(Transcriber::new(&model, &params).map_err(failed)?),
            };
            transcriber.set_cancel(Some(flag));
            let transcription = transcriber.transcribe(&samples, &options);
            transcriber.set_cancel(None);
            let seconds = samples.len() as f64 / f64::from(SPEECH_RATE);
            Ok((transcription.map_err(failed)?, seconds))
        })
        .await
    }
}

fn failed(error: TranscribeError) -> ApiError {
    match error {
        TranscribeError::Language { .. } => ApiError::field("language", error),
        TranscribeError::Decode(DecodeError::Cancelled) => ApiError::unavailable("the client has disconnected"),
        error => ApiError::server(format!("cannot transcribe the audio: {error}")),
    }
}

/// Cancels a transcription when its client disconnects.
#[derive(Default)]
struct CancelOnDrop(Arc<AtomicBool>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
