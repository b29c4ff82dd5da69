//! The pages of a pool of cells: which cells of each page a sequence has. They make up the page tables that attention goes by.
//!
//! A sequence gets cells in pages of its own as long as there are empty pages, so that attention reads no cells of others. When there are
//! none left, pages are shared: nothing but speed depends on it.

use crate::graph::PAGE;

use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};

/// For each sequence of a ubatch the pages of its cells (compressed sparse rows).
#[derive(Debug, Default)]
pub(super) struct PageTables {
    /// Entry at which each table starts, and the end of the last.
    pub starts: Vec<i32>,
    /// First cell of the page of each entry.
    pub pages: Vec<i32>,
    /// The cells of the page that belong to the sequence, one bit each.
    pub masks: Vec<i64>,
}

impl PageTables {
    /// Takes memory for so many tables and entries in all.
    pub fn reserve(&mut self, n_tables: usize, n_entries: usize) {
        self.starts.reserve(n_tables + 1);
        self.pages.reserve(n_entries);
        self.masks.reserve(n_entries);
    }

    /// No tables.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.starts.push(0);
        self.pages.clear();
        self.masks.clear();
    }

    /// Adds a page to the table that is not ended yet, unless it holds nothing.
    pub fn push(&mut self, first_cell: usize, mask: u64) {
        if mask != 0 {
            self.pages.push(first_cell as i32);
            self.masks.push(mask as i64);
        }
    }

    /// Ends a table.
    pub fn end(&mut self) {
        self.starts.push(self.pages.len() as i32);
    }

    /// Adds the table of a sequence over cells with these sets.
    pub fn push_cells(&mut self, seq: usize, cells: impl Iterator<Item = SeqSet>) {
        let (mut first, mut mask, mut n) = (0, 0, 0);
        for seqs in cells {
            mask |= u64::from(seqs.contains(seq)) << (n - first);
            n += 1;
            if n - first == PAGE {
                self.push(first, mask);
                (first, mask) = (n, 0);
            }
        }
        self.push(first, mask);
    }
}

/// The sequences that the tokens of a ubatch have page tables of: the lowest of each token's.
pub(super) struct TableSeqs {
    /// With the lowest position of their tokens.
    seqs: Vec<(usize, i32)>,
    /// Table of each sequence, negative if it has none.
    table: [i32; MAX_SEQUENCES],
}

impl Default for TableSeqs {
    fn default() -> TableSeqs {
        TableSeqs {
            seqs: Vec::with_capacity(MAX_SEQUENCES),
            table: [-1; MAX_SEQUENCES],
        }
    }
}

impl TableSeqs {
    /// Takes the tokens of the next ubatch.
    pub fn set(&mut self, tokens: &[BatchToken]) {
        self.seqs.clear();
        self.table.fill(-1);
        for t in tokens {
            let Some(seq) = t.seqs.first() else { continue };
            match self.seqs.get_mut(self.table[seq] as usize) {
                Some((_, from)) => *from = t.pos.min(*from),
                None => {
                    self.table[seq] = self.seqs.len() as i32;
                    self.seqs.push((seq, t.pos));
                }
            }
        }
    }

    /// The sequence of each table, with the lowest position of its tokens.
    pub fn iter(&self) -> impl Iterator<Item = (usize, i32)> + '_ {
        self.seqs.iter().copied()
    }

    /// The page table of a token.
    pub fn table_of(&self, token: &BatchToken) -> i32 {
        token.seqs.first().map_or(-1, |seq| self.table[seq])
    }
}

/// Which cells of each page are in use, and by which sequences.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    n_pages: usize,
    /// Cells in use, by page.
    used: Vec<u64>,
    /// Sequences with cells in a page.
    users: Vec<SeqSet>,
    /// Cells of each sequence in each page, `[n_seqs, n_pages]`.
    masks: Vec<u64>,
    /// The page in which each sequence got its last cell.
    current: Vec<u32>,
}

impl Pages {
    /// Bytes for a pool of `n_cells` cells and `n_seqs` sequences.
    pub fn n_bytes(n_cells: usize, n_seqs: usize) -> usize {
        let per_page = size_of::<u64>() + size_of::<SeqSet>() + n_seqs.saturating_mul(size_of::<u64>());
        n_cells.div_ceil(PAGE).saturating_mul(per_page)
    }

    /// Takes the memory; false if it cannot be had.
    pub fn allocate(&mut self, n_cells: usize, n_seqs: usize) -> bool {
        self.n_pages = n_cells.div_ceil(PAGE);
        let n_masks = self.n_pages.saturating_mul(n_seqs);
        filled(&mut self.used, self.n_pages, 0)
            && filled(&mut self.users, self.n_pages, SeqSet::default())
            && filled(&mut self.masks, n_masks, 0)
            && filled(&mut self.current, n_seqs, 0)
    }

    /// A cell changes hands.
    pub fn change(&mut self, cell: usize, old: SeqSet, new: SeqSet) {
        let (page, bit) = (cell / PAGE, 1 << (cell % PAGE));
        for seq in old.without(new).iter() {
            let mask = &mut self.masks[seq * self.n_pages + page];
            *mask &= !bit;
            if *mask == 0 {
                self.users[page] = self.users[page].without(SeqSet::one(seq));
            }
        }
        for seq in new.without(old).iter() {
            self.masks[seq * self.n_pages + page] |= bit;
        }
        self.users[page] = self.users[page].union(new);
        if new.is_empty() {
            self.used[page] &= !bit;
        } else {
            self.used[page] |= bit;
        }
    }

    /// The pages of a sequence: the first cell of each, and the sequence's cells in it by bits.
    pub fn of(&self, seq: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let masks = &self.masks[seq * self.n_pages..(seq + 1) * self.n_pages];
        let present = masks.iter().enumerate().filter(|(_, mask)| **mask != 0);
        present.map(|(page, &mask)| (page * PAGE, mask))
    }

    /// Cells of a page that are in use, by bits.
    pub fn used(&self, page: usize) -> u64 {
        self.used[page]
    }

    /// The page in which the first of the sequences got its last cell, if no other sequence has cells in it.
    pub fn current(&self, seqs: SeqSet) -> Option<usize> {
        let page = *self.current.get(seqs.first()?)? as usize;
        (self.users[page] == seqs).then_some(page)
    }

    /// The sequences go on in this page.
    pub fn set_current(&mut self, seqs: SeqSet, page: usize) {
        seqs.iter().for_each(|s| self.current[s] = page as u32);
    }

    /// Pages in which these sequences, all of them, have cells and no others.
    pub fn exclusive(&self, seqs: SeqSet) -> impl Iterator<Item = usize> + '_ {
        let pages = seqs.first().into_iter().flat_map(|seq| self.of(seq));
        pages
            .map(|(first, _)| first / PAGE)
            .filter(move |&page| self.users[page] == seqs)
    }

    /// The first empty page from `page` on.
    pub fn empty_from(&self, page: usize) -> Option<usize> {
        (page..self.n_pages).find(|&page| self.used[page] == 0)
    }
}

/// Makes a list `n` long; false if the memory cannot be had.
pub(super) fn filled<T: Clone>(list: &mut Vec<T>, n: usize, value: T) -> bool {
    let had = list.try_reserve_exact(n.saturating_sub(list.len())).is_ok();
    if had {
        list.resize(n, value);
    }
    had
}
