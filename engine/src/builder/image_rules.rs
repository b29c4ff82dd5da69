//! Preprocessing of images, and the media rows of a ubatch.

/// Largest side of a preprocessed image in pixels.
const MAX_SIDE: usize = 1 << 14;
/// Maximum number of patches of an image.
const MAX_PATCHES: usize = 1 << 16;

/// Preprocessing of images, from the declaration of an encoder and the keys of its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRules {
    /// Side of the square that images are resized to, in pixels.
    pub side: usize,
    /// Filter of the resizing.
    pub resize: Filter,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Side of a block in patches. The patches of a block are consecutive columns of the input.
    pub block: usize,
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
    /// Returns the number of patches in a row of the image.
    pub fn patches_per_side(&self) -> usize {
        self.side.checked_div(self.patch).unwrap_or(0)
    }

    /// Returns the number of patches of an image.
    pub fn n_patches(&self) -> usize {
        self.patches_per_side() * self.patches_per_side()
    }

    /// Checks the sizes, which follow from keys of a file.
    ///
    /// # Errors
    /// A description of the first invalid size.
    pub fn check(&self) -> Result<(), String> {
        let ImageRules { side, patch, block, .. } = *self;
        if side == 0 || side > MAX_SIDE {
            return Err(format!("images have sides of {side} pixels; expected 1 to {MAX_SIDE}"));
        }
        let unit = patch.saturating_mul(block);
        if unit == 0 || !side.is_multiple_of(unit) {
            return Err(format!(
                "the side of images ({side}) is not a multiple of patches of {patch} pixels in blocks of {block}"
            ));
        }
        match self.n_patches() {
            n if n > MAX_PATCHES => Err(format!("images have {n} patches; the maximum is {MAX_PATCHES}")),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: ImageRules = ImageRules {
        side: 112,
        resize: Filter::Bilinear,
        patch: 14,
        block: 2,
    };

    #[test]
    fn image_rules_reject_sizes_without_whole_blocks() {
        assert_eq!(RULES.check(), Ok(()));
        assert_eq!((RULES.patches_per_side(), RULES.n_patches()), (8, 64));
        let wrong = [
            ImageRules { side: 0, ..RULES },
            ImageRules { side: 1 << 20, ..RULES },
            ImageRules { patch: 0, ..RULES },
            ImageRules { block: 0, ..RULES },
            ImageRules { block: 3, ..RULES },
            ImageRules {
                patch: usize::MAX,
                ..RULES
            },
        ];
        for rules in wrong {
            assert!(rules.check().is_err(), "{rules:?}");
        }
        let many = ImageRules {
            side: 8192,
            patch: 1,
            ..RULES
        };
        assert!(many.check().unwrap_err().contains("patches; the maximum is"));
    }
}
