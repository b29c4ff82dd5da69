//! [`ImageSizes`]: sizes that images are resized to, and the numbers of their rows.

use crate::builder::{ImageRules, PatchGrid, RowCount};
use crate::model::Model;

use super::media_error::MediaError;

/// Sizes of images and the numbers of their rows, from the file's header alone.
#[derive(Clone, Copy, Debug)]
pub struct ImageSizes {
    rules: ImageRules,
    rows: RowCount,
    /// Number of learned positions.
    max_positions: Option<usize>,
    /// Number of learned positions along a side.
    max_side: Option<usize>,
}

impl ImageSizes {
    pub(super) fn new(model: &Model, rules: ImageRules) -> ImageSizes {
        ImageSizes {
            rules,
            rows: model.row_count(),
            max_positions: model.max_positions(),
            max_side: model.max_side(),
        }
    }

    /// Creates sizes from the description of an encoder that is not loaded. The numbers of learned positions are not
    /// limited.
    pub fn described(rules: ImageRules, rows: RowCount) -> ImageSizes {
        ImageSizes {
            rules,
            rows,
            max_positions: None,
            max_side: None,
        }
    }

    /// Returns the image preprocessing.
    pub fn rules(&self) -> ImageRules {
        self.rules
    }

    /// Returns the sizes with limits to the number of rows of an image. `None` keeps a limit of the declaration.
    ///
    /// # Errors
    /// Returns [`MediaError::Limits`] if all images have one size, or the limits are invalid.
    pub fn limited(self, min: Option<usize>, max: Option<usize>) -> Result<ImageSizes, MediaError> {
        if min.is_none() && max.is_none() {
            return Ok(self);
        }
        let checked = self
            .with_limits(min, max)
            .and_then(|rules| rules.check().map(|()| rules));
        let rules = checked.map_err(|reason| MediaError::Limits {
            min: min.unwrap_or(1),
            max: max.unwrap_or(self.max_rows()),
            reason,
        })?;
        Ok(ImageSizes { rules, ..self })
    }

    /// Returns the rules with limits to the number of rows, or the reason if the limits are impossible.
    fn with_limits(&self, min: Option<usize>, max: Option<usize>) -> Result<ImageRules, String> {
        if self.rules.is_fixed() {
            return self.rules.with_limits(min, max);
        }
        if self.rows.is_fixed() {
            let n_rows = self.rows.max(self.rules.max_patches());
            return Err(format!("all images have {n_rows} rows"));
        }
        let units = max.map(|n| self.rows.units_within(n));
        if units == Some(0) {
            let smallest = self.rules.smallest().map_or(0, |grid| self.rows_of(grid));
            return Err(format!("the number of rows of the smallest image is {smallest}"));
        }
        self.rules.with_limits(min.map(|n| self.rows.units_with(n)), units)
    }

    /// Returns the maximum number of rows of an image.
    pub fn max_rows(&self) -> usize {
        let of_part = self.rows.max(self.rules.max_patches());
        match self.rules.tiles {
            None => of_part,
            Some(tiles) => match (self.max_mosaic(), self.whole_lines()) {
                (Some(n_rows), _) => of_part + n_rows,
                (_, Some(lines)) => lines.max_rows(tiles.max_tiles()),
                _ if tiles.max_tiles() <= 1 => of_part,
                _ => {
                    let of_tile = self.rows.max(self.rules.max_tile_patches());
                    of_tile * tiles.max_tiles() + tiles.overview.map_or(0, |_| of_part)
                }
            },
        }
    }

    /// Returns the number of rows of an image that has this size before resizing.
    ///
    /// # Errors
    /// Returns [`MediaError::Ratio`] if the sides differ too much, and [`MediaError::Positions`] if the image has too
    /// many patches.
    pub fn n_rows(&self, width: usize, height: usize) -> Result<usize, MediaError> {
        if let Some(mosaic) = self.mosaic(width, height) {
            return Ok(self.rows_of(self.rules.largest()) + mosaic.n_rows());
        }
        if let Some(lines) = self.lines(width, height) {
            return Ok(lines.n_rows());
        }
        let mut n = 0;
        for part in self.parts(width, height)? {
            n += self.rows_of(self.grid(part.size[0], part.size[1])?);
        }
        Ok(n)
    }

    /// Returns the width and height that an image must be resized to.
    ///
    /// # Errors
    /// Returns [`MediaError::Ratio`] if the sides differ too much.
    pub fn target(&self, width: usize, height: usize) -> Result<[usize; 2], MediaError> {
        let target = self.rules.target(width, height);
        target.ok_or(MediaError::Ratio { width, height })
    }

    /// Returns the number of rows of an image or a tile.
    pub(super) fn rows_of(&self, grid: PatchGrid) -> usize {
        self.rows.of(grid)
    }

    /// Returns the patches of a resized image.
    pub(super) fn grid(&self, width: usize, height: usize) -> Result<PatchGrid, MediaError> {
        let Some(grid) = self.rules.grid_of(width, height) else {
            return Err(MediaError::Size {
                width,
                height,
                expected: self.target(width, height)?,
            });
        };
        let n_columns = self.rules.n_columns(grid.n_patches());
        let beyond = |n: usize, max: Option<usize>| max.filter(|&max| n > max);
        match beyond(n_columns, self.max_positions) {
            Some(max) => Err(MediaError::Positions {
                width,
                height,
                n_patches: n_columns,
                max,
            }),
            None => match beyond(grid.columns.max(grid.rows), self.max_side) {
                Some(max) => Err(MediaError::Side { width, height, max }),
                None => Ok(grid),
            },
        }
    }
}
