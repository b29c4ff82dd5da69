//! Static description of media in architectures.

/// Part of a declaration that only encoders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MediaDecl {
    /// Medium that the encoder reads.
    pub medium: Medium,
    /// Text around the rows of a medium; contains [`TextPart::Medium`] exactly once.
    pub text: &'static [TextPart],
}

/// Medium that an encoder reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Medium {
    /// An image.
    Image,
    /// Audio.
    Audio,
}

/// Piece of the text around a medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextPart {
    /// Text with special tokens.
    Text(&'static str),
    /// Rows of the medium.
    Medium,
}

/// Treatment of media rows by the graph of a language model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MediaUse {
    /// The graph takes no media rows.
    None,
    /// Rows attend to earlier positions only, like tokens.
    Causal,
    /// Rows of one medium attend to each other in some layers.
    Whole,
}

/// Value of `general.architecture` in the files of encoders.
pub const ENCODER_ARCH: &str = "clip";

impl Medium {
    /// Returns the prefix of the metadata keys of encoders.
    pub(crate) fn key_prefix(self) -> &'static str {
        match self {
            Medium::Image => "clip.vision",
            Medium::Audio => "clip.audio",
        }
    }
}

/// Metadata keys with the name of an encoder, in order of precedence.
const NAME_KEYS: [&str; 3] = [
    "clip.projector_type",
    "clip.vision.projector_type",
    "clip.audio.projector_type",
];

/// Returns the name of the encoder in a file, if any.
pub fn projector_type(metadata: &crate::gguf::Metadata) -> Option<&str> {
    let text = |key: &&str| metadata.get(key).and_then(crate::gguf::Value::as_str);
    NAME_KEYS.iter().find_map(text)
}
