//! Keys to values, in file order, with lookup by key and errors that name the key.

use indexmap::IndexMap;

use super::GgufError;
use super::value::{FromValue, Value};

/// A file's metadata: pairs in order, found by their keys.
#[derive(Clone, Default, Debug)]
pub struct Metadata(IndexMap<Box<str>, Value>);

impl Metadata {
    /// None, with room for `n` pairs.
    pub fn with_capacity(n: usize) -> Metadata {
        Metadata(IndexMap::with_capacity(n))
    }

    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// The value of `key` as `T`; an error if it is missing or cannot be had as `T` without loss.
    pub fn require<'a, T: FromValue<'a>>(&'a self, key: &str) -> Result<T, GgufError> {
        self.optional(key)?.ok_or_else(|| GgufError::MissingKey {
            key: key.to_owned(),
            expected: T::EXPECTED,
        })
    }

    /// The value of `key` as `T`, `None` if it is missing; an error if it cannot be had as `T` without loss.
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

    /// Every pair in file order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.0.iter().map(|(k, v)| (&**k, v))
    }

    /// Sets `key`, in its old place if it is there already; returns the value it had.
    pub fn insert(&mut self, key: impl Into<Box<str>>, value: impl Into<Value>) -> Option<Value> {
        self.0.insert(key.into(), value.into())
    }
}

/// Equal if the same pairs stand in the same order.
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
