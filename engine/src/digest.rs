//! A 64-bit digest that tells damaged or foreign data from the right one. Not cryptographic: it guards against accidents.

use std::io::{self, Write};

/// Digest of the bytes written to it, however they are cut into writes.
///
/// Each step is a bijection of the state and of the word it takes in, so that two inputs of one length which differ in
/// a single aligned 8-byte word never agree.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    state: u64,
    /// Bytes that do not make up a word yet.
    rest: [u8; 8],
    n_rest: usize,
    len: u64,
}

/// Odd, with bits spread evenly: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Digest {
    /// Takes in bytes.
    pub fn update(&mut self, mut bytes: &[u8]) {
        self.len = self.len.wrapping_add(bytes.len() as u64);
        if self.n_rest > 0 {
            let n = bytes.len().min(8 - self.n_rest);
            let (head, tail) = bytes.split_at(n);
            self.rest[self.n_rest..][..n].copy_from_slice(head);
            self.n_rest += n;
            bytes = tail;
            if self.n_rest < 8 {
                return;
            }
            self.state = mix(self.state, u64::from_le_bytes(self.rest));
        }
        let (words, rest) = bytes.as_chunks::<8>();
        self.state = words.iter().fold(self.state, |s, w| mix(s, u64::from_le_bytes(*w)));
        self.rest[..rest.len()].copy_from_slice(rest);
        self.n_rest = rest.len();
    }

    /// The digest of all bytes so far.
    pub fn finish(&self) -> u64 {
        let mut last = [0; 8];
        last[..self.n_rest].copy_from_slice(&self.rest[..self.n_rest]);
        // The length tells a missing byte from a zero.
        mix(mix(self.state, u64::from_le_bytes(last)), self.len)
    }

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> u64 {
        let mut digest = Digest::default();
        digest.update(bytes);
        digest.finish()
    }
}

impl Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[inline]
fn mix(state: u64, word: u64) -> u64 {
    let x = (state ^ word).wrapping_mul(FACTOR);
    // A product's low bits depend on low bits only; the high half brings the others down.
    (x ^ (x >> 32)).wrapping_add(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_do_not_matter() {
        let bytes: Vec<u8> = (0..100u32).map(|i| (i * 37) as u8).collect();
        for len in [0, 1, 7, 8, 9, 63, 100] {
            for step in [1, 3, 8, 11] {
                let mut digest = Digest::default();
                bytes[..len].chunks(step).for_each(|c| digest.update(c));
                assert_eq!(digest.finish(), Digest::of(&bytes[..len]), "{len} bytes by {step}");
            }
        }
    }

    #[test]
    fn every_flipped_bit_and_every_missing_byte_shows() {
        let bytes: Vec<u8> = (0..67u32).map(|i| (i * 91) as u8).collect();
        let whole = Digest::of(&bytes);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(Digest::of(&damaged), whole, "bit {bit}");
        }
        let zeros = [0; 40];
        let digests: std::collections::HashSet<u64> = (0..=zeros.len()).map(|n| Digest::of(&zeros[..n])).collect();
        assert_eq!(digests.len(), zeros.len() + 1);
    }
}
