//! The logits of every position of a sequence.

use engine::context::{Batch, Context, DecodeError, SeqSet};
use engine::sample::Token;

/// Decodes `tokens` from position 0 in each of `n_seq` sequences, interleaved, and returns the logits of each sequence,
/// `[n_tokens, n_vocab]`.
pub fn decode_all(context: &mut Context, tokens: &[Token], n_seq: usize) -> Result<Vec<Vec<f32>>, DecodeError> {
    let mut logits = vec![Vec::new(); n_seq];
    let mut batch = Batch::new();
    // Whole positions, so that a batch of one position holds a token of each sequence.
    let n_positions = (context.params().n_batch / n_seq).max(1);
    for (chunk, part) in tokens.chunks(n_positions).enumerate() {
        batch.clear();
        for (i, &token) in part.iter().enumerate() {
            for seq in 0..n_seq {
                batch.push(token, chunk * n_positions + i, SeqSet::one(seq), true);
            }
        }
        context.decode(&batch)?;
        for index in 0..batch.len() {
            logits[index % n_seq].extend_from_slice(context.logits(index).unwrap_or_default());
        }
    }
    Ok(logits)
}
