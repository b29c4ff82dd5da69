//! Images and audio, from encoded bytes to the numbers that encoders read.
//!
//! [`image`] decodes PNG, JPEG, WebP, GIF, and BMP, and resizes images as Pillow does. [`audio`] decodes WAV, MP3,
//! FLAC, and OGG Vorbis, changes the sample rate, and computes log-mel spectrograms. The content decides the format,
//! never a file's name. [`Limits`] are checked before memory is allocated.
//!
//! The crate uses the decoders of the `image` crate directly. `image` itself depends on a color management library that
//! takes longer to compile than all decoders together.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod audio;
mod error;
mod format;
pub mod image;
mod limits;

pub use error::MediaError;
pub use format::Format;
pub use limits::Limits;
