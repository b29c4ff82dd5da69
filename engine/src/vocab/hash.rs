//! Hash tables for token texts and symbol pairs. All tables are randomly seeded because keys are untrusted: a
//! crafted vocabulary cannot force collisions.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

const MIX_BLOCK: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_TAIL: u64 = 0xd6e8_feb8_6659_fd93;
const MIX_LAST: u64 = 0xa076_1d64_78bd_642f;

/// Folded multiply: XORs the halves of the 128-bit product, so that every input bit affects every output bit.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

pub(super) fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u64) | 1
}

/// Hashes `bytes` with a seed.
#[inline]
pub(super) fn hash_bytes(seed: u64, bytes: &[u8]) -> u64 {
    let mut hash = seed ^ (bytes.len() as u64).wrapping_mul(MIX_TAIL);
    let (blocks, rest) = bytes.as_chunks::<8>();
    for block in blocks {
        hash = fold(hash ^ u64::from_le_bytes(*block), MIX_BLOCK);
    }
    let mut tail = 0_u64;
    for &byte in rest {
        tail = tail << 8 | u64::from(byte);
    }
    fold(fold(hash ^ tail, MIX_TAIL), MIX_LAST)
}

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
    /// Open-addressing table. A slot holds the upper half of the hash and `id + 1`; 0 marks a free slot.
    slots: Vec<u64>,
    seed: u64,
}

impl StringTable {
    /// Creates an empty table with capacity for `n` texts.
    pub fn with_capacity(n: usize) -> Self {
        let slots = vec![0; (n.max(8) * 2).next_power_of_two()];
        Self {
            texts: StringList::default(),
            slots,
            seed: random_seed(),
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
        self.probe(text, hash_bytes(self.seed, text)).ok()
    }

    /// Appends a text with the next id. If the text exists, [`get`](Self::get) keeps returning the earlier
    /// id, which is returned.
    pub fn push(&mut self, text: &[u8]) -> Option<u32> {
        if self.len() * 2 >= self.slots.len() {
            self.grow();
        }
        let id = self.len() as u32;
        let hash = hash_bytes(self.seed, text);
        let found = self.probe(text, hash);
        self.texts.push_with(|bytes| bytes.extend_from_slice(text));
        match found {
            Ok(earlier) => Some(earlier),
            Err(slot) => {
                self.slots[slot] = entry(hash, id);
                None
            }
        }
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

    /// Returns the id of the text, or the free slot for its insertion.
    #[inline]
    fn probe(&self, text: &[u8], hash: u64) -> Result<u32, usize> {
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return Err(at);
            }
            if slot >> 32 == hash >> 32 {
                let id = slot as u32 - 1;
                if self.text(id) == text {
                    return Ok(id);
                }
            }
            at = (at + 1) & mask;
        }
    }

    fn grow(&mut self) {
        let size = self.slots.len() * 2;
        let old = std::mem::replace(&mut self.slots, vec![0; size]);
        for id in old.into_iter().filter(|&slot| slot != 0).map(|slot| slot as u32 - 1) {
            let hash = hash_bytes(self.seed, self.text(id));
            if let Err(slot) = self.probe(self.text(id), hash) {
                self.slots[slot] = entry(hash, id);
            }
        }
    }
}

fn entry(hash: u64, id: u32) -> u64 {
    hash >> 32 << 32 | (u64::from(id) + 1)
}

/// Map keyed by a pair of symbols; see [`pair_key`].
pub(super) type PairMap<V> = HashMap<u64, V, SeededState>;

/// Creates an empty map with capacity for `n` pairs.
pub(super) fn pair_map<V>(n: usize) -> PairMap<V> {
    PairMap::with_capacity_and_hasher(n, SeededState(random_seed()))
}

/// Packs two symbols into a key.
#[inline]
pub(super) fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Seeded [`BuildHasher`] for 64-bit keys.
#[derive(Debug, Clone)]
pub(super) struct SeededState(u64);

impl BuildHasher for SeededState {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

/// Hasher for a single 64-bit key.
#[derive(Debug)]
pub(super) struct SeededHasher(u64);

impl Hasher for SeededHasher {
    #[inline]
    fn write_u64(&mut self, key: u64) {
        self.0 = fold(fold(self.0 ^ key, MIX_BLOCK), MIX_LAST);
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash_bytes(self.0, bytes);
    }

    fn finish(&self) -> u64 {
        self.0
    }
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

    #[test]
    fn hash_depends_on_length_and_content() {
        let seed = random_seed();
        assert_ne!(hash_bytes(seed, b"\0"), hash_bytes(seed, b"\0\0"));
        assert_ne!(hash_bytes(seed, b"abcdefgh"), hash_bytes(seed, b"abcdefgi"));
        assert_ne!(hash_bytes(seed, b"abcdefghi"), hash_bytes(seed, b"abcdefghj"));
    }
}
