//! Images that are split into tiles: the grid of an image, and the texts between tiles.

use super::grid_list::{GridList, scaled_to_fit};
use super::image_target::{MAX_RATIO, area, is_too_narrow};
use super::windows::{Windows, squared};

/// Maximum number of tiles of an image.
const MAX_TILES: usize = 256;
/// Maximum area of an image that is resized to its tiles in pixels.
const MAX_AREA: usize = 1 << 28;

/// Rules of images that are split into tiles.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TileRules {
    /// Choice of the grid.
    pub grid: TileGrid,
    /// Images above this multiple of the largest image are split; 0 for all images.
    pub above: f32,
    /// Texts before and after a tile, with `{row}` and `{column}`.
    pub tile: [&'static str; 2],
    /// Text between the tiles of a row.
    pub between: &'static str,
    /// Text between rows of tiles.
    pub between_rows: &'static str,
    /// Overview (the whole image), if tiles have one.
    pub overview: Option<Overview>,
    /// Texts before and after an image that is not split.
    pub whole: [&'static str; 2],
}

/// Overview of the whole image, in addition to its tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Overview {
    /// The overview precedes the tiles.
    pub first: bool,
    /// Texts before and after the overview.
    pub text: [&'static str; 2],
}

/// Choice of the grid of tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TileGrid {
    /// The grid of `min` to `max` tiles with the aspect ratio closest to that of the image.
    Ratio {
        /// Side of a tile in pixels.
        side: usize,
        /// Minimum number of tiles.
        min: usize,
        /// Maximum number of tiles.
        max: usize,
    },
    /// The grid of [`Ratio`](Self::Ratio) for images with a side of more than a tile. The rows of all tiles precede
    /// the rows of the whole image, line by line. A learned row follows each line, and another learned row is the last
    /// row. Without the row after lines, the rows of each tile are consecutive.
    Lines {
        /// Side of a tile in pixels.
        side: usize,
        /// Minimum number of tiles.
        min: usize,
        /// Maximum number of tiles.
        max: usize,
        /// Tensor with the row after each line.
        newline: Option<&'static str>,
        /// Tensor with the last row.
        end: &'static str,
    },
    /// The number of tiles follows from the area of the image, and the grid has the aspect ratio closest to that of
    /// the image. Tiles have the size of an image in [`ImageSize::Area`](super::ImageSize::Area).
    Area {
        /// Side of a square with the area of a tile in pixels.
        side: usize,
        /// Divisor of the sides of a tile in pixels.
        unit: usize,
        /// Maximum number of tiles.
        max: usize,
    },
    /// The image is resized to a longest side, and both sides are rounded up to whole tiles.
    Longest {
        /// Side of a tile in pixels.
        side: usize,
        /// Longest side of the resized image in pixels.
        longest: usize,
    },
    /// A grid of the file's list. The image is scaled to fit into the grid, and padded with black on both sides. The
    /// rows of the patches in the image follow the rows of the overview, and a learned row follows each line.
    Listed {
        /// Side of a tile in pixels.
        side: usize,
        /// Key with heights and widths of the grids in pixels.
        key: &'static str,
        /// The width of a grid precedes its height.
        widths_first: bool,
        /// Tensor with the row after each line.
        newline: &'static str,
        /// Grids of the file.
        grids: GridList,
    },
    /// Squares that are resized to tiles. Their side follows from the sides of the image.
    Windows {
        /// Side of a tile in pixels.
        side: usize,
        /// Side of the whole image in pixels.
        whole: usize,
        /// Longest side of the resized image in pixels.
        longest: usize,
    },
    /// The grid of up to `max` tiles that the image fits into with the smallest change of its size. The right and the
    /// bottom of the image are padded with black.
    Canvas {
        /// Side of a tile in pixels.
        side: usize,
        /// Maximum number of tiles.
        max: usize,
    },
}

/// Size of an image that is split: the image is resized and cut into a grid of tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Split {
    /// Width and height of a tile in pixels.
    pub tile: [usize; 2],
    /// Width and height of a tile before it is resized.
    pub cut: [usize; 2],
    /// Number of columns of tiles.
    pub columns: usize,
    /// Number of rows of tiles.
    pub rows: usize,
    /// Width and height that the image is resized to, without borders.
    pub scaled: [usize; 2],
    /// Width of the border at the left, and height of the border at the top.
    pub border: [usize; 2],
}

impl TileRules {
    /// Returns the grid of an image; `None` if the image is not split. A grid of a single tile has borders.
    pub fn split(&self, sides: [usize; 2]) -> Option<Split> {
        let side = self.side();
        let [columns, rows] = match self.grid {
            TileGrid::Windows { whole, longest, .. } => {
                let windows = Windows::of(sides, [side, whole, longest])?;
                let [columns, rows] = windows.grid();
                return (columns * rows > 1).then_some(Split {
                    tile: [side; 2],
                    cut: [windows.side; 2],
                    columns,
                    rows,
                    scaled: windows.resized,
                    border: [0; 2],
                });
            }
            TileGrid::Lines { .. } if sides.iter().all(|&n| n <= side) => return None,
            TileGrid::Ratio { min, max, .. } | TileGrid::Lines { min, max, .. } => closest(sides, side, min, max),
            TileGrid::Area { side, max, .. } => by_area(sides, side, max),
            TileGrid::Longest { longest, .. } => rounded_up(longest_side(sides, longest), side),
            TileGrid::Canvas { max, .. } => canvas(sides, side, max),
            TileGrid::Listed { grids, .. } => grids.best(sides, side),
        };
        let tile = match self.grid {
            TileGrid::Area { side, unit, .. } => area(share(sides, [columns, rows]), side, unit, usize::MAX),
            _ => [side; 2],
        };
        let whole = [columns * tile[0], rows * tile[1]];
        let (scaled, has_borders) = match self.grid {
            TileGrid::Canvas { .. } => (fitted(sides, side, whole), true),
            TileGrid::Listed { .. } => (scaled_to_fit(sides, whole), true),
            _ => (whole, false),
        };
        let border = match self.grid {
            TileGrid::Listed { .. } => [0, 1].map(|i| whole[i].saturating_sub(scaled[i]) / 2),
            _ => [0; 2],
        };
        (columns * rows > 1 || has_borders).then_some(Split {
            tile,
            cut: tile,
            columns,
            rows,
            scaled,
            border,
        })
    }

    /// Returns the size that an image is resized to before it is resized to its tiles or to one image.
    pub fn first_size(&self, sides: [usize; 2]) -> Option<[usize; 2]> {
        match self.grid {
            TileGrid::Longest { longest, .. } => Some(longest_side(sides, longest)),
            TileGrid::Windows { longest, .. } => {
                let sides = squared(sides);
                (sides.iter().any(|&side| side > longest)).then(|| Windows::scaled(sides, longest))
            }
            TileGrid::Ratio { .. }
            | TileGrid::Lines { .. }
            | TileGrid::Area { .. }
            | TileGrid::Canvas { .. }
            | TileGrid::Listed { .. } => None,
        }
    }

    /// Returns true if the overview is scaled from the image that was resized for its tiles.
    pub fn has_overview_of_tiles(&self) -> bool {
        matches!(self.grid, TileGrid::Longest { .. })
    }

    /// Returns true if an image is first padded with black at the right and at the bottom to a square.
    pub fn is_squared(&self, sides: [usize; 2]) -> bool {
        matches!(self.grid, TileGrid::Windows { .. }) && squared(sides) != sides
    }

    /// Returns true if the sides of an image differ too much for its tiles.
    pub fn is_too_narrow(&self, sides: [usize; 2]) -> bool {
        matches!(self.grid, TileGrid::Windows { .. }) && is_too_narrow(squared(sides))
    }

    /// Returns true if the size of tiles may differ from the size of images that are not split.
    pub fn has_own_size(&self) -> bool {
        matches!(self.grid, TileGrid::Windows { .. } | TileGrid::Lines { .. })
    }

    /// Returns the side of a square tile in pixels.
    pub fn side(&self) -> usize {
        match self.grid {
            TileGrid::Ratio { side, .. }
            | TileGrid::Lines { side, .. }
            | TileGrid::Longest { side, .. }
            | TileGrid::Windows { side, .. }
            | TileGrid::Canvas { side, .. }
            | TileGrid::Listed { side, .. } => side,
            TileGrid::Area { side, unit, .. } => area([1, 1], side, unit.max(1), usize::MAX)[0],
        }
    }

    /// Returns the maximum number of tiles.
    pub fn max_tiles(&self) -> usize {
        match self.grid {
            TileGrid::Ratio { max, .. }
            | TileGrid::Lines { max, .. }
            | TileGrid::Area { max, .. }
            | TileGrid::Canvas { max, .. } => max,
            TileGrid::Listed { .. } => self.grids().map(|[columns, rows]| columns * rows).max().unwrap_or(1),
            TileGrid::Longest { side, longest } => longest.div_ceil(side.max(1)).saturating_pow(2),
            TileGrid::Windows { side, longest, .. } => {
                // The tiles of a narrow image are as wide as its shorter side, rounded down.
                let narrow = longest / (longest / MAX_RATIO).max(1);
                let of_square = longest.div_ceil(side.max(1)).saturating_pow(2);
                of_square.max(narrow.max(MAX_RATIO) + 1)
            }
        }
    }

    /// Returns the columns and rows of the grids that the file lists.
    pub fn grids(&self) -> impl Iterator<Item = [usize; 2]> + use<> {
        let list = match self.grid {
            TileGrid::Listed { grids, .. } => grids,
            _ => GridList::EMPTY,
        };
        list.iter()
    }

    /// Returns true if the widths precede the heights in the file's list.
    pub fn lists_widths_first(&self) -> bool {
        matches!(self.grid, TileGrid::Listed { widths_first: true, .. })
    }

    /// Returns the key of the list of grids, the tensor of the row after each line, and the tile size, if the file
    /// lists grids.
    pub fn list(&self) -> Option<(&'static str, &'static str, usize)> {
        match self.grid {
            TileGrid::Listed { key, newline, side, .. } => Some((key, newline, side)),
            _ => None,
        }
    }

    /// Returns the tensors of the row after each line and of the last row, if tiles are arranged in lines.
    pub fn line_rows(&self) -> Option<(Option<&'static str>, &'static str)> {
        match self.grid {
            TileGrid::Lines { newline, end, .. } => Some((newline, end)),
            _ => None,
        }
    }

    /// Returns the rules with the grids that a file lists.
    #[must_use]
    pub fn with_grids(mut self, list: GridList) -> TileRules {
        if let TileGrid::Listed { grids, .. } = &mut self.grid {
            *grids = list;
        }
        self
    }

    /// Returns the texts before and after a tile, with its number, starting at 1.
    pub fn text_of(&self, row: usize, column: usize) -> [String; 2] {
        self.tile.map(|text| {
            let text = text.replace("{row}", &(row + 1).to_string());
            text.replace("{column}", &(column + 1).to_string())
        })
    }

    /// Checks the sizes, which follow from keys of a file.
    ///
    /// # Errors
    /// Returns a description of the first invalid size.
    pub fn check(&self, tile_fits: impl Fn(usize) -> bool) -> Result<(), String> {
        let side = self.side();
        let least = match self.grid {
            TileGrid::Ratio { min, .. } | TileGrid::Lines { min, .. } => min,
            _ => 1,
        };
        if self.list().is_some() || self.line_rows().is_some() {
            let overview = self.overview.map_or([""; 2], |overview| overview.text);
            let texts = [
                &self.tile[..],
                &self.whole,
                &overview,
                &[self.between, self.between_rows],
            ]
            .concat();
            let is_first = self.overview.is_some_and(|overview| overview.first);
            let (expected, place) = match self.list() {
                Some(_) => (true, "first"),
                None => (false, "last"),
            };
            if self.overview.is_none() || is_first != expected || texts.iter().any(|text| !text.is_empty()) {
                return Err(format!(
                    "tiles with rows of the file need `overview: {place} \"\";` and have no other text"
                ));
            }
        }
        if !tile_fits(side) {
            return Err(format!(
                "images are split into tiles of {side} pixels, which is not a valid image size"
            ));
        }
        let n = self.max_tiles();
        if least == 0 || least > n || n > MAX_TILES {
            return Err(format!(
                "images are split into {least} to {n} tiles; expected a range within 1 to {MAX_TILES}"
            ));
        }
        let area = n.saturating_mul(side).saturating_mul(side);
        if area > MAX_AREA {
            return Err(format!(
                "images are split into {n} tiles of {side} pixels, an area of {area}; the maximum is {MAX_AREA}"
            ));
        }
        Ok(())
    }
}

/// Returns the columns and rows of the grid with the closest aspect ratio. Among grids of equal ratio, the larger
/// one is used if the image fills more than half of it. The published preprocessing of InternVL and LFM2-VL compares
/// in 64-bit floats, in the order of the number of tiles.
fn closest([width, height]: [usize; 2], side: usize, min: usize, max: usize) -> [usize; 2] {
    let grids = (1..=max).flat_map(|columns| (1..=max).map(move |rows| [columns, rows]));
    let mut grids: Vec<[usize; 2]> = grids
        .filter(|[columns, rows]| (min..=max).contains(&(columns * rows)))
        .collect();
    grids.sort_by_key(|[columns, rows]| columns * rows);
    let (ratio, area) = (width as f64 / height as f64, width as f64 * height as f64);
    let (mut best, mut least) = ([1, 1], f64::INFINITY);
    for [columns, rows] in grids {
        let difference = (ratio - columns as f64 / rows as f64).abs();
        let is_filled = area > 0.5 * (side * side * columns * rows) as f64;
        if difference < least || (difference == least && is_filled) {
            (best, least) = ([columns, rows], difference);
        }
    }
    best
}

/// Returns the columns and rows of the grid whose aspect ratio is closest to that of the image on a logarithmic scale.
/// The number of tiles differs by at most 1 from the area of the image in squares of `side` pixels, rounded up. The
/// published preprocessing of MiniCPM-V compares in 64-bit floats, and prefers more rows among equal ratios.
fn by_area([width, height]: [usize; 2], side: usize, max: usize) -> [usize; 2] {
    let [width, height] = [width as f64, height as f64];
    let n = ((width * height / (side as f64 * side as f64)).ceil() as usize).min(max);
    if n <= 1 {
        return [1, 1];
    }
    let ratio = (width / height).ln();
    let grids = (n - 1..=n + 1).filter(|&n| n > 1 && n <= max);
    let grids = grids.flat_map(|n| {
        (1..=n)
            .filter(move |rows| n % rows == 0)
            .map(move |rows| [n / rows, rows])
    });
    let (mut best, mut least) = ([1, 1], f64::INFINITY);
    for [columns, rows] in grids {
        let difference = (ratio - (columns as f64 / rows as f64).ln()).abs();
        if difference < least || (difference == least && rows > best[1]) {
            (best, least) = ([columns, rows], difference);
        }
    }
    best
}

/// Divides the sides of an image by the grid. Results are rounded, and at least 1.
fn share(sides: [usize; 2], grid: [usize; 2]) -> [usize; 2] {
    [0, 1].map(|i| ((sides[i] as f64 / grid[i] as f64).round_ties_even() as usize).max(1))
}

/// Resizes the longest side to `longest` pixels, and rounds the shorter side up to an even number.
fn longest_side([width, height]: [usize; 2], longest: usize) -> [usize; 2] {
    let ratio = width as f64 / height as f64;
    let even = |pixels: f64| {
        let whole = pixels as usize;
        whole.saturating_add(whole % 2).max(1)
    };
    if width >= height {
        [longest, even(longest as f64 / ratio)]
    } else {
        [even(longest as f64 * ratio), longest]
    }
}

/// Returns the columns and rows of an image whose sides are rounded up to whole tiles, as in the published
/// preprocessing of Idefics 3. The shorter side follows from the longer side in whole tiles.
fn rounded_up(sides: [usize; 2], side: usize) -> [usize; 2] {
    let tiles = |pixels: f64| (pixels / side as f64).ceil().max(1.0);
    let [width, height] = sides.map(|side| side as f64);
    let ratio = width / height;
    let [columns, rows] = if width >= height {
        let columns = tiles(width);
        [columns, tiles((columns * side as f64 / ratio).trunc())]
    } else {
        let rows = tiles(height);
        [tiles((rows * side as f64 * ratio).trunc()), rows]
    };
    [columns as usize, rows as usize]
}

/// Returns the columns and rows of the smallest grid that enlarges an image the least. If no grid is large enough, it
/// is the grid that shrinks the image the least. The published preprocessing of Llama 4 compares in 32-bit floats.
fn canvas([width, height]: [usize; 2], side: usize, max: usize) -> [usize; 2] {
    let grids = (1..=max).flat_map(|columns| (1..=max / columns).map(move |rows| [columns, rows]));
    let factor = |[columns, rows]: [usize; 2]| {
        let across = (columns * side) as f32 / width as f32;
        across.min((rows * side) as f32 / height as f32)
    };
    let is_better = |a: [usize; 2], b: [usize; 2]| {
        let (of_a, of_b) = (factor(a), factor(b));
        match (of_a >= 1.0, of_b >= 1.0) {
            (true, false) => true,
            (false, true) => false,
            _ if of_a == of_b => a[0] * a[1] < b[0] * b[1],
            (true, true) => of_a < of_b,
            (false, false) => of_a > of_b,
        }
    };
    grids.fold([1, 1], |best, grid| if is_better(grid, best) { grid } else { best })
}

/// Returns the sides of an image that is resized to fit into a grid of tiles. Sides are enlarged to at most a tile.
fn fitted(sides: [usize; 2], side: usize, grid: [usize; 2]) -> [usize; 2] {
    let limits = [0, 1].map(|i| sides[i].max(side).min(grid[i]));
    let factors = [0, 1].map(|i| limits[i] as f64 / sides[i] as f64);
    let narrow = usize::from(factors[0] >= factors[1]);
    let of_other = (sides[1 - narrow] as f64 * factors[narrow]).floor() as usize;
    let mut fitted = limits;
    fitted[1 - narrow] = of_other.clamp(1, limits[1 - narrow]);
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn area_of_tiles_is_limited() {
        let check = |grid: TileGrid| {
            let rules = TileRules {
                grid,
                above: 0.0,
                tile: [""; 2],
                between: "",
                between_rows: "",
                overview: None,
                whole: [""; 2],
            };
            rules.check(|_| true)
        };
        let ratio = |side: usize, max: usize| check(TileGrid::Ratio { side, min: 1, max });
        assert_eq!((ratio(448, 256), ratio(16_384, 1)), (Ok(()), Ok(())));
        assert!(ratio(16_384, 2).unwrap_err().contains("area of 536870912"));
        assert!(ratio(usize::MAX, 1).unwrap_err().contains("the maximum is 268435456"));
        let longest = |side: usize, longest: usize| check(TileGrid::Longest { side, longest });
        assert_eq!(longest(364, 1456), Ok(()));
        assert!(longest(8192, 8192 * 3).unwrap_err().contains("9 tiles of 8192 pixels"));
        assert!(check(TileGrid::Canvas { side: 336, max: 257 }).is_err());
        let area = |unit: usize, max: usize| check(TileGrid::Area { side: 448, unit, max });
        assert_eq!((area(56, 9), area(0, 9)), (Ok(()), Ok(())));
        assert!(area(56, 257).unwrap_err().contains("1 to 257 tiles"));
        assert!(area(16_384, 2).unwrap_err().contains("area of 536870912"));
    }
}
