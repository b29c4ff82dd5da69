use crate::{Format, MediaError};

/// Limits of one medium. A medium that exceeds a limit is rejected before memory for its content is allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum size of the encoded data in bytes.
    pub bytes: usize,
    /// Maximum number of pixels of an image.
    pub pixels: u64,
    /// Maximum width and height of an image in pixels.
    pub side: u32,
    /// Maximum duration of audio in seconds.
    pub seconds: u32,
    /// Maximum sample rate of audio in Hz.
    pub sample_rate: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 20 << 20,
            pixels: 64_000_000,
            side: 16_384,
            seconds: 30 * 60,
            sample_rate: 192_000,
        }
    }
}

/// Channels of audio. More need more memory for each packet, and no recording has as many.
const MAX_CHANNELS: usize = 32;

impl Limits {
    /// Checks the size of the data and returns the format of an image.
    pub(crate) fn image_format(&self, bytes: &[u8]) -> Result<Format, MediaError> {
        let known = "PNG, JPEG, WebP, GIF, BMP";
        let format = self.format(bytes, "image", known)?;
        if format.is_image() {
            Ok(format)
        } else {
            Err(MediaError::WrongMedium {
                expected: "image",
                found: format,
            })
        }
    }

    /// Checks the size of the data and returns the format of audio.
    pub(crate) fn audio_format(&self, bytes: &[u8]) -> Result<Format, MediaError> {
        let format = self.format(bytes, "audio", "WAV, MP3, FLAC, OGG Vorbis")?;
        if format.is_image() {
            return Err(MediaError::WrongMedium {
                expected: "audio file",
                found: format,
            });
        }
        Ok(format)
    }

    fn format(&self, bytes: &[u8], medium: &'static str, known: &'static str) -> Result<Format, MediaError> {
        if bytes.is_empty() {
            return Err(MediaError::Empty { medium });
        }
        let format = Format::detect(bytes);
        let name = || format.map_or(medium.to_owned(), |format| format!("{format} {medium}"));
        limited(name, "bytes", bytes.len() as u64, self.bytes as u64)?;
        format.ok_or_else(|| {
            let found = Format::name_of_other(bytes);
            MediaError::UnknownFormat { medium, found, known }
        })
    }

    /// Checks the dimensions of an image.
    pub(crate) fn check_size(&self, format: Format, width: u32, height: u32) -> Result<(), MediaError> {
        if width == 0 || height == 0 {
            return Err(MediaError::damaged(
                format,
                format!("the image is {width} x {height} pixels"),
            ));
        }
        let name = || format!("{format} image");
        limited(
            name,
            "pixels on its longer side",
            u64::from(width.max(height)),
            u64::from(self.side),
        )?;
        limited(name, "pixels", u64::from(width) * u64::from(height), self.pixels)
    }

    /// Checks the sample rate and the number of channels of audio.
    pub(crate) fn check_signal(&self, format: Format, rate: u32, channels: usize) -> Result<(), MediaError> {
        if channels == 0 {
            return Err(MediaError::damaged(format, "the number of channels is 0"));
        }
        if rate == 0 {
            return Err(MediaError::damaged(format, "the sample rate is 0 Hz"));
        }
        let name = || format!("{format} audio");
        limited(name, "samples per second", u64::from(rate), u64::from(self.sample_rate))?;
        limited(name, "channels", channels as u64, MAX_CHANNELS as u64)
    }

    /// Checks the length of audio in samples per channel.
    pub(crate) fn check_length(&self, format: Format, samples: u64, rate: u32) -> Result<(), MediaError> {
        let seconds = samples.div_ceil(u64::from(rate));
        limited(
            || format!("{format} audio"),
            "seconds",
            seconds,
            u64::from(self.seconds),
        )
    }
}

fn limited(medium: impl Fn() -> String, unit: &'static str, actual: u64, limit: u64) -> Result<(), MediaError> {
    if actual > limit {
        Err(MediaError::Limit {
            medium: medium(),
            unit,
            actual,
            limit,
        })
    } else {
        Ok(())
    }
}
