//! GEMM of weights and activations in bf16 tiles, for AMX or bf16 dot products.
//!
//! A tile is a register of 16 rows of 64 bytes. One instruction multiplies 16 x 32 weights by 32 x 16 activations. It
//! takes 16 cycles and adds to a tile of 16 x 16 f32 sums. The unit works in the background, so the core has time to
//! convert the next weights to bf16 ([`tile_packing`](super::tile_packing)). Integer weights are converted with scales
//! and minimums applied, hence sums stay in f32 tiles over hundreds of elements:
//!
//! ```text
//!                   16 columns   16 columns
//!                  +-----------+-----------+        A step multiplies 32 elements (one tile width):
//! rows  0..16      | sum tile  | sum tile  |        2 weight tiles x 2 activation tiles
//! rows 16..32      | sum tile  | sum tile  |        update 4 sum tiles.
//!                  +-----------+-----------+
//! ```
//!
//! # Loop
//!
//! ```text
//! pack block 0 (32 rows x 512 elements)             # 32 KiB, stay in L1 for all columns
//! for block in blocks (rows first, then elements):
//!     for 32 columns:
//!         load the sums of earlier blocks, or zero them
//!         for step in 0..16:
//!             sums += w tiles x activation tiles
//!             in the last 32 columns: pack step `step` of the next block     # overlaps with the unit
//!         store the sums, or the results after the last elements
//! ```
//!
//! # Limits
//!
//! - The unit always multiplies 32 rows by 32 columns. Fewer take as long, so `matmul` selects this module from
//!   [`FAST_COLUMNS`](crate::FAST_COLUMNS) columns on.
//! - Rows beyond the last are copies of the last row. The last columns are copied to memory for 32 columns,
//!   and columns beyond them hold arbitrary numbers. The sums of both are dropped.
//! - Weights and activations are rounded to bf16. F32 weights would lose too much and are never packed.
//! - Only one matmul per thread may use the unit at a time, because it has one set of tiles.
//! - The order of additions for a result depends only on the length of a row.

use std::ops::Range;

use super::integers::spread;
use super::pack::{I8Values, PanelChunk};
use super::panel_products::PanelProduct;
use super::tile_packing::{IntegerRows, PANELS, PackGroups, Packing, PanelScales, TileRows, WeightBlock};
use crate::GgmlType;
use crate::layout::runs::CHUNK;
use crate::simd::tiles::{BF16, COLUMNS, ROWS, STEP, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{Simd, TileUnit};

/// Elements of a row multiplied at a time, except at the end of a row. The weights of [`ROWS`] rows then take
/// 32 KiB and stay in the L1 cache for all columns. Columns are loaded with a hint that leaves this cache to
/// the weights ([`TileBlock::streams`]).
const BLOCK: usize = 512;

/// Maximum elements of the last block. A shorter extra block would not pay for reading and writing the sums.
const LAST_BLOCK: usize = BLOCK + BLOCK / 4;

/// Rows of weights that the unit multiplies at a time. Fewer rows take just as long, so work should be split
/// in multiples of this number.
pub const MIN_TILE_ROWS: usize = ROWS;

/// Rows of weights multiplied by the same elements of the columns. These elements and the sums stay in the L2
/// cache; columns that exceed it are read again once per this many rows.
pub const MAX_TILE_ROWS: usize = 256;

/// Maximum columns multiplied at a time, for the same reason.
const MAX_COLUMNS: usize = 512;

/// Alignment of operands in bytes.
const ALIGN: usize = 64;

/// Distance in bytes between copies of the last columns.
const LAST_COLUMN_STRIDE: usize = spread(LAST_BLOCK * BF16);

const _: () = assert!(BLOCK.is_multiple_of(CHUNK));

/// Returns the size in bytes of a row of `k` activations, rounded up to whole tiles.
pub(crate) const fn bf16_row_bytes(k: usize) -> usize {
    spread(k.next_multiple_of(STEP) * BF16)
}

/// Rounds `k` activations to a row of bf16.
///
/// # Safety
/// - The CPU supports `U`.
/// - `x` is valid for reads of `k` floats, and `out` for writes of [`bf16_row_bytes`] bytes.
#[inline(always)]
pub(crate) unsafe fn quantize_bf16<U: TileUnit>(x: *const f32, k: usize, out: *mut u8) {
    let whole = k / STEP * STEP;
    let mut rest = [0.0f32; STEP];
    // SAFETY: reads end at `k`; writes end at `k` rounded up to a multiple of `STEP`, which is within the
    // row.
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

/// Returns true if weights of a type without integers may be rounded to bf16: 16-bit floats, which have
/// little more precision.
pub(crate) const fn rounds_floats(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F16 | GgmlType::BF16)
}

/// Returns the scratch memory in floats for rows of `k` elements and `n` columns.
pub(crate) const fn tile_scratch(k: usize, n: usize) -> usize {
    let bytes = Scratch::WEIGHTS
        + Scratch::SCALES
        + Scratch::CHUNKS
        + Scratch::LAST_COLUMNS
        + n_sums(k, n) * size_of::<TileSums>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Returns the number of stored sums for `n` columns. If rows have several blocks, the sums of all columns
/// are stored between them.
const fn n_sums(k: usize, n: usize) -> usize {
    let n = if n < MAX_COLUMNS { n } else { MAX_COLUMNS };
    if n_blocks(k) == 1 {
        1
    } else {
        MAX_TILE_ROWS / ROWS * n.div_ceil(COLUMNS)
    }
}

/// Returns the number of blocks in a row of `k` elements.
const fn n_blocks(k: usize) -> usize {
    let n = k.saturating_sub(LAST_BLOCK - BLOCK).div_ceil(BLOCK);
    if n > 1 { n } else { 1 }
}

/// Pointers into the scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// Packed weights of a block of [`ROWS`] rows.
    weights: *mut u8,
    scales: *mut [PanelScales; PANELS],
    chunks: *mut [PanelChunk<I8Values>; PANELS],
    /// Copies of the last columns of a block if there are fewer than [`COLUMNS`].
    last_columns: *mut u8,
    sums: *mut TileSums,
}

impl Scratch {
    const WEIGHTS: usize = ROWS * LAST_BLOCK * BF16;
    const SCALES: usize = size_of::<[PanelScales; PANELS]>();
    const CHUNKS: usize = size_of::<[PanelChunk<I8Values>; PANELS]>();
    const LAST_COLUMNS: usize = COLUMNS * LAST_COLUMN_STRIDE;

    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats.
    unsafe fn new(p: *mut f32) -> Scratch {
        let p = p.cast::<u8>();
        // SAFETY: after alignment, all parts fit in `tile_scratch` floats (function contract).
        unsafe {
            let weights = p.add(p.align_offset(ALIGN));
            let scales = weights.add(Self::WEIGHTS);
            let chunks = scales.add(Self::SCALES);
            let last_columns = chunks.add(Self::CHUNKS);
            let sums = last_columns.add(Self::LAST_COLUMNS).cast();
            Scratch {
                weights,
                scales: scales.cast(),
                chunks: chunks.cast(),
                last_columns,
                sums,
            }
        }
    }
}

/// A matmul of weights by bf16 activations.
///
/// Fields have the meaning of [`MatMul`](crate::MatMul). Invariants, checked in
/// [`matmul_with`](crate::matmul::matmul_with):
/// - `w` is valid for reads of all its rows.
/// - `x` is valid for reads of `n` rows written by [`quantize_bf16`], `x_stride` bytes apart.
/// - `out` is valid for writes of one float per row of `w` at each `j * out_stride`, `j < n`, and nothing
///   else accesses them.
pub(crate) struct TileProduct<R> {
    pub w: R,
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
    /// Scratch memory of [`tile_scratch`] floats.
    pub scratch: *mut f32,
}

/// Multiplies weights of an integer type. `groups` packs interleaved rows.
///
/// # Safety
/// - The CPU supports `U`, and no other tile unit is active in this thread.
/// - `p` satisfies the invariants of [`PanelProduct`] for bf16 activations and [`tile_scratch`].
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
    // SAFETY: `product` has the operands of `p` and hence satisfies the invariants of `TileProduct`.
    unsafe { multiply::<_, U>(&product) }
}

/// Multiplies block by block. A block of weights is packed while the previous one is multiplied by all
/// columns. Sums of rows with several blocks are stored in scratch memory.
///
/// # Safety
/// - The CPU supports `U` and the instructions that pack the rows, and no other tile unit is active in this
///   thread.
/// - `p` satisfies the invariants of [`TileProduct`].
#[inline(always)]
pub(crate) unsafe fn multiply<R: TileRows, U: TileUnit>(p: &TileProduct<R>) {
    // SAFETY: columns `j..j + n` are below `p.n` and rows below `p.w.m()`, so each part satisfies the
    // invariants of `TileProduct`.
    unsafe {
        let mut unit = U::new();
        let scratch = Scratch::new(p.scratch);
        let n_parts = p.n.div_ceil(MAX_COLUMNS);
        let columns_per_part = p.n.div_ceil(n_parts).next_multiple_of(COLUMNS);
        for j in (0..p.n).step_by(columns_per_part) {
            let p = TileProduct {
                x: p.x.add(j * p.x_stride),
                n: columns_per_part.min(p.n - j),
                out: p.out.add(j * p.out_stride),
                ..*p
            };
            for i in (0..p.w.m()).step_by(MAX_TILE_ROWS) {
                let rows = i..p.w.m().min(i + MAX_TILE_ROWS);
                multiply_rows::<R, U>(&mut unit, &p, rows, &scratch);
            }
        }
    }
}

/// Multiplies at most [`MAX_TILE_ROWS`] rows by at most [`MAX_COLUMNS`] columns.
///
/// # Safety
/// - The CPU supports `U` and the instructions that pack the rows.
/// - `p` satisfies the invariants of [`TileProduct`], and `rows` ends at most at `p.w.m()`.
#[inline(always)]
unsafe fn multiply_rows<R: TileRows, U: TileUnit>(
    unit: &mut U,
    p: &TileProduct<R>,
    rows: Range<usize>,
    scratch: &Scratch,
) {
    let blocks = Blocks::new(rows, p.w.k());
    // SAFETY: block 0 is packed before the loop, and each `multiply_block` packs the next block.
    unsafe {
        blocks.packing(p, 0, scratch).pack_until::<U>(usize::MAX);
        for i in 0..blocks.len() {
            if i % blocks.row_blocks == 0 {
                copy_last_columns(p, &blocks.get(i), scratch.last_columns);
            }
            multiply_block::<R, U>(unit, p, &blocks, i, scratch);
        }
    }
}

/// The blocks of some rows in the order of packing and multiplication: all rows of the first elements, then
/// of the next elements.
struct Blocks {
    rows: Range<usize>,
    k: usize,
    /// Number of blocks with the same elements.
    row_blocks: usize,
    /// Number of blocks with the same rows.
    element_blocks: usize,
}

impl Blocks {
    fn new(rows: Range<usize>, k: usize) -> Blocks {
        Blocks {
            k,
            row_blocks: rows.len().div_ceil(ROWS),
            element_blocks: n_blocks(k),
            rows,
        }
    }

    fn len(&self) -> usize {
        self.row_blocks * self.element_blocks
    }

    /// Returns block `i`. One past the last block is the first block of the rows that follow.
    fn get(&self, i: usize) -> WeightBlock {
        let (along, row) = (i / self.row_blocks, self.rows.start + i % self.row_blocks * ROWS);
        if along >= self.element_blocks {
            let end = self.k.min(BLOCK);
            return WeightBlock {
                row: self.rows.end,
                first: 0,
                end,
            };
        }
        let first = along * BLOCK;
        let end = if along + 1 == self.element_blocks {
            self.k
        } else {
            first + BLOCK
        };
        WeightBlock { row, first, end }
    }

    /// Returns the packing of block `i`, which is empty if the block does not exist.
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

/// Multiplies block `i`, which is packed, by all columns. During the last columns, each pair of weight tiles
/// is overwritten by the next block's right after its use.
///
/// # Safety
/// - The CPU supports `U` and the instructions that pack the rows.
/// - `p` satisfies the invariants of [`TileProduct`], `i` is a valid block, and `scratch` has its weights and
///   sums for all columns.
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
        // SAFETY: the last, incomplete columns are read from their copies in scratch memory, and `n_sums`
        // counts a slot for each `at` below. Results are written directly only for whole tiles of the output.
        unsafe {
            // Rows with a single block need no stored sums.
            let at = if blocks.element_blocks > 1 {
                i % blocks.row_blocks * n + column
            } else {
                0
            };
            let sums = scratch.sums.add(at);
            // Write complete results directly to the output.
            let is_whole = is_last && block.row + ROWS <= p.w.m() && j + COLUMNS <= p.n;
            let (to, to_stride) = if is_whole {
                (p.out.add(j * p.out_stride + block.row), p.out_stride * size_of::<f32>())
            } else {
                (sums.cast(), TileSums::STRIDE)
            };
            let (x, x_stride) = if j + COLUMNS <= p.n {
                (p.x.add(j * p.x_stride + block.first * BF16), p.x_stride)
            } else {
                (scratch.last_columns.cast_const(), LAST_COLUMN_STRIDE)
            };
            let block = TileBlock {
                x,
                x_stride,
                columns: COLUMNS.min(p.n - j),
                w: scratch.weights,
                streams: true,
                steps,
                sums: if block.first == 0 { std::ptr::null() } else { sums },
                to,
                to_stride,
            };
            let is_last_column = column + 1 == n;
            if is_last_column && U::IN_BACKGROUND {
                unit.begin(block.sums);
                for step in 0..steps {
                    unit.add_step(&block, step);
                    packing.pack_until::<U>(step + 1);
                }
                unit.end(to, to_stride);
            } else {
                unit.add(&block);
            }
            if is_last_column {
                packing.pack_until::<U>(usize::MAX);
            }
            if is_last && !is_whole {
                copy_results(p, row, j, &*sums);
            }
        }
    }
}

/// Multiplies operands in the L1 cache for `rounds` rounds and returns the number of multiply-adds. Operands
/// are nonzero, because zeros take less power and would be faster.
///
/// # Safety
/// The CPU supports `U`, and no other tile unit is active in this thread.
#[inline(always)]
pub(crate) unsafe fn multiply_in_cache<U: TileUnit>(rounds: usize) -> usize {
    #[repr(C, align(64))]
    struct Operands([[u16; COLUMNS * BLOCK]; 2]);
    let mut operands = Box::new(Operands([[0; COLUMNS * BLOCK]; 2]));
    let mut state = 1u32;
    for x in operands.0.as_flattened_mut() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // Test values have magnitude 1 to 2 and either sign.
        *x = 0x3f80 ^ (state >> 16) as u16 & 0x80ff;
    }
    let mut sums = TileSums::ZERO;
    // SAFETY: the operands have the size that the block describes, and `sums` has `TileSums` floats.
    unsafe {
        let mut unit = U::new();
        for _ in 0..rounds {
            unit.add(&TileBlock {
                columns: COLUMNS,
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

/// Copies the columns after the last multiple of [`COLUMNS`], because the unit always reads that many.
/// Columns beyond the copies hold arbitrary numbers; their sums are dropped.
///
/// # Safety
/// `p` satisfies the invariants of [`TileProduct`], and `rest` is valid for [`COLUMNS`] copies.
#[inline(always)]
unsafe fn copy_last_columns<R>(p: &TileProduct<R>, block: &WeightBlock, rest: *mut u8) {
    let bytes = block.steps() * TILE_WIDTH;
    for (column, j) in (p.n / COLUMNS * COLUMNS..p.n).enumerate() {
        // SAFETY: column `j < p.n` has the block's elements, rounded up to whole tiles, and the copy fits
        // `LAST_COLUMN_STRIDE`.
        unsafe {
            let from = p.x.add(j * p.x_stride + block.first * BF16);
            from.copy_to_nonoverlapping(rest.add(column * LAST_COLUMN_STRIDE), bytes);
        }
    }
}

/// Copies sums to the output, starting at row `i` and column `j`.
///
/// # Safety
/// `p` satisfies the invariants of [`TileProduct`], and `i < p.w.m()`.
#[inline(always)]
unsafe fn copy_results<R: TileRows>(p: &TileProduct<R>, i: usize, j: usize, TileSums(sums): &TileSums) {
    for (column_sums, j) in sums.iter().zip(j..p.n) {
        // SAFETY: rows are written up to `m` and columns up to `p.n`, which `out` covers (function contract).
        unsafe {
            let out = p.out.add(j * p.out_stride + i);
            column_sums.as_ptr().copy_to_nonoverlapping(out, ROWS.min(p.w.m() - i));
        }
    }
}
