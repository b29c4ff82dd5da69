//! N-gram hash embeddings: parameters and arithmetic of the op.

/// Parameters of [`Op::NgramHash`](super::Op::NgramHash), which maps the n-gram that ends at a token to a row
/// of an embedding table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgramHash {
    /// Tokens per n-gram, including the current token.
    pub n: usize,
    /// Multiplier of each token of an n-gram, starting with the current token.
    pub multipliers: [u64; NgramHash::MAX],
    /// End-of-text token. N-grams do not cross it: the token itself and all earlier tokens are replaced by
    /// this id.
    pub end: u32,
    /// First row of the table that the hash can return.
    pub first: u32,
    /// Number of rows (the modulus of the hash); nonzero.
    pub size: u32,
}

impl NgramHash {
    /// Maximum supported n-gram length.
    pub const MAX: usize = 8;

    /// Returns the table row of the n-gram `number(0)` (the current token) to `number(n - 1)`. Each number is
    /// a token id plus one, or 0 for no token.
    ///
    /// The hash is the XOR of the products of ids and multipliers modulo 2^64.
    pub fn row(&self, number: impl Fn(usize) -> f32) -> i32 {
        let mut ended = false;
        let mut mixed = 0;
        for (i, &factor) in self.multipliers[..self.n].iter().enumerate() {
            // Exact: ids are far below 2^24, the limit for exact integers in f32.
            let id = (number(i) as u64).checked_sub(1);
            ended = ended || (i > 0 && id.is_none_or(|id| id == u64::from(self.end)));
            let id = if ended { u64::from(self.end) } else { id.unwrap_or(0) };
            mixed ^= id.wrapping_mul(factor);
        }
        // Fits: the shape rules reject rows outside the i32 range.
        (mixed % u64::from(self.size)) as i32 + self.first as i32
    }

    /// Returns true if the parameters are valid and every row fits into i32.
    pub fn is_sound(&self) -> bool {
        let end = u64::from(self.first) + u64::from(self.size);
        (1..=NgramHash::MAX).contains(&self.n) && self.size > 0 && end <= i32::MAX as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: NgramHash = NgramHash {
        n: 3,
        multipliers: [3, 5, u64::MAX, 0, 0, 0, 0, 0],
        end: 2,
        first: 100,
        size: 1000,
    };

    fn row(numbers: [u32; 3]) -> i32 {
        HASH.row(|i| numbers[i] as f32)
    }

    #[test]
    fn ngrams_do_not_cross_end_of_text() {
        let mixed = (7 * 3) ^ (4 * 5) ^ 9u64.wrapping_neg();
        assert_eq!(row([8, 5, 10]), (mixed % 1000) as i32 + 100);
        let mixed = (7 * 3) ^ (2 * 5) ^ 2u64.wrapping_neg();
        let ended = (mixed % 1000) as i32 + 100;
        // The previous token ends the text or is missing, so earlier tokens must not matter.
        for before in [[3, 10], [3, 0], [0, 0], [0, 10], [3, 3]] {
            assert_eq!(row([8, before[0], before[1]]), ended, "{before:?}");
        }
        assert_ne!(
            row([3, 5, 10]),
            row([3, 3, 3]),
            "the end-of-text token itself sees its predecessors"
        );
    }

    #[test]
    fn hash_rows_stay_in_range() {
        let whole = NgramHash {
            first: 0,
            size: i32::MAX as u32,
            ..HASH
        };
        assert!(whole.is_sound());
        assert!(!NgramHash { first: 1, ..whole }.is_sound());
        assert!(!NgramHash { size: 0, ..whole }.is_sound());
        assert!(!NgramHash { n: 9, ..whole }.is_sound());
        for x in [0.0, 1.0, 1e9, f32::MAX, f32::INFINITY, f32::NAN, -3.0] {
            assert!(whole.row(|_| x) >= 0);
        }
    }
}
