//! Pages of a KV cache pool, with the cells of every sequence in each page. Attention reads them as page
//! tables.
//!
//! A sequence receives exclusive pages while empty pages are available, so that attention does not read cells
//! of other sequences. After that, pages are shared, which affects only speed.

use crate::graph::PAGE;

use super::batch::{BatchToken, MAX_SEQUENCES, SeqSet};

/// Page tables of the sequences in a ubatch (compressed sparse rows).
#[derive(Debug, Default)]
pub(super) struct PageTables {
    /// First entry of each table, followed by the end of the last.
    pub starts: Vec<i32>,
    /// First cell of each entry's page.
    pub pages: Vec<i32>,
    /// Cells of the page that belong to the sequence, as bits.
    pub masks: Vec<i64>,
}

impl PageTables {
    /// Reserves memory for `n_tables` tables with `n_entries` entries in total.
    pub fn reserve(&mut self, n_tables: usize, n_entries: usize) {
        self.starts.reserve(n_tables + 1);
        self.pages.reserve(n_entries);
        self.masks.reserve(n_entries);
    }

    /// Removes all page tables.
    pub fn clear(&mut self) {
        self.starts.clear();
        self.starts.push(0);
        self.pages.clear();
        self.masks.clear();
    }

    /// Appends a page to the current table unless its mask is empty.
    pub fn push(&mut self, first_cell: usize, mask: u64) {
        if mask != 0 {
            self.pages.push(first_cell as i32);
            self.masks.push(mask as i64);
        }
    }

    /// Ends the current page table.
    pub fn end(&mut self) {
        self.starts.push(self.pages.len() as i32);
    }

    /// Appends the entries of a sequence for cells with these sequence sets.
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

/// Sequences with page tables in a ubatch: the lowest sequence of each token.
pub(super) struct TableSeqs {
    /// Sequences of the ubatch, each with the lowest position of its tokens.
    seqs: Vec<(usize, i32)>,
    /// Table index of each sequence; negative if it has none.
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
    /// Collects the sequences of the next ubatch.
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

    /// Iterates over the sequence of each table, with the lowest position of its tokens.
    pub fn iter(&self) -> impl Iterator<Item = (usize, i32)> + '_ {
        self.seqs.iter().copied()
    }

    /// Returns the table index of a token.
    pub fn table_of(&self, token: &BatchToken) -> i32 {
        token.seqs.first().map_or(-1, |seq| self.table[seq])
    }
}

/// Usage of pages by sequences.
#[derive(Clone, Debug, Default)]
pub(super) struct Pages {
    n_pages: usize,
    /// Cells in use in each page, as bits.
    used: Vec<u64>,
    /// Sequences that occupy cells in each page.
    users: Vec<SeqSet>,
    /// Cells of each sequence in each page, as bits, `[n_seqs, n_pages]`.
    masks: Vec<u64>,
    /// Page of the most recently assigned cell of each sequence.
    current: Vec<u32>,
}

impl Pages {
    /// Returns the bytes needed for a pool of `n_cells` cells and `n_seqs` sequences.
    pub fn n_bytes(n_cells: usize, n_seqs: usize) -> usize {
        let per_page = size_of::<u64>() + size_of::<SeqSet>() + n_seqs.saturating_mul(size_of::<u64>());
        n_cells.div_ceil(PAGE).saturating_mul(per_page)
    }

    /// Allocates the tables; returns false if out of memory.
    pub fn allocate(&mut self, n_cells: usize, n_seqs: usize) -> bool {
        self.n_pages = n_cells.div_ceil(PAGE);
        let n_masks = self.n_pages.saturating_mul(n_seqs);
        filled(&mut self.used, self.n_pages, 0)
            && filled(&mut self.users, self.n_pages, SeqSet::default())
            && filled(&mut self.masks, n_masks, 0)
            && filled(&mut self.current, n_seqs, 0)
    }

    /// Updates the sequence set of a cell from `old` to `new`.
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

    /// Iterates over the pages of a sequence: the first cell of the page, and the sequence's cells as bits.
    pub fn of(&self, seq: usize) -> impl Iterator<Item = (usize, u64)> + '_ {
        let masks = &self.masks[seq * self.n_pages..(seq + 1) * self.n_pages];
        let present = masks.iter().enumerate().filter(|(_, mask)| **mask != 0);
        present.map(|(page, &mask)| (page * PAGE, mask))
    }

    /// Returns the cells in use in a page, as bits.
    pub fn used(&self, page: usize) -> u64 {
        self.used[page]
    }

    /// Returns the page of the most recently assigned cell of the first sequence, if the page is exclusive to
    /// `seqs`.
    pub fn current(&self, seqs: SeqSet) -> Option<usize> {
        let page = *self.current.get(seqs.first()?)? as usize;
        if self.users[page] == seqs { Some(page) } else { None }
    }

    /// Sets the page in which the sequences allocate their next cells.
    pub fn set_current(&mut self, seqs: SeqSet, page: usize) {
        seqs.iter().for_each(|s| self.current[s] = page as u32);
    }

    /// Iterates over the pages that are exclusive to exactly these sequences.
    pub fn exclusive(&self, seqs: SeqSet) -> impl Iterator<Item = usize> + '_ {
        let pages = seqs.first().into_iter().flat_map(|seq| self.of(seq));
        pages
            .map(|(first, _)| first / PAGE)
            .filter(move |&page| self.users[page] == seqs)
    }

    /// Returns the first empty page at or after `page`.
    pub fn empty_from(&self, page: usize) -> Option<usize> {
        (page..self.n_pages).find(|&page| self.used[page] == 0)
    }
}

/// Extends a vector to `n` elements; returns false if out of memory.
pub(super) fn filled<T: Clone>(list: &mut Vec<T>, n: usize, value: T) -> bool {
    let had = list.try_reserve_exact(n.saturating_sub(list.len())).is_ok();
    if had {
        list.resize(n, value);
    }
    had
}
