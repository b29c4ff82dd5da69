//! [`Lines`]: the rows of an image in lines, each with a row of the file after it.

/// Rows of an image in lines: those of the tiles in reading order, then those of the whole image. A row of the file
/// follows each line, and another row is the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lines {
    /// Columns and rows of tiles; 0 without tiles.
    pub tiles: [usize; 2],
    /// Side of a tile in rows.
    pub side: usize,
    /// Side of the whole image in rows.
    pub whole: usize,
}

impl Lines {
    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        let [columns, rows] = self.tiles;
        rows * self.side * (columns * self.side + 1) + self.whole * (self.whole + 1) + 1
    }

    /// Returns the maximum number of rows of an image with up to `n` tiles.
    pub fn max_rows(&self, n: usize) -> usize {
        let column = Lines { tiles: [1, n], ..*self };
        column.n_rows()
    }

    /// Returns the rows of an image. `rows` are those of each tile and of the whole image.
    pub fn arrange(&self, rows: &[f32], width: usize, newline: &[f32], end: &[f32]) -> Vec<f32> {
        let mut all = Vec::with_capacity(self.n_rows() * width);
        let [columns, tile_rows] = self.tiles;
        let line_of = |from: usize, n: usize| rows.get(from * width..(from + n) * width).unwrap_or_default();
        let of_tile = self.side * self.side;
        for line in 0..tile_rows * self.side {
            let first = line / self.side * columns;
            for tile in first..first + columns {
                all.extend(line_of(tile * of_tile + line % self.side * self.side, self.side));
            }
            all.extend(newline);
        }
        for line in 0..self.whole {
            all.extend(line_of(columns * tile_rows * of_tile + line * self.whole, self.whole));
            all.extend(newline);
        }
        all.extend(end);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_cross_tiles_and_end_with_rows_of_file() {
        let lines = Lines {
            tiles: [2, 1],
            side: 2,
            whole: 3,
        };
        let rows: Vec<f32> = (0..17).map(|i| i as f32).collect();
        let expected = [
            0., 1., 4., 5., -1., 2., 3., 6., 7., -1., 8., 9., 10., -1., 11., 12., 13., -1., 14., 15., 16., -1., -2.,
        ];
        assert_eq!(lines.arrange(&rows, 1, &[-1.0], &[-2.0]), expected);
        assert_eq!(lines.n_rows(), expected.len());
        let whole = Lines { tiles: [0; 2], ..lines };
        assert_eq!(whole.arrange(&rows[8..], 1, &[-1.0], &[-2.0]), expected[10..]);
        assert_eq!(whole.n_rows(), 13);
        // A column of tiles has more lines than a row of tiles.
        assert_eq!((lines.max_rows(2), lines.max_rows(3)), (25, 31));
    }
}
