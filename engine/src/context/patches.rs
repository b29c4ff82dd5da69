//! Patches of an image as columns of an encoder's input.

use crate::builder::ImageRules;

/// Mean and deviation of a color channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChannelScale {
    pub mean: f32,
    pub deviation: f32,
}

impl ChannelScale {
    /// Returns the normalized value of a color.
    fn apply(self, color: u8) -> f32 {
        (f32::from(color) / 255.0 - self.mean) / self.deviation
    }
}

/// Returns the place of each patch in reading order. The patches of a block are consecutive.
pub(super) fn patch_places(rules: &ImageRules) -> impl Iterator<Item = usize> {
    let (n, block) = (rules.patches_per_side(), rules.block.max(1));
    let blocks = n / block;
    (0..blocks * blocks).flat_map(move |b| {
        let (top, left) = (b / blocks * block, b % blocks * block);
        (0..block * block).map(move |i| (top + i / block) * n + left + i % block)
    })
}

/// Returns the normalized colors of each patch: red, green, and blue planes of pixels in reading order.
pub(super) fn patch_columns(rules: &ImageRules, colors: &[ChannelScale; 3], rgb: &[u8]) -> Vec<f32> {
    let (side, patch, n) = (rules.side, rules.patch, rules.patches_per_side());
    let mut columns = Vec::with_capacity(3 * patch * patch * n * n);
    for place in patch_places(rules) {
        let (top, left) = (place / n * patch, place % n * patch);
        for (channel, scale) in colors.iter().enumerate() {
            for y in top..top + patch {
                let row = &rgb[3 * (y * side + left)..3 * (y * side + left + patch)];
                columns.extend(row.iter().skip(channel).step_by(3).map(|&color| scale.apply(color)));
            }
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::Filter;

    const RULES: ImageRules = ImageRules {
        side: 8,
        resize: Filter::Bilinear,
        patch: 2,
        block: 2,
    };

    #[test]
    fn patches_of_a_block_are_consecutive() {
        let places: Vec<usize> = patch_places(&RULES).collect();
        assert_eq!(places, [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]);
        let plain = ImageRules { block: 1, ..RULES };
        assert!(patch_places(&plain).eq(0..16));
    }

    #[test]
    fn columns_hold_planes_of_normalized_colors() {
        let colors = [0.0, 0.5, 1.0].map(|mean| ChannelScale { mean, deviation: 0.5 });
        // The red value is the column, the green value the row, and blue is 255.
        let rgb: Vec<u8> = (0..64u8).flat_map(|i| [i % 8, i / 8, 255]).collect();
        let columns = patch_columns(&RULES, &colors, &rgb);
        assert_eq!(columns.len(), rgb.len());
        // The third patch is the first of the second row in its block.
        let expected = [0.0, 1.0, 0.0, 1.0, 2.0, 2.0, 3.0, 3.0, 255.0, 255.0, 255.0, 255.0];
        for (i, (found, color)) in columns[24..36].iter().zip(expected).enumerate() {
            let mean = [0.0, 0.5, 1.0][i / 4];
            assert!((found - (color / 255.0 - mean) / 0.5).abs() < 1e-6, "{i}: {found}");
        }
    }
}
