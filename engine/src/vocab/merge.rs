//! Iterative merging of adjacent symbols by rank, shared by BPE and SentencePiece tokenizers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Symbol id of unknown symbols.
pub(super) const NONE: u32 = u32::MAX;
/// Maximum number of symbols for the quadratic algorithm, which beats the heap on short words.
const SHORT: usize = 32;
/// Maximum word length in bytes. Callers split longer words, because merging needs 40 bytes of memory per byte of a
/// word. Words whose symbols exceed the caches are merged slowly.
pub(super) const MAX_WORD: usize = 1 << 18;

/// Symbol in a word that is being merged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// Symbol id, or [`NONE`] if unknown.
    pub id: u32,
    /// Byte offset in the word.
    pub start: u32,
    /// Length in bytes.
    pub len: u32,
}

/// Possible merge of two adjacent symbols.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge {
    /// Smaller ranks merge first; equal ranks merge from left to right.
    pub rank: u32,
    /// Id of the symbol that the merge produces.
    pub id: u32,
}

/// Merge rules of a vocabulary.
pub(super) trait Pairs {
    /// Returns the merge of the adjacent symbols `left` and `right`, if any.
    fn merge(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge>;
}

/// Merges the symbols of words. Buffers are reused between words.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// Symbols of the word: input and output of [`run`](Self::run).
    pub symbols: Vec<Symbol>,
    /// `merges[i]` is the possible merge of symbols `i` and `i + 1`.
    merges: Vec<Option<Merge>>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// Linked-list neighbors of a remaining symbol.
#[derive(Debug, Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

/// Heap entry, ordered by rank and then by position.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Combined length in bytes; the entry is stale if either symbol has grown.
    len: u32,
    id: u32,
}

impl Merger {
    /// Merges pairs in order of rank until no merge applies.
    pub fn run(&mut self, word: &[u8], pairs: &impl Pairs) {
        if self.symbols.len() <= SHORT {
            self.run_short(word, pairs)
        } else {
            self.run_long(word, pairs)
        }
    }

    fn run_short(&mut self, word: &[u8], pairs: &impl Pairs) {
        let Self { symbols, merges, .. } = self;
        merges.clear();
        merges.extend(symbols.windows(2).map(|pair| pairs.merge(word, &pair[0], &pair[1])));
        loop {
            let mut best: Option<(usize, Merge)> = None;
            for (i, merge) in merges.iter().enumerate() {
                if let Some(merge) = *merge
                    && best.is_none_or(|(_, best)| merge.rank < best.rank)
                {
                    best = Some((i, merge));
                }
            }
            let Some((i, merge)) = best else { return };
            symbols[i].id = merge.id;
            symbols[i].len += symbols[i + 1].len;
            symbols.remove(i + 1);
            merges.remove(i);
            if i > 0 {
                merges[i - 1] = pairs.merge(word, &symbols[i - 1], &symbols[i]);
            }
            if i < merges.len() {
                merges[i] = pairs.merge(word, &symbols[i], &symbols[i + 1]);
            }
        }
    }

    fn run_long(&mut self, word: &[u8], pairs: &impl Pairs) {
        let Self {
            symbols, links, heap, ..
        } = self;
        let n = symbols.len() as u32;
        heap.clear();
        links.clear();
        links.extend((0..n).map(|i| Link {
            prev: i.wrapping_sub(1),
            next: if i + 1 < n { i + 1 } else { NONE },
        }));
        let candidate = |symbols: &[Symbol], left: u32, right: u32| {
            if left == NONE || right == NONE {
                return None;
            }
            let (l, r) = (&symbols[left as usize], &symbols[right as usize]);
            let Merge { rank, id } = pairs.merge(word, l, r)?;
            Some(Reverse(Candidate {
                rank,
                left,
                right,
                len: l.len + r.len,
                id,
            }))
        };
        heap.extend((1..n).filter_map(|i| candidate(symbols, i - 1, i)));
        while let Some(Reverse(Candidate {
            left, right, len, id, ..
        })) = heap.pop()
        {
            let (l, r) = (symbols[left as usize].len, symbols[right as usize].len);
            // Stale: a symbol was merged into its left neighbor (length 0) or has grown.
            if l == 0 || r == 0 || l + r != len {
                continue;
            }
            symbols[left as usize].id = id;
            symbols[left as usize].len = len;
            symbols[right as usize].len = 0;
            let next = links[right as usize].next;
            links[left as usize].next = next;
            if next != NONE {
                links[next as usize].prev = left;
            }
            heap.extend(candidate(symbols, links[left as usize].prev, left));
            heap.extend(candidate(symbols, left, next));
        }
        symbols.retain(|symbol| symbol.len > 0);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Test rules: symbols are numbers, and a pair merges into its sum with a pseudorandom rank.
    struct Sums(u32);

    impl Pairs for Sums {
        fn merge(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge> {
            let mixed = left
                .id
                .wrapping_mul(31)
                .wrapping_add(right.id)
                .wrapping_mul(0x9e37_79b9)
                >> 16;
            (!mixed.is_multiple_of(3) && left.id + right.id < 40).then_some(Merge {
                rank: mixed % self.0,
                id: left.id + right.id,
            })
        }
    }

    fn merged(ids: &[u32], ranks: u32, run: fn(&mut Merger, &[u8], &Sums)) -> Vec<(u32, u32, u32)> {
        let mut merger = Merger::default();
        merger
            .symbols
            .extend(ids.iter().zip(0..).map(|(&id, start)| Symbol { id, start, len: 1 }));
        run(&mut merger, &vec![0; ids.len()], &Sums(ranks));
        merger.symbols.iter().map(|s| (s.id, s.start, s.len)).collect()
    }

    proptest! {
        #[test]
        fn short_and_long_words_merge_equally(ids in prop::collection::vec(0..6_u32, 0..60), ranks in 1..50_u32) {
            let short = merged(&ids, ranks, Merger::run_short);
            prop_assert_eq!(&short, &merged(&ids, ranks, Merger::run_long));
            prop_assert_eq!(short.iter().map(|s| s.2 as usize).sum::<usize>(), ids.len());
        }
    }

    #[test]
    fn equal_ranks_merge_left_to_right() {
        struct Twos;
        impl Pairs for Twos {
            fn merge(&self, _: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge> {
                (left.id == 1 && right.id == 1).then_some(Merge { rank: 7, id: 2 })
            }
        }
        for n in [5, 101] {
            let mut merger = Merger::default();
            merger
                .symbols
                .extend((0..n).map(|start| Symbol { id: 1, start, len: 1 }));
            merger.run(&vec![0; n as usize], &Twos);
            let ids: Vec<_> = merger.symbols.iter().map(|s| s.id).collect();
            assert_eq!(ids, [vec![2; n as usize / 2], vec![1]].concat());
        }
    }
}
