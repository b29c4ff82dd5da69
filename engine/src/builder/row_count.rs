//! [`RowCount`]: the number of rows that an encoder returns for an image.

use super::{ImageRules, PatchGrid};

/// Maximum aspect ratio of an image.
const MAX_RATIO: usize = 200;

/// Limit of the search for an area; no image has more units.
const MAX_UNITS: usize = 1 << 20;

/// Number of rows of an image with `c` columns and `l` lines of units:
/// `of_image + of_column * c + of_line * l + of_unit * c * l`.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct RowCount {
    /// Side of a unit in patches. The sides of images are whole units.
    unit: usize,
    of_image: i64,
    of_column: i64,
    of_line: i64,
    of_unit: i64,
}

impl RowCount {
    /// Creates a number that does not depend on the size of the image.
    pub fn fixed(n: usize) -> RowCount {
        RowCount {
            unit: 1,
            of_image: signed(n),
            ..RowCount::default()
        }
    }

    /// Creates the count from the `rows` of four images of 1 x 1, 2 x 1, 1 x 2, and 2 x 2 units.
    pub fn of_images(unit: usize, rows: [usize; 4]) -> RowCount {
        let [one, wide, high, both] = rows.map(signed);
        // `signed` bounds the operands, so the sums cannot overflow.
        let of_unit = both - wide - high + one;
        let [of_column, of_line] = [wide, high].map(|two| two - one - of_unit);
        RowCount {
            unit: unit.max(1),
            of_image: one - of_column - of_line - of_unit,
            of_column,
            of_line,
            of_unit,
        }
    }

    /// Returns the patches of images of 1 x 1, 2 x 1, 1 x 2, and 2 x 2 units. Returns an empty list if all images have
    /// one size.
    pub(crate) fn small_images(rules: &ImageRules) -> impl Iterator<Item = PatchGrid> + use<> {
        let unit = rules.smallest().map(|grid| grid.rows);
        let sizes = [[1, 1], [2, 1], [1, 2], [2, 2]];
        unit.into_iter().flat_map(move |unit| {
            sizes.map(|[columns, rows]| PatchGrid {
                columns: columns * unit,
                rows: rows * unit,
            })
        })
    }

    /// Creates the count from the numbers of rows of the `largest` square image and of the images of
    /// [`small_images`](Self::small_images). If one of them is missing, or only tiles have a different size, the count
    /// is proportional to the patches.
    pub(crate) fn of_graphs(rules: &ImageRules, largest: usize, of_small: [Option<usize>; 4]) -> RowCount {
        let n_patches = rules.largest().n_patches();
        let Some(PatchGrid { rows: unit, .. }) = rules.smallest() else {
            return match n_patches.checked_div(largest) {
                Some(of_row) if rules.has_other_tiles() => RowCount::of_images(of_row.isqrt(), [1, 2, 2, 4]),
                _ => RowCount::fixed(largest),
            };
        };
        if let [Some(one), Some(wide), Some(high), Some(both)] = of_small {
            return RowCount::of_images(unit, [one, wide, high, both]);
        }
        let area = largest.saturating_mul(unit.saturating_mul(unit));
        let of_unit = area.checked_div(n_patches).unwrap_or(0);
        RowCount::of_images(unit, [1, 2, 2, 4].map(|n| of_unit.saturating_mul(n)))
    }

    /// Returns true if the number does not depend on the size of the image.
    pub fn is_fixed(&self) -> bool {
        [self.of_column, self.of_line, self.of_unit] == [0; 3]
    }

    /// Returns the number of rows of an image.
    pub fn of(&self, grid: PatchGrid) -> usize {
        let units = |n: usize| n.checked_div(self.unit).unwrap_or(0);
        self.of_units(units(grid.columns), units(grid.rows))
    }

    /// Returns the maximum number of rows of images of up to `n_patches` patches.
    pub fn max(&self, n_patches: usize) -> usize {
        let shapes = self.shapes(n_patches);
        shapes
            .map(|[columns, lines]| self.of_units(columns, lines))
            .max()
            .unwrap_or(0)
    }

    /// Returns the minimum number of rows of images of about `n_patches` patches.
    pub fn min(&self, n_patches: usize) -> usize {
        let shapes = self.shapes(n_patches);
        shapes
            .map(|[columns, lines]| self.of_units(columns, lines))
            .min()
            .unwrap_or(0)
    }

    /// Returns the largest area, in units, whose images have at most `n` rows in any shape; 0 if the smallest image has
    /// more.
    pub(crate) fn units_within(&self, n: usize) -> usize {
        self.first_units(|n_patches| self.max(n_patches) > n).saturating_sub(1)
    }

    /// Returns the smallest area, in units, whose images have at least `n` rows in any shape.
    pub(crate) fn units_with(&self, n: usize) -> usize {
        self.first_units(|n_patches| self.min(n_patches) >= n)
    }

    /// Returns the smallest area, in units, whose number of patches satisfies a condition. All larger areas must also
    /// satisfy the condition.
    fn first_units(&self, condition: impl Fn(usize) -> bool) -> usize {
        let of_unit = self.unit.saturating_mul(self.unit);
        let (mut first, mut last) = (1, MAX_UNITS);
        while first < last {
            let middle = usize::midpoint(first, last);
            if condition(middle.saturating_mul(of_unit)) {
                last = middle;
            } else {
                first = middle + 1;
            }
        }
        first
    }

    /// Iterates over the columns and lines of images of about `n_patches` patches.
    fn shapes(&self, n_patches: usize) -> impl Iterator<Item = [usize; 2]> {
        let n = n_patches.checked_div(self.unit.saturating_mul(self.unit)).unwrap_or(0);
        // Only the product matters if columns and lines have no additional rows.
        let n_lines = if [self.of_column, self.of_line] == [0; 2] { 1 } else { n };
        (1..=n_lines)
            .map(move |lines| [n / lines, lines])
            .filter(move |&[columns, lines]| {
                n_lines == 1 || (columns <= MAX_RATIO * lines && lines <= MAX_RATIO * columns)
            })
    }

    fn of_units(&self, columns: usize, lines: usize) -> usize {
        let [columns, lines] = [columns, lines].map(signed);
        let terms = [
            self.of_column.saturating_mul(columns),
            self.of_line.saturating_mul(lines),
            self.of_unit.saturating_mul(columns.saturating_mul(lines)),
        ];
        let n = terms.into_iter().fold(self.of_image, i64::saturating_add);
        usize::try_from(n).unwrap_or(0)
    }
}

/// Converts a number of rows or units to `i64`, and limits it so that sums of 8 cannot overflow.
fn signed(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX).min(i64::MAX / 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_count_follows_from_four_images() {
        // A row after each line and two around the image, for units of 2 x 2 patches.
        let count = RowCount::of_images(2, [4, 5, 6, 8]);
        let of = |columns, rows| count.of(PatchGrid { columns, rows });
        assert_eq!([of(2, 2), of(14, 10), of(6, 400)], [4, 42, 802]);
        assert!(!count.is_fixed());
        assert_eq!((count.max(4 * 35), count.min(4 * 35)), (72, 38));
        assert_eq!([3, 4, 5, 6, 7, 8].map(|n| count.units_within(n)), [0, 1, 1, 2, 2, 3]);
        assert_eq!([1, 4, 5, 6].map(|n| count.units_with(n)), [1, 1, 2, 3]);
        let area = RowCount::of_images(4, [4, 8, 8, 16]);
        assert_eq!((area.max(16 * 9), area.min(16 * 9), area.is_fixed()), (36, 36, false));
    }

    #[test]
    fn fixed_row_count_does_not_depend_on_size() {
        for count in [RowCount::fixed(64), RowCount::of_images(2, [64; 4])] {
            assert!(count.is_fixed());
            assert_eq!([count.of(PatchGrid { columns: 8, rows: 2 }), count.max(100)], [64; 2]);
        }
    }
}
