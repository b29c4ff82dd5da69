//! 64-bit digest that detects damaged or mismatched data. It is not cryptographic and protects only against
//! accidents.

use std::io::{self, Write};

/// Digest of a byte stream, independent of how it is split into writes.
///
/// Each step is a bijection of the state and of the input word. Inputs of equal length that differ in a single aligned
/// 8-byte word therefore have different digests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    state: u64,
    /// Bytes of an incomplete word.
    rest: [u8; 8],
    n_rest: usize,
    len: u64,
}

/// 2^64 divided by the golden ratio, an odd number with evenly distributed bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

impl Digest {
    /// Adds bytes.
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

    /// Returns the digest of all bytes added so far.
    pub fn finish(&self) -> u64 {
        let mut last = [0; 8];
        last[..self.n_rest].copy_from_slice(&self.rest[..self.n_rest]);
        // The length distinguishes missing bytes from zeros.
        mix(mix(self.state, u64::from_le_bytes(last)), self.len)
    }

    /// Returns the digest of `bytes`.
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
    // The low bits of a product depend only on low bits, so the high half is mixed in.
    (x ^ (x >> 32)).wrapping_add(FACTOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_independent_of_chunking() {
        let bytes: Vec<u8> = (0..100u32).map(|i| (i * 37) as u8).collect();
        for len in [0, 1, 7, 8, 9, 63, 100] {
            for step in [1, 3, 8, 11] {
                let mut digest = Digest::default();
                bytes[..len].chunks(step).for_each(|c| digest.update(c));
                assert_eq!(
                    digest.finish(),
                    Digest::of(&bytes[..len]),
                    "{len} bytes in chunks of {step}"
                );
            }
        }
    }

    #[test]
    fn digest_detects_flipped_bits_and_missing_bytes() {
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
