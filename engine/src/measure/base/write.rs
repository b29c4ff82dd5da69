//! Writer of files of log-probabilities.

use std::io::{self, Write};

use rayon::prelude::*;

use super::compact::{Top, write_rows};
use super::{BaseFormat, COMPACT_MAGIC, FULL_MAGIC, N_TOP, full_words};
use crate::measure::corpus::Corpus;
use crate::measure::position::LogProbs;
use crate::vocab::Token;

/// Writer of log-probabilities in the order of the text.
pub struct BaseWriter<W> {
    out: W,
    format: BaseFormat,
}

impl<W: Write> BaseWriter<W> {
    /// Writes the header.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn new(mut out: W, format: BaseFormat, corpus: &Corpus, n_vocab: usize) -> io::Result<BaseWriter<W>> {
        out.write_all(match format {
            BaseFormat::Full => FULL_MAGIC,
            BaseFormat::Compact => COMPACT_MAGIC,
        })?;
        for number in [corpus.n_ctx(), n_vocab, corpus.n_chunks()] {
            let number = u32::try_from(number).map_err(|_| io::Error::other("more than 2^32 chunks or tokens"))?;
            out.write_all(&number.to_le_bytes())?;
        }
        for token in corpus.tokens() {
            out.write_all(&token.to_le_bytes())?;
        }
        Ok(BaseWriter { out, format })
    }

    /// Writes rows of logits with the next token of the text.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn write(&mut self, rows: &[(&[f32], Token)]) -> io::Result<()> {
        let format = self.format;
        let encoded: Vec<Vec<u8>> = rows
            .par_iter()
            .map(|&(logits, next)| {
                let mut row = Vec::new();
                match format {
                    BaseFormat::Full => encode(logits, &mut row),
                    BaseFormat::Compact => Top::new(&LogProbs::new(logits), next, N_TOP).write(&mut row),
                }
                row
            })
            .collect();
        write_rows(&encoded, &mut self.out)
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

/// Encodes log-probabilities as llama.cpp does: codes from the largest log-probability down to 16 less.
fn encode(logits: &[f32], out: &mut Vec<u8>) {
    let probs = LogProbs::new(logits);
    let max = logits.get(probs.top()).copied().unwrap_or(0.0);
    let min = logits.iter().fold(max, |min, &logit| min.min(logit)).max(max - 16.0);
    let scale = (max - min) / 65535.0;
    let min_log = min - max + probs.get(probs.top()) as f32;
    out.extend_from_slice(&scale.to_le_bytes());
    out.extend_from_slice(&min_log.to_le_bytes());
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    for &logit in logits {
        let code = if logit > min {
            (inverse * (logit - min)).round_ties_even()
        } else {
            0.0
        };
        out.extend_from_slice(&(code as u16).to_le_bytes());
    }
    out.resize(2 * full_words(logits.len()), 0);
}
