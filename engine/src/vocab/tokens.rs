//! Validated token texts, scores, and attributes.

use super::hash::StringTable;
use super::source::{VocabSource, key};
use super::{Token, TokenAttr, VocabError, VocabWarning};
use crate::gguf::{GgufError, StringArray};

/// Token texts, scores, and attributes, indexed by token id.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Number of tokens. The table can be longer: BPE appends parts of merges that are not tokens.
    pub n: u32,
    /// Token texts; empty texts are not searchable.
    pub table: StringTable,
    /// Token scores; empty if the file has none.
    pub scores: Vec<f32>,
    pub attrs: Vec<TokenAttr>,
}

impl Tokens {
    /// Attributes of tokens that are split off before tokenization.
    pub const PARSED: TokenAttr = TokenAttr::CONTROL
        .union(TokenAttr::USER_DEFINED)
        .union(TokenAttr::UNKNOWN);

    /// Reads and validates the arrays.
    pub fn load(source: &VocabSource, warnings: &mut Vec<VocabWarning>) -> Result<Self, VocabError> {
        let texts = source.tokens.as_deref().ok_or_else(|| GgufError::MissingKey {
            key: key::TOKENS.to_owned(),
            expected: <&StringArray as crate::gguf::FromValue>::EXPECTED,
        })?;
        let n = checked_count(key::TOKENS, texts.len() as u64)?;
        let scores = source.scores.as_deref().unwrap_or_default();
        if source.scores.is_some() {
            check_len(key::SCORES, scores.len(), texts.len())?;
        }
        let attrs = match source.token_types.as_deref() {
            Some(types) => {
                check_len(key::TOKEN_TYPES, types.len(), texts.len())?;
                types
                    .iter()
                    .map(|&token_type| TokenAttr::from_type(token_type))
                    .collect()
            }
            None => vec![TokenAttr::NORMAL; texts.len()],
        };
        let mut table = StringTable::with_capacity(texts.len());
        let (mut duplicates, mut empty) = (Vec::new(), Vec::new());
        for (token, text) in (0..n).zip(texts.iter()) {
            if text.is_empty() {
                table.push_hidden(text);
                empty.push(token);
            } else if table.push(text).is_some() {
                duplicates.push(token);
            }
        }
        if let Some(&first) = duplicates.first() {
            warnings.push(VocabWarning::DuplicateTokens {
                n: duplicates.len(),
                first,
            });
        }
        if let Some(&first) = empty.first() {
            warnings.push(VocabWarning::EmptyTokens { n: empty.len(), first });
        }
        Ok(Self {
            n,
            table,
            scores: scores.to_vec(),
            attrs,
        })
    }

    /// Creates `n` tokens without texts; allocates no memory.
    pub fn without_texts(n: u32) -> Self {
        Self {
            n,
            table: StringTable::with_capacity(0),
            scores: Vec::new(),
            attrs: Vec::new(),
        }
    }

    /// Returns the token with this text.
    pub fn find(&self, text: &[u8]) -> Option<Token> {
        self.table.get(text).filter(|&token| token < self.n)
    }

    /// Returns the text of a token; empty for ids outside the vocabulary.
    pub fn text(&self, token: Token) -> &[u8] {
        if token < self.n { self.table.text(token) } else { &[] }
    }

    pub fn attr(&self, token: Token) -> TokenAttr {
        self.attrs.get(token as usize).copied().unwrap_or_default()
    }

    /// Marks a token that was identified by its text as a control token.
    pub fn mark_control(&mut self, token: Token, warnings: &mut Vec<VocabWarning>) {
        let attr = &mut self.attrs[token as usize];
        if !attr.intersects(TokenAttr::CONTROL) {
            *attr |= TokenAttr::CONTROL;
            let text = String::from_utf8_lossy(self.table.text(token)).into_owned();
            warnings.push(VocabWarning::ControlLooking { token, text });
        }
    }

    /// Marks control tokens with "unused" in their text as [`TokenAttr::UNUSED`].
    pub fn mark_unused(&mut self) {
        for token in 0..self.attrs.len() {
            if self.attrs[token].intersects(TokenAttr::CONTROL)
                && self.table.text(token as Token).windows(6).any(|part| part == b"unused")
            {
                self.attrs[token] |= TokenAttr::UNUSED;
            }
        }
    }
}

/// Checks that a token count fits into 31 bits.
pub(super) fn checked_count(key: &str, found: u64) -> Result<u32, VocabError> {
    match i32::try_from(found) {
        Ok(n) => Ok(n as u32),
        Err(_) => Err(VocabError::TooManyTokens {
            key: key.to_owned(),
            found,
        }),
    }
}

fn check_len(key: &'static str, found: usize, expected: usize) -> Result<(), VocabError> {
    if found == expected {
        Ok(())
    } else {
        Err(VocabError::WrongLength { key, expected, found })
    }
}
