//! Keys to values, in file order, with lookup by key and errors that name the key.

use std::collections::HashMap;

use super::GgufError;
use super::value::{FromValue, Value};

/// A file's metadata: an ordered list of pairs and an index over their keys.
#[derive(Clone, Default, Debug)]
pub struct Metadata {
    entries: Vec<(Box<str>, Value)>,
    index: HashMap<Box<str>, usize>,
}

impl Metadata {
    /// Number of pairs.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// True if the key is there.
    pub fn contains(&self, key: &str) -> bool {
        self.index.contains_key(key)
    }

    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.index.get(key).map(|&i| &self.entries[i].1)
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
        self.entries.iter().map(|(k, v)| (&**k, v))
    }

    /// Sets `key`, in its old place if it is there already; returns the value it had.
    pub fn insert(&mut self, key: impl Into<Box<str>>, value: impl Into<Value>) -> Option<Value> {
        let (key, value) = (key.into(), value.into());
        match self.index.get(&key) {
            Some(&i) => Some(std::mem::replace(&mut self.entries[i].1, value)),
            None => {
                self.index.insert(key.clone(), self.entries.len());
                self.entries.push((key, value));
                None
            }
        }
    }
}

/// Equal if the same pairs stand in the same order.
impl PartialEq for Metadata {
    fn eq(&self, other: &Self) -> bool {
        self.entries == other.entries
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
