//! Reads `tokenizer.model` of SentencePiece, a message of Protocol Buffers.

use std::path::Path;

use super::{TokenType, Vocabulary};
use crate::checkpoint::CheckpointError;
use crate::gguf::Mapping;

/// Maximum length of the file in bytes.
const MAX_FILE: usize = 64 << 20;

/// A field of a message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Fields of a message, in order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    fn bytes(&mut self, n: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(bytes)
    }

    /// Returns the number and value of the next field.
    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.number()?;
        let value = match tag & 7 {
            0 => Field::Number(self.number()?),
            1 => Field::Bytes(self.bytes(8)?),
            2 => {
                let n = usize::try_from(self.number()?).ok()?;
                Field::Bytes(self.bytes(n)?)
            }
            5 => Field::Bytes(self.bytes(4)?),
            _ => return None,
        };
        Some((tag >> 3, value))
    }
}

/// Reads a vocabulary of the kinds BPE and Unigram.
pub fn read(path: &Path) -> Result<Vocabulary, CheckpointError> {
    let fault = |text: &str| CheckpointError::tokenizer(path, text);
    let map = Mapping::open(path).map_err(|e| e.in_file(path))?;
    if map.bytes().len() > MAX_FILE {
        return Err(fault("the file is too long for a vocabulary"));
    }
    let mut v = Vocabulary {
        model: "llama",
        around: Some((true, false)),
        ..Vocabulary::default()
    };
    let (mut prefix, mut squeeze) = (true, true);
    let mut fields = Fields(map.bytes());
    while !fields.0.is_empty() {
        let field = fields
            .field()
            .ok_or_else(|| fault("the file is damaged: a field is cut off"))?;
        match field {
            (1, Field::Bytes(piece)) => {
                let (text, score, ty) =
                    self::piece(piece).ok_or_else(|| fault("the file is damaged: a piece is cut off"))?;
                let id = v.tokens.len();
                if ty == TokenType::Unknown {
                    v.unk = Some(id);
                }
                v.place(id, text, ty);
                v.scores.push(score);
            }
            (2, Field::Bytes(trainer)) => {
                let mut fields = Fields(trainer);
                while let Some(field) = fields.field() {
                    match field {
                        (3, Field::Number(1)) => v.model = "t5",
                        (3, Field::Number(2)) => v.model = "llama",
                        (3, Field::Number(_)) => return Err(fault("the vocabulary is neither BPE nor Unigram")),
                        _ => {}
                    }
                }
            }
            (3, Field::Bytes(normalizer)) => {
                let mut fields = Fields(normalizer);
                while let Some(field) = fields.field() {
                    match field {
                        (2, Field::Bytes(map)) => v.charsmap = map.to_vec(),
                        (3, Field::Number(n)) => prefix = n != 0,
                        (4, Field::Number(n)) => squeeze = n != 0,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if v.tokens.is_empty() {
        return Err(fault("the file has no tokens; expected a vocabulary of SentencePiece"));
    }
    v.flags.push(("add_space_prefix", prefix));
    if v.model == "t5" {
        v.around = Some((false, true));
        v.flags.push(("remove_extra_whitespaces", squeeze));
    } else {
        v.charsmap.clear();
    }
    Ok(v)
}

/// Returns text, score, and type of a piece.
fn piece(message: &[u8]) -> Option<(String, f32, TokenType)> {
    let (mut text, mut score, mut ty) = (String::new(), 0.0, TokenType::Normal);
    let mut fields = Fields(message);
    while !fields.0.is_empty() {
        match fields.field()? {
            (1, Field::Bytes(bytes)) => text = String::from_utf8_lossy(bytes).into_owned(),
            (2, Field::Bytes(bytes)) => score = f32::from_le_bytes(bytes.try_into().ok()?),
            (3, Field::Number(n)) => {
                ty = match n {
                    2 => TokenType::Unknown,
                    3 => TokenType::Control,
                    4 => TokenType::UserDefined,
                    5 => TokenType::Unused,
                    6 => TokenType::Byte,
                    _ => TokenType::Normal,
                }
            }
            _ => {}
        }
    }
    Some((text, score, ty))
}
