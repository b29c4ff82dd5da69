//! Tokenizer for PTX.

use super::PtxError;

/// A token.
#[derive(Debug, Clone, PartialEq)]
pub enum Token {
    /// A name, opcode with modifiers, or directive: letters, digits, and `_$%.`, possibly with `::`.
    Word(String),
    Int(i128),
    /// The bits of an f32.
    F32(u32),
    /// The bits of an f64.
    F64(u64),
    /// A quoted string.
    Text(String),
    /// A punctuation character.
    Sign(char),
}

impl std::fmt::Display for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            Self::Word(w) => write!(f, "`{w}`"),
            Self::Int(i) => write!(f, "`{i}`"),
            Self::F32(b) => write!(f, "`0f{b:08X}`"),
            Self::F64(b) => write!(f, "`0d{b:016X}`"),
            Self::Text(t) => write!(f, "`\"{t}\"`"),
            Self::Sign(c) => write!(f, "`{c}`"),
        }
    }
}

/// Returns all tokens of a PTX module with their line numbers.
pub fn tokens(text: &str) -> Result<Vec<(u32, Token)>, PtxError> {
    let mut lexer = Lexer { rest: text, line: 1 };
    let mut found = Vec::new();
    while let Some(token) = lexer.next()? {
        found.push((lexer.line, token));
    }
    Ok(found)
}

struct Lexer<'a> {
    rest: &'a str,
    line: u32,
}

impl<'a> Lexer<'a> {
    fn next(&mut self) -> Result<Option<Token>, PtxError> {
        self.skip_blank()?;
        let Some(first) = self.rest.chars().next() else {
            return Ok(None);
        };
        if first.is_ascii_digit() {
            return self.number().map(Some);
        }
        if is_word(first) {
            return Ok(Some(Token::Word(self.word().to_owned())));
        }
        if first == '"' {
            let end = self.rest[1..]
                .find('"')
                .ok_or_else(|| self.error("unterminated string"))?;
            let text = self.take(end + 2);
            return Ok(Some(Token::Text(text[1..=end].to_owned())));
        }
        if "{}()[]<>,;:+-!|@=".contains(first) {
            self.take(1);
            return Ok(Some(Token::Sign(first)));
        }
        Err(self.error(format!("unexpected character `{}`", first.escape_default())))
    }

    /// Skips whitespace, comments, and the directives `.loc` and `.file`, which extend to the end of the
    /// line.
    fn skip_blank(&mut self) -> Result<(), PtxError> {
        loop {
            let blank = self.rest.len() - self.rest.trim_start().len();
            self.take(blank);
            let end_of_line = self.rest.find('\n').unwrap_or(self.rest.len());
            let is_skipped = |start: &&str| self.rest.starts_with(*start);
            if ["//", ".loc\t", ".loc ", ".file\t", ".file "].iter().any(is_skipped) {
                self.take(end_of_line);
            } else if self.rest.starts_with("/*") {
                let end = self.rest.find("*/").ok_or_else(|| self.error("unterminated comment"))?;
                self.take(end + 2);
            } else if self.rest.starts_with('\0') {
                // The module passed to the driver is null-terminated.
                self.rest = "";
                return Ok(());
            } else {
                return Ok(());
            }
        }
    }

    /// Reads a word. `::` belongs to a word (`L2::128B`), a single `:` ends a label.
    fn word(&mut self) -> &'a str {
        let mut end = 0;
        loop {
            end += self.rest[end..].find(|c| !is_word(c)).unwrap_or(self.rest.len() - end);
            if self.rest[end..].starts_with("::") {
                end += 2;
            } else {
                return self.take(end);
            }
        }
    }

    fn number(&mut self) -> Result<Token, PtxError> {
        let len = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        let word = self.take(len.unwrap_or(self.rest.len()));
        let bits = |digits| u64::from_str_radix(digits, 16).ok();
        let lower = word.to_ascii_lowercase();
        let token = if let Some(digits) = lower.strip_prefix("0f") {
            bits(digits).and_then(|b| u32::try_from(b).ok()).map(Token::F32)
        } else if let Some(digits) = lower.strip_prefix("0d") {
            bits(digits).map(Token::F64)
        } else if let Some(digits) = lower.strip_prefix("0x") {
            i128::from_str_radix(digits.trim_end_matches('u'), 16)
                .ok()
                .map(Token::Int)
        } else if let Some(digits) = lower.strip_prefix("0b") {
            i128::from_str_radix(digits.trim_end_matches('u'), 2)
                .ok()
                .map(Token::Int)
        } else if word.contains('.') {
            word.parse::<f64>().ok().map(|f| Token::F64(f.to_bits()))
        } else {
            lower.trim_end_matches('u').parse().ok().map(Token::Int)
        };
        token.ok_or_else(|| self.error(format!("`{word}` is not a valid number")))
    }

    fn take(&mut self, len: usize) -> &'a str {
        let (taken, rest) = self.rest.split_at(len);
        self.line += taken.matches('\n').count() as u32;
        self.rest = rest;
        taken
    }

    fn error(&self, message: impl Into<String>) -> PtxError {
        PtxError::new(self.line, message)
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_$%.".contains(c)
}
