//! Checked audio preprocessing.

use super::Scalar;

/// Audio preprocessing: a log-mel spectrogram. Each position of an encoder reads some of its frames.
#[derive(Debug)]
pub struct Audio {
    /// Samples per second.
    pub rate: Scalar,
    /// Engine's variant of the spectrogram.
    pub mel: &'static str,
    /// Number of mel filters.
    pub n_mel: Scalar,
    /// Frames that a position reads.
    pub window: Scalar,
    /// Frames between positions.
    pub step: Scalar,
    /// Frames in a piece. The positions of a piece do not read other pieces.
    pub piece: Option<Scalar>,
    /// Engine's variant of the treatment of silence.
    pub silence: &'static str,
    /// Maximum number of positions that the encoder reads at a time.
    pub chunk: Scalar,
}
