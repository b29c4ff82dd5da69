//! Checked parts of an `encoder!`.

use super::{Scalar, Tiles};

/// Medium that an encoder reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    Image,
    Audio,
}

/// Medium of an encoder, its preprocessing, and the text around it.
#[derive(Debug)]
pub struct Media {
    pub medium: Medium,
    /// Preprocessing of an image.
    pub image: Option<Image>,
    /// Prompt of a medium; contains [`TextPart::Medium`] exactly once.
    pub text: Vec<TextPart>,
}

/// Preprocessing of an image.
#[derive(Debug)]
pub struct Image {
    pub size: ImageSize,
    /// Engine's variant of the resizing filter.
    pub resize: &'static str,
    /// Side of a patch in pixels.
    pub patch: Scalar,
    /// Side of a block in patches; `None` means 1.
    pub block: Option<Scalar>,
    /// Side of a window in blocks; `None` without windows.
    pub window: Option<Scalar>,
    /// Engine's variant of the positions of rows.
    pub positions: &'static str,
    /// Engine's variant of the learned column for the whole image.
    pub class: &'static str,
    /// Text between the rows of blocks.
    pub between_rows: String,
    /// Rules of images that are split.
    pub tiles: Option<Tiles>,
}

/// Size that images are resized to.
#[derive(Debug)]
pub enum ImageSize {
    /// Squares of this side in pixels.
    Fixed(Scalar),
    /// Squares of this side in pixels. Borders are added before resizing.
    Padded(Scalar),
    /// Squares of this side in pixels. The image is resized to sides of at least `least`, and padded with borders.
    Contained { side: Scalar, least: Option<Scalar> },
    /// Multiples of a unit in pixels, with about the area of a square.
    Area { side: Scalar, unit: Scalar },
    /// Multiples of a unit in pixels, with a longest side.
    Longest { side: Scalar, unit: Scalar },
    /// Multiples of a unit in pixels. Images are scaled to the largest area of at most `max` squares of the unit.
    Within { unit: Scalar, max: Scalar },
    /// Multiples of a unit in pixels. The area is at most the number of whole units that fit into the image.
    Fitting {
        unit: Scalar,
        /// Limits of the area in `unit` x `unit` squares.
        min: Scalar,
        max: Scalar,
    },
    /// Multiples of a unit in pixels, with about the ratio of the image. Images are scaled down to at most `max`
    /// squares of the unit.
    Closest { unit: Scalar, max: Scalar },
    /// Multiples of a unit in pixels. Images are scaled down in steps of a fiftieth of their sides, to at most `max`
    /// squares of the unit.
    Stepped { unit: Scalar, max: Scalar },
    /// Multiples of a unit in pixels, padded with borders. Images are only scaled to limits of the area.
    Extended {
        unit: Scalar,
        /// Limits of the area in `unit` x `unit` squares.
        min: Scalar,
        max: Scalar,
    },
    /// Multiples of a unit in pixels, padded with borders. Images are scaled down to at most `max` squares of the unit.
    Bordered { unit: Scalar, max: Scalar },
    /// Multiples of a unit in pixels.
    Multiple {
        unit: Scalar,
        /// Limits of the area in `unit` x `unit` squares.
        min: Scalar,
        max: Scalar,
    },
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
