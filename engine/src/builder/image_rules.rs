//! Preprocessing of images, and the media rows of a ubatch.

/// Largest side of a preprocessed image in pixels.
const MAX_SIDE: usize = 1 << 14;
/// Maximum number of patches of an image.
const MAX_PATCHES: usize = 1 << 16;
/// Largest side of a window in patches.
const MAX_WINDOW: usize = 1 << 8;
/// Maximum ratio of the sides of an image that is resized by [`ImageSize::Multiple`].
const MAX_RATIO: usize = 200;

/// Preprocessing of images, from the declaration of an encoder and the keys of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRules {
    /// Size that images are resized to.
    pub size: ImageSize,
    /// Filter of the resizing.
    pub resize: Filter,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Side of a block in patches. The patches of a block are consecutive columns of the input.
    pub block: usize,
    /// Side of a window in blocks; 0 without windows. The blocks of a window are consecutive, and the windows at the
    /// right and bottom edges are smaller.
    pub window: usize,
    /// Whether rows have positions along the axes of M-RoPE: the row and the column of their block.
    pub axes: bool,
}

/// Size that images are resized to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImageSize {
    /// Squares of this side in pixels.
    Fixed(usize),
    /// Multiples of `unit` pixels close to the original sides. The area is `min` to `max` squares of a unit.
    Multiple {
        /// Divisor of both sides in pixels.
        unit: usize,
        /// Minimum area in squares of a unit.
        min: usize,
        /// Maximum area in squares of a unit.
        max: usize,
    },
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
    /// Returns the width and height that an image is resized to; `None` if its sides differ too much.
    pub fn target(&self, width: usize, height: usize) -> Option<[usize; 2]> {
        match self.size {
            ImageSize::Fixed(side) => Some([side; 2]),
            ImageSize::Multiple { unit, min, max } => {
                let (short, long) = (width.min(height), width.max(height));
                if short == 0 || long > short.saturating_mul(MAX_RATIO) {
                    return None;
                }
                Some(multiple([width, height], unit, [min, max]))
            }
        }
    }

    /// Returns the rules with other limits of the area, in blocks. If only one limit is given, the other limit changes
    /// if it contradicts the given one.
    ///
    /// # Errors
    /// The reason, if all images have one size.
    pub fn with_limits(self, min: Option<usize>, max: Option<usize>) -> Result<ImageRules, String> {
        let ImageSize::Multiple {
            unit,
            min: least,
            max: most,
        } = self.size
        else {
            return Err("the encoder takes images of one size".to_owned());
        };
        let size = ImageSize::Multiple {
            unit,
            min: min.unwrap_or_else(|| least.min(max.unwrap_or(least))),
            max: max.unwrap_or_else(|| most.max(min.unwrap_or(most))),
        };
        Ok(ImageRules { size, ..self })
    }

    /// Returns the patches of an image of this size, or `None` if images are never resized to this size.
    pub fn grid_of(&self, width: usize, height: usize) -> Option<PatchGrid> {
        let fits = match self.size {
            ImageSize::Fixed(side) => [width, height] == [side; 2],
            ImageSize::Multiple { unit, max, .. } => {
                let is_multiple = |side: usize| side > 0 && side <= 2 * MAX_SIDE && side.is_multiple_of(unit);
                is_multiple(width) && is_multiple(height) && width / unit * (height / unit) <= max
            }
        };
        fits.then(|| PatchGrid {
            columns: width / self.patch,
            rows: height / self.patch,
        })
    }

    /// Returns the patches of the largest square image.
    pub fn largest(&self) -> PatchGrid {
        let side = match self.size {
            ImageSize::Fixed(side) => side,
            ImageSize::Multiple { unit, max, .. } => unit * max.isqrt(),
        };
        let n = side.checked_div(self.patch).unwrap_or(0);
        PatchGrid { columns: n, rows: n }
    }

    /// Returns the maximum number of patches of an image.
    pub fn max_patches(&self) -> usize {
        match self.size {
            ImageSize::Fixed(_) => self.largest().n_patches(),
            ImageSize::Multiple { max, .. } => max * self.block * self.block,
        }
    }

    /// Checks the sizes, which follow from keys of a file.
    ///
    /// # Errors
    /// A description of the first invalid size.
    pub fn check(&self) -> Result<(), String> {
        let ImageRules {
            patch, block, window, ..
        } = *self;
        let blocks = format!("patches of {patch} pixels in blocks of {block}");
        let pixels = patch.saturating_mul(block);
        let n_patches = match self.size {
            ImageSize::Fixed(side) => {
                if side == 0 || side > MAX_SIDE {
                    return Err(format!("images have sides of {side} pixels; expected 1 to {MAX_SIDE}"));
                }
                if pixels == 0 || !side.is_multiple_of(pixels) {
                    return Err(format!("the side of images ({side}) is not a multiple of {blocks}"));
                }
                (side / patch).saturating_mul(side / patch)
            }
            ImageSize::Multiple { unit, min, max } => {
                if pixels == 0 || unit != pixels || unit > MAX_SIDE {
                    return Err(format!(
                        "the sides of images are multiples of {unit} pixels, not of {blocks}"
                    ));
                }
                if min == 0 || min > max {
                    return Err(format!(
                        "images have at least {min} and at most {max} blocks of patches"
                    ));
                }
                max.saturating_mul(block.saturating_mul(block))
            }
        };
        if window.saturating_mul(block) > MAX_WINDOW {
            return Err(format!(
                "windows have sides of {window} blocks of {block} patches; the maximum is {MAX_WINDOW} patches"
            ));
        }
        match n_patches {
            n if n > MAX_PATCHES => Err(format!("images have {n} patches; the maximum is {MAX_PATCHES}")),
            _ => Ok(()),
        }
    }
}

/// Rounds sides to multiples of `unit`. An area outside of the limits, in squares of a unit, is scaled to the nearest
/// limit. The arithmetic in 64-bit floats matches the published preprocessing of Qwen2-VL.
fn multiple(sides: [usize; 2], unit: usize, [min, max]: [usize; 2]) -> [usize; 2] {
    let (unit_f, area_of_unit) = (unit as f64, (unit * unit) as f64);
    let rounded = sides.map(|side| (side as f64 / unit_f).round_ties_even() as usize);
    let area = sides[0] as f64 * sides[1] as f64;
    let blocks = if rounded[0] * rounded[1] > max {
        let shrink = (area / (max as f64 * area_of_unit)).sqrt();
        sides.map(|side| ((side as f64 / shrink / unit_f).floor() as usize).max(1))
    } else if rounded[0] * rounded[1] < min {
        let grow = (min as f64 * area_of_unit / area).sqrt();
        sides.map(|side| (side as f64 * grow / unit_f).ceil() as usize)
    } else {
        rounded
    };
    // The published preprocessing exceeds the maximum for close limits and for narrow images. The longer side is cut.
    let [columns, rows] = blocks;
    let within = if columns >= rows {
        [columns.min(max / rows), rows]
    } else {
        [columns, rows.min(max / columns)]
    };
    within.map(|n| n * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: ImageRules = ImageRules {
        size: ImageSize::Fixed(112),
        resize: Filter::Bilinear,
        patch: 14,
        block: 2,
        window: 0,
        axes: false,
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

    /// The expected sizes are those of `smart_resize` in transformers, with factor 28 and 3136 to 1003520 pixels.
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
}
