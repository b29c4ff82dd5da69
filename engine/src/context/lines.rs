//! [`Lines`]: the order of the rows of tiles and of the whole image, with learned rows after lines and at the end.

/// Rows of an image: the rows of the tiles, the rows of the whole image, and a row of the file. With newlines, rows are
/// in reading order, and a row of the file follows each line. Without newlines, the rows of each tile are consecutive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lines {
    /// Columns and rows of tiles; 0 without tiles.
    pub tiles: [usize; 2],
    /// Number of rows of a tile.
    pub of_tile: usize,
    /// Number of rows of the whole image.
    pub of_whole: usize,
    /// A row of the file follows each line. Tiles and the whole image are squares.
    pub has_newlines: bool,
}

impl Lines {
    /// Returns the number of rows.
    pub fn n_rows(&self) -> usize {
        let [columns, rows] = self.tiles;
        if !self.has_newlines {
            return columns * rows * self.of_tile + self.of_whole + 1;
        }
        let [side, whole] = self.sides();
        rows * side * (columns * side + 1) + whole * (whole + 1) + 1
    }

    /// Returns the sides of a tile and of the whole image in rows.
    fn sides(&self) -> [usize; 2] {
        [self.of_tile, self.of_whole].map(usize::isqrt)
    }

    /// Returns the maximum number of rows of an image with up to `n` tiles.
    pub fn max_rows(&self, n: usize) -> usize {
        let column = Lines { tiles: [1, n], ..*self };
        column.n_rows()
    }

    /// Returns the rows of an image. `rows` contains the rows of each tile, then the rows of the whole image.
    pub fn arrange(&self, rows: &[f32], width: usize, newline: &[f32], end: &[f32]) -> Vec<f32> {
        let mut all = Vec::with_capacity(self.n_rows() * width);
        if !self.has_newlines {
            all.extend(rows);
            all.extend(end);
            return all;
        }
        let [columns, tile_rows] = self.tiles;
        let line_of = |from: usize, n: usize| rows.get(from * width..(from + n) * width).unwrap_or_default();
        let ([side, whole], of_tile) = (self.sides(), self.of_tile);
        for line in 0..tile_rows * side {
            let first = line / side * columns;
            for tile in first..first + columns {
                all.extend(line_of(tile * of_tile + line % side * side, side));
            }
            all.extend(newline);
        }
        for line in 0..whole {
            all.extend(line_of(columns * tile_rows * of_tile + line * whole, whole));
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
            of_tile: 4,
            of_whole: 9,
            has_newlines: true,
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

    #[test]
    fn rows_without_newlines_keep_their_order() {
        let lines = Lines {
            tiles: [2, 1],
            of_tile: 2,
            of_whole: 3,
            has_newlines: false,
        };
        let rows: Vec<f32> = (0..7).map(|i| i as f32).collect();
        let expected = [&rows[..], &[-2.0]].concat();
        assert_eq!(lines.arrange(&rows, 1, &[], &[-2.0]), expected);
        assert_eq!((lines.n_rows(), lines.max_rows(3)), (8, 10));
    }
}
