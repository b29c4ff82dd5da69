//! `llama transcribe`: writes down the speech of audio files.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use engine::context::{ContextParams, DecodeError};
use llama::parts::{Phrase, SPEECH_RATE, TranscribeError, TranscribeOptions, Transcriber, Transcription};
use serde_json::json;

use crate::args::values::threads;
use crate::args::{HubArgs, LoadArgs, PrecisionArgs};
use crate::commands::stdout;
use crate::failure::{Failure, Outcome};
use crate::loading::warn_of_threads;
use crate::naming::model_and_words;
use crate::{fetch, interrupt};

/// Arguments of `llama transcribe`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct TranscribeArgs {
    /// GGUF file of a Whisper model
    #[arg(short, long, value_name = "FILE")]
    pub model: Option<PathBuf>,
    /// GGUF file (unless -m is given), then audio files: WAV, MP3, FLAC, or OGG Vorbis
    #[arg(value_name = "MODEL|FILE", required = true)]
    pub files: Vec<OsString>,
    /// Spoken language, such as en or de [default: detected]
    #[arg(short, long, value_name = "CODE")]
    pub language: Option<String>,
    /// Transcribe the speech, or translate it to English
    #[arg(
        long,
        value_enum,
        value_name = "TASK",
        default_value = "transcribe",
        conflicts_with = "translate"
    )]
    pub task: Task,
    /// Translate to English (--task translate)
    #[arg(long)]
    pub translate: bool,
    /// Print a JSON object per file, with the times of phrases in seconds
    #[arg(long, conflicts_with = "srt")]
    pub json: bool,
    /// Print subtitles (SubRip)
    #[arg(long, conflicts_with = "no_timestamps")]
    pub srt: bool,
    /// Transcribe 30 seconds at a time, without the times of phrases
    #[arg(long)]
    pub no_timestamps: bool,
    /// Do not show the model the text of the preceding 30 seconds
    #[arg(long)]
    pub no_context: bool,
    #[command(flatten)]
    pub hub: HubArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// Number of threads [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// Task of the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Task {
    /// Transcribe the speech in its language
    Transcribe,
    /// Translate the speech to English
    Translate,
}

/// Transcribes the files one after the other and prints each result.
pub fn run(args: &TranscribeArgs) -> Outcome {
    let (model, files) = model_and_words(args.model.as_deref(), &args.hub, args.files.clone())?;
    if files.is_empty() {
        return Err(Failure::new("no audio file given; pass it after the model"));
    }
    let path = fetch::model(model.as_deref(), &args.hub)?;
    let model = args.load.load(&path, args.precision.mode, None)?;
    let defaults = ContextParams::default();
    let n_threads = args.threads.unwrap_or(defaults.n_threads);
    warn_of_threads(n_threads);
    let params = ContextParams {
        n_threads,
        n_threads_batch: n_threads,
        precision: args.precision.mode.into(),
        ..defaults
    };
    let mut transcriber = Transcriber::new(&model, &params).map_err(failure)?;
    let stop = interrupt::listen();
    transcriber.set_cancel(Some(stop.flag()));
    let options = TranscribeOptions {
        language: args.language.clone(),
        translate: args.translate || args.task == Task::Translate,
        without_timestamps: args.no_timestamps,
        without_context: args.no_context,
    };
    for file in &files {
        let samples = samples(Path::new(file))?;
        let transcription = transcriber.transcribe(&samples, &options).map_err(failure)?;
        print(args, &file.to_string_lossy(), &transcription)?;
    }
    Ok(())
}

/// Reads and decodes an audio file.
fn samples(path: &Path) -> Outcome<Vec<f32>> {
    let why = |error: &dyn std::fmt::Display| Failure::new(format_args!("{}: {error}", path.display()));
    let limits = media::Limits::default();
    let size = std::fs::metadata(path).map_err(|e| why(&e))?.len();
    if size > limits.bytes as u64 {
        return Err(why(&format_args!(
            "the file has {size} bytes; the limit is {}",
            limits.bytes
        )));
    }
    let bytes = std::fs::read(path).map_err(|e| why(&e))?;
    let pcm = media::audio::decode(&bytes, SPEECH_RATE, &limits).map_err(|e| why(&e))?;
    Ok(pcm.samples)
}

fn failure(error: TranscribeError) -> Failure {
    match error {
        TranscribeError::Decode(DecodeError::Cancelled) => Failure::Interrupted,
        error => Failure::new(error),
    }
}

fn print(args: &TranscribeArgs, file: &str, transcription: &Transcription) -> Outcome {
    let mut out = stdout();
    if args.json {
        let phrase = |p: &Phrase| json!({ "start": p.start, "end": p.end, "text": p.text, "tokens": p.tokens });
        let phrases: Vec<_> = transcription.phrases.iter().map(phrase).collect();
        let (language, text) = (&transcription.language, transcription.text());
        writeln!(
            out,
            "{}",
            json!({ "file": file, "language": language, "text": text, "segments": phrases })
        )?;
    } else if args.srt {
        for (i, phrase) in transcription.phrases.iter().enumerate() {
            let (start, end) = (subtitle_time(phrase.start), subtitle_time(phrase.end));
            writeln!(out, "{}\n{start} --> {end}\n{}\n", i + 1, phrase.text.trim())?;
        }
    } else {
        writeln!(out, "{}", transcription.text())?;
    }
    Ok(out.flush()?)
}

/// Formats seconds as `hours:minutes:seconds,milliseconds`.
fn subtitle_time(seconds: f64) -> String {
    let ms = (seconds * 1000.0).round() as u64;
    let (s, ms) = (ms / 1000, ms % 1000);
    format!("{:02}:{:02}:{:02},{ms:03}", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subtitle_times_have_milliseconds() {
        assert_eq!(subtitle_time(0.0), "00:00:00,000");
        assert_eq!(subtitle_time(3725.0196), "01:02:05,020");
    }
}
