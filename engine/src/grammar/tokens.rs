//! A model's vocabulary as llguidance wants it: the bytes of each token, with special tokens apart from all text.

use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use super::error::GrammarError;
use crate::vocab::{Token, TokenAttr, Vocab};

/// Longer tokens are never allowed under a grammar: the trie has no room for them.
const MAX_TOKEN: usize = 1000;
/// Most tokens, and bytes of all of them, that the trie has room for.
const MAX_TOKENS: usize = 1 << 22;
const MAX_BYTES: usize = (1 << 22) - 1;

/// The tokens, and those that end a text.
pub fn environment(vocab: &Vocab, n_logits: usize) -> Result<TokEnv, GrammarError> {
    let ends: Vec<Token> = vocab
        .eog_tokens()
        .iter()
        .copied()
        .filter(|&t| (t as usize) < n_logits)
        .collect();
    let Some(&end) = ends.first() else {
        return Err(GrammarError::Vocabulary("it has no token that ends a text".to_owned()));
    };
    let words: Vec<Vec<u8>> = (0..n_logits).map(|id| bytes(vocab, id as Token)).collect();
    let n_bytes: usize = words.iter().map(Vec::len).sum();
    if n_logits > MAX_TOKENS || n_bytes > MAX_BYTES {
        return Err(GrammarError::Vocabulary(format!(
            "it has {n_logits} tokens of {n_bytes} bytes, which is too much"
        )));
    }
    let trie = TokTrie::from(&TokRxInfo::new(n_logits as u32, end), &words).with_eos_tokens(&ends);
    Ok(Arc::new(ApproximateTokEnv::new(trie)))
}

/// What a token adds to a text. Special tokens begin with a byte that no text has, so that their names as text are not them.
fn bytes(vocab: &Vocab, token: Token) -> Vec<u8> {
    if token >= vocab.n_tokens() {
        return Vec::new();
    }
    let piece = vocab.token_to_piece(token, false);
    let is_no_text = TokenAttr::CONTROL.union(TokenAttr::UNKNOWN).union(TokenAttr::UNUSED);
    let is_special = vocab.attr(token).intersects(is_no_text) || vocab.is_eog(token);
    match is_special {
        true => {
            let name = vocab.text_bytes(token);
            let marked = [&[TokTrie::SPECIAL_TOKEN_MARKER][..], name].concat();
            if name.is_empty() || marked.len() > MAX_TOKEN {
                Vec::new()
            } else {
                marked
            }
        }
        // What is no part of any UTF-8 would be taken for the mark.
        false if piece.first() == Some(&TokTrie::SPECIAL_TOKEN_MARKER) || piece.len() > MAX_TOKEN => Vec::new(),
        false => piece.to_vec(),
    }
}
