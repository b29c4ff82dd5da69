//! Encoded media: rows that a language model reads in place of token embeddings.

use sha2::{Digest as _, Sha256};

use crate::model::Medium;
use crate::vocab::Token;

/// First of the ids that represent media rows in lists of tokens. Vocabularies are smaller.
pub const MEDIA_TOKENS: Token = 1 << 31;

/// Grid that gives the rows of a medium positions along axes, in reading order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowGrid {
    /// Columns and rows of M-RoPE (Qwen2-VL, arXiv 2409.12191).
    Whole([u32; 2]),
    /// Columns and rows of XD-RoPE (HunyuanOCR, arXiv 2511.19575), between two rows outside the grid.
    Enclosed([u32; 2]),
}

impl RowGrid {
    /// Returns the number of rows of a medium with this grid.
    pub fn n_rows(self) -> u64 {
        let n = |[columns, rows]: [u32; 2]| u64::from(columns) * u64::from(rows);
        match self {
            RowGrid::Whole(sides) => n(sides),
            RowGrid::Enclosed(sides) => n(sides).saturating_add(2),
        }
    }
}

/// Rows of an encoded medium.
#[derive(Clone, PartialEq, Debug)]
pub struct MediaRows {
    id: u128,
    medium: Medium,
    width: usize,
    /// `[width, n]`
    rows: Vec<f32>,
    tokens: Vec<Token>,
    grid: Option<RowGrid>,
    /// Texts between the rows, each with the number of rows before it.
    texts: Vec<(usize, String)>,
}

impl MediaRows {
    /// Creates the rows of a medium. `id` is a digest of its content and of its encoder. Values after the last whole
    /// row are dropped.
    pub fn new(id: u128, width: usize, mut rows: Vec<f32>) -> MediaRows {
        let n = rows.len().checked_div(width).unwrap_or(0);
        rows.truncate(n * width);
        let tokens = (0..n).map(|row| stand_in(id, row)).collect();
        MediaRows {
            id,
            medium: Medium::Image,
            width,
            rows,
            tokens,
            grid: None,
            texts: Vec::new(),
        }
    }

    /// Sets the medium, which is an image by default.
    pub fn of(self, medium: Medium) -> MediaRows {
        MediaRows { medium, ..self }
    }

    /// Returns the medium.
    pub fn medium(&self) -> Medium {
        self.medium
    }

    /// Adds texts between the rows, each with the number of rows before it, in ascending order.
    pub fn with_texts(self, texts: Vec<(usize, String)>) -> MediaRows {
        MediaRows { texts, ..self }
    }

    /// Returns the texts between the rows, each with the number of rows before it.
    pub fn texts(&self) -> &[(usize, String)] {
        &self.texts
    }

    /// Gives each row a position along axes, according to a grid. A grid with a different number of rows is ignored.
    pub fn with_grid(self, grid: RowGrid) -> MediaRows {
        let is_whole = grid.n_rows() == self.len() as u64;
        MediaRows {
            grid: is_whole.then_some(grid),
            ..self
        }
    }

    /// Returns the grid that gives the rows positions, if any.
    pub fn grid(&self) -> Option<RowGrid> {
        self.grid
    }

    /// Returns the digest of the content and of the encoder.
    pub fn id(&self) -> u128 {
        self.id
    }

    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if there are no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Returns the number of values in a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns all rows, `[width, n]`.
    pub fn rows(&self) -> &[f32] {
        &self.rows
    }

    /// Returns the row `[width]` at `index`, if it exists.
    pub fn row(&self, index: usize) -> Option<&[f32]> {
        self.rows.chunks_exact(self.width.max(1)).nth(index)
    }

    /// Returns an id of at least [`MEDIA_TOKENS`] for each row, a digest of the medium and the row. Lists of tokens
    /// with these ids have equal prefixes only if their media are equal.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }
}

/// Returns the token id that represents a row.
fn stand_in(id: u128, row: usize) -> Token {
    let mut hash = Sha256::new();
    hash.update(id.to_le_bytes());
    hash.update((row as u64).to_le_bytes());
    let digest: [u8; 32] = hash.finalize().into();
    MEDIA_TOKENS | Token::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

/// Row of a medium in a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MediaRow {
    /// Index of the medium in the batch.
    pub medium: u32,
    /// Index of the row in the medium.
    pub row: u32,
    /// Number of rows of the medium after this one.
    pub left: u32,
    /// Grid that gives the rows of the medium positions, if any.
    pub grid: Option<RowGrid>,
    /// Number of earlier images in the prompt.
    pub number: i32,
    /// The medium is an image, whose rows attend to each other in models with such layers. Rows of audio are causal.
    pub is_image: bool,
}

impl MediaRow {
    /// Returns true if `next` is the row after this one.
    pub(super) fn continues_in(&self, next: Option<MediaRow>) -> bool {
        next.is_some_and(|next| next.medium == self.medium && next.row == self.row + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_of_rows_identify_medium_and_row() {
        let a = MediaRows::new(1, 2, vec![0.0; 7]);
        assert_eq!((a.len(), a.rows().len(), a.row(2).map(<[f32]>::len)), (3, 6, Some(2)));
        assert_eq!(a.row(3), None);
        let b = MediaRows::new(1 << 64, 2, vec![0.0; 6]);
        assert!(a.tokens().iter().chain(b.tokens()).all(|&token| token >= MEDIA_TOKENS));
        assert!(a.tokens().iter().zip(b.tokens()).all(|(a, b)| a != b));
        assert_eq!(
            a.tokens(),
            MediaRows::new(1, 4, vec![1.0; 12]).tokens(),
            "only the id counts"
        );
        assert!(MediaRows::new(1, 0, vec![1.0]).is_empty());
    }
}
