//! Merging neighbours, best pair first: the common heart of byte-pair and SentencePiece vocabularies.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Not a symbol.
pub(super) const NONE: u32 = u32::MAX;
/// Words of more symbols than this use a heap. Below, looking at all pairs again after every merge is faster.
const SHORT: usize = 32;
/// Offsets inside a word are 32 bits wide. Callers cut longer texts.
pub(super) const MAX_WORD: usize = 1 << 30;

/// A stretch of a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    /// Its number, or [`NONE`] if it is not known.
    pub id: u32,
    /// Where it begins, in bytes.
    pub start: u32,
    /// Its length in bytes.
    pub len: u32,
}

/// What two neighbours can become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Merge {
    /// Smaller is better; equal ranks merge from left to right.
    pub rank: u32,
    /// The symbol they become.
    pub id: u32,
}

/// Which neighbours merge.
pub(super) trait Pairs {
    /// What `left` and `right`, next to each other in `word`, can become.
    fn merge(&self, word: &[u8], left: &Symbol, right: &Symbol) -> Option<Merge>;
}

/// Merges words, one after the other, in memory that it keeps.
#[derive(Debug, Default)]
pub(super) struct Merger {
    /// The symbols of the word: fill it, call [`run`](Self::run), read it.
    pub symbols: Vec<Symbol>,
    /// `merges[i]` is what symbols `i` and `i + 1` can become.
    merges: Vec<Option<Merge>>,
    links: Vec<Link>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// Neighbours of a symbol that is still there.
#[derive(Debug, Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

/// A possible merge, ordered by rank and then by place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// Bytes of both together: if either has grown since, the candidate is stale.
    len: u32,
    id: u32,
}

impl Merger {
    /// Merges the best pair until none is left.
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
            // Symbols that were merged into another have no bytes left.
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

    /// Symbols are numbers; a pair becomes their sum, ranked by an arbitrary function of both.
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
        fn short_and_long_words_merge_alike(ids in prop::collection::vec(0..6_u32, 0..60), ranks in 1..50_u32) {
            let short = merged(&ids, ranks, Merger::run_short);
            prop_assert_eq!(&short, &merged(&ids, ranks, Merger::run_long));
            prop_assert_eq!(short.iter().map(|s| s.2 as usize).sum::<usize>(), ids.len());
        }
    }

    #[test]
    fn equal_ranks_merge_from_the_left() {
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
