//! Patches of an image as columns of an encoder's input.

use crate::builder::{ImageRules, PatchGrid};

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

/// Patch of an image.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Patch {
    pub column: usize,
    pub row: usize,
    /// Position of the patch. The positions of a window are between consecutive multiples of its area. Without
    /// windows, the position is the index of the patch.
    pub pos: usize,
}

/// Returns the patches of an image in the order of the encoder's input. The patches of a block are consecutive, and so
/// are the blocks of a window.
pub(super) fn patches(rules: &ImageRules, grid: PatchGrid) -> Vec<Patch> {
    let block = rules.block.max(1);
    let mut patches = Vec::with_capacity(grid.n_patches());
    for (window, blocks) in windows(rules, grid).into_iter().enumerate() {
        let first = if rules.window == 0 {
            0
        } else {
            window * (rules.window * block).pow(2)
        };
        for (i, [left, top]) in blocks.into_iter().enumerate() {
            patches.extend((0..block * block).map(|j| Patch {
                column: left * block + j % block,
                row: top * block + j / block,
                pos: first + i * block * block + j,
            }));
        }
    }
    patches
}

/// Returns the column and the row of each block, by window. Without windows, all blocks are in one window.
fn windows(rules: &ImageRules, grid: PatchGrid) -> Vec<Vec<[usize; 2]>> {
    let block = rules.block.max(1);
    let (columns, rows) = (grid.columns / block, grid.rows / block);
    let side = match rules.window {
        0 => columns.max(rows).max(1),
        side => side,
    };
    let starts = |n: usize| (0..n).step_by(side);
    let window = |left: usize, top: usize| {
        let across = left..columns.min(left + side);
        (top..rows.min(top + side)).flat_map(move |row| across.clone().map(move |column| [column, row]))
    };
    let at = starts(rows).flat_map(|top| starts(columns).map(move |left| [left, top]));
    at.map(|[left, top]| window(left, top).collect()).collect()
}

/// Sorts the rows of blocks, which have the order of the encoder's input, in reading order.
pub(super) fn in_reading_order(rules: &ImageRules, grid: PatchGrid, width: usize, rows: Vec<f32>) -> Vec<f32> {
    let (n_columns, blocks) = (grid.columns / rules.block.max(1), windows(rules, grid).concat());
    if rules.window == 0 || width * blocks.len() != rows.len() {
        return rows;
    }
    let mut sorted = vec![0.0; rows.len()];
    for ([column, row], values) in blocks.into_iter().zip(rows.chunks_exact(width)) {
        let at = (row * n_columns + column) * width;
        sorted[at..at + width].copy_from_slice(values);
    }
    sorted
}

/// Returns the normalized colors of each patch: red, green, and blue planes of pixels in reading order.
pub(super) fn patch_columns(
    patch: usize,
    grid: PatchGrid,
    patches: &[Patch],
    colors: &[ChannelScale; 3],
    rgb: &[u8],
) -> Vec<f32> {
    let width = grid.columns * patch;
    let mut columns = Vec::with_capacity(3 * patch * patch * patches.len());
    for at in patches {
        let (top, left) = (at.row * patch, at.column * patch);
        for (channel, scale) in colors.iter().enumerate() {
            for y in top..top + patch {
                let row = &rgb[3 * (y * width + left)..3 * (y * width + left + patch)];
                columns.extend(row.iter().skip(channel).step_by(3).map(|&color| scale.apply(color)));
            }
        }
    }
    columns
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::{ClassColumn, Filter, ImageSize, RowPositions};

    const RULES: ImageRules = ImageRules {
        size: ImageSize::Fixed(8),
        resize: Filter::Bilinear,
        patch: 2,
        block: 2,
        window: 0,
        positions: RowPositions::Sequence,
        class: ClassColumn::None,
        between_rows: "",
        tiles: None,
    };

    fn places(rules: &ImageRules, grid: PatchGrid) -> Vec<usize> {
        let found = patches(rules, grid);
        found
            .iter()
            .map(|patch| patch.row * grid.columns + patch.column)
            .collect()
    }

    #[test]
    fn patches_of_a_block_are_consecutive() {
        let square = RULES.largest();
        let expected = [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15];
        assert_eq!(places(&RULES, square), expected);
        let plain = ImageRules { block: 1, ..RULES };
        assert!(places(&plain, square).into_iter().eq(0..16));
        assert!(patches(&RULES, square).iter().map(|patch| patch.pos).eq(0..16));
    }

    /// The expected order comes from `get_window_index` in transformers for 10 x 6 patches in blocks of 2 and windows
    /// of 2 x 2 blocks.
    #[test]
    fn blocks_of_a_window_are_consecutive() {
        let rules = ImageRules { window: 2, ..RULES };
        let grid = PatchGrid { columns: 10, rows: 6 };
        let blocks = [0, 1, 5, 6, 2, 3, 7, 8, 4, 9, 10, 11, 12, 13, 14];
        let found: Vec<usize> = windows(&rules, grid)
            .concat()
            .iter()
            .map(|[column, row]| row * 5 + column)
            .collect();
        assert_eq!(found, blocks);
        let positions: Vec<usize> = patches(&rules, grid).iter().map(|patch| patch.pos / 16).collect();
        let expected = [16, 16, 8, 8, 8, 4]
            .iter()
            .enumerate()
            .flat_map(|(window, &n)| std::iter::repeat_n(window, n));
        assert!(positions.into_iter().eq(expected));
        let rows: Vec<f32> = blocks.iter().flat_map(|&block| [block as f32; 2]).collect();
        let sorted = in_reading_order(&rules, grid, 2, rows);
        assert!(sorted.chunks(2).map(|row| row[0] as usize).eq(0..15));
    }

    #[test]
    fn columns_hold_planes_of_normalized_colors() {
        let colors = [0.0, 0.5, 1.0].map(|mean| ChannelScale { mean, deviation: 0.5 });
        let grid = RULES.largest();
        // The red value is the column, the green value the row, and blue is 255.
        let rgb: Vec<u8> = (0..64u8).flat_map(|i| [i % 8, i / 8, 255]).collect();
        let columns = patch_columns(RULES.patch, grid, &patches(&RULES, grid), &colors, &rgb);
        assert_eq!(columns.len(), rgb.len());
        // The third patch is the first of the second row in its block.
        let expected = [0.0, 1.0, 0.0, 1.0, 2.0, 2.0, 3.0, 3.0, 255.0, 255.0, 255.0, 255.0];
        for (i, (found, color)) in columns[24..36].iter().zip(expected).enumerate() {
            let mean = [0.0, 0.5, 1.0][i / 4];
            assert!((found - (color / 255.0 - mean) / 0.5).abs() < 1e-6, "{i}: {found}");
        }
    }
}
