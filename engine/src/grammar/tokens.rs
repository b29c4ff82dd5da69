//! Conversion of the model's vocabulary to llguidance's format: the bytes of each token, with special tokens
//! marked so that plain text cannot match them.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::error::GrammarError;
use crate::vocab::{Token, TokenAttr, Vocab};

/// Maximum token length in bytes that llguidance's trie supports. Longer tokens are never allowed.
const MAX_TOKEN: usize = 1000;
/// Maximum number of tokens, and of their bytes, that llguidance's trie supports.
const MAX_TOKENS: usize = 1 << 22;
const MAX_BYTES: usize = (1 << 22) - 1;

/// Creates llguidance's token environment from the tokens and the end-of-generation tokens.
pub fn environment(vocab: &Vocab, n_logits: usize) -> Result<TokEnv, GrammarError> {
    let ends: Vec<Token> = vocab
        .eog_tokens()
        .iter()
        .copied()
        .filter(|&t| (t as usize) < n_logits)
        .collect();
    let Some(&end) = ends.first() else {
        return Err(GrammarError::Vocabulary("no end-of-generation token".to_owned()));
    };
    let words: Vec<Vec<u8>> = (0..n_logits).map(|id| bytes(vocab, id as Token)).collect();
    let n_bytes: usize = words.iter().map(Vec::len).sum();
    if n_logits > MAX_TOKENS || n_bytes > MAX_BYTES {
        return Err(GrammarError::Vocabulary(format!(
            "{n_logits} tokens with {n_bytes} bytes exceed the limit"
        )));
    }
    let trie = TokTrie::from(&TokRxInfo::new(n_logits as u32, end), &words).with_eos_tokens(&ends);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// Returns the bytes of a token. Special tokens start with a byte that is invalid in UTF-8, so that their
/// names as plain text do not match them.
fn bytes(vocab: &Vocab, token: Token) -> Vec<u8> {
    if token >= vocab.n_tokens() {
        return Vec::new();
    }
    let piece = vocab.token_to_piece(token, false);
    let is_no_text = TokenAttr::CONTROL.union(TokenAttr::UNKNOWN).union(TokenAttr::UNUSED);
    let is_special = vocab.attr(token).intersects(is_no_text) || vocab.is_eog(token);
    if is_special {
        let name = vocab.text_bytes(token);
        let marked = [&[TokTrie::SPECIAL_TOKEN_MARKER][..], name].concat();
        return if name.is_empty() || marked.len() > MAX_TOKEN {
            Vec::new()
        } else {
            marked
        };
    }
    // Bytes that are invalid in UTF-8 could be mistaken for the marker of special tokens.
    if piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) || piece.len() > MAX_TOKEN {
        return Vec::new();
    }
    piece.to_vec()
}
