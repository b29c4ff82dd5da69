//! Syntax tree of `tiles { … }`.

use proc_macro2::Span;
use syn::{Expr, Ident, LitStr};

/// Texts before and after an image: `"<start>"`, or `"<start>", image, "<end>"`.
pub type Around = [Option<LitStr>; 2];

/// `tiles { grid: ratio(side, tiles = 2..10); above: 2; tile: "<row_{row}_col_{column}>"; between_rows: "\n"; overview:
/// last "<global>"; whole: ""; }`
pub struct TilesSyntax {
    /// Span of the keyword `tiles`.
    pub span: Span,
    /// Choice of the grid.
    pub grid: Option<GridSyntax>,
    /// Images above this multiple of the largest image are split.
    pub above: Option<Expr>,
    /// Texts before and after a tile.
    pub tile: Option<Around>,
    /// Text between the tiles of a row.
    pub between: Option<LitStr>,
    /// Text between rows of tiles.
    pub between_rows: Option<LitStr>,
    /// Position of the overview (`first` or `last`), and the texts before and after it.
    pub overview: Option<(Ident, Around)>,
    /// Texts before and after an image that is not split.
    pub whole: Option<Around>,
}

/// Choice of the grid of tiles.
pub enum GridSyntax {
    /// `ratio(side, tiles = min..max)`
    Ratio {
        /// Side of a tile in pixels.
        side: Expr,
        /// Limits of the number of tiles.
        min: Expr,
        max: Expr,
    },
    /// `lines(side, tiles = min..max, newline = "tensor", end = "tensor")`, or without `newline`
    Lines {
        /// Side of a tile in pixels.
        side: Expr,
        /// Limits of the number of tiles.
        min: Expr,
        max: Expr,
        /// Tensor with the row that is appended to each line. Without it, the rows of each tile are consecutive.
        newline: Option<LitStr>,
        /// Tensor with the last row.
        end: LitStr,
    },
    /// `area(side, unit, tiles = max)`
    Area {
        /// Side of a square with the area of a tile in pixels.
        side: Expr,
        /// Divisor of the sides of a tile in pixels.
        unit: Expr,
        /// Maximum number of tiles.
        max: Expr,
    },
    /// `longest(side, longest)`
    Longest {
        /// Side of a tile in pixels.
        side: Expr,
        /// Longest side of a resized image in pixels.
        longest: Expr,
    },
    /// `listed(side, "key", newline = "tensor", widths_first)`
    Listed {
        /// Side of a tile in pixels.
        side: Expr,
        /// Key of the file with the sizes of grids.
        key: LitStr,
        /// Tensor with the row after each row of patches.
        newline: LitStr,
        /// The width of a grid precedes its height.
        widths_first: bool,
    },
    /// `windows(side, whole, longest)`
    Windows {
        /// Side of a tile in pixels.
        side: Expr,
        /// Side of the whole image in pixels.
        whole: Expr,
        /// Longest side of a resized image in pixels.
        longest: Expr,
    },
    /// `canvas(side, tiles = max)`
    Canvas {
        /// Side of a tile in pixels.
        side: Expr,
        /// Maximum number of tiles.
        max: Expr,
    },
}
