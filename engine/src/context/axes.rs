//! Positions along the axes of M-RoPE. After an image, they differ from the positions in the sequence. The rows of an
//! image share a position in time, and the text after them continues at the largest position along any axis. With
//! XD-RoPE, text continues at its position in the sequence.

use crate::graph::ROPE_AXES;

use super::RowGrid;
use super::batch::{AxisPosition, BatchToken, MAX_SEQUENCES, SeqSet};

/// For each sequence, the difference between the next token's positions along the axes and its position in the
/// sequence.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lags(pub [i32; MAX_SEQUENCES]);

impl Default for Lags {
    fn default() -> Lags {
        Lags([0; MAX_SEQUENCES])
    }
}

impl Lags {
    /// Sets the positions of consecutive tokens along the axes.
    pub fn assign(mut self, tokens: &mut [BatchToken]) {
        for token in tokens {
            token.axes = self.position(token);
            self.set(token.seqs, token.axes.lag);
        }
    }

    /// Sets the difference for some sequences.
    pub fn set(&mut self, seqs: SeqSet, lag: i32) {
        seqs.iter().for_each(|seq| self.0[seq] = lag);
    }

    /// Returns the position of the next token along the axes. A saved state may contain any difference, so the
    /// arithmetic saturates.
    fn position(&self, token: &BatchToken) -> AxisPosition {
        let lag = token.seqs.first().map_or(0, |seq| self.0[seq]);
        let next = token.pos.saturating_sub(lag);
        let Some((media, grid)) = token.media.and_then(|media| Some((media, media.grid?))) else {
            return AxisPosition {
                at: [next; ROPE_AXES],
                lag,
            };
        };
        match grid {
            RowGrid::Whole(sides) => whole(token.pos, next, media.row, sides),
            RowGrid::Enclosed([columns, lines]) => {
                // The first and the last row have positions like text.
                let n_placed = columns.saturating_mul(lines);
                let place = media.row.checked_sub(1).filter(|&place| place < n_placed);
                let at = place.map_or([next; ROPE_AXES], |place| {
                    let [column, line] = [place % columns, place / columns].map(|n| n as i32);
                    [next, column, line, media.number]
                });
                AxisPosition { at, lag }
            }
        }
    }
}

/// Returns the position of a row in a grid. `next` is the position that a text token would have instead.
fn whole(pos: i32, next: i32, row: u32, [columns, rows]: [u32; 2]) -> AxisPosition {
    // After each row of an image, the next token would be placed after the whole image.
    let extent = columns.max(rows) as i32;
    let start = if row == 0 { next } else { next.saturating_sub(extent) };
    let along = |offset: u32| start.saturating_add(offset as i32);
    let columns = columns.max(1);
    AxisPosition {
        at: [start, along(row / columns), along(row % columns), 0],
        lag: pos.saturating_add(1).saturating_sub(start.saturating_add(extent)),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Batch, MediaRows};
    use super::*;

    /// The expected positions come from `get_rope_index` in transformers for two tokens, an image of 2 rows and 3
    /// columns, and two tokens.
    #[test]
    fn text_continues_after_largest_position_of_image() {
        let image = Arc::new(MediaRows::new(1, 1, vec![0.0; 6]).with_grid(RowGrid::Whole([3, 2])));
        let mut batch = Batch::new();
        batch.push_prompt(&[1, 2], 0, 0);
        batch.push_media(&image, 0..6, 2, SeqSet::one(0));
        batch.push_prompt(&[3, 4], 8, 0);
        let expected = [
            [0, 0, 0, 0],
            [1, 1, 1, 1],
            [2, 2, 2, 0],
            [2, 2, 3, 0],
            [2, 2, 4, 0],
            [2, 3, 2, 0],
            [2, 3, 3, 0],
            [2, 3, 4, 0],
            [5, 5, 5, 5],
            [6, 6, 6, 6],
        ];
        for cut in 0..batch.len() {
            let mut tokens = batch.tokens().to_vec();
            let (first, rest) = tokens.split_at_mut(cut);
            Lags::default().assign(first);
            let mut lags = Lags::default();
            lags.set(SeqSet::one(0), first.last().map_or(0, |token| token.axes.lag));
            lags.assign(rest);
            let found: Vec<_> = tokens.iter().map(|token| token.axes.at).collect();
            assert_eq!(found, expected, "cut at {cut}");
            assert_eq!(tokens.last().unwrap().axes.lag, 3);
        }
    }

    /// The expected positions come from `get_rope_index` in transformers' HunyuanVL. An image follows a token and
    /// another image, with 2 lines of 2 columns and a learned row.
    #[test]
    fn rows_of_xd_rope_count_columns_lines_and_images() {
        let image = Arc::new(MediaRows::new(1, 1, vec![0.0; 8]).with_grid(RowGrid::Enclosed([3, 2])));
        let mut batch = Batch::new();
        batch.push_prompt(&[1], 0, 0);
        batch.push_numbered_media(&image, 1, 0..8, 1, SeqSet::one(0));
        batch.push_prompt(&[2], 9, 0);
        let mut tokens = batch.tokens().to_vec();
        Lags::default().assign(&mut tokens);
        let found: Vec<_> = tokens.iter().map(|token| token.axes.at).collect();
        let expected = [
            [0, 0, 0, 0],
            [1, 1, 1, 1],
            [2, 0, 0, 1],
            [3, 1, 0, 1],
            [4, 2, 0, 1],
            [5, 0, 1, 1],
            [6, 1, 1, 1],
            [7, 2, 1, 1],
            [8, 8, 8, 8],
            [9, 9, 9, 9],
        ];
        assert_eq!(found, expected);
        assert!(tokens.iter().all(|token| token.axes.lag == 0));
    }

    #[test]
    fn positions_saturate() {
        let image = Arc::new(MediaRows::new(1, 1, vec![0.0; 2]).with_grid(RowGrid::Whole([2, 1])));
        let mut batch = Batch::new();
        batch.push_media(&image, 1..2, 0, SeqSet::one(0));
        let mut lags = Lags::default();
        lags.set(SeqSet::one(0), i32::MAX);
        let mut tokens = batch.tokens().to_vec();
        lags.assign(&mut tokens);
        assert_eq!(tokens[0].axes.at[0], i32::MIN);
    }
}
