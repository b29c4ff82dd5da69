//! Image preprocessing, and the media rows of a ubatch.

use super::grid_list::GridList;
use super::image_target::{
    area, bordered, closest, contained, contained_from, extended, fitting, is_too_narrow, longest, max_area,
    max_bordered, multiple, stepped, within,
};
use super::tiles::TileRules;

/// Largest side of a preprocessed image in pixels.
const MAX_SIDE: usize = 1 << 14;
/// Maximum number of patches of an image.
const MAX_PATCHES: usize = 1 << 16;
/// Maximum number of pixels of an image whose patches are pixels. Convolutions reduce their number.
const MAX_PIXELS: usize = 1 << 20;
/// Largest side of a window in patches.
const MAX_WINDOW: usize = 1 << 8;

/// Image preprocessing, from the declaration of an encoder and the keys of its file.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ImageRules {
    /// Size that images are resized to.
    pub size: ImageSize,
    /// Filter of the resizing.
    pub resize: Filter,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Side of a block in patches. The patches of a block are consecutive columns of the input.
    pub block: usize,
    /// Side of a window in blocks; 0 without windows. The blocks of a window are consecutive. Windows at the right and
    /// bottom edges are smaller if the image does not divide into whole windows.
    pub window: usize,
    /// Positions of rows in the language model.
    pub positions: RowPositions,
    /// Learned column for the whole image (a class token).
    pub class: ClassColumn,
    /// Text between the rows of blocks in a prompt.
    pub between_rows: &'static str,
    /// Rules of images that are split into tiles.
    pub tiles: Option<TileRules>,
}

/// Size that images are resized to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageSize {
    /// Squares of this side in pixels.
    Fixed(usize),
    /// Squares of this side in pixels. The image is padded to a square before resizing.
    Padded(usize),
    /// Squares. The image is resized to fit, and padded on both sides.
    Contained {
        /// Side of the square in pixels.
        side: usize,
        /// Minimum of both sides before borders are added, as in the preprocessing of Janus. Without a minimum, sides
        /// and borders are rounded as in Pillow.
        least: Option<usize>,
    },
    /// Multiples of `unit` pixels, with about the area of a square of `side` pixels.
    Area {
        /// Side of the square in pixels.
        side: usize,
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels, scaled down to a longest side.
    Longest {
        /// Maximum of both sides in pixels.
        side: usize,
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels, as large as the maximum area allows.
    Within {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels. The area is at most the number of whole units in the image, clamped to `min..=max`.
    Fitting {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Limit of the area of small images in `unit` x `unit` squares.
        min: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels. The image is scaled down, and the right and the bottom are padded with black to
    /// multiples.
    Bordered {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Area that images are scaled down to, in `unit` x `unit` squares.
        area: usize,
        /// Maximum area with borders in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels with about the ratio of the original sides. The image is scaled down to the area.
    Closest {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels, rounded up. The image is scaled down in steps of a fiftieth of its sides until it
    /// fits.
    Stepped {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels. The image is scaled only if its area is beyond the limits. Its right and bottom
    /// edges are padded with black to multiples of `unit`.
    Extended {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Minimum area in `unit` x `unit` squares.
        min: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
    /// Multiples of `unit` pixels close to the original sides. The area is `min` to `max` squares of a unit.
    Multiple {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Minimum area in `unit` x `unit` squares.
        min: usize,
        /// Maximum area in `unit` x `unit` squares.
        max: usize,
    },
}

/// Positions of rows in a language model.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum RowPositions {
    /// Positions in the sequence, as for text.
    #[default]
    Sequence,
    /// Along the axes of M-RoPE: the row and the column of their block.
    Axes,
    /// Along the axes of XD-RoPE: the index in the sequence, the column and line of the block, and the index of the
    /// image. A learned row follows each line, and one is on each side of the image.
    Xd,
}

/// Learned column for the whole image, before the patches.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum ClassColumn {
    /// No such column.
    #[default]
    None,
    /// The column uses the first row of tables of learned positions.
    First,
    /// The column uses the last row of tables of learned positions.
    Last,
}

/// Patches of an image by column and row.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PatchGrid {
    /// Number of patches in a row of the image.
    pub columns: usize,
    /// Number of rows of patches.
    pub rows: usize,
}

impl PatchGrid {
    /// Returns the number of patches.
    pub fn n_patches(&self) -> usize {
        self.columns * self.rows
    }
}

/// Resampling filter, as in Pillow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Filter {
    /// Linear interpolation.
    Bilinear,
    /// Cubic interpolation.
    Bicubic,
    /// Lanczos filter with three lobes.
    Lanczos,
}

/// Keys that an attention call shows to the rows of a medium.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Visibility {
    /// All rows of the medium, including later ones.
    Whole,
}

/// Media rows of a ubatch.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum BatchMedia {
    /// The ubatch consists of tokens.
    #[default]
    None,
    /// Some entries are media rows.
    Some,
    /// All entries are rows of a single medium, which attend to each other where [`Visibility::Whole`] applies.
    Whole,
}

impl ImageRules {
    /// Returns the rules with the grids of tiles in a list of heights and widths. Images are not split if the list is
    /// missing or empty, or the file lacks the row after each line of patches.
    ///
    /// # Errors
    /// Returns a description of the list if its sides are not whole tiles.
    pub fn with_list(
        self,
        list: impl FnOnce(&str) -> Option<Vec<usize>>,
        has_tensor: impl FnOnce(&str) -> bool,
    ) -> Result<ImageRules, String> {
        let Some((key, newline, side)) = self.tiles.and_then(|tiles| tiles.list()) else {
            return Ok(self);
        };
        let mut sizes = list(key).unwrap_or_default();
        if self.tiles.is_some_and(|tiles| tiles.lists_widths_first()) {
            sizes.as_chunks_mut::<2>().0.iter_mut().for_each(|pair| pair.reverse());
        }
        let grids = GridList::of_sizes(&sizes, side).ok_or_else(|| {
            format!(
                "`clip.vision.{key}` has {} sides; expected up to 64 pairs of multiples of {side}",
                sizes.len()
            )
        })?;
        let tiles = match self.tiles {
            Some(tiles) if !sizes.is_empty() && has_tensor(newline) => Some(tiles.with_grids(grids)),
            _ => None,
        };
        Ok(ImageRules { tiles, ..self })
    }

    /// Returns the width and height that an image is resized to; `None` if its sides differ too much.
    pub fn target(&self, width: usize, height: usize) -> Option<[usize; 2]> {
        let sides = [width, height];
        match self.size {
            _ if self.tiles.is_some_and(|tiles| tiles.is_too_narrow(sides)) => None,
            ImageSize::Fixed(side) | ImageSize::Padded(side) | ImageSize::Contained { side, .. } => Some([side; 2]),
            _ if is_too_narrow(sides) => None,
            ImageSize::Area { side, unit, max } => Some(area(sides, side, unit, max)),
            ImageSize::Longest { side, unit, max } => Some(longest(sides, side, unit, max)),
            ImageSize::Within { unit, max } => Some(within(sides, unit, max)),
            ImageSize::Fitting { unit, min, max } => Some(fitting(sides, unit, [min, max])),
            ImageSize::Bordered { unit, area, max } => Some(bordered(sides, self.patch, unit, [area, max])[1]),
            ImageSize::Closest { unit, max } => Some(closest(sides, unit, max)),
            ImageSize::Stepped { unit, max } => Some(stepped(sides, unit, max)),
            ImageSize::Extended { unit, min, max } => Some(extended(sides, unit, [min, max])[1]),
            ImageSize::Multiple { unit, min, max } => Some(multiple(sides, unit, [min, max])),
        }
    }

    /// Returns the border of an image that is scaled to these sides: the width at the left, and the height at the top.
    /// The image is centered.
    pub fn border(&self, scaled: [usize; 2]) -> [usize; 2] {
        match self.size {
            ImageSize::Contained { side, least: Some(_) } => scaled.map(|n| side.saturating_sub(n) / 2),
            ImageSize::Contained { side, least: None } => {
                scaled.map(|n| (side.saturating_sub(n) as f64 / 2.0).round_ties_even() as usize)
            }
            _ => [0; 2],
        }
    }

    /// Returns the width and height that an image is scaled to before it is padded to [`target`](Self::target).
    pub fn scaled(&self, width: usize, height: usize) -> Option<[usize; 2]> {
        match self.size {
            ImageSize::Bordered { unit, area, max } if !is_too_narrow([width, height]) => {
                Some(bordered([width, height], self.patch, unit, [area, max])[0])
            }
            ImageSize::Extended { unit, min, max } if !is_too_narrow([width, height]) => {
                Some(extended([width, height], unit, [min, max])[0])
            }
            ImageSize::Contained { side, least } => Some(match least {
                Some(least) => contained_from([width, height], side, least),
                None => contained([width, height], side),
            }),
            _ => self.target(width, height),
        }
    }

    /// Returns the rules with other limits of the area, in blocks. If only one limit is given, the other limit changes
    /// if it contradicts the given one.
    ///
    /// # Errors
    /// Returns the reason if all images have one size.
    pub fn with_limits(self, min: Option<usize>, max: Option<usize>) -> Result<ImageRules, String> {
        if min.is_some() && !self.is_fixed() && !self.has_minimum() {
            return Err("the encoder has no minimum number of rows".to_owned());
        }
        let size = match self.size {
            ImageSize::Fixed(_) | ImageSize::Padded(_) | ImageSize::Contained { .. } => {
                return Err("the encoder takes images of one size".to_owned());
            }
            ImageSize::Area { side, unit, max: most } => ImageSize::Area {
                side,
                unit,
                max: max.unwrap_or(most),
            },
            ImageSize::Longest { side, unit, max: most } => ImageSize::Longest {
                side,
                unit,
                max: max.unwrap_or(most),
            },
            ImageSize::Within { unit, max: most } => ImageSize::Within {
                unit,
                max: max.unwrap_or(most),
            },
            ImageSize::Closest { unit, max: most } => ImageSize::Closest {
                unit,
                max: max.unwrap_or(most),
            },
            ImageSize::Stepped { unit, max: most } => ImageSize::Stepped {
                unit,
                max: max.unwrap_or(most),
            },
            ImageSize::Extended {
                unit,
                min: least,
                max: most,
            } => {
                let [min, max] = range_of([least, most], [min, max]);
                ImageSize::Extended { unit, min, max }
            }
            ImageSize::Bordered { unit, area, max: most } => ImageSize::Bordered {
                unit,
                area: max.unwrap_or(area),
                max: max.unwrap_or(most),
            },
            ImageSize::Fitting {
                unit,
                min: least,
                max: most,
            } => {
                let [min, max] = range_of([least, most], [min, max]);
                ImageSize::Fitting { unit, min, max }
            }
            ImageSize::Multiple {
                unit,
                min: least,
                max: most,
            } => {
                let [min, max] = range_of([least, most], [min, max]);
                ImageSize::Multiple { unit, min, max }
            }
        };
        // A maximum applies to the whole image.
        let tiles = if max.is_none() { self.tiles } else { None };
        Ok(ImageRules { size, tiles, ..self })
    }

    /// Returns the patches of an image of this size, or `None` if images are never resized to this size.
    pub fn grid_of(&self, width: usize, height: usize) -> Option<PatchGrid> {
        let is_tile = self.tile_side() == Some(width) && width == height;
        let fits = match (self.size, self.unit()) {
            (ImageSize::Fixed(side) | ImageSize::Padded(side) | ImageSize::Contained { side, .. }, _) => {
                [width, height] == [side; 2]
                    || (is_tile && self.has_own_tiles() && width.is_multiple_of(self.patch.max(1)))
            }
            (_, Some(unit)) => {
                let is_multiple = |side: usize| side > 0 && side <= 2 * MAX_SIDE && side.is_multiple_of(unit);
                is_multiple(width)
                    && is_multiple(height)
                    && (is_tile || width / unit * (height / unit) <= self.max_blocks())
            }
            (_, None) => false,
        };
        fits.then(|| PatchGrid {
            columns: width / self.patch,
            rows: height / self.patch,
        })
    }

    /// Returns the patches of the largest square image.
    pub fn largest(&self) -> PatchGrid {
        let side = match (self.size, self.unit()) {
            (ImageSize::Fixed(side) | ImageSize::Padded(side) | ImageSize::Contained { side, .. }, _) => side,
            (ImageSize::Area { side, unit, max }, _) => area([1, 1], side, unit.max(1), max.max(1))[0],
            (_, unit) => unit.unwrap_or(0).saturating_mul(self.max_blocks().isqrt()),
        };
        let n = side.checked_div(self.patch).unwrap_or(0);
        PatchGrid { columns: n, rows: n }
    }

    /// Returns the patches of a square image of one unit; `None` if all images have one size.
    pub(crate) fn smallest(&self) -> Option<PatchGrid> {
        let n = self.unit()?.checked_div(self.patch)?;
        Some(PatchGrid { columns: n, rows: n })
    }

    /// Returns the maximum number of patches of an image or a tile.
    pub fn max_patches(&self) -> usize {
        let of_tile = self
            .tile_side()
            .and_then(|side| side.checked_div(self.patch))
            .unwrap_or(0);
        let of_image = match self.size {
            ImageSize::Fixed(_) | ImageSize::Padded(_) | ImageSize::Contained { .. } => self.largest().n_patches(),
            _ => {
                let side = self.unit().unwrap_or(0).checked_div(self.patch).unwrap_or(0);
                self.max_blocks().saturating_mul(side).saturating_mul(side)
            }
        };
        of_image.max(of_tile.saturating_mul(of_tile))
    }

    /// Returns the maximum number of patches of a tile. If all images have one size, their tiles may have a different
    /// size.
    pub(crate) fn max_tile_patches(&self) -> usize {
        if self.has_other_tiles()
            && let Some(side) = self.tile_side()
            && let Some(grid) = self.grid_of(side, side)
        {
            grid.n_patches()
        } else {
            self.max_patches()
        }
    }

    /// Returns the number of columns of the encoder's input for a number of patches.
    pub fn n_columns(&self, n_patches: usize) -> usize {
        n_patches + usize::from(self.class != ClassColumn::None)
    }

    /// Returns true if all images have one size.
    pub fn is_fixed(&self) -> bool {
        matches!(
            self.size,
            ImageSize::Fixed(_) | ImageSize::Padded(_) | ImageSize::Contained { .. }
        )
    }

    /// Returns true if the area of images has a lower limit.
    fn has_minimum(&self) -> bool {
        matches!(
            self.size,
            ImageSize::Fitting { .. } | ImageSize::Extended { .. } | ImageSize::Multiple { .. }
        )
    }

    /// Returns the divisor of both sides; `None` for images of one size.
    fn unit(&self) -> Option<usize> {
        match self.size {
            ImageSize::Fixed(_) | ImageSize::Padded(_) | ImageSize::Contained { .. } => None,
            ImageSize::Area { unit, .. }
            | ImageSize::Longest { unit, .. }
            | ImageSize::Within { unit, .. }
            | ImageSize::Fitting { unit, .. }
            | ImageSize::Closest { unit, .. }
            | ImageSize::Stepped { unit, .. }
            | ImageSize::Extended { unit, .. }
            | ImageSize::Bordered { unit, .. }
            | ImageSize::Multiple { unit, .. } => Some(unit),
        }
    }

    /// Returns the maximum area of an image in `unit` x `unit` squares; 1 for images of one size.
    fn max_blocks(&self) -> usize {
        match self.size {
            ImageSize::Fixed(_) | ImageSize::Padded(_) | ImageSize::Contained { .. } => 1,
            ImageSize::Area { side, unit, max } => max_area(side, unit).min(max),
            ImageSize::Longest { side, unit, max } => {
                let n = side.div_ceil(unit.max(1));
                n.saturating_mul(n).min(max)
            }
            ImageSize::Bordered { area, max, .. } => max_bordered(self.block, area).min(max),
            ImageSize::Within { max, .. }
            | ImageSize::Closest { max, .. }
            | ImageSize::Stepped { max, .. }
            | ImageSize::Fitting { max, .. }
            | ImageSize::Extended { max, .. }
            | ImageSize::Multiple { max, .. } => max,
        }
    }

    /// Returns true if the size of tiles may differ from the size of images that are not split.
    fn has_own_tiles(&self) -> bool {
        self.tiles.is_some_and(|tiles| tiles.has_own_size())
    }

    /// Returns true if all images have one size, and tiles have a different size.
    pub(crate) fn has_other_tiles(&self) -> bool {
        let side = self.largest().columns.saturating_mul(self.patch);
        self.is_fixed() && self.tile_side().is_some_and(|of_tile| of_tile != side)
    }

    /// Returns the side of a tile in pixels, if images are split.
    fn tile_side(&self) -> Option<usize> {
        self.tiles.map(|tiles| tiles.side())
    }

    /// Returns all texts that can be between the rows of an image, for one tile.
    pub fn texts(&self) -> Vec<String> {
        let mut texts = vec![self.between_rows.to_owned()];
        if let Some(tiles) = self.tiles {
            texts.extend(tiles.whole.map(str::to_owned));
        }
        if let Some(tiles) = self.tiles.filter(|tiles| tiles.max_tiles() > 1) {
            let overview = tiles.overview.map_or([""; 2], |overview| overview.text);
            texts.extend(tiles.text_of(0, 0));
            texts.extend([tiles.between, tiles.between_rows].map(str::to_owned));
            texts.extend(overview.map(str::to_owned));
        }
        texts
    }

    /// Checks the sizes, which follow from keys of a file.
    ///
    /// # Errors
    /// Returns a description of the first invalid size.
    pub fn check(&self) -> Result<(), String> {
        let ImageRules {
            patch, block, window, ..
        } = *self;
        let blocks = format!("patches of {patch} pixels in blocks of {block}");
        let pixels = patch.saturating_mul(block);
        match (self.size, self.unit()) {
            (ImageSize::Fixed(side) | ImageSize::Padded(side) | ImageSize::Contained { side, .. }, _) => {
                if side == 0 || side > MAX_SIDE {
                    return Err(format!("images have sides of {side} pixels; expected 1 to {MAX_SIDE}"));
                }
                if pixels == 0 || !side.is_multiple_of(pixels) {
                    return Err(format!("the side of images ({side}) is not a multiple of {blocks}"));
                }
            }
            (_, unit) => {
                let unit = unit.unwrap_or(0);
                let is_known = unit == pixels || (window > 0 && unit == pixels.saturating_mul(window));
                if pixels == 0 || !is_known || unit > MAX_SIDE {
                    return Err(format!(
                        "the sides of images are multiples of {unit} pixels, not of {blocks}"
                    ));
                }
            }
        }
        if let ImageSize::Longest { side, .. } | ImageSize::Area { side, .. } = self.size
            && (side == 0 || side > MAX_SIDE)
        {
            return Err(format!(
                "images have sides of up to {side} pixels; expected 1 to {MAX_SIDE}"
            ));
        }
        let (min, max) = match self.size {
            ImageSize::Multiple { min, max, .. }
            | ImageSize::Fitting { min, max, .. }
            | ImageSize::Extended { min, max, .. } => (min, max),
            _ => (1, self.max_blocks()),
        };
        if min == 0 || min > max {
            return Err(format!(
                "images have at least {min} and at most {max} blocks of patches"
            ));
        }
        if self.class != ClassColumn::None && window > 0 {
            return Err("windows are not supported with a class token".to_owned());
        }
        if self.positions != RowPositions::Sequence && self.tiles.is_some() {
            return Err("tiles of images have no positions along axes".to_owned());
        }
        if let Some(tiles) = self.tiles {
            tiles.check(|side| side <= MAX_SIDE && self.grid_of(side, side).is_some())?;
        }
        if window.saturating_mul(block) > MAX_WINDOW {
            return Err(format!(
                "windows have sides of {window} blocks of {block} patches; the maximum is {MAX_WINDOW} patches"
            ));
        }
        let most = if self.patch == 1 { MAX_PIXELS } else { MAX_PATCHES };
        match self.max_patches() {
            n if n > most => Err(format!("images have {n} patches; the maximum is {most}")),
            _ => Ok(()),
        }
    }
}

/// Returns the limits of the area, overridden by the given limits. If only one is given, the other one changes if it
/// contradicts the given one.
fn range_of([least, most]: [usize; 2], [min, max]: [Option<usize>; 2]) -> [usize; 2] {
    [
        min.unwrap_or_else(|| least.min(max.unwrap_or(least))),
        max.unwrap_or_else(|| most.max(min.unwrap_or(most))),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::tiles::TileGrid;
    use super::*;

    const RULES: ImageRules = ImageRules {
        size: ImageSize::Fixed(112),
        resize: Filter::Bilinear,
        patch: 14,
        block: 2,
        window: 0,
        positions: RowPositions::Sequence,
        class: ClassColumn::None,
        between_rows: "",
        tiles: None,
    };

    const MULTIPLE: ImageSize = ImageSize::Multiple {
        unit: 28,
        min: 4,
        max: 1280,
    };

    #[test]
    fn image_rules_reject_sizes_without_whole_blocks() {
        assert_eq!(RULES.check(), Ok(()));
        let grid = RULES.grid_of(112, 112).unwrap();
        assert_eq!((grid.columns, grid.n_patches(), RULES.max_patches()), (8, 64, 64));
        assert_eq!((RULES.grid_of(112, 56), RULES.largest()), (None, grid));
        let fixed = |side| ImageSize::Fixed(side);
        let wrong = [
            ImageRules {
                size: fixed(0),
                ..RULES
            },
            ImageRules {
                size: fixed(1 << 20),
                ..RULES
            },
            ImageRules { patch: 0, ..RULES },
            ImageRules { block: 0, ..RULES },
            ImageRules { block: 3, ..RULES },
            ImageRules {
                window: usize::MAX,
                ..RULES
            },
            ImageRules {
                patch: usize::MAX,
                ..RULES
            },
            ImageRules {
                size: MULTIPLE,
                block: 3,
                ..RULES
            },
            ImageRules {
                size: ImageSize::Multiple {
                    unit: 28,
                    min: 0,
                    max: 9,
                },
                ..RULES
            },
            ImageRules {
                size: ImageSize::Multiple {
                    unit: 28,
                    min: 9,
                    max: 8,
                },
                ..RULES
            },
        ];
        for rules in wrong {
            assert!(rules.check().is_err(), "{rules:?}");
        }
    }

    #[test]
    fn image_rules_reject_too_many_patches() {
        for size in [
            ImageSize::Fixed(8192),
            ImageSize::Multiple {
                unit: 1,
                min: 1,
                max: usize::MAX,
            },
        ] {
            let many = ImageRules {
                size,
                patch: 1,
                block: 1,
                ..RULES
            };
            assert!(
                many.check().unwrap_err().contains("patches; the maximum is"),
                "{size:?}"
            );
        }
    }

    /// The expected sizes come from `smart_resize` in transformers, with factor 28 and 3136 to 1003520 pixels.
    #[test]
    fn sides_are_multiples_within_area_limits() {
        let rules = ImageRules {
            size: MULTIPLE,
            ..RULES
        };
        for ([width, height], expected) in [
            ([1, 1], [56, 56]),
            ([640, 480], [644, 476]),
            ([42, 70], [56, 56]),
            ([1920, 1080], [1316, 728]),
            ([200, 1], [812, 28]),
            ([8192, 41], [8204, 28]),
        ] {
            assert_eq!(rules.target(width, height), Some(expected), "{width} x {height}");
            assert!(rules.grid_of(expected[0], expected[1]).is_some());
        }
        assert_eq!(
            [[0, 5], [201, 1], [14, 9000]].map(|[width, height]| rules.target(width, height)),
            [None; 3]
        );
        assert_eq!(rules.largest(), PatchGrid { columns: 70, rows: 70 });
        assert_eq!(rules.max_patches(), 5120);
        let limits = |min, max| rules.with_limits(min, max).map(|rules| rules.size);
        let of = |min, max| Ok(ImageSize::Multiple { unit: 28, min, max });
        assert_eq!(limits(None, Some(2)), of(2, 2));
        assert_eq!(limits(Some(2000), None), of(2000, 2000));
        assert_eq!(limits(Some(5), Some(9)), of(5, 9));
        assert!(RULES.with_limits(None, Some(2)).is_err());
        assert_eq!((rules.grid_of(28, 30), rules.grid_of(28 * 36, 28 * 36)), (None, None));
    }

    /// The expected sizes come from `JanusImageProcessorPil` in transformers, where the minimum is less than the side.
    #[test]
    fn contained_images_have_minimal_sides() {
        for (side, [width, height], scaled, border) in [
            (48, [333, 500], [32, 48], [8, 0]),
            (48, [1, 8192], [14, 48], [17, 0]),
            (48, [47, 49], [46, 48], [1, 0]),
            (49, [100, 75], [49, 37], [0, 6]),
            (8, [100, 3], [8, 8], [0, 0]),
        ] {
            let size = ImageSize::Contained { side, least: Some(14) };
            let rules = ImageRules { size, ..RULES };
            assert_eq!(rules.scaled(width, height), Some(scaled), "{width} x {height}");
            assert_eq!(
                (rules.border(scaled), rules.target(width, height)),
                (border, Some([side; 2]))
            );
        }
    }

    #[test]
    fn tiles_exclude_positions_along_axes() {
        let tiles = TileRules {
            grid: TileGrid::Ratio {
                side: 112,
                min: 1,
                max: 4,
            },
            above: 0.0,
            tile: [""; 2],
            between: "",
            between_rows: "",
            overview: None,
            whole: [""; 2],
        };
        let rules = ImageRules {
            tiles: Some(tiles),
            ..RULES
        };
        assert_eq!(rules.check(), Ok(()));
        let rules = ImageRules {
            positions: RowPositions::Axes,
            ..rules
        };
        assert!(rules.check().unwrap_err().contains("no positions along axes"));
    }
}
