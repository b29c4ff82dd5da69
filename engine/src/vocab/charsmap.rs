//! SentencePiece normalization: a map from prefixes to replacements, stored as a double-array trie.
//!
//! Format of `tokenizer.ggml.precompiled_charsmap`: the size of the trie in bytes, the trie units, and NUL-terminated
//! replacements. A unit has the byte that leads to it (bits 0 to 7) and an end flag (bit 8). Bits 10 to 30 are the
//! offset of its children. The offset is shifted left by 8 if bit 9 is set. The unit after an end has the offset of the
//! replacement.
//!
//! The table is untrusted: offsets outside the table count as no match.

use super::VocabError;
use super::source::key;

/// Normalization table.
#[derive(Debug, Default)]
pub(super) struct Charsmap {
    units: Vec<u32>,
    replacements: Vec<u8>,
}

/// Returns the offset of the children relative to the unit.
fn offset(unit: u32) -> u32 {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

impl Charsmap {
    /// Parses a `precompiled_charsmap` table.
    pub fn new(table: &[u8]) -> Result<Charsmap, VocabError> {
        let malformed = |reason: String| VocabError::MalformedCharsmap {
            key: key::CHARSMAP,
            reason,
        };
        let Some((n, rest)) = table.split_first_chunk::<4>() else {
            return Err(malformed(format!("expected at least 4 bytes, found {}", table.len())));
        };
        let n = u32::from_le_bytes(*n) as usize;
        if n >= rest.len() {
            return Err(malformed(format!(
                "expected a trie of {n} bytes followed by replacements, found {} bytes",
                rest.len()
            )));
        }
        let (units, replacements) = rest.split_at(n);
        Ok(Charsmap {
            units: units
                .as_chunks::<4>()
                .0
                .iter()
                .map(|u| u32::from_le_bytes(*u))
                .collect(),
            replacements: replacements.to_vec(),
        })
    }

    /// Returns the length of the longest prefix of `text` that has a replacement, and the replacement.
    pub fn longest(&self, text: &[u8]) -> Option<(usize, &[u8])> {
        let unit = |at: u32| self.units.get(at as usize).copied();
        let mut at = offset(unit(0)?);
        let mut found = None;
        for (i, &byte) in text.iter().enumerate() {
            if byte == 0 {
                break;
            }
            at ^= u32::from(byte);
            // Bit 31 marks a unit that stores a value, which no byte leads to.
            let Some(here) = unit(at).filter(|u| u & (1 << 31 | 0xff) == u32::from(byte)) else {
                break;
            };
            at ^= offset(here);
            if here & 1 << 8 != 0 {
                found = unit(at).map(|start| (i + 1, start & !(1 << 31))).or(found);
            }
        }
        let (len, start) = found?;
        let replacement = self.replacements.get(start as usize..)?;
        let end = replacement.iter().position(|&b| b == 0)?;
        Some((len, &replacement[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table that replaces "a" with "xy". The children of the root start at 1, and the children of "a" at 4.
    fn table() -> Vec<u8> {
        let mut units = [0u32; 128];
        let a = 1 ^ u32::from(b'a');
        units[0] = 1 << 10;
        units[a as usize] = (a ^ 4) << 10 | 1 << 8 | u32::from(b'a');
        units[4] = 1 << 31 | 3;
        let mut table = 512u32.to_le_bytes().to_vec();
        table.extend(units.iter().flat_map(|u| u.to_le_bytes()));
        table.extend(b"zz\0xy\0");
        table
    }

    #[test]
    fn longest_finds_replacement() {
        let map = Charsmap::new(&table()).unwrap();
        assert_eq!(map.longest(b"ab"), Some((1, &b"xy"[..])));
        assert_eq!(map.longest(b"b"), None);
        assert_eq!(map.longest(b"\0"), None);
        assert_eq!(Charsmap::default().longest(b"a"), None);
    }

    #[test]
    fn offset_outside_table_is_no_match() {
        let whole = table();
        for n in 0..whole.len() {
            match Charsmap::new(&whole[..n]) {
                Ok(map) => drop(map.longest(b"ab")),
                Err(e) => assert!(
                    e.to_string()
                        .starts_with("key \"tokenizer.ggml.precompiled_charsmap\": "),
                    "{e}"
                ),
            }
        }
        for i in 4..whole.len() {
            let mut corrupted = whole.clone();
            corrupted[i] ^= 0xff;
            if let Ok(map) = Charsmap::new(&corrupted) {
                for text in [&b"aa"[..], b"b", b"\xff\xff"] {
                    map.longest(text);
                }
            }
        }
    }
}
