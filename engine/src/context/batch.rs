//! Batches: tokens to decode, with positions, sequences, and output flags.

use std::ops::Range;
use std::sync::Arc;

use crate::graph::ROPE_AXES;
use crate::model::Medium;
use crate::vocab::Token;

use super::media::{MediaRow, MediaRows};

/// Maximum number of sequences in a context, one bit each in a [`SeqSet`].
pub const MAX_SEQUENCES: usize = 256;

const N_WORDS: usize = MAX_SEQUENCES / u64::BITS as usize;

/// Set of sequences below [`MAX_SEQUENCES`], as a bit mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct SeqSet([u64; N_WORDS]);

impl SeqSet {
    /// All sequences.
    pub const ALL: SeqSet = SeqSet([u64::MAX; N_WORDS]);

    /// Returns the set of a single sequence; empty if `seq` is out of range.
    pub fn one(seq: usize) -> SeqSet {
        SeqSet::of([seq])
    }

    /// Returns the set of these sequences, ignoring those out of range.
    pub fn of(seqs: impl IntoIterator<Item = usize>) -> SeqSet {
        let mut set = SeqSet::default();
        for seq in seqs {
            if let Some(word) = set.0.get_mut(seq / 64) {
                *word |= 1 << (seq % 64);
            }
        }
        set
    }

    /// Returns true if the set is empty.
    pub fn is_empty(self) -> bool {
        self == SeqSet::default()
    }

    /// Returns true if `seq` is in the set.
    pub fn contains(self, seq: usize) -> bool {
        self.0.get(seq / 64).is_some_and(|word| word >> (seq % 64) & 1 == 1)
    }

    /// Returns true if the sets have a common sequence.
    pub fn intersects(self, other: SeqSet) -> bool {
        !self.intersection(other).is_empty()
    }

    /// Returns the sequences in both sets.
    pub fn intersection(self, other: SeqSet) -> SeqSet {
        SeqSet(std::array::from_fn(|i| self.0[i] & other.0[i]))
    }

    /// Returns the sequences in either set.
    pub fn union(self, other: SeqSet) -> SeqSet {
        SeqSet(std::array::from_fn(|i| self.0[i] | other.0[i]))
    }

    /// Returns the sequences that are not in `other`.
    pub fn without(self, other: SeqSet) -> SeqSet {
        SeqSet(std::array::from_fn(|i| self.0[i] & !other.0[i]))
    }

    /// Returns the lowest sequence, which determines the keys that attention reads.
    pub fn first(self) -> Option<usize> {
        self.iter().next()
    }

    /// Iterates over the sequence ids in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().enumerate().flat_map(|(i, word)| {
            std::iter::successors(Some(word), |rest| Some(rest & rest.wrapping_sub(1)))
                .take_while(|&rest| rest != 0)
                .map(move |rest| 64 * i + rest.trailing_zeros() as usize)
        })
    }

    /// Returns the bits, lowest sequence first.
    pub(super) fn words(self) -> [u64; N_WORDS] {
        self.0
    }

    /// Creates a set from its bits.
    pub(super) fn from_words(words: [u64; N_WORDS]) -> SeqSet {
        SeqSet(words)
    }
}

/// Position of a token along the axes of M-RoPE.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AxisPosition {
    /// Positions along time, height, width, and the axis of images of XD-RoPE.
    pub at: [i32; ROPE_AXES],
    /// Distance of the next token's positions along the axes to its position in the sequence.
    pub lag: i32,
}

/// A token to decode, with its position and sequences.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchToken {
    /// Token id.
    pub token: Token,
    /// Position in the sequence, starting at 0.
    pub pos: i32,
    /// Sequences of the token; several for a shared prompt.
    pub seqs: SeqSet,
    /// Whether to compute the output (logits) of this token.
    pub output: bool,
    /// Number of most likely tokens that the output may be limited to; 0 for all logits.
    pub n_best: u32,
    /// Media row that replaces the embedding of the token.
    pub media: Option<MediaRow>,
    /// Position along the axes of M-RoPE; assigned when the token is decoded.
    pub axes: AxisPosition,
}

/// Tokens to decode together. Reuse a batch to save allocations.
#[derive(Clone, Default, Debug)]
pub struct Batch {
    tokens: Vec<BatchToken>,
    media: Vec<Arc<MediaRows>>,
}

impl Batch {
    /// Creates an empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Removes all tokens but keeps allocated capacity.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.media.clear();
    }

    /// Adds a token to the batch.
    pub fn push(&mut self, token: Token, pos: usize, seqs: SeqSet, output: bool) {
        // Positions beyond i32 saturate, and decode rejects the saturated position.
        let pos = i32::try_from(pos).unwrap_or(i32::MAX);
        self.tokens.push(BatchToken {
            token,
            pos,
            seqs,
            output,
            n_best: 0,
            media: None,
            axes: AxisPosition::default(),
        });
    }

    /// Adds consecutive rows of the first medium of a prompt starting at position `pos`, without output.
    pub fn push_media(&mut self, media: &Arc<MediaRows>, rows: Range<usize>, pos: usize, seqs: SeqSet) {
        self.push_numbered_media(media, 0, rows, pos, seqs);
    }

    /// Adds consecutive rows of a medium starting at position `pos`, without output. `number` is the number of earlier
    /// images in the prompt.
    pub fn push_numbered_media(
        &mut self,
        media: &Arc<MediaRows>,
        number: usize,
        rows: Range<usize>,
        pos: usize,
        seqs: SeqSet,
    ) {
        let medium = self.media.len() as u32;
        self.media.push(media.clone());
        let rows = rows.start..rows.end.min(media.len());
        for (i, row) in rows.clone().enumerate() {
            self.push(media.tokens()[row], pos + i, seqs, false);
            if let Some(token) = self.tokens.last_mut() {
                token.media = Some(MediaRow {
                    medium,
                    row: row as u32,
                    left: (rows.end - 1 - row) as u32,
                    grid: media.grid(),
                    number: i32::try_from(number).unwrap_or(i32::MAX),
                    is_image: media.medium() == Medium::Image,
                });
            }
        }
    }

    /// Requests the outputs of all tokens and rows.
    pub fn request_all(&mut self) {
        self.tokens.iter_mut().for_each(|token| token.output = true);
    }

    /// Requests only the output of the last token or row.
    pub fn request_only_last(&mut self) {
        self.tokens.iter_mut().for_each(|token| token.output = false);
        if let Some(last) = self.tokens.last_mut() {
            last.output = true;
        }
    }

    /// Requests the output of the last token or row, in addition to those already requested.
    pub fn request_last(&mut self) {
        if let Some(last) = self.tokens.last_mut() {
            last.output = true;
        }
    }

    /// Limits the output of the last token or row to the `n` most likely tokens; 0 requests all logits. The limit is
    /// ignored if the device of the output layer cannot find the best tokens. See [`Context::output`].
    ///
    /// [`Context::output`]: super::Context::output
    pub fn limit_last(&mut self, n: usize) {
        if let Some(last) = self.tokens.last_mut() {
            last.n_best = u32::try_from(n).unwrap_or(0);
        }
    }

    /// Returns a batch of the first `n` tokens and rows.
    pub fn first(&self, n: usize) -> Batch {
        Batch {
            tokens: self.tokens[..n.min(self.len())].to_vec(),
            media: self.media.clone(),
        }
    }

    /// Returns the media that rows of the batch belong to.
    pub fn media(&self) -> &[Arc<MediaRows>] {
        &self.media
    }

    /// Adds consecutive tokens of a sequence starting at position `pos`, with output for the last token only.
    pub fn push_prompt(&mut self, tokens: &[Token], pos: usize, seq: usize) {
        for (i, &token) in tokens.iter().enumerate() {
            self.push(token, pos + i, SeqSet::one(seq), i + 1 == tokens.len());
        }
    }

    /// Returns the tokens.
    pub fn tokens(&self) -> &[BatchToken] {
        &self.tokens
    }

    /// Returns the number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Returns true if the batch is empty.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

/// Limits of a ubatch.
#[derive(Clone, Copy, Debug)]
pub(super) struct UbatchLimits {
    pub n_tokens: usize,
    pub n_outputs: usize,
    /// The rows of an image have a separate ubatch.
    pub whole_media: bool,
}

/// Returns the end of the ubatch that starts at `from`.
pub(super) fn ubatch_end(tokens: &[BatchToken], from: usize, limits: UbatchLimits) -> usize {
    let image = |i: usize| tokens.get(i)?.media.filter(|row| row.is_image);
    if limits.whole_media
        && let Some(row) = image(from)
    {
        return tokens.len().min(from + 1 + row.left as usize);
    }
    let mut outputs = 0;
    let mut end = from;
    let UbatchLimits {
        n_tokens, n_outputs, ..
    } = limits;
    while end < tokens.len() && end - from < n_tokens {
        if limits.whole_media && image(end).is_some() {
            break;
        }
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
    fn ubatch_end_respects_token_and_output_limits() {
        let mut b = Batch::new();
        for i in 0..5 {
            b.push(0, i, SeqSet::one(0), i != 2);
        }
        let end = |from, n_tokens, n_outputs| {
            let limits = UbatchLimits {
                n_tokens,
                n_outputs,
                whole_media: true,
            };
            ubatch_end(b.tokens(), from, limits)
        };
        assert_eq!(end(0, 3, 8), 3);
        assert_eq!(end(0, 8, 1), 1);
        assert_eq!(end(1, 8, 1), 3, "tokens without output do not count");
        assert_eq!(end(3, 8, 2), 5);
    }

    #[test]
    fn whole_media_have_ubatches_of_their_own() {
        let media = Arc::new(MediaRows::new(7, 2, vec![0.0; 6]));
        let mut b = Batch::new();
        b.push(0, 0, SeqSet::one(0), false);
        b.push_media(&media, 0..3, 1, SeqSet::one(0));
        b.push_media(&media, 1..9, 4, SeqSet::one(0));
        b.push(0, 6, SeqSet::one(0), true);
        let ends = |whole_media| {
            let limits = UbatchLimits {
                n_tokens: 4,
                n_outputs: 8,
                whole_media,
            };
            let mut ends = vec![0];
            while *ends.last().unwrap() < b.len() {
                ends.push(ubatch_end(b.tokens(), *ends.last().unwrap(), limits));
            }
            ends
        };
        assert_eq!(ends(true), [0, 1, 4, 6, 7]);
        assert_eq!(ends(false), [0, 4, 7]);
        assert_eq!(b.media().len(), 2);
        assert!(b.tokens()[1..6].iter().all(|t| t.media.is_some() && !t.output));
    }

    #[test]
    fn rows_of_audio_share_ubatches_with_tokens() {
        let audio = Arc::new(MediaRows::new(7, 2, vec![0.0; 6]).of(Medium::Audio));
        let mut b = Batch::new();
        b.push(0, 0, SeqSet::one(0), false);
        b.push_media(&audio, 0..3, 1, SeqSet::one(0));
        b.push(0, 4, SeqSet::one(0), true);
        let limits = UbatchLimits {
            n_tokens: 8,
            n_outputs: 8,
            whole_media: true,
        };
        assert_eq!(ubatch_end(b.tokens(), 0, limits), 5);
    }

    #[test]
    fn sequence_sets_ignore_ids_beyond_limit() {
        let s = SeqSet::of([0, 2, 64, 255, 256]);
        assert_eq!(
            s.iter().collect::<Vec<_>>(),
            [0, 2, 64, 255],
            "sequences beyond the limit are ignored"
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
