//! Reader of files of log-probabilities.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use super::compact::Top;
use super::row::BaseRow;
use super::{BaseFormat, COMPACT_MAGIC, FULL_MAGIC, N_TOP, full_words};
use crate::measure::error::MeasureError;
use crate::vocab::Token;

/// Maximum number of tokens in a vocabulary.
const MAX_VOCAB: u32 = 1 << 24;

/// File of log-probabilities, read row by row.
pub struct BaseReader<R = BufReader<File>> {
    input: R,
    format: BaseFormat,
    n_ctx: usize,
    n_vocab: usize,
    tokens: Vec<Token>,
    /// Rows that were not read yet.
    n_left: usize,
}

impl BaseReader {
    /// Opens a file in either format.
    ///
    /// # Errors
    /// Returns an error if the file is damaged.
    pub fn open(path: &Path) -> Result<BaseReader, MeasureError> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        BaseReader::new(BufReader::with_capacity(1 << 20, file), len)
    }
}

impl<R: Read> BaseReader<R> {
    /// Reads the header of a file of `len` bytes.
    ///
    /// # Errors
    /// Returns an error if the header is damaged, or the file too short for its rows.
    pub fn new(mut input: R, len: u64) -> Result<BaseReader<R>, MeasureError> {
        let invalid = |problem: &str| MeasureError::InvalidBase(problem.to_owned());
        let mut magic = [0; 8];
        input.read_exact(&mut magic)?;
        let format = match &magic {
            FULL_MAGIC => BaseFormat::Full,
            COMPACT_MAGIC => BaseFormat::Compact,
            _ => return Err(invalid("unknown first bytes")),
        };
        let mut number = || {
            let mut bytes = [0; 4];
            input.read_exact(&mut bytes).map(|()| u32::from_le_bytes(bytes))
        };
        let [n_ctx, n_vocab, n_chunks] = [number()?, number()?, number()?];
        if !(4..=1 << 24).contains(&n_ctx) || !(1..=MAX_VOCAB).contains(&n_vocab) || n_chunks == 0 {
            return Err(invalid("the number of tokens or chunks is out of range"));
        }
        let n_scored = u64::from(n_ctx - 1 - n_ctx / 2);
        let (n_rows, n_vocab) = (u64::from(n_chunks) * n_scored, n_vocab as usize);
        let n_tokens = u64::from(n_chunks) * u64::from(n_ctx);
        let row = match format {
            BaseFormat::Full => 2 * full_words(n_vocab),
            BaseFormat::Compact => 12 + 5 * n_vocab.min(N_TOP),
        };
        let needed = u128::from(n_tokens) * 4 + u128::from(n_rows) * row as u128 + 20;
        if u128::from(len) < needed {
            return Err(MeasureError::InvalidBase(format!(
                "{n_chunks} chunks need at least {needed} bytes, but the file has {len}"
            )));
        }
        let mut tokens = Vec::with_capacity(n_tokens as usize);
        let mut buffer = vec![0; 4 * n_ctx as usize];
        for _ in 0..n_chunks {
            input.read_exact(&mut buffer)?;
            let ids = buffer.chunks_exact(4);
            tokens.extend(ids.map(|b| Token::from_le_bytes([b[0], b[1], b[2], b[3]])));
        }
        if tokens.iter().any(|&token| token as usize >= n_vocab) {
            return Err(invalid("a token is outside of the vocabulary"));
        }
        Ok(BaseReader {
            input,
            format,
            n_ctx: n_ctx as usize,
            n_vocab,
            tokens,
            n_left: n_rows as usize,
        })
    }

    /// Returns the format.
    pub fn format(&self) -> BaseFormat {
        self.format
    }

    /// Returns the number of tokens of a chunk.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Returns the size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Returns the tokens of all chunks.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// Returns the number of rows that were not read yet.
    pub fn n_left(&self) -> usize {
        self.n_left
    }

    /// Reads the next row.
    ///
    /// # Errors
    /// Returns an error if the row is damaged, or all rows were read.
    pub fn next_row(&mut self) -> Result<BaseRow<'static>, MeasureError> {
        self.n_left = self
            .n_left
            .checked_sub(1)
            .ok_or_else(|| io::Error::from(io::ErrorKind::UnexpectedEof))?;
        match self.format {
            BaseFormat::Full => self.codes(),
            BaseFormat::Compact => {
                let n = N_TOP.min(self.n_vocab);
                Ok(BaseRow::Compact(Top::read(&mut self.input, n, self.n_vocab)?))
            }
        }
    }

    fn codes(&mut self) -> Result<BaseRow<'static>, MeasureError> {
        let mut words = vec![0u16; full_words(self.n_vocab)];
        self.input.read_exact(bytemuck::cast_slice_mut(&mut words))?;
        words.iter_mut().for_each(|word| *word = u16::from_le(*word));
        let float = |low: u16, high: u16| f32::from_bits(u32::from(high) << 16 | u32::from(low));
        let (scale, min) = (float(words[0], words[1]), float(words[2], words[3]));
        if !scale.is_finite() || scale < 0.0 || !min.is_finite() {
            return Err(MeasureError::InvalidBase("a scale is not a finite number".to_owned()));
        }
        words.drain(..4);
        words.truncate(self.n_vocab);
        Ok(BaseRow::Codes {
            scale,
            min,
            codes: words,
        })
    }
}
