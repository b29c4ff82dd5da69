use crate::Format;

/// Error of a medium that cannot be decoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MediaError {
    /// The medium exceeds a limit of [`Limits`](crate::Limits).
    #[error("the {medium} has {actual} {unit}; the limit is {limit}")]
    Limit {
        /// Name of the medium: a format followed by `image` or `audio`, or one of these words.
        medium: String,
        /// The measured quantity, in the plural.
        unit: &'static str,
        /// The quantity of this medium.
        actual: u64,
        /// The largest allowed quantity.
        limit: u64,
    },
    /// The data has no bytes.
    #[error("the {medium} data is empty")]
    Empty {
        /// `image` or `audio`.
        medium: &'static str,
    },
    /// The bytes start like none of the known formats.
    #[error("the data is {}not in a known {medium} format ({known})", .found.map_or(String::new(), |name| format!("{name}, ")))]
    UnknownFormat {
        /// `image` or `audio`.
        medium: &'static str,
        /// Common format whose signature the bytes start with, if any.
        found: Option<&'static str>,
        /// Names of the known formats.
        known: &'static str,
    },
    /// An image was given for audio, or audio for an image.
    #[error("the data is {found}, but an {expected} is required")]
    WrongMedium {
        /// `image` or `audio file`.
        expected: &'static str,
        /// Format of the data.
        found: Format,
    },
    /// The content contradicts its format, or the end is missing.
    #[error("the {format} data is damaged: {reason}")]
    Damaged {
        /// Format of the data.
        format: Format,
        /// The contradiction that the decoder found.
        reason: String,
    },
    /// The content is valid, but uses a part of the format that has no decoder here.
    #[error("the {format} data uses {feature}, which is not supported")]
    Unsupported {
        /// Format of the data.
        format: Format,
        /// The missing part.
        feature: String,
    },
    /// The audio is valid, but its codec has no decoder here.
    #[error(
        "the {format} audio uses {codec}, which is not supported; \
         convert it to 16-bit PCM (ffmpeg -i IN -c:a pcm_s16le OUT.wav)"
    )]
    Codec {
        /// Format of the data.
        format: Format,
        /// Name of the codec.
        codec: String,
    },
}

impl MediaError {
    pub(crate) fn damaged(format: Format, reason: impl ToString) -> MediaError {
        MediaError::Damaged {
            format,
            reason: reason.to_string(),
        }
    }

    pub(crate) fn unsupported(format: Format, feature: impl ToString) -> MediaError {
        MediaError::Unsupported {
            format,
            feature: feature.to_string(),
        }
    }
}
