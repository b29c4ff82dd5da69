//! [`Mosaic`]: the rows of an image in reading order, for a grid of tiles from the list in a file.

use std::ops::Range;

use crate::builder::Split;

/// Rows of tiles in reading order of the whole image, without the patches of borders. The rows of the whole image
/// precede the rows of tiles, and a row of the file follows each line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mosaic {
    /// Columns of tiles.
    columns: usize,
    /// Side of a tile in rows.
    side: usize,
    /// Columns and lines of patches that are in the image.
    kept: [Range<usize>; 2],
}

impl Mosaic {
    /// Returns the mosaic of an image that is split. `side` is the side of a tile in rows.
    pub fn new(split: Split, side: usize, [width, height]: [usize; 2]) -> Mosaic {
        let all = [split.columns * side, split.rows * side];
        let [across, down] = all.map(|n| n as f64);
        let is_wide = width as f64 / height as f64 > across / down;
        let (axis, scaled) = if is_wide {
            (1, height as f64 * (across / width as f64))
        } else {
            (0, width as f64 * (down / height as f64))
        };
        // The published model rounds to 7 digits first.
        let scaled = (scaled * 1e7).round_ties_even() / 1e7;
        let border = all[axis].saturating_sub(scaled as usize) / 2;
        let mut kept = all.map(|n| 0..n);
        kept[axis] = border..all[axis] - border;
        Mosaic {
            columns: split.columns,
            side,
            kept,
        }
    }

    /// Returns the number of rows after the rows of the whole image.
    pub fn n_rows(&self) -> usize {
        let [columns, lines] = self.kept.each_ref().map(ExactSizeIterator::len);
        lines * (columns + 1)
    }

    /// Returns numbers that differ for images with equal tiles and different borders.
    pub fn numbers(&self) -> [u64; 6] {
        let [columns, lines] = &self.kept;
        [
            self.columns,
            self.side,
            columns.start,
            columns.end,
            lines.start,
            lines.end,
        ]
        .map(|n| n as u64)
    }

    /// Returns the rows of an image. `rows` contains the rows of the whole image, then the rows of each tile.
    pub fn arrange(&self, rows: &[f32], width: usize, newline: &[f32]) -> Vec<f32> {
        let of_tile = self.side * self.side * width;
        let [columns, lines] = &self.kept;
        let mut all = Vec::with_capacity(of_tile + self.n_rows() * width);
        all.extend(rows.iter().take(of_tile));
        for line in lines.clone() {
            for column in columns.clone() {
                let tile = 1 + line / self.side * self.columns + column / self.side;
                let row = line % self.side * self.side + column % self.side;
                let at = tile * of_tile + row * width;
                all.extend(rows.get(at..at + width).unwrap_or_default());
            }
            all.extend(newline);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cross_tiles_and_end_with_newline() {
        let split = Split {
            tile: [2, 2],
            cut: [2, 2],
            columns: 2,
            rows: 1,
            scaled: [4, 1],
            border: [0, 0],
        };
        let rows: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let mosaic = Mosaic::new(split, 2, [4, 2]);
        assert_eq!(
            mosaic.arrange(&rows, 1, &[-1.0]),
            [0., 1., 2., 3., 4., 5., 8., 9., -1., 6., 7., 10., 11., -1.]
        );
        assert_eq!(mosaic.n_rows(), 10);
        // The image is narrower than the tiles: half a tile on each side is a border.
        let mosaic = Mosaic::new(split, 2, [20, 20]);
        assert_eq!(mosaic.arrange(&rows, 1, &[-1.0])[4..], [5., 8., -1., 7., 10., -1.]);
        let mosaic = Mosaic::new(split, 2, [1, 8192]);
        assert_eq!((mosaic.n_rows(), mosaic.arrange(&rows, 1, &[-1.0]).len()), (2, 6));
    }
}
