//! Log-probabilities of a base model, and files of them.
//!
//! Two formats: that of llama.cpp has 16 bits for each token of the vocabulary. The compact format has exact
//! log-probabilities of the likeliest tokens, and the mass of all others.

mod compact;
mod read;
mod row;
mod write;

pub use read::BaseReader;
pub use row::BaseRow;
pub use write::BaseWriter;

/// Format of a file of log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseFormat {
    /// Format of llama.cpp: 2 bytes for each token of the vocabulary.
    Full,
    /// Exact log-probabilities of the 4096 likeliest tokens and the remaining mass, about 20 KiB a position.
    Compact,
}

/// First bytes of a file of llama.cpp.
const FULL_MAGIC: &[u8; 8] = b"_logits_";

/// First bytes of a compact file.
const COMPACT_MAGIC: &[u8; 8] = b"_topkl1_";

/// Number of tokens of a row in the compact format, unless the vocabulary is smaller.
const N_TOP: usize = 4096;

/// Returns the number of 16-bit words of a row in the format of llama.cpp: two floats and the codes.
fn full_words(n_vocab: usize) -> usize {
    n_vocab.next_multiple_of(2) + 4
}

#[cfg(test)]
mod tests;
