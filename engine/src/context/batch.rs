//! Tokens to decode: which, at what positions, in which sequences, and whose outputs are wanted.

use crate::vocab::Token;

/// Most sequences a context can hold: one bit each in a [`SeqSet`].
pub const MAX_SEQUENCES: usize = 256;

const N_WORDS: usize = MAX_SEQUENCES / u64::BITS as usize;

/// A set of sequences below [`MAX_SEQUENCES`]: a bitmask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct SeqSet([u64; N_WORDS]);

impl SeqSet {
    /// All sequences.
    pub const ALL: SeqSet = SeqSet([u64::MAX; N_WORDS]);

    /// The set of one sequence; empty if there can be no such sequence.
    pub fn one(seq: usize) -> SeqSet {
        SeqSet::of([seq])
    }

    /// The set of these sequences, without those that there can be none of.
    pub fn of(seqs: impl IntoIterator<Item = usize>) -> SeqSet {
        let mut set = SeqSet::default();
        for seq in seqs {
            if let Some(word) = set.0.get_mut(seq / 64) {
                *word |= 1 << (seq % 64);
            }
        }
        set
    }

    /// True if there is none.
    pub fn is_empty(self) -> bool {
        self == SeqSet::default()
    }

    /// True if `seq` is in the set.
    pub fn contains(self, seq: usize) -> bool {
        self.0.get(seq / 64).is_some_and(|word| word >> (seq % 64) & 1 == 1)
    }

    /// True if some sequence is in both sets.
    pub fn intersects(self, other: SeqSet) -> bool {
        !self.intersection(other).is_empty()
    }

    /// The sequences that are in both sets.
    pub fn intersection(self, other: SeqSet) -> SeqSet {
        SeqSet(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// The sequences that are in one of the sets.
    pub fn union(self, other: SeqSet) -> SeqSet {
        SeqSet(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// The set without the sequences of another.
    pub fn without(self, other: SeqSet) -> SeqSet {
        SeqSet(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// The lowest sequence; attention asks for the keys of this one.
    pub fn first(self) -> Option<usize> {
        self.iter().next()
    }

    /// The sequences, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(i, word)| {
            std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)))
                .take_while(|&rest| rest != 0)
                .map(move |rest| 64 * i + rest.trailing_zeros() as usize)
        })
    }

    /// The bits, lowest sequence first.
    pub(super) fn words(self) -> [u64; N_WORDS] {
        self.0
    }

    /// The set with these bits.
    pub(super) fn from_words(words: [u64; N_WORDS]) -> SeqSet {
        SeqSet(words)
    }
}

/// One token of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchToken {
    /// Token id.
    pub token: Token,
    /// Position, counted from 0.
    pub pos: i32,
    /// The sequences it belongs to; those of a shared prompt may be several.
    pub seqs: SeqSet,
    /// Its logits are wanted.
    pub output: bool,
}

/// Tokens to decode together. Reuse one to save allocations.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    tokens: Vec<BatchToken>,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Forgets all tokens but keeps the memory.
    pub fn clear(&mut self) {
        self.tokens.clear();
    }

    /// Adds one token.
    pub fn push(&mut self, token: Token, pos: usize, seqs: SeqSet, output: bool) {
        // A position beyond i32 is refused by decode, which sees the saturated value as inconsistent.
        let pos = i32::try_from(pos).unwrap_or(i32::MAX);
        self.tokens.push(BatchToken {
            token,
            pos,
            seqs,
            output,
        });
    }

    /// Adds consecutive tokens of one sequence from position `pos`, with output for the last one only.
    pub fn push_prompt(&mut self, tokens: &[Token], pos: usize, seq: usize) {
        for (i, &token) in tokens.iter().enumerate() {
            self.push(token, pos + i, SeqSet::one(seq), i + 1 == tokens.len());
        }
    }

    /// The tokens.
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }

    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// The end of the ubatch that starts at `from`: at most `n_ubatch` tokens and `n_outputs` outputs.
pub(super) fn ubatch_end(tokens: &[BatchToken], from: usize, n_ubatch: usize, n_outputs: usize) -> usize {
    let mut outputs = 0;
    let mut end = from;
    while end < tokens.len() && end - from < n_ubatch {
        outputs += tokens[end].output as usize;
        if outputs > n_outputs {
            break;
        }
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ubatches_are_bounded_by_tokens_and_outputs() {
        let mut b = Batch::new();
        for i in 0..5 {
            b.push(0, i, SeqSet::one(0), i != 2);
        }
        assert_eq!(ubatch_end(b.tokens(), 0, 3, 8), 3);
        assert_eq!(ubatch_end(b.tokens(), 0, 8, 1), 1);
        assert_eq!(ubatch_end(b.tokens(), 1, 8, 1), 3, "a token without output costs none");
        assert_eq!(ubatch_end(b.tokens(), 3, 8, 2), 5);
    }

    #[test]
    fn sets() {
        let s = SeqSet::of([0, 2, 64, 255, 256]);
        assert_eq!(
            s.iter().collect::<Vec<_>>(),
            [0, 2, 64, 255],
            "beyond the limit there is no bit"
        );
        assert_eq!(
            (s.first(), s.contains(64), s.contains(65), s.contains(999)),
            (Some(0), true, false, false)
        );
        assert_eq!(s.without(SeqSet::of([0, 255])), SeqSet::of([2, 64]));
        assert_eq!(s.intersection(SeqSet::of([1, 2])), SeqSet::one(2));
        assert!(SeqSet::one(256).is_empty() && !SeqSet::one(255).is_empty());
        assert_eq!(SeqSet::ALL.iter().count(), MAX_SEQUENCES);
    }
}
