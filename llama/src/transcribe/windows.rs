//! Rows of Whisper's encoder.

use media::audio::Mel;

/// Samples between frames of the spectrogram.
pub const HOP: usize = 160;
/// Frames that the encoder reads at a time: 30 seconds.
pub const WINDOW_FRAMES: usize = 3000;
/// Samples of a window.
pub const WINDOW_SAMPLES: usize = WINDOW_FRAMES * HOP;
/// Samples between rows: the second convolution skips every other position.
pub const SAMPLES_PER_ROW: usize = 2 * HOP;

/// Frames that a row depends on.
const FRAMES_PER_ROW: usize = 5;

/// Returns the number of mel filters of an encoder with rows of a width.
pub fn n_mel(width: usize) -> usize {
    width.saturating_sub(1) / FRAMES_PER_ROW
}

/// A window of a spectrogram.
pub struct Frames<'a> {
    pub spectrogram: &'a Mel,
    /// First frame.
    pub at: usize,
}

impl Frames<'_> {
    /// Returns rows of the five frames around every other frame, and a number that is 0 in the first row, before
    /// which the second convolution sees padding. Frames outside of the window are zeros.
    pub fn rows(&self, n_rows: usize) -> Vec<f32> {
        let n_mel = self.spectrogram.n_mel;
        let mut rows = Vec::with_capacity(n_rows * (n_mel * FRAMES_PER_ROW + 1));
        let n_frames = 2 * n_rows as i64;
        for row in 0..n_rows as i64 {
            for frame in 2 * row - 2..=2 * row + 2 {
                match self.frame(frame).filter(|_| frame < n_frames) {
                    Some(values) => rows.extend_from_slice(values),
                    None => rows.resize(rows.len() + n_mel, 0.0),
                }
            }
            rows.push(if row == 0 { 0.0 } else { 1.0 });
        }
        rows
    }

    fn frame(&self, index: i64) -> Option<&[f32]> {
        let n_mel = self.spectrogram.n_mel;
        let start = (self.at + usize::try_from(index).ok()?) * n_mel;
        self.spectrogram.data.get(start..start + n_mel)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_five_frames_and_zeros_outside_of_the_window() {
        let data = (0..20).map(|i| i as f32 + 1.0).collect();
        let spectrogram = Mel {
            n_mel: 2,
            n_frames: 10,
            data,
        };
        let rows = Frames {
            spectrogram: &spectrogram,
            at: 1,
        }
        .rows(2);
        let expected = [
            [0.0, 0.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 0.0],
            [3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 0.0, 0.0, 1.0],
        ];
        assert_eq!(rows, expected.concat());
        assert_eq!(n_mel(11), 2);
    }
}
