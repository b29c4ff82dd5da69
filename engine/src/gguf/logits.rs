//! Reference logits of one sequence, recorded for every position.
//!
//! Little-endian file format: `u32 n_tokens`, `u32 n_vocab`, `i32 tokens[n_tokens]`, `f32
//! logits[n_tokens][n_vocab]`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Logits of a sequence. For encoder models: the output embeddings of its tokens.
#[derive(Clone, PartialEq, Debug)]
pub struct Logits {
    tokens: Vec<i32>,
    n_vocab: usize,
    values: Vec<f32>,
}

/// An error that can occur when reading a logits file.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum LogitsError {
    #[error("{}: {error}", path.display())]
    InFile { path: PathBuf, error: Box<LogitsError> },
    #[error("cannot read the logits file: {0}")]
    Io(io::Error),
    #[error("truncated logits file: expected a header of 8 bytes, found {len} bytes")]
    NoHeader { len: usize },
    #[error("invalid logits header: n_tokens ({n_tokens}) and n_vocab ({n_vocab}) must be positive")]
    Empty { n_tokens: u32, n_vocab: u32 },
    #[error(
        "invalid logits file size: {n_tokens} tokens with {n_vocab} values each need {expected} bytes, found {found}"
    )]
    WrongLength {
        n_tokens: u32,
        n_vocab: u32,
        expected: u128,
        found: usize,
    },
    #[error("invalid token {token} at position {position}: token ids must not be negative")]
    NegativeToken { position: usize, token: i32 },
    #[error("wrong number of logits for {tokens} tokens with {n_vocab} values each: expected {}, found {found}", tokens * n_vocab)]
    WrongCount {
        tokens: usize,
        n_vocab: usize,
        found: usize,
    },
}

impl Logits {
    /// Creates logits from `values` of shape `[n_tokens, n_vocab]`, row-major. Another or no number of values is an
    /// error.
    pub fn new(tokens: Vec<i32>, n_vocab: usize, values: Vec<f32>) -> Result<Logits, LogitsError> {
        if tokens.len().checked_mul(n_vocab) != Some(values.len()) || values.is_empty() {
            return Err(LogitsError::WrongCount {
                tokens: tokens.len(),
                n_vocab,
                found: values.len(),
            });
        }
        Ok(Logits {
            tokens,
            n_vocab,
            values,
        })
    }

    /// Parses a complete file; missing and trailing bytes are errors.
    pub fn parse(bytes: &[u8]) -> Result<Logits, LogitsError> {
        let (words, rest) = bytes.as_chunks::<4>();
        let &[n_tokens, n_vocab, ref words @ ..] = words else {
            return Err(LogitsError::NoHeader { len: bytes.len() });
        };
        let (n_tokens, n_vocab) = (u32::from_le_bytes(n_tokens), u32::from_le_bytes(n_vocab));
        if n_tokens == 0 || n_vocab == 0 {
            return Err(LogitsError::Empty { n_tokens, n_vocab });
        }
        let expected = 4 * (2 + u128::from(n_tokens) * (1 + u128::from(n_vocab)));
        if expected != bytes.len() as u128 || !rest.is_empty() {
            return Err(LogitsError::WrongLength {
                n_tokens,
                n_vocab,
                expected,
                found: bytes.len(),
            });
        }
        let (tokens, values) = words.split_at(n_tokens as usize);
        let tokens: Vec<i32> = tokens.iter().map(|&b| i32::from_le_bytes(b)).collect();
        if let Some(position) = tokens.iter().position(|&t| t < 0) {
            return Err(LogitsError::NegativeToken {
                position,
                token: tokens[position],
            });
        }
        Ok(Logits {
            tokens,
            n_vocab: n_vocab as usize,
            values: values.iter().map(|&b| f32::from_le_bytes(b)).collect(),
        })
    }

    /// Reads a file; errors name the path.
    pub fn read(path: impl AsRef<Path>) -> Result<Logits, LogitsError> {
        let path = path.as_ref();
        std::fs::read(path)
            .map_err(LogitsError::Io)
            .and_then(|bytes| Logits::parse(&bytes))
            .map_err(|e| LogitsError::InFile {
                path: path.to_owned(),
                error: Box::new(e),
            })
    }

    /// Writes the format that [`Logits::parse`] reads.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let too_many = |_| io::Error::new(io::ErrorKind::InvalidInput, "more than 2^32 tokens or values per token");
        out.write_all(&u32::try_from(self.tokens.len()).map_err(too_many)?.to_le_bytes())?;
        out.write_all(&u32::try_from(self.n_vocab).map_err(too_many)?.to_le_bytes())?;
        self.tokens.iter().try_for_each(|t| out.write_all(&t.to_le_bytes()))?;
        self.values.iter().try_for_each(|v| out.write_all(&v.to_le_bytes()))
    }

    /// Returns the tokens of the sequence, from position 0.
    pub fn tokens(&self) -> &[i32] {
        &self.tokens
    }

    /// Returns the number of values per position.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab
    }

    /// Returns all values, `[n_tokens, n_vocab]`.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Returns the `n_vocab` values of one position.
    pub fn row(&self, position: usize) -> &[f32] {
        &self.values[position * self.n_vocab..][..self.n_vocab]
    }

    /// Returns the normalized mean squared error of `other` relative to these logits; infinity if any value
    /// is not finite.
    ///
    /// # Panics
    /// Panics if the lengths differ.
    pub fn nmse(&self, other: &[f32]) -> f64 {
        assert_eq!(self.values.len(), other.len(), "logits must have the same shape");
        nmse(&self.values, other)
    }
}

/// Returns the normalized mean squared error `sum((truth - found)²) / sum(truth²)`; infinity if any value is
/// not finite.
///
/// # Panics
/// Panics if the lengths differ.
pub fn nmse(truth: &[f32], found: &[f32]) -> f64 {
    assert_eq!(truth.len(), found.len(), "slices must have the same length");
    let (mut error, mut norm) = (0.0, 0.0);
    for (&a, &b) in truth.iter().zip(found) {
        let (a, b) = (f64::from(a), f64::from(b));
        error += (a - b) * (a - b);
        norm += a * a;
    }
    let nmse = if error == 0.0 { 0.0 } else { error / norm };
    if nmse.is_finite() { nmse } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(n_tokens: u32, n_vocab: u32, words: &[u32]) -> Vec<u8> {
        [n_tokens, n_vocab]
            .iter()
            .chain(words)
            .flat_map(|w| w.to_le_bytes())
            .collect()
    }

    #[test]
    fn logits_round_trip() {
        let logits = Logits::new(vec![3, 5], 3, vec![0.5, -1.0, 2.0, 1.0, 0.0, -0.25]).unwrap();
        let mut bytes = Vec::new();
        logits.write(&mut bytes).unwrap();
        assert_eq!(bytes.len(), 8 + 8 + 24);
        let read = Logits::parse(&bytes).unwrap();
        assert_eq!(read, logits);
        assert_eq!(read.row(1), [1.0, 0.0, -0.25]);
        for len in 0..bytes.len() {
            assert!(Logits::parse(&bytes[..len]).is_err());
        }
    }

    #[test]
    fn parse_rejects_inconsistent_files() {
        assert!(matches!(
            Logits::parse(&bytes_of(0, 1, &[])),
            Err(LogitsError::Empty { .. })
        ));
        let huge = Logits::parse(&bytes_of(u32::MAX, u32::MAX, &[1, 2, 3]));
        assert!(matches!(huge, Err(LogitsError::WrongLength { found: 20, .. })));
        assert!(matches!(
            Logits::parse(&bytes_of(1, 1, &[7, 0, 0])),
            Err(LogitsError::WrongLength { .. })
        ));
        let negative = Logits::parse(&bytes_of(1, 1, &[u32::MAX, 0]));
        assert!(matches!(
            negative,
            Err(LogitsError::NegativeToken { position: 0, token: -1 })
        ));
        assert!(matches!(
            Logits::new(vec![1], 2, vec![0.0]),
            Err(LogitsError::WrongCount { .. })
        ));
    }

    #[test]
    fn nmse_is_relative_to_the_truth() {
        let truth = Logits::new(vec![0], 2, vec![3.0, 4.0]).unwrap();
        assert_eq!(truth.nmse(&[3.0, 4.0]), 0.0);
        assert_eq!(truth.nmse(&[3.0, 5.0]), 1.0 / 25.0);
        assert_eq!(truth.nmse(&[3.0, f32::NAN]), f64::INFINITY);
    }
}
