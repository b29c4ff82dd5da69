//! The same for the many queries of a prompt, each of which is a lane of registers. All is computed in f32; a query has the same bits whatever others there are.

use super::{CacheRows, KEYS, split};
use crate::dispatch::{Kernels, kernels};
use crate::generic::prompt_attention::{
    CachedRows, MOST_QUERIES, MOST_REGISTERS, Matrix, PanelPage, ROWS, cells_of, row_stride,
};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};

/// Floats of a cache line, and lanes of the widest register.
const LINE: usize = CACHE_LINE / size_of::<f32>();

/// Some queries and what they have gathered so far, in memory that is handed in.
#[derive(Debug)]
pub struct Prompt<'a> {
    kernels: Kernel,
    /// Elements of a query and of a value.
    d: [usize; 2],
    /// Most queries, and those that there are.
    most: usize,
    n: usize,
    /// For each panel `[dk][panel]`.
    queries: &'a mut [f32],
    /// Keys and values of a page as floats.
    rows: [&'a mut [f32]; 2],
    /// Scores of a panel.
    scores: &'a mut [f32],
    max: &'a mut [f32],
    sum: &'a mut [f32],
    /// For each panel `[dv][panel]`.
    sums: &'a mut [f32],
}

/// Kernels for the CPU.
#[derive(Clone, Copy)]
struct Kernel(&'static Kernels);

impl std::fmt::Debug for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.isa.fmt(f)
    }
}

/// A page of keys and values, and what is seen of it.
#[derive(Clone, Copy, Debug)]
pub struct PromptPage<'a> {
    /// The keys.
    pub keys: CacheRows<'a>,
    /// As many values.
    pub values: CacheRows<'a>,
    /// The cells that each token sees, by bits. Each token has as many queries.
    pub seen: &'a [u64],
    /// Bound of the scores, 0 for none.
    pub softcap: f32,
}

/// Neighbouring queries that are computed together.
#[derive(Clone, Copy)]
struct Panel {
    /// The first one.
    first: usize,
    /// Registers that they fill.
    registers: usize,
    /// Lanes of these.
    width: usize,
    /// Queries: the last panel has fewer of them than lanes.
    n: usize,
}

/// Floats of memory for each field of [`Prompt`].
fn sizes(n: usize, [dk, dv]: [usize; 2]) -> [usize; 7] {
    let n = n.next_multiple_of(LINE);
    [
        n * dk,
        KEYS * row_stride(dk),
        KEYS * row_stride(dv),
        KEYS * MOST_QUERIES,
        n,
        n,
        n * dv.next_multiple_of(ROWS),
    ]
}

impl<'a> Prompt<'a> {
    /// Floats of memory for `n` queries of `dk` elements and values of `dv`.
    pub fn floats(n: usize, dk: usize, dv: usize) -> usize {
        sizes(n, [dk, dv]).iter().sum::<usize>() + LINE
    }

    /// Room for up to `n` queries of `dk` elements and values of `dv`.
    ///
    /// # Panics
    /// If the memory is less than [`Prompt::floats`].
    pub fn new(memory: &'a mut [f32], n: usize, dk: usize, dv: usize) -> Prompt<'a> {
        // SAFETY: these kernels were chosen for this CPU.
        unsafe { Prompt::with(kernels(), memory, n, dk, dv) }
    }

    /// [`Prompt::new`] with given kernels.
    ///
    /// # Safety
    /// The CPU has the kernels' instructions.
    pub(crate) unsafe fn with(
        kernels: &'static Kernels,
        memory: &'a mut [f32],
        n: usize,
        dk: usize,
        dv: usize,
    ) -> Prompt<'a> {
        // Whole cache lines each.
        let start = memory.as_ptr().align_offset(CACHE_LINE).min(LINE);
        let mut rest = &mut memory[start..];
        let [queries, keys, values, scores, max, sum, sums] = sizes(n, [dk, dv]).map(|floats| {
            let (first, more) = std::mem::take(&mut rest).split_at_mut(floats);
            rest = more;
            first
        });
        Prompt {
            kernels: Kernel(kernels),
            d: [dk, dv],
            most: n,
            n: 0,
            queries,
            rows: [keys, values],
            scores,
            max,
            sum,
            sums,
        }
    }

    /// Takes other queries, one after another.
    ///
    /// # Panics
    /// If these are too many, or not whole queries.
    pub fn set_queries(&mut self, queries: &[f32]) {
        let [dk, _] = self.d;
        self.n = queries.len() / dk;
        assert!(
            queries.len() == self.n * dk && self.n <= self.most,
            "{} floats for up to {} queries of {dk}",
            queries.len(),
            self.most
        );
        for panel in self.panels() {
            let to = &mut self.queries[panel.first * dk..][..panel.width * dk];
            if panel.n < panel.width {
                to.fill(0.0);
            }
            let matrix = Matrix {
                from: queries[panel.first * dk..][..panel.n * dk].as_ptr(),
                rows: panel.n,
                columns: dk,
                stride: dk,
                to: to.as_mut_ptr(),
                to_stride: panel.width,
            };
            // SAFETY: the CPU has the instructions; both slices are as large as the matrices, of which one has more columns than are written.
            unsafe { (self.kernels.0.attention.prompt.transpose)(&matrix) }
        }
        self.clear();
    }

    /// Forgets what the queries have gathered.
    pub fn clear(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.sums.fill(0.0);
    }

    /// Attends the queries to a page. Keys and values that nobody sees are not read. False, and nothing is done, if a value that some see is not finite: what
    /// is not seen counts zero times, which would not be zero.
    ///
    /// # Panics
    /// If a type cannot be dequantized, a slice is too short, rows have another length, cells are seen that there are not, or the queries are not of whole tokens.
    pub fn attend(&mut self, page: &PromptPage<'_>) -> bool {
        let any = page.seen.iter().fold(0, |any, seen| any | seen);
        if any == 0 {
            return true;
        }
        self.put_rows(0, &page.keys, any);
        if !self.put_rows(1, &page.values, any) {
            return false;
        }
        let group = super::group(self.n, page.seen.len());
        for panel in self.panels() {
            self.attend_with(panel, page, group);
        }
        true
    }

    /// Reads the keys, 0, or the values, 1, that are wanted. False if values are not finite.
    fn put_rows(&mut self, which: usize, rows: &CacheRows<'_>, wanted: u64) -> bool {
        let kernels = self.kernels.0;
        rows.check(kernels, 0, usize::MAX);
        assert!(
            rows.d == self.d[which],
            "{} elements instead of {}",
            rows.d,
            self.d[which]
        );
        let last = wanted.ilog2() as usize;
        assert!(last < rows.n, "cell {last} of {} is seen", rows.n);
        let args = CachedRows {
            rows: rows.bytes.as_ptr(),
            stride: rows.stride,
            d: rows.d,
            dequantize: kernels.of_type(rows.ty).dequantize,
            wanted,
            out: self.rows[which].as_mut_ptr(),
            is_checked: which == 1,
        };
        fetch_next(rows);
        // SAFETY: the CPU has the instructions; the rows that are wanted lie in the slice as just asserted, and there is room for all of a page.
        unsafe { (kernels.attention.prompt.convert)(&args) }
    }

    /// Attends a panel to the page that was read; each token has `group` queries.
    fn attend_with(&mut self, panel: Panel, page: &PromptPage<'_>, group: usize) {
        let (first, end) = (panel.first, panel.first + panel.n);
        let tokens = &page.seen[first / group..end.div_ceil(group)];
        let any = tokens.iter().fold(0, |any, seen| any | seen);
        if any == 0 {
            return;
        }
        let cells = cells_of(any);
        let all = u64::MAX >> (KEYS - cells.len()) << cells.start;
        let mut halves = [[0u32; MOST_QUERIES]; 2];
        let is_partial = tokens.iter().any(|seen| *seen != all);
        if is_partial {
            for (lane, query) in (first..end).enumerate() {
                let seen = page.seen[query / group];
                halves[0][lane] = seen as u32;
                halves[1][lane] = (seen >> 32) as u32;
            }
        }
        let [dk, dv] = self.d;
        let args = PanelPage {
            queries: self.queries[first * dk..][..panel.width * dk].as_ptr(),
            dk,
            keys: self.rows[0].as_ptr(),
            values: self.rows[1].as_ptr(),
            dv,
            first: cells.start,
            end: cells.end,
            seen: if is_partial {
                halves.as_ptr().cast()
            } else {
                std::ptr::null()
            },
            softcap: page.softcap,
            scores: self.scores[..KEYS * panel.width].as_mut_ptr(),
            max: self.max[first..][..panel.width].as_mut_ptr(),
            sum: self.sum[first..][..panel.width].as_mut_ptr(),
            sums: self.sums[first * dv.next_multiple_of(ROWS)..][..panel.width * dv.next_multiple_of(ROWS)]
                .as_mut_ptr(),
        };
        let attend = self.kernels.0.attention.prompt.attend[panel.registers - 1];
        // SAFETY: the CPU has the instructions; all slices are of the panel, and cells lie below `KEYS`.
        unsafe { attend(&args) }
    }

    /// What the queries have gathered: for each its largest score, the sum of e^(score - largest), and the values so weighted, `dv` floats.
    ///
    /// # Panics
    /// If the slices are not of the queries.
    pub fn put_results(&self, max: &mut [f32], sum: &mut [f32], values: &mut [f32]) {
        let (n, [_, dv]) = (self.n, self.d);
        assert!(values.len() == n * dv, "{} values for {n} queries", values.len());
        max.copy_from_slice(&self.max[..n]);
        sum.copy_from_slice(&self.sum[..n]);
        for panel in self.panels() {
            let columns = dv.next_multiple_of(ROWS);
            let matrix = Matrix {
                from: self.sums[panel.first * columns..][..panel.width * columns].as_ptr(),
                rows: dv,
                columns: panel.n,
                stride: panel.width,
                to: values[panel.first * dv..][..panel.n * dv].as_mut_ptr(),
                to_stride: dv,
            };
            // SAFETY: the CPU has the instructions; both slices are as large as the matrices.
            unsafe { (self.kernels.0.attention.prompt.transpose)(&matrix) }
        }
    }

    /// The queries in panels as equal as possible: a narrow one is slow.
    fn panels(&self) -> impl Iterator<Item = Panel> + use<> {
        let (n, prompt) = (self.n, self.kernels.0.attention.prompt);
        let (lanes, most) = (prompt.lanes, prompt.attend.len());
        assert!(
            most <= MOST_REGISTERS && lanes <= LINE,
            "panels of {most} registers of {lanes} lanes"
        );
        split(0..n.div_ceil(lanes), most).map(move |(first, registers)| Panel {
            first: first * lanes,
            registers,
            width: registers * lanes,
            n: (registers * lanes).min(n - first * lanes),
        })
    }
}

/// Fetches the rows that are read next.
fn fetch_next(rows: &CacheRows<'_>) {
    let row_bytes = rows.d / rows.ty.block_size() * rows.ty.block_bytes();
    for row in rows.next.chunks(rows.stride.max(1)).take(rows.n) {
        row[..row_bytes.min(row.len())]
            .chunks(CACHE_LINE)
            .for_each(|line| prefetch(line.as_ptr(), CacheLevel::Second));
    }
}
