//! [`GridList`]: grids of tiles that a file lists.

/// Maximum number of grids of a file.
const MAX_GRIDS: usize = 64;

/// Grids of tiles that a file lists. If two grids fit an image equally well, the earlier one is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GridList {
    /// Columns and rows of each grid.
    grids: [[u8; 2]; MAX_GRIDS],
    len: usize,
}

impl GridList {
    /// List of a file without grids.
    pub const EMPTY: GridList = GridList {
        grids: [[0; 2]; MAX_GRIDS],
        len: 0,
    };

    /// Returns the grids of a list of alternating heights and widths in pixels. Returns `None` if a side is not 1 to
    /// 255 tiles of `side` pixels, or the list is too long.
    pub fn of_sizes(sizes: &[usize], side: usize) -> Option<GridList> {
        let tiles = |pixels: usize| {
            let n = pixels.checked_div(side)?;
            if n > 0 && pixels.is_multiple_of(side) {
                u8::try_from(n).ok()
            } else {
                None
            }
        };
        let mut list = GridList::EMPTY;
        let (pairs, rest) = sizes.as_chunks::<2>();
        if !rest.is_empty() || pairs.len() > MAX_GRIDS {
            return None;
        }
        for (grid, &[height, width]) in list.grids.iter_mut().zip(pairs) {
            *grid = [tiles(width)?, tiles(height)?];
        }
        list.len = pairs.len();
        Some(list)
    }

    /// Returns the columns and rows of each grid.
    pub fn iter(self) -> impl Iterator<Item = [usize; 2]> {
        self.grids.into_iter().take(self.len).map(|grid| grid.map(usize::from))
    }

    /// Returns the columns and rows of the grid that keeps most of an image. Ties prefer the smallest unused area. An
    /// empty list yields one tile. The published preprocessing of LLaVA 1.6 compares whole pixels.
    pub(super) fn best(self, [width, height]: [usize; 2], side: usize) -> [usize; 2] {
        let area = width.saturating_mul(height);
        let (mut best, mut most, mut least) = ([1, 1], 0, usize::MAX);
        for [columns, rows] in self.iter() {
            let [across, down] = [columns * side, rows * side];
            let scale = (across as f64 / width as f64).min(down as f64 / height as f64);
            let scaled = [width, height].map(|side| (side as f64 * scale) as usize);
            let kept = scaled[0].saturating_mul(scaled[1]).min(area);
            let unused = (across * down).saturating_sub(kept);
            if kept > most || (kept == most && unused < least) {
                (best, most, least) = ([columns, rows], kept, unused);
            }
        }
        best
    }
}

/// Returns the sides of an image that is scaled to fit into `whole`, and is as large as possible.
pub(super) fn scaled_to_fit([width, height]: [usize; 2], whole: [usize; 2]) -> [usize; 2] {
    let factors = [whole[0] as f64 / width as f64, whole[1] as f64 / height as f64];
    let scaled = |side: usize, factor: f64, limit: usize| ((side as f64 * factor).ceil() as usize).clamp(1, limit);
    if factors[0] < factors[1] {
        [whole[0], scaled(height, factors[0], whole[1])]
    } else {
        [scaled(width, factors[1], whole[0]), whole[1]]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_partial_tiles_are_rejected() {
        let list = GridList::of_sizes(&[48, 96, 96, 48], 48).unwrap();
        assert!(list.iter().eq([[2, 1], [1, 2]]));
        assert_eq!(GridList::of_sizes(&[], 0), Some(GridList::EMPTY));
        for sizes in [&[48][..], &[48, 97], &[0, 48], &[48, 48 * 256], &[48; 130]] {
            assert_eq!(GridList::of_sizes(sizes, 48), None, "{sizes:?}");
        }
        assert_eq!(GridList::of_sizes(&[48, 48], 0), None);
    }
}
