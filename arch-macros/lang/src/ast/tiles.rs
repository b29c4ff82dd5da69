//! Syntax tree of `tiles { … }`.

use proc_macro2::Span;
use syn::{Expr, Ident, LitStr};

/// `tiles { grid: ratio(side, tiles = 2..10); above: 2; tile: "<row_{row}_col_{column}>"; between_rows: "\n"; overview:
/// last "<global>"; whole: ""; }`
pub struct TilesSyntax {
    /// Span of the keyword `tiles`.
    pub span: Span,
    /// Choice of the grid.
    pub grid: Option<GridSyntax>,
    /// Images above this multiple of the largest image are split.
    pub above: Option<Expr>,
    /// Text before a tile.
    pub tile: Option<LitStr>,
    /// Text between the tiles of a row.
    pub between: Option<LitStr>,
    /// Text between rows of tiles.
    pub between_rows: Option<LitStr>,
    /// Place of the overview, and the text before it.
    pub overview: Option<(Ident, LitStr)>,
    /// Text before an image that is not split.
    pub whole: Option<LitStr>,
}

/// Choice of the grid of tiles.
#[expect(clippy::large_enum_variant, reason = "a declaration has one grid")]
pub enum GridSyntax {
    /// `ratio(side, tiles = min..max)`
    Ratio {
        /// Side of a tile in pixels.
        side: Expr,
        /// Limits of the number of tiles.
        min: Expr,
        max: Expr,
    },
    /// `longest(side, longest)`
    Longest {
        /// Side of a tile in pixels.
        side: Expr,
        /// Longest side of a resized image in pixels.
        longest: Expr,
    },
    /// `listed(side, "key", newline = "tensor")`
    Listed {
        /// Side of a tile in pixels.
        side: Expr,
        /// Key of the file with the sizes of grids.
        key: LitStr,
        /// Tensor with the row after each row of patches.
        newline: LitStr,
    },
    /// `canvas(side, tiles = max)`
    Canvas {
        /// Side of a tile in pixels.
        side: Expr,
        /// Maximum number of tiles.
        max: Expr,
    },
}
