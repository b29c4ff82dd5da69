//! Audio: decoding to mono samples, resampling, and log-mel spectrograms.

mod codec;
mod decode;
mod fft;
mod mel;
mod resample;

pub use decode::{Pcm, decode, duration};
pub use mel::{Mel, MelKind, mel, mel_frames, normalize};
pub use resample::resample;
