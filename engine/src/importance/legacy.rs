//! Reader of the `.dat` format of earlier releases of llama.cpp.
//!
//! Numbers are little-endian. The file starts with the number of entries (i32). An entry starts with its name with a
//! length (i32), the number of chunks (i32), and the number of values (i32). The sums of squares of chunks (f32)
//! follow. At the end, the number of chunks (i32) and the name of the text with a length (i32) are optional.

use super::entry::{Entry, ImportanceMatrix};
use super::error::ImportanceError;

/// Parses a file.
pub(super) fn parse(bytes: &[u8]) -> Result<ImportanceMatrix, ImportanceError> {
    let mut input = Input(bytes);
    let mut matrix = ImportanceMatrix::default();
    let n_entries = input.count().filter(|&n| n > 0 && n <= bytes.len() / 12);
    for _ in 0..n_entries.ok_or_else(|| invalid("the number of entries is out of range"))? {
        let (name, entry) = input.entry().ok_or_else(|| invalid("the file is truncated"))?;
        if entry.squares.iter().any(|square| !square.is_finite() || *square < 0.0) {
            return Err(invalid(&format!(
                "tensor {name} has a value that is not a positive number"
            )));
        }
        matrix.entries.insert(name, entry);
    }
    if let Some(n_chunks) = input.count() {
        matrix.n_chunks = n_chunks as u32;
        matrix.datasets.extend(input.string().filter(|name| !name.is_empty()));
    }
    Ok(matrix)
}

fn invalid(problem: &str) -> ImportanceError {
    ImportanceError::Invalid(problem.to_owned())
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    /// Returns a number that is not negative.
    fn count(&mut self) -> Option<usize> {
        let bytes = self.take(4)?;
        let number = i32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        usize::try_from(number).ok()
    }

    fn string(&mut self) -> Option<String> {
        let n = self.count()?;
        String::from_utf8(self.take(n)?.to_vec()).ok()
    }

    fn entry(&mut self) -> Option<(String, Entry)> {
        let name = self.string()?;
        let n_chunks = self.count()?;
        let n_values = self.count().filter(|&n| n > 0)?;
        let bytes = self.take(n_values.checked_mul(4)?)?;
        let squares = bytes
            .chunks_exact(4)
            .map(|bytes| f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])));
        let entry = Entry {
            squares: squares.collect(),
            sums: Vec::new(),
            counts: vec![n_chunks as u64],
        };
        Some((name, entry))
    }
}
