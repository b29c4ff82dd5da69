//! Checked rules of images that are split into tiles.

use super::Scalar;

/// Rules of images that are split into tiles.
#[derive(Debug)]
pub struct Tiles {
    pub grid: TileGrid,
    /// Images above this multiple of the largest image are split; `None` for all images.
    pub above: Option<Scalar>,
    /// Texts before and after a tile, with `{row}` and `{column}`.
    pub tile: [String; 2],
    /// Text between the tiles of a row.
    pub between: String,
    /// Text between rows of tiles.
    pub between_rows: String,
    /// Texts before and after the overview, and whether it precedes the tiles; `None` without an overview.
    pub overview: Option<(bool, [String; 2])>,
    /// Texts before and after an image that is not split.
    pub whole: [String; 2],
}

/// Choice of the grid of tiles.
#[derive(Debug)]
pub enum TileGrid {
    /// The ratio of the grid's sides is close to that of the image.
    Ratio {
        /// Side of a tile in pixels.
        side: Scalar,
        /// Limits of the number of tiles.
        min: Scalar,
        max: Scalar,
    },
    /// The ratio of the grid's sides is close to that of the image, if a side is larger than a tile. Rows of the file
    /// follow each line of rows and the last line.
    Lines {
        /// Side of a tile in pixels.
        side: Scalar,
        /// Limits of the number of tiles.
        min: Scalar,
        max: Scalar,
        /// Tensor with the row that is appended to each line. Without it, the rows of each tile are consecutive.
        newline: Option<String>,
        /// Tensor with the last row.
        end: String,
    },
    /// The number of tiles follows from the area of the image, and the ratio of the grid's sides is close to that of
    /// the image. Tiles have the size of an image that is not split.
    Area {
        /// Side of a square with the area of a tile in pixels.
        side: Scalar,
        /// Divisor of the sides of a tile in pixels.
        unit: Scalar,
        /// Maximum number of tiles.
        max: Scalar,
    },
    /// The image is resized to a longest side, and both sides are rounded up to whole tiles.
    Longest {
        /// Side of a tile in pixels.
        side: Scalar,
        longest: Scalar,
    },
    /// A grid of the file's list, with a row of the file after each row of patches.
    Listed {
        /// Side of a tile in pixels.
        side: Scalar,
        /// Key with the list.
        key: String,
        /// Tensor with the row.
        newline: String,
        /// The width of a grid precedes its height.
        widths_first: bool,
    },
    /// Squares whose side follows from the sides of the image are resized to tiles.
    Windows {
        /// Side of a tile in pixels.
        side: Scalar,
        /// Side of the whole image in pixels.
        whole: Scalar,
        /// Longest side of a resized image in pixels.
        longest: Scalar,
    },
    /// The grid that the image fits into with the smallest change of its size.
    Canvas {
        /// Side of a tile in pixels.
        side: Scalar,
        /// Maximum number of tiles.
        max: Scalar,
    },
}
