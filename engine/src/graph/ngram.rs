//! N-gram hash embeddings: parameters and arithmetic of the op.

/// Parameters of [`Op::NgramHash`](super::Op::NgramHash): the hash of the n-gram that ends at a token, as a row of an embedding table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NgramHash {
    /// Tokens of an n-gram, the current one included.
    pub n: usize,
    /// Multiplier of each token of an n-gram, the current token's first.
    pub multipliers: [u64; NgramHash::MAX],
    /// The end-of-text token. N-grams do not reach across it: for later tokens it and all tokens before it count as this token.
    pub end: u32,
    /// First row of the table that the hash may give.
    pub first: u32,
    /// Number of rows (the modulus of the hash). Not 0.
    pub size: u32,
}

impl NgramHash {
    /// Longest n-gram.
    pub const MAX: usize = 8;

    /// The table row of the n-gram `number(0)` (the current token) to `number(n - 1)`: each a token id plus one, 0 where there is no token.
    /// The products of ids and multipliers, modulo 2^64, are combined by exclusive or.
    pub fn row(&self, number: impl Fn(usize) -> f32) -> i32 {
        let mut ended = false;
        let mut mixed = 0;
        for (i, &factor) in self.multipliers[..self.n].iter().enumerate() {
            // Ids are far below 2^24, up to which floats hold integers exactly.
            let id = (number(i) as u64).checked_sub(1);
            ended = ended || (i > 0 && id.is_none_or(|id| id == u64::from(self.end)));
            let id = if ended { u64::from(self.end) } else { id.unwrap_or(0) };
            mixed ^= id.wrapping_mul(factor);
        }
        // The shape rules refuse rows beyond i32.
        (mixed % u64::from(self.size)) as i32 + self.first as i32
    }

    /// True if every row fits an i32.
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
    fn what_lies_before_the_end_of_a_text_does_not_count() {
        let mixed = (7 * 3) ^ (4 * 5) ^ 9u64.wrapping_neg();
        assert_eq!(row([8, 5, 10]), (mixed % 1000) as i32 + 100);
        let mixed = (7 * 3) ^ (2 * 5) ^ 2u64.wrapping_neg();
        let ended = (mixed % 1000) as i32 + 100;
        // The token itself, no token, and whatever is before either.
        for before in [[3, 10], [3, 0], [0, 0], [0, 10], [3, 3]] {
            assert_eq!(row([8, before[0], before[1]]), ended, "{before:?}");
        }
        assert_ne!(row([3, 5, 10]), row([3, 3, 3]), "the end of a text still sees the text");
    }

    #[test]
    fn rows_stay_within_their_range() {
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
