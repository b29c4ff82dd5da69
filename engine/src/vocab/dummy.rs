//! The vocabulary of test models: its tokens mean nothing, but every text gives some.

use super::Token;

/// Bytes of text per token.
const CHUNK: usize = 5;

/// Appends one token for every five bytes of `text`, a function of those bytes.
pub(super) fn tokenize(n_tokens: u32, text: &str, out: &mut Vec<Token>) {
    if n_tokens == 0 {
        return;
    }
    out.extend(text.as_bytes().chunks(CHUNK).map(|chunk| {
        let hash = chunk
            .iter()
            .fold(0_u64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        (hash % u64::from(n_tokens)) as Token
    }));
}
