//! Products of weights with many rows of activations, both as bfloat16, by a unit that multiplies tiles.
//!
//! Weights of any type and layout become the integers and scales of a [`PanelChunk`] first, and those bfloat16, with scales and minimums multiplied in: sums
//! stay in tiles over many elements.
//!
//! The order in which an element of the result is added up only depends on the length of a row.

use super::integers::{CHUNK, RUN, RUNS, spread};
use super::panel_products::{Kernel, PanelProduct, Wide};
use super::panels::{GROUPS, Integers, LANES, PANEL_ROWS, PanelChunk, WideValues, fill};
use crate::simd::tiles::{COLUMNS, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{IntSimd, Simd, TileUnit};

/// Elements of a row that are multiplied at a time. Weights of [`ROWS`] rows then take 32 KiB, which the first-level cache holds while all columns are multiplied
/// with them.
const BLOCK: usize = 512;

/// Blocks of [`ROWS`] rows that are multiplied with the same elements of the columns, which stay in the second-level cache.
const PAIRS: usize = 2;

/// Bytes to whose multiples operands are aligned.
const ALIGN: usize = 64;

/// Bytes from one of the last columns to the next, where those are copied.
const REST_STRIDE: usize = spread(BLOCK * BF16);

/// Bytes of a bfloat16.
const BF16: usize = 2;

const _: () = assert!(STEP == RUN && PANEL_ROWS == TILE_ROWS && BLOCK.is_multiple_of(CHUNK));

/// Bytes of a row of `k` activations, as long as whole tiles.
pub(crate) const fn bf16_row_bytes(k: usize) -> usize {
    spread(k.next_multiple_of(STEP) * BF16)
}

/// Writes `k` activations as a row. Of 4 neighbours the second and third change places, as [`WideValues`] has the weights.
///
/// # Safety
/// The CPU has the unit, `x` is valid for `k` floats and `out` for [`bf16_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_bf16<U: TileUnit>(x: *const f32, k: usize, out: *mut u8) {
    for at in (0..k).step_by(STEP) {
        let (mut floats, mut fours) = ([0.0f32; STEP], [0u64; STEP / 4]);
        // SAFETY: the caller's promise; all reads lie below `k`, what is written within the row.
        unsafe {
            x.add(at).copy_to_nonoverlapping(floats.as_mut_ptr(), STEP.min(k - at));
            for i in (0..STEP).step_by(U::Float::LANES) {
                let to = fours.as_mut_ptr().cast::<u8>().add(i * BF16);
                U::store_bf16(U::Float::load(floats.as_ptr().add(i)), to);
            }
            let to = out.add(at * BF16).cast::<[u64; STEP / 4]>();
            to.write_unaligned(fours.map(exchange_middle));
        }
    }
}

/// The second and the third of 4 integers of 16 bits exchanged.
#[inline(always)]
fn exchange_middle(four: u64) -> u64 {
    let (second, third) = (four & 0xffff_0000, four & 0xffff_0000_0000);
    four & 0xffff_0000_0000_ffff | second << 16 | third >> 16
}

/// Floats of scratch memory for rows of `k` elements and `n` columns.
pub(crate) const fn tile_scratch(k: usize, n: usize) -> usize {
    let bytes = Scratch::WEIGHTS + Scratch::CHUNK + Scratch::REST + n_sums(k, n) * size_of::<TileSums>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Sums that are kept for `n` columns: of all if rows have several blocks of elements, of which each adds to them.
const fn n_sums(k: usize, n: usize) -> usize {
    if k <= BLOCK { 1 } else { PAIRS * n.div_ceil(COLUMNS) }
}

/// Scratch memory.
#[derive(Clone, Copy)]
struct Scratch {
    /// [`ROWS`] rows of a block.
    weights: *mut u8,
    chunk: *mut PanelChunk<WideValues>,
    /// The last columns of a block, if they are fewer than [`COLUMNS`].
    rest: *mut u8,
    sums: *mut TileSums,
}

impl Scratch {
    const WEIGHTS: usize = ROWS * BLOCK * BF16;
    const CHUNK: usize = size_of::<PanelChunk<WideValues>>();
    const REST: usize = COLUMNS * REST_STRIDE;

    /// # Safety
    /// `p` is valid for [`tile_scratch`] floats.
    unsafe fn new(p: *mut f32) -> Scratch {
        let p = p.cast::<u8>();
        // SAFETY: the caller's promise.
        unsafe {
            let weights = p.add(p.align_offset(ALIGN));
            let chunk = weights.add(Self::WEIGHTS);
            let rest = chunk.add(Self::CHUNK);
            let sums = rest.add(Self::REST).cast();
            Scratch {
                weights,
                chunk: chunk.cast(),
                rest,
                sums,
            }
        }
    }
}

/// Multiplies. Blocks of some rows are packed, then multiplied with all columns. Sums of rows that are longer wait in scratch memory.
///
/// # Safety
/// The CPU has the unit and `V`'s instructions, no other unit is in use in this thread, and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, U: TileUnit>(p: &PanelProduct) {
    let k = p.w.k;
    let is_one = k <= BLOCK;
    // SAFETY: the caller's promise; rows, columns and elements lie within the operands.
    unsafe {
        let mut unit = U::new();
        let scratch = Scratch::new(p.scratch);
        for i in (0..p.w.m).step_by(PAIRS * ROWS) {
            for first in (0..k).step_by(BLOCK) {
                let part = Part {
                    first,
                    end: k.min(first + BLOCK),
                };
                copy_rest(p, &part, scratch.rest);
                for (pair, i) in (i..p.w.m).step_by(ROWS).take(PAIRS).enumerate() {
                    pack::<V, U>(p, &part, i, &scratch);
                    let all_columns = (0..p.n).step_by(COLUMNS).enumerate();
                    for (block, j) in all_columns {
                        let n_blocks = p.n.div_ceil(COLUMNS);
                        let sums = scratch.sums.add(if is_one { 0 } else { pair * n_blocks + block });
                        add::<U>(&mut unit, p, &part, j, &scratch, sums);
                        if part.end == k {
                            put(p, i, j, &*sums);
                        }
                    }
                }
            }
        }
    }
}

/// Elements `first..end` of the rows.
struct Part {
    first: usize,
    end: usize,
}

/// Copies the columns that are fewer than [`COLUMNS`], as the unit reads that many. What it reads beyond are numbers of no account, whose sums are
/// dropped.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn copy_rest(p: &PanelProduct, part: &Part, rest: *mut u8) {
    let bytes = (part.end - part.first) * BF16;
    for (column, j) in (p.n / COLUMNS * COLUMNS..p.n).enumerate() {
        // SAFETY: the caller's promise; the columns and the copies of a block's elements are there.
        unsafe {
            let from = p.x.add(j * p.x_stride + part.first * BF16);
            from.copy_to_nonoverlapping(rest.add(column * REST_STRIDE), bytes);
        }
    }
}

/// Adds the product of packed weights and the columns from `j` on.
///
/// # Safety
/// As for [`multiply`]; the weights of the part are packed.
#[inline(always)]
unsafe fn add<U: TileUnit>(
    unit: &mut U,
    p: &PanelProduct,
    part: &Part,
    j: usize,
    scratch: &Scratch,
    sums: *mut TileSums,
) {
    // SAFETY: the caller's promise; there are as many columns, or as many copies.
    unsafe {
        let (x, x_stride) = if j + COLUMNS <= p.n {
            (p.x.add(j * p.x_stride + part.first * BF16), p.x_stride)
        } else {
            (scratch.rest.cast_const(), REST_STRIDE)
        };
        unit.add(&TileBlock {
            x,
            x_stride,
            w: scratch.weights,
            steps: (part.end - part.first) / STEP,
            sums,
            is_first: part.first == 0,
        });
    }
}

/// Packs the part of [`ROWS`] rows from row `i` on. Rows beyond the last are copies of it.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn pack<V: IntSimd, U: TileUnit>(p: &PanelProduct, part: &Part, i: usize, scratch: &Scratch) {
    for at in (part.first..part.end).step_by(CHUNK) {
        for half in 0..ROWS / PANEL_ROWS {
            // SAFETY: the caller's promise; the chunk and its tiles lie within the scratch memory.
            unsafe {
                fill::<V, WideValues>(&p.w, i + half * PANEL_ROWS, at / CHUNK, &mut *scratch.chunk);
                let step = (at - part.first) / STEP;
                let to = scratch.weights.add((2 * step + half) * TILE_BYTES);
                let runs = RUNS.min((part.end - at) / RUN);
                pack_chunk::<U>(&*scratch.chunk, &p.w.integers, runs, to);
            }
        }
    }
}

/// Packs the first `runs` runs of a panel's chunk: a tile for each, with room for that of another panel between them.
///
/// # Safety
/// The CPU has the unit; `to` is valid for the tiles.
#[inline(always)]
unsafe fn pack_chunk<U: TileUnit>(from: &PanelChunk<WideValues>, integers: &Integers, runs: usize, to: *mut u8) {
    const FOURS: usize = RUN / 4;
    let has_mins = Wide::adds_mins(integers);
    for half in 0..2 * runs {
        let scales = twice(&from.scales[half]);
        let mins = if has_mins {
            twice(&from.mins[half])
        } else {
            [0.0; 2 * PANEL_ROWS]
        };
        for four in half * FOURS / 2..(half + 1) * FOURS / 2 {
            let values = &from.values.0[four];
            for odd in 0..2 {
                for at in (0..2 * PANEL_ROWS).step_by(U::Float::LANES) {
                    let words = &values[at / (2 * LANES)][odd][at % (2 * LANES) * BF16..];
                    let row = four / FOURS * 2 * TILE_BYTES + (four % FOURS * 2 + odd) * TILE_WIDTH;
                    // SAFETY: the caller's promise; registers, scales and minimums are those of the same rows.
                    unsafe {
                        let q = U::Float::from_int(U::Float::load_i16(words.as_ptr()));
                        let scale = U::Float::load(scales.as_ptr().add(at));
                        let w = q.mul_add(scale, U::Float::load(mins.as_ptr().add(at)));
                        U::store_bf16(w, to.add(row + at * BF16));
                    }
                }
            }
        }
    }
}

/// Each row's number twice, for two neighbouring weights.
#[inline(always)]
fn twice(of_rows: &[[f32; LANES]; GROUPS]) -> [f32; 2 * PANEL_ROWS] {
    let mut pairs = [0.0; 2 * PANEL_ROWS];
    for (pair, x) in pairs.chunks_exact_mut(2).zip(of_rows.as_flattened()) {
        pair.fill(*x);
    }
    pairs
}

/// Writes the sums of rows from `i` on with columns from `j` on as results.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn put(p: &PanelProduct, i: usize, j: usize, TileSums(sums): &TileSums) {
    for (column, j) in (j..p.n).take(COLUMNS).enumerate() {
        for (half, i) in (i..p.w.m).step_by(TILE_ROWS).take(ROWS / TILE_ROWS).enumerate() {
            let of_column = &sums[column / TILE_ROWS][half][column % TILE_ROWS];
            // SAFETY: the caller's promise; rows and columns lie within the result.
            unsafe {
                let out = p.out.add(j * p.out_stride + i);
                of_column.as_ptr().copy_to_nonoverlapping(out, TILE_ROWS.min(p.w.m - i));
            }
        }
    }
}
