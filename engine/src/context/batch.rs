//! Tokens to decode: which, at what positions, in which sequences, and whose outputs are wanted.

use crate::vocab::Token;

/// A set of sequences, one bit each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct SeqSet(pub u64);

/// Most sequences a context can hold: one bit each in a [`SeqSet`].
pub const MAX_SEQUENCES: usize = 64;

impl SeqSet {
    /// The set of one sequence, below [`MAX_SEQUENCES`].
    pub fn one(seq: usize) -> SeqSet {
        SeqSet(1u64.checked_shl(seq as u32).unwrap_or(0))
    }

    /// True if there is none.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// True if `seq` is in the set.
    pub fn contains(self, seq: usize) -> bool {
        self.0 & SeqSet::one(seq).0 != 0
    }

    /// True if some sequence is in both sets.
    pub fn intersects(self, other: SeqSet) -> bool {
        self.0 & other.0 != 0
    }

    /// The sequences of both sets.
    pub fn union(self, other: SeqSet) -> SeqSet {
        SeqSet(self.0 | other.0)
    }

    /// The lowest sequence; attention asks for the keys of this one.
    pub fn first(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    /// The sequences, lowest first.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(self.0), |rest| Some(rest & rest.wrapping_sub(1)))
            .take_while(|&rest| rest != 0)
            .map(|rest| rest.trailing_zeros() as usize)
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
        let s = SeqSet(0b101);
        assert_eq!(s.iter().collect::<Vec<_>>(), [0, 2]);
        assert_eq!(s.first(), Some(0));
        assert!(SeqSet::one(64).is_empty(), "beyond the limit there is no bit");
    }
}
