//! Syntax tree of the parts that only an `encoder!` has.

use proc_macro2::Span;
use syn::{Expr, Ident, LitStr};

use super::tiles::TilesSyntax;

/// The medium, its preprocessing, and the text around it.
#[derive(Default)]
pub struct MediaSyntax {
    /// `of: image;`
    pub of: Option<Ident>,
    /// `image { … }`
    pub image: Option<ImageSyntax>,
    /// `tiles { … }`
    pub tiles: Option<TilesSyntax>,
    /// `text { "<start>", image, "<end>" }`
    pub text: Option<TextSyntax>,
}

/// `image { size: fixed(image_size); resize: bilinear; patches: patch_size in blocks(merge) of windows(side); class:
/// first; positions: axes; between_rows: "<break>"; }`
pub struct ImageSyntax {
    /// Span of the keyword `image`.
    pub span: Span,
    /// Size that images are resized to.
    pub size: Option<SizeSyntax>,
    /// Filter of the resizing.
    pub resize: Option<Ident>,
    pub patches: Option<PatchesSyntax>,
    /// Position of the learned column for the whole image in tables of positions: `first` or `last`.
    pub class: Option<Ident>,
    /// Text between the rows of blocks.
    pub between_rows: Option<LitStr>,
    /// Positions of the rows in the language model: `sequence`, `axes`, or `xd`.
    pub positions: Option<Ident>,
}

/// Size that images are resized to.
pub enum SizeSyntax {
    /// `fixed(side)`: squares.
    Fixed(Expr),
    /// `padded(side)`: squares of this side. Borders are added before resizing.
    Padded(Expr),
    /// `contained(side)` or `contained(side, min = least)`: squares of this side. Borders are added after resizing.
    Contained {
        /// Side of the square in pixels.
        side: Expr,
        /// Minimum of both sides before borders are added.
        least: Option<Expr>,
    },
    /// `area(side, unit)`
    Area {
        /// Side of a square with the area of images in pixels.
        side: Expr,
        /// Divisor of both sides in pixels.
        unit: Expr,
    },
    /// `longest(side, unit)`
    Longest {
        /// Maximum of both sides in pixels.
        side: Expr,
        /// Divisor of both sides in pixels.
        unit: Expr,
    },
    /// `within(unit, rows = max)`
    Within {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Limit of the area in `unit` x `unit` squares.
        max: Expr,
    },
    /// `fitting(unit, rows = min..max)`
    Fitting {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Limits of the area in `unit` x `unit` squares.
        min: Expr,
        max: Expr,
    },
    /// `closest(unit, rows = max)`
    Closest {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Limit of the area in `unit` x `unit` squares.
        max: Expr,
    },
    /// `stepped(unit, rows = max)`
    Stepped {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Limit of the area in `unit` x `unit` squares.
        max: Expr,
    },
    /// `extended(unit, rows = min..max)`
    Extended {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Limits of the area in `unit` x `unit` squares.
        min: Expr,
        max: Expr,
    },
    /// `bordered(unit, rows = max)`
    Bordered {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Area that images are scaled down to, in `unit` x `unit` squares.
        max: Expr,
    },
    /// `multiple(unit, rows = min..max)`
    Multiple {
        /// Divisor of both sides in pixels.
        unit: Expr,
        /// Limits of the area in `unit` x `unit` squares.
        min: Expr,
        max: Expr,
    },
}

/// `patch_size in blocks(merge)`, `patch_size in blocks(merge) of windows(side)`, or `patch_size in blocks(merge) of
/// blocks(side)`
pub struct PatchesSyntax {
    /// Side of a patch in pixels.
    pub side: Expr,
    /// Side of a block in patches. The patches of a block are consecutive.
    pub block: Option<Expr>,
    /// Side of a window in blocks. The blocks of a window are consecutive.
    pub window: Option<Expr>,
    /// Images consist of whole windows (`blocks(merge) of blocks(side)`).
    pub has_whole_windows: bool,
}

/// `text { "<start>", image, "<end>" }`
pub struct TextSyntax {
    /// Span of the keyword `text`.
    pub span: Span,
    pub pieces: Vec<TextPiece>,
}

/// A piece of the text around a medium.
pub enum TextPiece {
    Text(LitStr),
    /// The rows of the medium.
    Medium(Ident),
}

impl MediaSyntax {
    /// Returns the child's parts, and the parent's parts that the child lacks.
    pub fn merge(parent: Option<MediaSyntax>, child: Option<MediaSyntax>) -> Option<MediaSyntax> {
        let (parent, child) = match (parent, child) {
            (Some(parent), Some(child)) => (parent, child),
            (_, child) => return child,
        };
        Some(MediaSyntax {
            of: child.of.or(parent.of),
            image: child.image.or(parent.image),
            tiles: child.tiles.or(parent.tiles),
            text: child.text.or(parent.text),
        })
    }
}
