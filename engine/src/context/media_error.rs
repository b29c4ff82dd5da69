//! [`MediaError`]: reasons why media cannot be encoded.

use super::{ContextError, DecodeError};

/// An error that can occur when creating or using a media encoder.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum MediaError {
    /// The model is not an image encoder.
    #[error("{model} is not an image encoder")]
    NotAnEncoder { model: String },
    /// A color key has an invalid value.
    #[error("{model}: key `{key}`: expected three finite numbers{}, found {found}", if *.nonzero { " other than 0" } else { "" })]
    Color {
        model: String,
        key: &'static str,
        nonzero: bool,
        found: String,
    },
    /// The sides of the image differ too much.
    #[error("cannot encode images of {width} x {height} pixels; crop the image to a ratio of at most 200 to 1")]
    Ratio { width: usize, height: usize },
    /// All images have one size, or the limits exclude each other.
    #[error("images cannot be limited to {min} to {max} rows: {reason}")]
    Limits { min: usize, max: usize, reason: String },
    /// The image was not resized to a size that the encoder takes.
    #[error("the encoder takes images of {} x {} pixels, found {width} x {height}", .expected[0], .expected[1])]
    Size {
        width: usize,
        height: usize,
        expected: [usize; 2],
    },
    /// The image has more patches than the table of learned positions has rows.
    #[error(
        "an image of {width} x {height} pixels has {n_patches} patches, but the encoder has {max} learned positions"
    )]
    Positions {
        width: usize,
        height: usize,
        n_patches: usize,
        max: usize,
    },
    /// The image has more rows or columns of patches than the encoder has learned positions for.
    #[error(
        "an image of {width} x {height} pixels is too long: the encoder has positions for {max} patches along a side"
    )]
    Side { width: usize, height: usize, max: usize },
    /// The number of color values does not match the size.
    #[error("expected {expected} color values for {width} x {height} pixels, found {found}")]
    Pixels {
        width: usize,
        height: usize,
        expected: usize,
        found: usize,
    },
    /// The graph cannot be reserved.
    #[error(transparent)]
    Context(#[from] ContextError),
    /// The graph cannot be computed.
    #[error(transparent)]
    Compute(#[from] DecodeError),
}
