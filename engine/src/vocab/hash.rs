//! Hash tables for token texts and symbol pairs. The texts come from a file, so every table is seeded at random: a
//! crafted vocabulary cannot aim at collisions.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

const MIX_BLOCK: u64 = 0x9e37_79b9_7f4a_7c15;
const MIX_TAIL: u64 = 0xd6e8_feb8_6659_fd93;
const MIX_LAST: u64 = 0xa076_1d64_78bd_642f;

/// Multiplies to 128 bits and folds the halves together: every input bit reaches every output bit.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

/// A random 64-bit seed.
pub(super) fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u64) | 1
}

/// Hashes a text under a seed.
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

/// Many texts by number, all bytes in one allocation.
#[derive(Debug, Default)]
pub(crate) struct Texts {
    bytes: Vec<u8>,
    /// `ends[id]` is where text `id` ends in `bytes`.
    ends: Vec<usize>,
}

impl Texts {
    /// Number of texts.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Text `id`, empty when there is none.
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

    /// Appends the text that `write` appends to the bytes it is given.
    pub fn push_with(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        write(&mut self.bytes);
        self.ends.push(self.bytes.len());
    }
}

/// Texts by number and numbers by text.
#[derive(Debug)]
pub(super) struct TextTable {
    texts: Texts,
    /// Open addressing: the upper half holds the upper half of the hash, the lower half `id + 1`; 0 is a free slot.
    slots: Vec<u64>,
    seed: u64,
}

impl TextTable {
    /// An empty table with room for `n` texts.
    pub fn with_capacity(n: usize) -> Self {
        let slots = vec![0; (n.max(8) * 2).next_power_of_two()];
        Self {
            texts: Texts::default(),
            slots,
            seed: random_seed(),
        }
    }

    /// Number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Text `id`, empty when there is none.
    #[inline]
    pub fn text(&self, id: u32) -> &[u8] {
        self.texts.get(id)
    }

    /// The number of a text.
    #[inline]
    pub fn get(&self, text: &[u8]) -> Option<u32> {
        self.probe(text, hash_bytes(self.seed, text)).ok()
    }

    /// Appends a text under the next number. Where the table holds the text already, that earlier number stays the one
    /// [`get`](Self::get) answers with, and it is returned.
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

    /// Appends a text that cannot be found: only its number is taken.
    pub fn push_hidden(&mut self, text: &[u8]) {
        self.texts.push_with(|bytes| bytes.extend_from_slice(text));
    }

    /// The number of a text, which is appended when it is new.
    pub fn intern(&mut self, text: &[u8]) -> u32 {
        self.get(text).unwrap_or_else(|| {
            self.push(text);
            self.len() as u32 - 1
        })
    }

    /// `Ok(id)` of the text, or `Err(slot)` where it would go.
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

/// A map from pairs of symbols.
pub(super) type PairMap<V> = HashMap<u64, V, SeededState>;

/// An empty map with room for `n` pairs.
pub(super) fn pair_map<V>(n: usize) -> PairMap<V> {
    PairMap::with_capacity_and_hasher(n, SeededState(random_seed()))
}

/// The key of a pair.
#[inline]
pub(super) fn pair_key(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Builds hashers for 64-bit keys.
#[derive(Debug, Clone)]
pub(super) struct SeededState(u64);

impl BuildHasher for SeededState {
    type Hasher = SeededHasher;

    fn build_hasher(&self) -> SeededHasher {
        SeededHasher(self.0)
    }
}

/// Hashes one 64-bit key.
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
    fn texts_are_found_after_growth_and_the_first_of_equals_wins() {
        let mut table = TextTable::with_capacity(0);
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
    fn length_and_content_both_count() {
        let seed = random_seed();
        assert_ne!(hash_bytes(seed, b"\0"), hash_bytes(seed, b"\0\0"));
        assert_ne!(hash_bytes(seed, b"abcdefgh"), hash_bytes(seed, b"abcdefgi"));
        assert_ne!(hash_bytes(seed, b"abcdefghi"), hash_bytes(seed, b"abcdefghj"));
    }
}
