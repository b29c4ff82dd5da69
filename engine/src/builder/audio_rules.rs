//! Audio preprocessing.

use std::ops::Range;

/// Samples between the frames of a spectrogram.
const HOP: usize = 160;
/// Samples per second of all spectrograms.
const RATE: usize = 16_000;
/// Maximum number of mel filters.
const MAX_MEL: usize = 512;
/// Maximum number of positions in a chunk.
const MAX_POSITIONS: usize = 1 << 14;

/// Audio preprocessing, from a declaration and the keys of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AudioRules {
    /// Samples per second.
    pub rate: usize,
    /// Kind of spectrogram.
    pub mel: Spectrogram,
    /// Number of mel filters.
    pub n_mel: usize,
    /// Frames that a position reads.
    pub window: usize,
    /// Frames between positions.
    pub step: usize,
    /// Frames in a piece, or 0. Positions of a piece are counted from its first frame and read frames of this piece
    /// only. The last piece is padded with zeros.
    pub piece: usize,
    /// Treatment of the silence after the last sample.
    pub silence: Silence,
    /// Number of positions that the encoder reads at a time.
    pub chunk: usize,
}

/// Kind of spectrogram.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spectrogram {
    /// Log-mel spectrogram of Whisper: a frame for 10 ms.
    Whisper,
    /// Log-mel spectrogram of Whisper for each chunk, whose samples are scaled to mean 0 and variance 1.
    Normalized,
    /// Log-mel spectrogram of Gemma 4: a frame for 10 ms, with all of its 320 samples in the signal or before it.
    Gemma4,
    /// Log-mel spectrogram of Granite Speech: a frame every 10 ms, the first centered on the first sample. Frames have
    /// positions in pairs.
    Granite,
    /// Log-mel spectrogram of NeMo's conformers: a frame every 10 ms, centered on its first sample. Each filter has
    /// mean 0 and variance 1 over time.
    Conformer,
    /// The samples of 10 ms themselves.
    Samples,
}

/// Treatment of the silence after the last sample of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Silence {
    /// The last chunk is padded with silence, which is encoded.
    Filled,
    /// The last chunk of the spectrogram is padded with silence, which has no positions.
    Masked,
    /// The spectrogram ends with the last sample.
    Bare,
    /// The spectrogram ends with the last whole hop between frames.
    Cut,
    /// The spectrogram is padded with silence; the encoder reads zeros after the last frame with sound.
    Ended,
    /// The last chunk is padded with silence, which is encoded. The result contains no rows for the silence.
    Trimmed,
    /// The spectrogram is padded with silence; the encoder reads zeros after the last whole hop between frames.
    Whole,
}

impl AudioRules {
    /// Returns the number of values that a position reads: the frames, and a mask value for each.
    pub fn width(&self) -> usize {
        (self.n_mel + 1) * self.window
    }

    /// Returns the number of samples in a chunk.
    pub fn chunk_samples(&self) -> usize {
        self.chunk_frames() * HOP
    }

    /// Returns the number of frames in a chunk.
    fn chunk_frames(&self) -> usize {
        self.first_frame(self.chunk)
    }

    /// Returns the number of positions in a piece; `None` without pieces.
    fn piece_positions(&self) -> Option<usize> {
        (self.piece > 0).then(|| self.piece.div_ceil(self.step.max(1)))
    }

    /// Returns the frame in the center of a position, counted from the start of the chunk.
    fn first_frame(&self, position: usize) -> usize {
        match self.piece_positions() {
            Some(n) => position / n * self.piece + position % n * self.step,
            None => position * self.step,
        }
    }

    /// Returns the index of a position in its piece, or in the chunk if there are no pieces.
    pub fn place(&self, position: usize) -> usize {
        self.piece_positions().map_or(position, |n| position % n)
    }

    /// Returns true if the spectrogram is computed for each chunk separately, as in the published processors.
    pub fn has_own_spectrograms(&self) -> bool {
        self.mel == Spectrogram::Normalized || matches!(self.silence, Silence::Trimmed | Silence::Whole)
    }

    /// Returns the number of samples that a spectrogram needs in addition to a hop for each frame.
    fn extra(&self) -> usize {
        match self.mel {
            Spectrogram::Whisper
            | Spectrogram::Normalized
            | Spectrogram::Granite
            | Spectrogram::Conformer
            | Spectrogram::Samples => 0,
            // A frame reads one sample beyond the next hop.
            Spectrogram::Gemma4 => 1,
        }
    }

    /// Returns the number of frames after the last hop: 1 in spectrograms with centered frames, otherwise 0.
    fn n_frames_after(&self) -> usize {
        usize::from(self.mel == Spectrogram::Granite)
    }

    /// Returns the number of samples, with padding, that the spectrogram is computed from.
    pub fn padded_samples(&self, n_samples: usize) -> usize {
        match self.silence {
            Silence::Filled | Silence::Masked | Silence::Trimmed => {
                n_samples.max(1).next_multiple_of(self.chunk_samples().max(1)) + self.extra()
            }
            // More silence than a frame reads.
            Silence::Whole => {
                let padded = n_samples.max(1).saturating_add(2 * HOP).next_multiple_of(HOP);
                padded.min(self.chunk_samples().max(n_samples))
            }
            Silence::Ended => n_samples.max(1).saturating_add(2 * HOP).next_multiple_of(HOP),
            Silence::Cut => n_samples.max(2 * HOP),
            Silence::Bare
                if !matches!(
                    self.mel,
                    Spectrogram::Whisper | Spectrogram::Normalized | Spectrogram::Samples
                ) =>
            {
                n_samples.max(HOP + self.extra())
            }
            Silence::Bare => n_samples.max(2 * HOP).next_multiple_of(HOP),
        }
    }

    /// Returns the number of frames of the spectrogram of `n_samples` samples.
    pub fn spectrogram_frames(&self, n_samples: usize) -> usize {
        if self.silence == Silence::Whole {
            return n_samples / HOP;
        }
        (self.padded_samples(n_samples) - self.extra()) / HOP + self.n_frames_after()
    }

    /// Returns the minimum number of samples for `n` positions.
    pub fn samples_of(&self, n: usize) -> usize {
        let before = self.first_frame(n.saturating_sub(1)) * HOP;
        match self.silence {
            Silence::Filled | Silence::Masked | Silence::Trimmed | Silence::Ended | Silence::Whole => before + 1,
            // The second frame of a pair is around the next hop.
            Silence::Bare if self.mel == Spectrogram::Granite => before + HOP,
            Silence::Bare => before + 1 + self.extra() * HOP,
            Silence::Cut => before + HOP + self.extra(),
        }
    }

    /// Returns the number of frames with sound, or of all frames if silence is encoded.
    fn n_frames(&self, n_samples: usize) -> usize {
        match self.silence {
            Silence::Filled | Silence::Bare | Silence::Cut => {
                let n_frames = self.spectrogram_frames(n_samples);
                if self.mel == Spectrogram::Granite {
                    n_frames - n_frames % 2
                } else {
                    n_frames
                }
            }
            Silence::Masked | Silence::Trimmed | Silence::Ended | Silence::Whole => n_samples.max(1).div_ceil(HOP),
        }
    }

    /// Returns the frames of each chunk that have positions.
    pub fn chunks(&self, n_samples: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let (n_frames, chunk) = (self.n_frames(n_samples), self.chunk_frames().max(1));
        (0..n_frames)
            .step_by(chunk)
            .map(move |from| from..n_frames.min(from + chunk))
    }

    /// Returns the frames that the encoder reads for the frames of a chunk that have positions.
    pub fn read_frames(&self, frames: &Range<usize>) -> Range<usize> {
        match self.silence {
            Silence::Trimmed => frames.start..frames.start + self.chunk_frames(),
            _ => frames.clone(),
        }
    }

    /// Returns the number of positions that the encoder reads for `n` positions with sound.
    pub fn read_positions(&self, n: usize) -> usize {
        match self.silence {
            Silence::Trimmed => self.chunk.max(n),
            _ => n,
        }
    }

    /// Returns the number of positions of `n_frames` frames.
    pub fn n_positions(&self, n_frames: usize) -> usize {
        let of = |n: usize| n.div_ceil(self.step.max(1));
        match self.piece_positions() {
            Some(n) => n_frames / self.piece * n + of(n_frames % self.piece),
            None => of(n_frames),
        }
    }

    /// Returns the columns of the input for the frames `frames` of a spectrogram. Each column contains the window
    /// around a position, then a flag per frame: 1 inside the chunk, else 0. Frames outside of the chunk are zeros.
    pub fn columns(&self, spectrogram: &[f32], frames: Range<usize>) -> Vec<f32> {
        let n_mel = self.n_mel;
        let n_frames = spectrogram.len().checked_div(n_mel).unwrap_or(0);
        let end = self.chunk_end(n_frames, frames.start, frames.end);
        let (n, back) = (self.n_positions(frames.len()), self.window.saturating_sub(1) / 2);
        let mut columns = Vec::with_capacity(n * self.width());
        for position in 0..n {
            let first = frames.start + self.first_frame(position);
            let around = match self.piece_positions() {
                Some(n) => {
                    let start = frames.start + position / n * self.piece;
                    start..start + self.piece
                }
                None => frames.start..end,
            };
            // Frames before the chunk have no index.
            let frame = |i: usize| (first + i).checked_sub(back).filter(|at| around.contains(at));
            for i in 0..self.window {
                let values = frame(i).and_then(|at| spectrogram.get(at * n_mel..(at + 1) * n_mel));
                match values {
                    Some(values) => columns.extend_from_slice(values),
                    None => columns.resize(columns.len() + n_mel, 0.0),
                }
            }
            columns.extend((0..self.window).map(|i| if frame(i).is_some() { 1.0 } else { 0.0 }));
        }
        columns
    }

    /// Returns the end of the chunk that starts at a frame. [`Silence::Bare`] pads chunks after the first one with
    /// zeros.
    fn chunk_end(&self, n_frames: usize, start: usize, end: usize) -> usize {
        let whole = start + self.chunk_frames();
        match self.silence {
            Silence::Filled | Silence::Masked | Silence::Trimmed => whole.min(n_frames),
            Silence::Whole => end.min(n_frames),
            Silence::Bare if start > 0 => whole,
            Silence::Bare | Silence::Cut | Silence::Ended => end,
        }
    }

    /// Checks the numbers, which follow from keys of a file.
    ///
    /// # Errors
    /// Returns a description of the first invalid number.
    pub fn check(&self) -> Result<(), String> {
        let limits = [
            ("samples per second", self.rate, RATE..=RATE),
            ("mel filters", self.n_mel, 1..=MAX_MEL),
            ("frames in a position", self.window, 1..=16),
            ("frames between positions", self.step, 1..=16),
            ("frames in a piece", self.piece, 0..=MAX_POSITIONS),
            ("positions in a chunk", self.chunk, 1..=MAX_POSITIONS),
        ];
        for (what, found, limit) in limits {
            if !limit.contains(&found) {
                let (from, to) = (limit.start(), limit.end());
                return Err(format!("audio has {found} {what}; expected {from} to {to}"));
            }
        }
        if let Some(n) = self.piece_positions().filter(|n| !self.chunk.is_multiple_of(*n)) {
            let chunk = self.chunk;
            return Err(format!(
                "audio has {chunk} positions in a chunk; expected a multiple of {n}, the positions in a piece"
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: AudioRules = AudioRules {
        rate: 16_000,
        mel: Spectrogram::Whisper,
        n_mel: 2,
        window: 5,
        step: 2,
        piece: 0,
        silence: Silence::Masked,
        chunk: 4,
    };

    #[test]
    fn chunks_have_positions_of_sound_only() {
        let chunks = |silence, n: usize| {
            let rules = AudioRules { silence, ..RULES };
            rules.chunks(n).map(|c| rules.n_positions(c.len())).collect::<Vec<_>>()
        };
        assert_eq!((RULES.chunk_samples(), RULES.width()), (1280, 15));
        assert_eq!(chunks(Silence::Filled, 1), [4]);
        assert_eq!(chunks(Silence::Filled, 1281), [4, 4]);
        assert_eq!(chunks(Silence::Masked, 1), [1]);
        assert_eq!(chunks(Silence::Masked, 1280 + 321), [4, 2]);
        assert_eq!(chunks(Silence::Bare, 1), [1]);
        assert_eq!(chunks(Silence::Bare, 481), [2]);
        assert_eq!(chunks(Silence::Ended, 1280 + 321), [4, 2]);
        let ended = AudioRules {
            silence: Silence::Ended,
            ..RULES
        };
        assert_eq!(chunks(Silence::Whole, 1280 + 321), [4, 2]);
        let whole = AudioRules {
            silence: Silence::Whole,
            ..RULES
        };
        assert_eq!([1, 481, 1279].map(|n| whole.padded_samples(n)), [480, 960, 1280]);
        assert_eq!([1, 481, 1601].map(|n| whole.spectrogram_frames(n)), [0, 3, 10]);
        // The last frame is beyond the last whole hop.
        let columns = whole.columns(&[1.0; 6], 0..4);
        assert_eq!(columns[15 + 10..30], [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(ended.padded_samples(1280), 1600);
        assert_eq!(ended.spectrogram_frames(161), 4);
    }

    #[test]
    fn pairs_of_granite_are_complete() {
        let rules = AudioRules {
            mel: Spectrogram::Granite,
            silence: Silence::Bare,
            window: 2,
            ..RULES
        };
        let counts = [1, 319, 320, 479, 480, 800].map(|n| {
            let n_positions = |chunk: Range<usize>| rules.n_positions(chunk.len());
            (
                rules.spectrogram_frames(n),
                rules.chunks(n).map(n_positions).sum::<usize>(),
            )
        });
        assert_eq!(counts, [(2, 1), (2, 1), (3, 1), (3, 1), (4, 2), (6, 3)]);
        for n in 2..6 {
            let positions = |n| rules.chunks(n).map(|c| rules.n_positions(c.len())).sum::<usize>();
            let least = rules.samples_of(n);
            assert_eq!((positions(least), positions(least - 1)), (n, n - 1));
        }
        let spectrogram: Vec<f32> = (1..=8).map(|i| i as f32).collect();
        let columns = rules.columns(&spectrogram, 0..4);
        assert_eq!(columns[..4], [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(columns[6..10], [5.0, 6.0, 7.0, 8.0]);
    }

    #[test]
    fn trimmed_silence_has_no_positions() {
        let rules = AudioRules {
            silence: Silence::Trimmed,
            ..RULES
        };
        assert_eq!(rules.spectrogram_frames(1281), 16);
        let chunks: Vec<_> = rules.chunks(1281).collect();
        assert_eq!(chunks, [0..8, 8..9]);
        assert_eq!(rules.read_frames(&chunks[1]), 8..16);
        assert_eq!(rules.read_positions(rules.n_positions(1)), 4);
        assert_eq!(RULES.read_frames(&chunks[1]), 8..9);
        assert_eq!(RULES.read_positions(1), 1);
    }

    #[test]
    fn columns_have_frames_and_flags() {
        let spectrogram: Vec<f32> = (1..=20).map(|i| i as f32).collect();
        let columns = RULES.columns(&spectrogram, 0..3);
        let expected = [
            [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
            [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0],
        ];
        assert_eq!(columns[..10], expected[0]);
        assert_eq!(columns[10..15], [0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!(columns[15..25], expected[1]);
        assert_eq!(columns[25..], [1.0; 5]);
        let bare = AudioRules {
            silence: Silence::Bare,
            ..RULES
        };
        let columns = bare.columns(&spectrogram[..6], 0..3);
        assert_eq!(columns[15..25], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0]);
        assert_eq!(columns[25..], [1.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn positions_read_only_their_piece() {
        let rules = AudioRules {
            n_mel: 1,
            piece: 5,
            chunk: 6,
            silence: Silence::Cut,
            ..RULES
        };
        assert_eq!(rules.check(), Ok(()));
        assert_eq!(rules.chunk_samples(), 10 * HOP);
        let chunks = |n: usize| rules.chunks(n).map(|c| rules.n_positions(c.len())).collect::<Vec<_>>();
        assert_eq!(chunks(1), [1]);
        assert_eq!(chunks(5 * HOP + 159), [3]);
        assert_eq!(chunks(6 * HOP), [4]);
        assert_eq!(chunks(17 * HOP), [6, 4]);
        for n in 2..7 {
            let n_samples = rules.samples_of(n);
            assert_eq!(chunks(n_samples), [n]);
            assert_eq!(chunks(n_samples - 1), [n - 1]);
        }
        let spectrogram: Vec<f32> = (1..=7).map(|i| i as f32).collect();
        let columns = rules.columns(&spectrogram, 0..7);
        let (columns, rest) = columns.as_chunks::<10>();
        assert_eq!((columns.len(), rest.len()), (4, 0));
        assert_eq!(columns[1], [1.0, 2.0, 3.0, 4.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!(columns[2], [3.0, 4.0, 5.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        // Zeros fill the last piece.
        assert_eq!(columns[3], [0.0, 0.0, 6.0, 7.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0]);
        assert_eq!([0, 2, 3, 5].map(|position| rules.place(position)), [0, 2, 0, 2]);
    }

    #[test]
    fn frames_of_gemma4_end_within_the_sound() {
        let rules = AudioRules {
            mel: Spectrogram::Gemma4,
            silence: Silence::Bare,
            step: 1,
            window: 1,
            ..RULES
        };
        let frames = [1, 161, 320, 321, 481].map(|n| rules.spectrogram_frames(n));
        assert_eq!(frames, [1, 1, 1, 2, 3]);
        assert_eq!(rules.chunks(961).collect::<Vec<_>>(), [0..4, 4..6]);
        assert_eq!([1, 2].map(|n| rules.spectrogram_frames(rules.samples_of(n))), [1, 2]);
    }

    #[test]
    fn silence_fills_chunks_of_gemma4_up_to_the_last_frame() {
        let rules = |silence| AudioRules {
            mel: Spectrogram::Gemma4,
            silence,
            ..RULES
        };
        for silence in [Silence::Filled, Silence::Masked] {
            let frames = [1, 1280, 1281].map(|n| rules(silence).spectrogram_frames(n));
            assert_eq!(frames, [8, 8, 16], "{silence:?}");
        }
        let chunks: Vec<_> = rules(Silence::Filled).chunks(1281).collect();
        assert_eq!(chunks, [0..8, 8..16]);
        let masked = rules(Silence::Masked);
        let n_positions = |n| masked.chunks(n).map(|c| masked.n_positions(c.len())).sum::<usize>();
        assert_eq!([1, 2, 5].map(|n| n_positions(masked.samples_of(n))), [1, 2, 5]);
    }

    #[test]
    fn audio_rules_reject_numbers_beyond_limits() {
        assert_eq!(RULES.check(), Ok(()));
        let wrong = [
            AudioRules { rate: 8000, ..RULES },
            AudioRules { n_mel: 0, ..RULES },
            AudioRules { step: 0, ..RULES },
            AudioRules { piece: 5, ..RULES },
            AudioRules {
                chunk: usize::MAX,
                ..RULES
            },
        ];
        for rules in wrong {
            assert!(rules.check().is_err(), "{rules:?}");
        }
    }
}
