//! OpenAI's Audio API: `/v1/audio/transcriptions` and `/v1/audio/translations`.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use llama::parts::{Phrase, TranscribeOptions, Transcription};
use serde_json::{Value as Json, json};

use crate::api::{ApiError, ApiResult, Field};
use crate::app::Shared;
use crate::http::{Form, json as json_response, warned};

/// Fields of both routes.
pub const AUDIO_FIELDS: &[Field] = &[
    Field::file(
        "file",
        "Audio: a WAV, MP3, FLAC, or OGG Vorbis file of up to 30 minutes. Required.",
    ),
    Field::text("model", "Model name; selects a model if the server has several."),
    Field::text(
        "response_format",
        "`json` (default), `text`, `srt`, `vtt`, or `verbose_json` with the times of phrases.",
    ),
    Field::any(
        "temperature",
        "Must be 0, because the most probable text is returned (0).",
    ),
    Field::ignored("prompt", "Ignored with a warning."),
];

/// Additional fields of transcriptions.
pub const TRANSCRIPTION_FIELDS: &[Field] = &[
    Field::text("language", "Spoken language, such as `en`; detected by default."),
    Field::list(
        "timestamp_granularities[]",
        "`segment`; times of words are not supported.",
    ),
    Field::flag("stream", "Must be false; the text is returned as a whole."),
];

/// Format of the response.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ResponseFormat {
    Json,
    Text,
    Subtitles,
    WebSubtitles,
    Verbose,
}

/// Handles `POST /v1/audio/transcriptions`.
pub async fn transcriptions(State(app): State<Shared>, form: Form) -> ApiResult {
    respond(app, form, false).await
}

/// Handles `POST /v1/audio/translations`.
pub async fn translations(State(app): State<Shared>, form: Form) -> ApiResult {
    respond(app, form, true).await
}

async fn respond(app: Shared, mut form: Form, translate: bool) -> ApiResult {
    let missing = || ApiError::field("file", "missing; expected an audio file");
    let file = form.take("file").ok_or_else(missing)?;
    form.take("model");
    let format = match form.text("response_format")?.as_deref() {
        None | Some("json") => ResponseFormat::Json,
        Some("text") => ResponseFormat::Text,
        Some("srt") => ResponseFormat::Subtitles,
        Some("vtt") => ResponseFormat::WebSubtitles,
        Some("verbose_json") => ResponseFormat::Verbose,
        Some(_) => {
            let expected = "expected json, text, srt, vtt, or verbose_json";
            return Err(ApiError::field("response_format", expected));
        }
    };
    check_fixed(&mut form)?;
    let options = TranscribeOptions {
        language: if translate { None } else { form.text("language")? },
        translate,
        ..TranscribeOptions::default()
    };
    let ignored: Vec<String> = form.names().map(word).filter(|name| !name.is_empty()).collect();
    let limits = app.service.params.media_limits.clone();
    let (transcription, seconds) = app.speech.transcribe(file, limits, options).await?;
    let response = formatted(&transcription, format, seconds, translate);
    Ok(warned(response, &ignored))
}

/// Checks fields that have a single supported value.
fn check_fixed(form: &mut Form) -> ApiResult<()> {
    if let Some(text) = form.text("temperature")?
        && text.trim().parse() != Ok(0.0_f64)
    {
        return Err(ApiError::field("temperature", "expected 0, the only supported value"));
    }
    if form.text("stream")?.is_some_and(|text| text == "true") {
        return Err(ApiError::field("stream", "streaming is not supported; expected false"));
    }
    while let Some(granularity) = form.text("timestamp_granularities[]")? {
        if granularity != "segment" {
            let why = "times of words are not supported; expected segment";
            return Err(ApiError::field("timestamp_granularities", why));
        }
    }
    Ok(())
}

/// Returns the letters of a field name, for a header.
fn word(name: &str) -> String {
    let is_word = |c: &char| c.is_ascii_alphanumeric() || *c == '_';
    name.chars().take(32).filter(is_word).collect()
}

fn formatted(transcription: &Transcription, format: ResponseFormat, seconds: f64, translate: bool) -> Response {
    let text = transcription.text();
    match format {
        ResponseFormat::Json => json_response(&json!({ "text": text })),
        ResponseFormat::Text => plain("text/plain; charset=utf-8", text + "\n"),
        ResponseFormat::Subtitles => plain("application/x-subrip; charset=utf-8", subtitles(&transcription.phrases)),
        ResponseFormat::WebSubtitles => plain("text/vtt; charset=utf-8", web_subtitles(&transcription.phrases)),
        ResponseFormat::Verbose => json_response(&json!({
            "task": if translate { "translate" } else { "transcribe" },
            "language": transcription.language.as_deref().unwrap_or("en"),
            "duration": seconds,
            "text": text,
            "segments": transcription.phrases.iter().enumerate().map(segment).collect::<Vec<_>>(),
        })),
    }
}

fn plain(content_type: &'static str, text: String) -> Response {
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

fn segment((id, phrase): (usize, &Phrase)) -> Json {
    json!({
        "id": id,
        "start": phrase.start,
        "end": phrase.end,
        "text": phrase.text,
        "tokens": phrase.tokens,
        "temperature": 0.0,
    })
}

/// Formats subtitles as SubRip.
fn subtitles(phrases: &[Phrase]) -> String {
    let entry = |(i, phrase): (usize, &Phrase)| {
        let (start, end) = (time(phrase.start, ','), time(phrase.end, ','));
        format!("{}\n{start} --> {end}\n{}\n\n", i + 1, phrase.text.trim())
    };
    phrases.iter().enumerate().map(entry).collect()
}

/// Formats subtitles as WebVTT.
fn web_subtitles(phrases: &[Phrase]) -> String {
    let entry = |phrase: &Phrase| {
        let (start, end) = (time(phrase.start, '.'), time(phrase.end, '.'));
        // An arrow would end the text.
        let text = phrase.text.trim().replace("-->", "->");
        format!("{start} --> {end}\n{text}\n\n")
    };
    "WEBVTT\n\n".to_owned() + &phrases.iter().map(entry).collect::<String>()
}

/// Formats seconds as hours, minutes, seconds, and, after `point`, milliseconds.
fn time(seconds: f64, point: char) -> String {
    let ms = (seconds * 1000.0).round() as u64;
    let (s, ms) = (ms / 1000, ms % 1000);
    format!("{:02}:{:02}:{:02}{point}{ms:03}", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrase(start: f64, text: &str) -> Phrase {
        Phrase {
            start,
            end: start + 1.5,
            text: text.to_owned(),
            tokens: vec![7],
        }
    }

    #[test]
    fn subtitles_have_numbers_and_times() {
        let phrases = [phrase(0.0, " One."), phrase(3725.0196, " Two --> three.")];
        assert_eq!(
            subtitles(&phrases),
            "1\n00:00:00,000 --> 00:00:01,500\nOne.\n\n2\n01:02:05,020 --> 01:02:06,520\nTwo --> three.\n\n"
        );
        assert_eq!(
            web_subtitles(&phrases),
            "WEBVTT\n\n00:00:00.000 --> 00:00:01.500\nOne.\n\n01:02:05.020 --> 01:02:06.520\nTwo -> three.\n\n"
        );
    }
}
