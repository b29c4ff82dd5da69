//! The tokens themselves: text, score and attributes, checked when they are read.

use super::hash::TextTable;
use super::source::{VocabSource, key};
use super::{Token, TokenAttr, VocabError, VocabWarning};
use crate::gguf::{GgufError, StringArray};

/// Texts, scores and attributes by token.
#[derive(Debug)]
pub(super) struct Tokens {
    /// How many tokens there are. The table may hold more texts: parts of merges that are not tokens.
    pub n: u32,
    /// Texts; empty ones cannot be found.
    pub table: TextTable,
    /// Empty where the file has none.
    pub scores: Vec<f32>,
    /// One for every token.
    pub attrs: Vec<TokenAttr>,
}

impl Tokens {
    /// Tokens that are taken out of a text before it is tokenized.
    pub const PARSED: TokenAttr = TokenAttr::CONTROL
        .union(TokenAttr::USER_DEFINED)
        .union(TokenAttr::UNKNOWN);

    /// Reads and checks the arrays.
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
        let mut table = TextTable::with_capacity(texts.len());
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

    /// `n` tokens without texts, which take no memory.
    pub fn without_texts(n: u32) -> Self {
        Self {
            n,
            table: TextTable::with_capacity(0),
            scores: Vec::new(),
            attrs: Vec::new(),
        }
    }

    /// The token of a text.
    pub fn find(&self, text: &[u8]) -> Option<Token> {
        self.table.get(text).filter(|&token| token < self.n)
    }

    /// A token's text, empty for an id that no token has.
    pub fn text(&self, token: Token) -> &[u8] {
        if token < self.n { self.table.text(token) } else { &[] }
    }

    /// A token's attributes.
    pub fn attr(&self, token: Token) -> TokenAttr {
        self.attrs.get(token as usize).copied().unwrap_or_default()
    }

    /// Makes a control token of a token that was found by its text.
    pub fn mark_control(&mut self, token: Token, warnings: &mut Vec<VocabWarning>) {
        let attr = &mut self.attrs[token as usize];
        if !attr.intersects(TokenAttr::CONTROL) {
            *attr |= TokenAttr::CONTROL;
            let text = String::from_utf8_lossy(self.table.text(token)).into_owned();
            warnings.push(VocabWarning::ControlLooking { token, text });
        }
    }

    /// Marks control tokens that say "unused" in their text.
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

/// Token ids are positive 32-bit numbers.
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
