//! Token attributes.

use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// Set of token attributes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct TokenAttr(u16);

impl TokenAttr {
    /// Empty set of attributes.
    pub const UNDEFINED: Self = Self(0);
    /// Placeholder for text that no token represents.
    pub const UNKNOWN: Self = Self(1 << 0);
    /// Reserved token that does not occur in training data.
    pub const UNUSED: Self = Self(1 << 1);
    /// Ordinary text.
    pub const NORMAL: Self = Self(1 << 2);
    /// Control token: rendered and parsed only on request.
    pub const CONTROL: Self = Self(1 << 3);
    /// Text that is always tokenized as a single token.
    pub const USER_DEFINED: Self = Self(1 << 4);
    /// Token for a single byte, spelled `<0xXX>`.
    pub const BYTE: Self = Self(1 << 5);
    /// Token that absorbs preceding white space.
    pub const LSTRIP: Self = Self(1 << 7);
    /// Token that absorbs following white space.
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

    /// Converts an element of `tokenizer.ggml.token_type`; unknown values map to
    /// [`UNDEFINED`](Self::UNDEFINED).
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

    /// Returns true if both sets share an attribute.
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the union of both sets.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the set difference.
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

/// Writes the attribute names, separated by `|`.
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
