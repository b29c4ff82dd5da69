//! Checked parts of an `encoder!`.

use super::Scalar;

/// Medium of an encoder, its preprocessing, and the text around it.
#[derive(Debug)]
pub struct Media {
    pub image: Image,
    /// Prompt of a medium; contains [`TextPart::Medium`] exactly once.
    pub text: Vec<TextPart>,
}

/// Preprocessing of an image.
#[derive(Debug)]
pub struct Image {
    /// Side of the square that images are resized to.
    pub side: Scalar,
    /// Engine's variant of the resizing filter.
    pub resize: &'static str,
    /// Side of a patch in pixels.
    pub patch: Scalar,
    /// Side of a block in patches; `None` means 1.
    pub block: Option<Scalar>,
}

/// A piece of the prompt of a medium.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TextPart {
    Text(String),
    /// The rows of the medium.
    Medium,
}

/// Treatment of media rows by the graph of a language model.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub enum MediaUse {
    /// The graph has no `with_media`.
    #[default]
    None,
    /// Rows attend to earlier positions only, like tokens.
    Causal,
    /// Rows of one medium attend to each other in some layers (`media = whole`).
    Whole,
}
