//! Hash tables for token texts and symbol pairs. All tables are randomly seeded because keys are untrusted: a
//! crafted vocabulary cannot force collisions.

use std::collections::HashMap;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Randomly seeded hasher of keys.
pub(super) type Hasher = foldhash::fast::RandomState;

/// Indexed byte strings in a single allocation.
#[derive(Debug, Default)]
pub(crate) struct StringList {
    bytes: Vec<u8>,
    /// End offset of each string in `bytes`.
    ends: Vec<usize>,
}

impl StringList {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns string `id`; empty if out of range.
    #[inline]
    pub fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 {
            0
        } else {
            self.ends.get(id - 1).copied().unwrap_or(0)
        };
        self.ends.get(id).map_or(&[], |&end| &self.bytes[start..end])
    }

    /// Appends the bytes written by `write` as a new string.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }
}

/// Bidirectional map between texts and ids.
#[derive(Debug)]
pub(super) struct StringTable {
    texts: StringList,
    /// Ids by the hash of their text.
    ids: HashTable<u32>,
    hasher: Hasher,
}

impl StringTable {
    /// Creates an empty table with capacity for `n` texts.
    pub fn with_capacity(n: usize) -> Self {
        Self {
            texts: StringList::default(),
            ids: HashTable::with_capacity(n),
            hasher: Hasher::default(),
        }
    }

    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Returns text `id`; empty if out of range.
    #[inline]
    pub fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id)
    }

    /// Returns the id of a text.
    #[inline]
    pub fn get(&self, text: &[u8]) -> Option<u32> {
        let hash = self.hasher.hash_one(text);
        self.ids.find(hash, |&id| self.texts.get(id) == text).copied()
    }

    /// Appends a text with the next id. If the text exists, [`get`](Self::get) keeps returning the earlier
    /// id, which is returned.
    pub fn push(&mut self, text: &[u8]) -> Option<u32> {
        let Self { texts, ids, hasher } = self;
        let same = |&id: &u32| texts.get(id) == text;
        let hash_of = |&id: &u32| hasher.hash_one(texts.get(id));
        let earlier = match ids.entry(hasher.hash_one(text), same, hash_of) {
            Entry::Occupied(entry) => Some(*entry.get()),
            Entry::Vacant(entry) => {
                entry.insert(texts.len() as u32);
                None
            }
        };
        self.push_hidden(text);
        earlier
    }

    /// Appends a text that is excluded from lookup, to reserve its id.
    pub fn push_hidden(&mut self, text: &[u8]) {
        self.texts.push_with(|bytes| bytes.extend_from_slice(text));
    }

    /// Returns the id of a text, appending the text if it is new.
    pub fn intern(&mut self, text: &[u8]) -> u32 {
        self.get(text).unwrap_or_else(|| {
            self.push(text);
            self.len() as u32 - 1
        })
    }
}

/// Map keyed by a pair of symbols; see [`pair_key`].
pub(super) type PairMap<V> = HashMap<u64, V, Hasher>;

/// Creates an empty map with capacity for `n` pairs.
pub(super) fn pair_map<V>(n: usize) -> PairMap<V> {
    PairMap::with_capacity_and_hasher(n, Hasher::default())
}

/// Packs two symbols into a key.
#[inline]
pub(super) fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_survives_growth_and_keeps_first_duplicate() {
        let mut table = StringTable::with_capacity(0);
        for i in 0..5000_u32 {
            assert_eq!(table.push(format!("t{i}").as_bytes()), None);
        }
        assert_eq!(table.push(b"t17"), Some(17));
        assert_eq!(table.len(), 5001);
        assert_eq!(table.text(5000), b"t17");
        assert_eq!(table.get(b"t17"), Some(17));
        assert_eq!(table.get(b"t5000"), None);
        for i in 0..5000_u32 {
            assert_eq!(table.get(format!("t{i}").as_bytes()), Some(i));
        }
        assert_eq!(table.intern(b"t4"), 4);
        assert_eq!(table.intern(b""), 5001);
        assert_eq!(table.get(b""), Some(5001));
        assert_eq!(table.text(u32::MAX), b"");
    }
}
