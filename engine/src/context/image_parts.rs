//! Parts of an image that are encoded on their own: the whole image, or its tiles and an overview.

use crate::builder::{ImageRules, ImageSize, Split, TileRules};

use super::image_sizes::ImageSizes;
use super::lines::Lines;
use super::media_error::MediaError;
use super::mosaic::Mosaic;

/// Part of an image that is encoded on its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImagePart {
    /// Sizes that the whole image is resized to first, in order.
    pub via: Vec<[usize; 2]>,
    /// Width and height that the whole image is then resized to. Borders fill the rest of the parts.
    pub resized: [usize; 2],
    /// Left and top edge of the part in the resized image; negative for a border.
    pub at: [isize; 2],
    /// Width and height of the part in the resized image. The part is then resized to its size.
    pub cut: [usize; 2],
    /// Width and height of the part.
    pub size: [usize; 2],
    /// Black borders at the right and at the bottom extend the image to a square first.
    pub is_squared: bool,
    /// Texts before and after the rows of the part.
    pub text: [String; 2],
}

/// Colors of a part: 8-bit red, green, and blue values by pixel, in reading order.
#[derive(Clone, Copy, Debug)]
pub struct Pixels<'a> {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// `[3, width * height]`
    pub rgb: &'a [u8],
}

impl ImageSizes {
    /// Returns the parts of an image of this size, in the order of their rows.
    ///
    /// # Errors
    /// Returns [`MediaError::Ratio`] if the sides differ too much.
    pub fn parts(&self, width: usize, height: usize) -> Result<Vec<ImagePart>, MediaError> {
        let rules = self.rules();
        let resized = self.target(width, height)?;
        let scaled = rules.scaled(width, height).unwrap_or(resized);
        let via = rules.tiles.and_then(|tiles| tiles.first_size([width, height]));
        let is_squared = rules.tiles.is_some_and(|tiles| tiles.is_squared([width, height]));
        let whole = |text: [&str; 2], grid: Option<[usize; 2]>| ImagePart {
            via: via.into_iter().chain(grid).collect(),
            resized: scaled,
            at: rules.border(scaled).map(|n| -n.cast_signed()),
            cut: resized,
            size: resized,
            is_squared,
            text: text.map(str::to_owned),
        };
        let Some(tiles) = rules.tiles else {
            return Ok(vec![whole([""; 2], None)]);
        };
        let is_large = is_above(&rules, [width, height], tiles.above);
        let split = if is_large { tiles.split([width, height]) } else { None };
        let Some(split) = split else {
            return Ok(vec![whole(tiles.whole, None)]);
        };
        let is_listed = tiles.list().is_some();
        if split.columns * split.rows == 1 && !is_listed {
            return Ok(vec![tile(split, via, [0; 2], tiles.whole.map(str::to_owned))]);
        }
        let grid = if via.is_some() && tiles.has_overview_of_tiles() {
            Some(split.scaled)
        } else {
            None
        };
        let overview = tiles
            .overview
            .map(|overview| (overview.first, whole(overview.text, grid)));
        let (first, last) = match overview {
            Some((true, part)) => (Some(part), None),
            Some((false, part)) => (None, Some(part)),
            None => (None, None),
        };
        let of_grid = (0..split.rows).flat_map(|row| (0..split.columns).map(move |column| (row, column)));
        let of_grid = of_grid.map(|(row, column)| {
            let between = match (row, column) {
                (0, 0) => "",
                (_, 0) => tiles.between_rows,
                _ => tiles.between,
            };
            let [before, after] = tiles.text_of(row, column);
            let part = tile(split, via, [column, row], [between.to_owned() + &before, after]);
            ImagePart { is_squared, ..part }
        });
        Ok(first.into_iter().chain(of_grid).chain(last).collect())
    }

    /// Returns the order of the rows of an image whose tiles the file lists.
    pub(super) fn mosaic(&self, width: usize, height: usize) -> Option<Mosaic> {
        let (tiles, side) = self.listed()?;
        Some(Mosaic::new(tiles.split([width, height])?, side, [width, height]))
    }

    /// Returns the order of the rows of an image, if they are in lines.
    pub(super) fn lines(&self, width: usize, height: usize) -> Option<Lines> {
        let tiles = self.rules().tiles?;
        let lines = self.whole_lines()?;
        let split = tiles.split([width, height]);
        Some(Lines {
            tiles: split.map_or([0; 2], |split| [split.columns, split.rows]),
            ..lines
        })
    }

    /// Returns the order of the rows of an image without tiles, if they are in lines.
    pub(super) fn whole_lines(&self) -> Option<Lines> {
        let rules = self.rules();
        let tiles = rules.tiles?;
        let (newline, _) = tiles.line_rows()?;
        let of_tile = rules.grid_of(tiles.side(), tiles.side())?;
        Some(Lines {
            tiles: [0; 2],
            of_tile: self.rows_of(of_tile),
            of_whole: self.rows_of(rules.largest()),
            has_newlines: newline.is_some(),
        })
    }

    /// Returns the maximum number of rows after the rows of the whole image, if the file lists tiles.
    pub(super) fn max_mosaic(&self) -> Option<usize> {
        let (tiles, side) = self.listed()?;
        let n_rows = |[columns, rows]: [usize; 2]| rows * side * (columns * side + 1);
        Some(tiles.grids().map(n_rows).max().unwrap_or(0))
    }

    /// Returns the tiles that the file lists, and their side in rows.
    fn listed(&self) -> Option<(TileRules, usize)> {
        let rules = self.rules();
        let tiles = rules.tiles?;
        let (_, _, side) = tiles.list()?;
        Some((tiles, side / (rules.patch * rules.block).max(1)))
    }

    /// Returns the texts between the rows of an image of this size, each with the number of rows before
    /// it.
    ///
    /// # Errors
    /// Returns [`MediaError::Ratio`] if the sides differ too much, and [`MediaError::Positions`] if the image has too
    /// many patches.
    pub fn texts(&self, width: usize, height: usize) -> Result<Vec<(usize, String)>, MediaError> {
        let rules = self.rules();
        let (mut texts, mut n) = (Vec::new(), 0);
        if self.mosaic(width, height).is_some() || self.whole_lines().is_some() {
            return Ok(texts);
        }
        for part in self.parts(width, height)? {
            let grid = self.grid(part.size[0], part.size[1])?;
            let n_rows = self.rows_of(grid);
            let [before, after] = part.text;
            texts.push((n, before));
            let n_lines = grid.rows / rules.block.max(1);
            let of_line = n_rows.checked_div(n_lines).unwrap_or(0);
            texts.extend((1..n_lines).map(|line| (n + line * of_line, rules.between_rows.to_owned())));
            n += n_rows;
            texts.push((n, after));
        }
        texts.retain(|(_, text)| !text.is_empty());
        // Texts between the same rows are tokenized as one.
        texts.dedup_by(|(next, text), (row, before)| {
            let is_same = next == row;
            if is_same {
                before.push_str(text);
            }
            is_same
        });
        Ok(texts)
    }
}

/// Returns a tile of a resized image.
fn tile(split: Split, via: Option<[usize; 2]>, [column, row]: [usize; 2], text: [String; 2]) -> ImagePart {
    let from = [split.cut[0] * column, split.cut[1] * row].map(usize::cast_signed);
    ImagePart {
        via: via.into_iter().collect(),
        resized: split.scaled,
        at: [0, 1].map(|i| from[i] - split.border[i].cast_signed()),
        cut: split.cut,
        size: split.tile,
        is_squared: false,
        text,
    }
}

/// Returns true if the area of an image, rounded to whole blocks, is above a multiple of the largest image.
fn is_above(rules: &ImageRules, sides: [usize; 2], above: f32) -> bool {
    let (unit, max) = match rules.size {
        ImageSize::Fixed(side) | ImageSize::Padded(side) | ImageSize::Contained { side, .. } => (side, 1),
        ImageSize::Area { side, .. } => (side, 1),
        ImageSize::Longest { unit, max, .. }
        | ImageSize::Within { unit, max }
        | ImageSize::Closest { unit, max }
        | ImageSize::Stepped { unit, max }
        | ImageSize::Fitting { unit, max, .. }
        | ImageSize::Extended { unit, max, .. }
        | ImageSize::Bordered { unit, area: max, .. }
        | ImageSize::Multiple { unit, max, .. } => (unit, max),
    };
    let rounded = sides.map(|side| {
        let blocks = (side as f64 / unit as f64).round_ties_even();
        (blocks * unit as f64).max(rules.patch as f64)
    });
    above == 0.0 || rounded[0] * rounded[1] > max as f64 * (unit as f64).powi(2) * f64::from(above)
}
