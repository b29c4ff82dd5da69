//! What kind of token a token is.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// A set of properties of a token.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenAttr(u16);

impl TokenAttr {
    /// None of the others.
    pub const UNDEFINED: Self = Self(0);
    /// Stands for text that has no token.
    pub const UNKNOWN: Self = Self(1 << 0);
    /// Reserved, never seen in training.
    pub const UNUSED: Self = Self(1 << 1);
    /// Text.
    pub const NORMAL: Self = Self(1 << 2);
    /// Structure, not text: shown only on request, parsed from text only on request.
    pub const CONTROL: Self = Self(1 << 3);
    /// Text that is always one token.
    pub const USER_DEFINED: Self = Self(1 << 4);
    /// One byte, written `<0xXX>`.
    pub const BYTE: Self = Self(1 << 5);
    /// Takes white space before it along.
    pub const LSTRIP: Self = Self(1 << 7);
    /// Takes white space after it along.
    pub const RSTRIP: Self = Self(1 << 8);

    const NAMES: [(Self, &str); 8] = [
        (Self::UNKNOWN, "unknown"),
        (Self::UNUSED, "unused"),
        (Self::NORMAL, "normal"),
        (Self::CONTROL, "control"),
        (Self::USER_DEFINED, "user_defined"),
        (Self::BYTE, "byte"),
        (Self::LSTRIP, "lstrip"),
        (Self::RSTRIP, "rstrip"),
    ];

    /// The meaning of an element of `tokenizer.ggml.token_type`; unknown numbers mean nothing.
    pub const fn from_type(token_type: i32) -> Self {
        match token_type {
            1 => Self::NORMAL,
            2 => Self::UNKNOWN,
            3 => Self::CONTROL,
            4 => Self::USER_DEFINED,
            5 => Self::UNUSED,
            6 => Self::BYTE,
            _ => Self::UNDEFINED,
        }
    }

    /// True if it shares a property with `other`.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The properties of both.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without the properties of `other`.
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for TokenAttr {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for TokenAttr {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The names, separated by `|`.
impl fmt::Display for TokenAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = Self::NAMES
            .iter()
            .filter(|(bit, _)| self.intersects(*bit))
            .map(|(_, n)| *n)
            .collect();
        f.pad(
            if names.is_empty() {
                "undefined".to_owned()
            } else {
                names.join("|")
            }
            .as_str(),
        )
    }
}

impl fmt::Debug for TokenAttr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenAttr({self})")
    }
}
