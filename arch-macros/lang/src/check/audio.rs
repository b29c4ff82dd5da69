//! Checks the audio preprocessing, and the input `frames`.

use proc_macro2::Ident;
use syn::Expr;

use super::{Checker, Place};
use crate::ast::audio::{AudioSyntax, FramesSyntax};
use crate::builtins::Ty;
use crate::model::{Audio, Value, ValueKind};
use crate::sym::{Dim, Shape};

/// Kinds of spectrograms, each with the engine's variant.
const MELS: [(&str, &str); 6] = [
    ("whisper", "Whisper"),
    ("normalized", "Normalized"),
    ("gemma4", "Gemma4"),
    ("granite", "Granite"),
    ("conformer", "Conformer"),
    ("samples", "Samples"),
];

/// Treatments of silence, each with the engine's variant.
const SILENCES: [(&str, &str); 7] = [
    ("filled", "Filled"),
    ("masked", "Masked"),
    ("bare", "Bare"),
    ("cut", "Cut"),
    ("ended", "Ended"),
    ("trimmed", "Trimmed"),
    ("whole", "Whole"),
];

/// State of the checks about audio.
#[derive(Default)]
pub(super) struct AudioScope {
    /// Number of mel filters and frames in a position, as written.
    frames: Option<(Expr, Expr)>,
    /// The graph being checked reads audio.
    pub is_open: bool,
}

impl Checker<'_> {
    /// Checks the section. Scalars are checked as part of the graph, so that the model stores their values.
    pub(super) fn audio(&mut self, audio: &AudioSyntax) -> Option<Audio> {
        let before = std::mem::replace(&mut self.place, Place::Graph);
        let checked = self.audio_facts(audio);
        self.place = before;
        checked
    }

    fn audio_facts(&mut self, audio: &AudioSyntax) -> Option<Audio> {
        let Some(rate) = &audio.rate else {
            return self.lacks_fact(audio, "rate: 16000;");
        };
        let Some((mel, n_mel)) = &audio.mel else {
            return self.lacks_fact(audio, "mel: whisper(n_mel);");
        };
        let Some(FramesSyntax { window, step, piece }) = &audio.frames else {
            return self.lacks_fact(audio, "frames: 5 every 2;");
        };
        let Some((silence, chunk)) = &audio.chunk else {
            return self.lacks_fact(audio, "chunk: filled(n_pos);");
        };
        let (n_mel_syntax, window_syntax) = (n_mel, window);
        let (mel, silence) = (self.choice(mel, &MELS), self.choice(silence, &SILENCES));
        let numbers = [rate, n_mel, window, step, chunk].map(|number| self.scalar_of(number, Ty::Int));
        let [rate, n_mel, window, step, chunk] = numbers;
        // Invalid numbers may contain `frames`, whose width depends on them.
        if n_mel.is_some() && window.is_some() {
            self.audio.frames = Some((n_mel_syntax.clone(), window_syntax.clone()));
        }
        let piece = match piece {
            Some(piece) => Some(self.scalar_of(piece, Ty::Int)?),
            None => None,
        };
        Some(Audio {
            rate: rate?,
            mel: mel?,
            n_mel: n_mel?,
            window: window?,
            step: step?,
            piece,
            silence: silence?,
            chunk: chunk?,
        })
    }

    fn lacks_fact<T>(&mut self, audio: &AudioSyntax, line: &str) -> Option<T> {
        self.errors.at_span(audio.span, format!("`audio` needs `{line}`"));
        None
    }

    /// Returns the input `frames`. Each column holds the frames of a position, then a flag per frame: 1 inside the
    /// chunk, 0 beyond it.
    pub(super) fn frames(&mut self, name: &Ident) -> Option<Value> {
        if !self.audio.is_open {
            let message = "`frames` is only available in an encoder of a declaration with `audio { … }`";
            return self.error(name, message);
        }
        // Missing and invalid facts were reported.
        let (n_mel, window) = self.audio.frames.clone()?;
        let width = self.width_of(&syn::parse_quote!(((#n_mel) + 1) * (#window)), name)?;
        Some(Value {
            shape: Shape(vec![width.dim.clone(), Dim::n_tokens()]),
            kind: ValueKind::Frames(name.span(), width),
        })
    }
}
