//! Products of weights with many rows of activations, both as bfloat16, by a unit that multiplies tiles.
//!
//! Weights of integers become bfloat16 with scales and minimums multiplied in; weights of floats are rounded. So sums stay in tiles over many elements.
//!
//! The order in which an element of the result is added up only depends on the length of a row.

use std::ops::Range;

use super::integers::{CHUNK, spread};
use super::panel_products::PanelProduct;
use super::pack::{PanelChunk, SignedValues};
use super::tile_packing::{IntegerRows, PANELS, PackGroups, Packing, PanelScales, TileRows, WeightBlock};
use crate::GgmlType;
use crate::simd::tiles::{COLUMNS, ROWS, STEP, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{Simd, TileUnit};

/// Elements of a row that are multiplied at a time, but for the last ones. Weights of [`ROWS`] rows then take 32 KiB: they stay in the first-level cache while all columns
/// are multiplied with them, as columns are loaded in a way that leaves that cache to others ([`TileBlock::streams`]).
const BLOCK: usize = 512;

/// Most elements of the last block: fewer left over would be a block of their own that hardly pays for reading and writing the sums.
const LAST_BLOCK: usize = BLOCK + BLOCK / 4;

/// Rows of weights that the unit multiplies at a time: a product of fewer takes as long, so work is to be split in multiples of them.
pub const LEAST_TILE_ROWS: usize = ROWS;

/// Rows of weights that are multiplied with the same elements of the columns, which stay in the second-level cache meanwhile, together with the sums.
/// Columns that this cache cannot hold as a whole are read from beyond it once for so many rows.
pub const MOST_TILE_ROWS: usize = 256;

/// Most columns that are multiplied at a time, for the same reason.
const MAX_COLUMNS: usize = 512;

/// Bytes to whose multiples operands are aligned.
const ALIGN: usize = 64;

/// Bytes from one of the last columns to the next, where those are copied.
const REST_STRIDE: usize = spread(LAST_BLOCK * BF16);

/// Bytes of a bfloat16.
pub(super) const BF16: usize = 2;

const _: () = assert!(BLOCK.is_multiple_of(CHUNK));

/// Bytes of a row of `k` activations, as long as whole tiles.
pub(crate) const fn bf16_row_bytes(k: usize) -> usize {
    spread(k.next_multiple_of(STEP) * BF16)
}

/// Writes `k` activations as a row.
///
/// # Safety
/// The CPU has the unit, `x` is valid for `k` floats and `out` for [`bf16_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_bf16<U: TileUnit>(x: *const f32, k: usize, out: *mut u8) {
    let whole = k / STEP * STEP;
    let mut rest = [0.0f32; STEP];
    // SAFETY: the caller's promise; all reads lie below `k`, what is written within the row.
    unsafe {
        for i in (0..whole).step_by(U::Float::LANES) {
            U::store_bf16(U::Float::load(x.add(i)), out.add(i * BF16));
        }
        if whole < k {
            x.add(whole).copy_to_nonoverlapping(rest.as_mut_ptr(), k - whole);
            for i in (0..STEP).step_by(U::Float::LANES) {
                U::store_bf16(U::Float::load(rest.as_ptr().add(i)), out.add((whole + i) * BF16));
            }
        }
    }
}

/// Whether weights of a type without integers are rounded to bfloat16, too: those of 16 bits, which have not many more than it has.
pub(crate) const fn rounds_floats(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F16 | GgmlType::BF16)
}

/// Floats of scratch memory for rows of `k` elements and `n` columns.
pub(crate) const fn tile_scratch(k: usize, n: usize) -> usize {
    let bytes =
        Scratch::WEIGHTS + Scratch::SCALES + Scratch::CHUNKS + Scratch::REST + n_sums(k, n) * size_of::<TileSums>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Sums that are kept for `n` columns: of all if rows have several blocks of elements, of which each adds to them.
const fn n_sums(k: usize, n: usize) -> usize {
    let n = if n < MAX_COLUMNS { n } else { MAX_COLUMNS };
    if n_blocks(k) == 1 {
        1
    } else {
        MOST_TILE_ROWS / ROWS * n.div_ceil(COLUMNS)
    }
}

/// Blocks of a row of `k` elements.
const fn n_blocks(k: usize) -> usize {
    let n = k.saturating_sub(LAST_BLOCK - BLOCK).div_ceil(BLOCK);
    if n > 1 { n } else { 1 }
}

/// Scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// [`ROWS`] rows of a block.
    weights: *mut u8,
    scales: *mut [PanelScales; PANELS],
    chunks: *mut [PanelChunk<SignedValues>; PANELS],
    /// The last columns of a block, if they are fewer than [`COLUMNS`].
    rest: *mut u8,
    sums: *mut TileSums,
}

impl Scratch {
    const WEIGHTS: usize = ROWS * LAST_BLOCK * BF16;
    const SCALES: usize = size_of::<[PanelScales; PANELS]>();
    const CHUNKS: usize = size_of::<[PanelChunk<SignedValues>; PANELS]>();
    const REST: usize = COLUMNS * REST_STRIDE;

    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats.
    unsafe fn new(p: *mut f32) -> Scratch {
        let p = p.cast::<u8>();
        // SAFETY: the caller's promise.
        unsafe {
            let weights = p.add(p.align_offset(ALIGN));
            let scales = weights.add(Self::WEIGHTS);
            let chunks = scales.add(Self::SCALES);
            let rest = chunks.add(Self::CHUNKS);
            let sums = rest.add(Self::REST).cast();
            Scratch {
                weights,
                scales: scales.cast(),
                chunks: chunks.cast(),
                rest,
                sums,
            }
        }
    }
}

/// A product of some rows: see [`PanelProduct`].
pub(crate) struct TileProduct<R> {
    pub w: R,
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Multiplies weights of integers. `groups` packs those of interleaved rows.
///
/// # Safety
/// The CPU has the unit, no other unit is in use in this thread, and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn multiply_integers<U: TileUnit>(p: &PanelProduct, groups: Option<PackGroups>) {
    let product = TileProduct {
        w: IntegerRows { rows: &p.w, groups },
        x: p.x,
        x_stride: p.x_stride,
        n: p.n,
        out: p.out,
        out_stride: p.out_stride,
        scratch: p.scratch,
    };
    // SAFETY: the caller's promise.
    unsafe { multiply::<_, U>(&product) }
}

/// Multiplies. Blocks of some rows are packed, while those before them are multiplied with all columns. Sums of rows that are longer wait in scratch memory.
///
/// # Safety
/// The CPU has the unit and the instructions for the rows, no other unit is in use in this thread, and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn multiply<R: TileRows, U: TileUnit>(p: &TileProduct<R>) {
    // SAFETY: the caller's promise; rows, columns and elements lie within the operands.
    unsafe {
        let mut unit = U::new();
        let scratch = Scratch::new(p.scratch);
        let n_parts = p.n.div_ceil(MAX_COLUMNS);
        let columns_of_part = p.n.div_ceil(n_parts).next_multiple_of(COLUMNS);
        for j in (0..p.n).step_by(columns_of_part) {
            let p = TileProduct {
                x: p.x.add(j * p.x_stride),
                n: columns_of_part.min(p.n - j),
                out: p.out.add(j * p.out_stride),
                ..*p
            };
            for i in (0..p.w.m()).step_by(MOST_TILE_ROWS) {
                let rows = i..p.w.m().min(i + MOST_TILE_ROWS);
                multiply_rows::<R, U>(&mut unit, &p, rows, &scratch);
            }
        }
    }
}

/// [`multiply`] for at most [`MOST_TILE_ROWS`] rows and [`MAX_COLUMNS`] columns.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_rows<R: TileRows, U: TileUnit>(
    unit: &mut U,
    p: &TileProduct<R>,
    rows: Range<usize>,
    scratch: &Scratch,
) {
    let blocks = Blocks::new(rows, p.w.k());
    // SAFETY: the caller's promise; a block is packed before it is multiplied.
    unsafe {
        blocks.packing(p, 0, scratch).pack_until::<U>(usize::MAX);
        for i in 0..blocks.len() {
            if i % blocks.of_rows == 0 {
                copy_rest(p, &blocks.get(i), scratch.rest);
            }
            multiply_block::<R, U>(unit, p, &blocks, i, scratch);
        }
    }
}

/// The blocks of some rows, in the order in which they are packed and multiplied: all rows, then further elements of them.
struct Blocks {
    rows: Range<usize>,
    k: usize,
    /// Blocks of the same elements.
    of_rows: usize,
    /// Blocks of the same rows.
    of_elements: usize,
}

impl Blocks {
    fn new(rows: Range<usize>, k: usize) -> Blocks {
        Blocks {
            k,
            of_rows: rows.len().div_ceil(ROWS),
            of_elements: n_blocks(k),
            rows,
        }
    }

    fn len(&self) -> usize {
        self.of_rows * self.of_elements
    }

    /// Block `i`; beyond the last one the first one of the rows that follow.
    fn get(&self, i: usize) -> WeightBlock {
        let (along, row) = (i / self.of_rows, self.rows.start + i % self.of_rows * ROWS);
        if along >= self.of_elements {
            let end = self.k.min(BLOCK);
            return WeightBlock {
                row: self.rows.end,
                first: 0,
                end,
            };
        }
        let first = along * BLOCK;
        let end = if along + 1 == self.of_elements {
            self.k
        } else {
            first + BLOCK
        };
        WeightBlock { row, first, end }
    }

    /// The packing of block `i`: nothing if there is none.
    fn packing<'a, R>(&self, p: &'a TileProduct<R>, i: usize, scratch: &Scratch) -> Packing<'a, R> {
        Packing {
            rows: &p.w,
            block: self.get(i),
            next: self.get(i + 1),
            to: scratch.weights,
            scales: scratch.scales,
            chunks: scratch.chunks,
            step: if i < self.len() { 0 } else { usize::MAX },
        }
    }
}

/// Multiplies block `i` of the packed weights with all columns. Tiles that have been multiplied with the last of them make room for those of the next block,
/// which are packed while the unit goes on.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_block<R: TileRows, U: TileUnit>(
    unit: &mut U,
    p: &TileProduct<R>,
    blocks: &Blocks,
    i: usize,
    scratch: &Scratch,
) {
    let block = blocks.get(i);
    let mut packing = blocks.packing(p, i + 1, scratch);
    let (row, steps, is_last) = (block.row, block.steps(), block.end == p.w.k());
    let n = p.n.div_ceil(COLUMNS);
    for column in 0..n {
        let j = column * COLUMNS;
        // SAFETY: the caller's promise; sums are kept for as many rows and columns, and there are as many columns or as many copies.
        unsafe {
            // Those of rows with one block are not kept.
            let at = if blocks.of_elements > 1 {
                i % blocks.of_rows * n + column
            } else {
                0
            };
            let sums = scratch.sums.add(at);
            // Whole results go where they belong at once.
            let is_whole = is_last && block.row + ROWS <= p.w.m() && j + COLUMNS <= p.n;
            let (to, to_stride) = if is_whole {
                (p.out.add(j * p.out_stride + block.row), p.out_stride * size_of::<f32>())
            } else {
                (sums.cast(), TileSums::STRIDE)
            };
            let (x, x_stride) = if j + COLUMNS <= p.n {
                (p.x.add(j * p.x_stride + block.first * BF16), p.x_stride)
            } else {
                (scratch.rest.cast_const(), REST_STRIDE)
            };
            let block = TileBlock {
                x,
                x_stride,
                w: scratch.weights,
                streams: true,
                steps,
                sums: if block.first == 0 { std::ptr::null() } else { sums },
                to,
                to_stride,
            };
            if column + 1 < n {
                unit.add(&block);
            } else {
                unit.begin(block.sums);
                for step in 0..steps {
                    unit.add_step(&block, step);
                    packing.pack_until::<U>(step + 1);
                }
                unit.end(to, to_stride);
                packing.pack_until::<U>(usize::MAX);
            }
            if is_last && !is_whole {
                put(p, row, j, &*sums);
            }
        }
    }
}

/// Multiplies operands that the first-level cache holds, for some `rounds`: what the unit does at most. Returns the multiply-adds. Operands are not zeros, with which
/// it takes less power and is faster.
///
/// # Safety
/// The CPU has the unit and no other is in use in this thread.
#[inline(always)]
pub(crate) unsafe fn multiply_in_cache<U: TileUnit>(rounds: usize) -> usize {
    #[repr(C, align(64))]
    struct Operands([[u16; COLUMNS * BLOCK]; 2]);
    let mut operands = Box::new(Operands([[0; COLUMNS * BLOCK]; 2]));
    let mut state = 1u32;
    for x in operands.0.as_flattened_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Numbers of about 1 of either sign.
        *x = 0x3f80 ^ (state >> 16) as u16 & 0x80ff;
    }
    let mut sums = TileSums([[0.0; ROWS]; COLUMNS]);
    // SAFETY: the caller's promise; the operands are as large as the block says.
    unsafe {
        let mut unit = U::new();
        for _ in 0..rounds {
            unit.add(&TileBlock {
                x: operands.0[0].as_ptr().cast(),
                x_stride: BLOCK * BF16,
                w: operands.0[1].as_ptr().cast(),
                streams: false,
                steps: BLOCK / STEP,
                sums: std::ptr::null(),
                to: sums.0.as_flattened_mut().as_mut_ptr(),
                to_stride: TileSums::STRIDE,
            });
        }
    }
    std::hint::black_box(&sums);
    rounds * ROWS * COLUMNS * BLOCK
}

/// Copies the columns that are fewer than [`COLUMNS`], as the unit reads that many. What it reads beyond are numbers of no account, whose sums are
/// dropped.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn copy_rest<R>(p: &TileProduct<R>, block: &WeightBlock, rest: *mut u8) {
    let bytes = block.steps() * TILE_WIDTH;
    for (column, j) in (p.n / COLUMNS * COLUMNS..p.n).enumerate() {
        // SAFETY: the caller's promise; the columns and the copies of a block's elements are there.
        unsafe {
            let from = p.x.add(j * p.x_stride + block.first * BF16);
            from.copy_to_nonoverlapping(rest.add(column * REST_STRIDE), bytes);
        }
    }
}

/// Writes the sums of rows from `i` on with columns from `j` on as results.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn put<R: TileRows>(p: &TileProduct<R>, i: usize, j: usize, TileSums(sums): &TileSums) {
    for (of_column, j) in sums.iter().zip(j..p.n) {
        // SAFETY: the caller's promise; rows and columns lie within the result.
        unsafe {
            let out = p.out.add(j * p.out_stride + i);
            of_column.as_ptr().copy_to_nonoverlapping(out, ROWS.min(p.w.m() - i));
        }
    }
}
