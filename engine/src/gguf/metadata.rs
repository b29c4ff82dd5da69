//! Ordered key-value metadata with typed lookup. Errors name the key.

use indexmap::IndexMap;

use super::GgufError;
use super::value::{FromValue, Value};

/// Key-value metadata of a file, in file order and indexed by key.
#[derive(Clone, Default, Debug)]
pub struct Metadata(IndexMap<Box<str>, Value>);

impl Metadata {
    /// Creates empty metadata with capacity for `n` pairs.
    pub fn with_capacity(n: usize) -> Metadata {
        Metadata(IndexMap::with_capacity(n))
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns true if there are no pairs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns true if `key` is present.
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// Returns the value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// Returns the value of `key` as `T`.
    ///
    /// # Errors
    /// Returns [`GgufError::MissingKey`] if the key is missing, and [`GgufError::WrongType`] if the conversion would
    /// lose information.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| GgufError::MissingKey {
            key: key.to_owned(),
            expected: T::EXPECTED,
        })
    }

    /// Returns the value of `key` as `T`, or `None` if the key is missing.
    ///
    /// # Errors
    /// Returns [`GgufError::WrongType`] if the conversion would lose information.
    pub fn optional<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<Option<T>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(v) => Ok(Some(v)),
            None => Err(GgufError::WrongType {
                key: key.to_owned(),
                expected: T::EXPECTED,
                found: value.describe(),
            }),
        }
    }

    /// Iterates over all key-value pairs in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(k, v)| (&**k, v))
    }

    /// Sets `key` and returns its previous value. An existing key keeps its position.
    pub fn insert(&mut self, key: impl Into<Box<str>>, value: impl Into<Value>) -> Option<Value> {
        self.0.insert(key.into(), value.into())
    }

    /// Removes `key` and returns its value. The other keys keep their order.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.0.shift_remove(key)
    }

    /// Renames `from` to `to`, which keeps the position. Returns false, without a change, if `from` is missing or
    /// `to` exists.
    pub fn rename(&mut self, from: &str, to: &str) -> bool {
        let Some(at) = self.0.get_index_of(from) else {
            return false;
        };
        self.0.replace_index(at, to.into()).is_ok()
    }
}

/// Order-sensitive: equal if both contain the same pairs in the same order.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().eq(&other.0)
    }
}

impl<K: Into<Box<str>>, V: Into<Value>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Metadata::default();
        for (k, v) in pairs {
            metadata.insert(k, v);
        }
        metadata
    }
}
