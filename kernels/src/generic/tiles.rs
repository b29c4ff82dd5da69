//! Products of weights with many rows of activations, both as bfloat16, by a unit that multiplies tiles.
//!
//! Weights of any type and layout become the integers and scales of a [`PanelChunk`] first, and those bfloat16, with scales and minimums multiplied in: sums
//! stay in tiles over many elements. A number may also be two bfloat16 (`PARTS`), the second of which is what the first lacks. Products of parts are
//! then added up, but for that of both second parts, which is no more than what two parts still lack.
//!
//! The order in which an element of the result is added up only depends on the length of a row.

use super::integers::{CHUNK, RUN, RUNS, spread};
use super::panel_products::{Kernel, PanelProduct, Wide};
use super::panels::{GROUPS, Integers, LANES, PANEL_ROWS, PanelChunk, WideValues, fill};
use crate::simd::tiles::{COLUMNS, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, Term, TileBlock, TileSums};
use crate::simd::{IntSimd, Simd, TileUnit};

/// Elements of a row that are multiplied at a time, as one part; with two parts half as many. Weights of a block then take 32 KiB, which
/// the first-level cache holds while all columns are multiplied with them.
const BLOCK: usize = 512;

/// Blocks of [`ROWS`] rows that are multiplied with the same elements of the columns, which stay in the second-level cache.
const PAIRS: usize = 2;

/// Bytes to whose multiples operands are aligned.
const ALIGN: usize = 64;

/// Bytes from one of the last columns to the next, where those are copied.
const REST_STRIDE: usize = spread(BLOCK * BF16);

/// Bytes of a bfloat16.
const BF16: usize = 2;

/// The parts of activations and weights that are multiplied.
const TERMS: [(usize, usize); 3] = [(0, 0), (0, 1), (1, 0)];

const _: () = assert!(STEP == RUN && PANEL_ROWS == TILE_ROWS && BLOCK.is_multiple_of(2 * CHUNK));

/// Bytes of a row of `k` activations.
pub(crate) const fn bf16_row_bytes(k: usize, parts: usize) -> usize {
    spread(parts * part_bytes(k))
}

/// Bytes of a part of a row of `k` activations, each as long as whole tiles.
const fn part_bytes(k: usize) -> usize {
    k.next_multiple_of(STEP) * BF16
}

/// Writes `k` activations as a row: the parts, one after the other. Of 4 neighbours the second and third change places, as [`WideValues`] has the weights.
///
/// # Safety
/// The CPU has the unit, `x` is valid for `k` floats and `out` for [`bf16_row_bytes`].
#[inline(always)]
pub(crate) unsafe fn quantize_bf16<U: TileUnit, const PARTS: usize>(x: *const f32, k: usize, out: *mut u8) {
    for at in (0..k).step_by(STEP) {
        let mut floats = [0.0f32; STEP];
        // SAFETY: the caller's promise; all accesses lie below `k`, those of `out` within the parts.
        unsafe {
            x.add(at).copy_to_nonoverlapping(floats.as_mut_ptr(), STEP.min(k - at));
            for part in 0..PARTS {
                let fours = next_part::<U>(&mut floats);
                let to = out.add(part * part_bytes(k) + at * BF16).cast::<[u64; STEP / 4]>();
                to.write_unaligned(fours.map(exchange_middle));
            }
        }
    }
}

/// Floats as bfloat16, 4 in a word, which are taken from the floats.
///
/// # Safety
/// The CPU has the unit.
#[inline(always)]
unsafe fn next_part<U: TileUnit>(floats: &mut [f32; STEP]) -> [u64; STEP / 4] {
    let mut words = [0; STEP / 4];
    let to = words.as_mut_ptr().cast::<u8>();
    for at in (0..STEP).step_by(U::Float::LANES) {
        // SAFETY: the caller's promise; both arrays have as many elements.
        unsafe {
            let x = U::Float::load(floats.as_ptr().add(at));
            U::store_bf16(x, to.add(at * BF16));
            let lacking = x.sub(U::Float::load_bf16(to.add(at * BF16)));
            lacking.store(floats.as_mut_ptr().add(at));
        }
    }
    words
}

/// The second and the third of 4 integers of 16 bits exchanged.
#[inline(always)]
fn exchange_middle(four: u64) -> u64 {
    let (second, third) = (four & 0xffff_0000, four & 0xffff_0000_0000);
    four & 0xffff_0000_0000_ffff | second << 16 | third >> 16
}

/// Floats of scratch memory for rows of `k` elements in either number of parts and `n` columns.
pub(crate) const fn tile_scratch(k: usize, n: usize) -> usize {
    let bytes = Scratch::WEIGHTS + Scratch::CHUNK + Scratch::REST + n_sums(k, n, BLOCK / 2) * size_of::<TileSums>();
    (bytes + ALIGN) / size_of::<f32>()
}

/// Sums that are kept for `n` columns: of all if rows have several blocks of `block` elements, of which each adds to them.
const fn n_sums(k: usize, n: usize, block: usize) -> usize {
    if k <= block { 1 } else { PAIRS * n.div_ceil(COLUMNS) }
}

/// Scratch memory.
#[derive(Clone, Copy)]
struct Scratch {
    /// All parts of [`ROWS`] rows of a block.
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
pub(crate) unsafe fn multiply<V: IntSimd, U: TileUnit, const PARTS: usize>(p: &PanelProduct) {
    let k = p.w.k;
    let is_one = k <= BLOCK / PARTS;
    // SAFETY: the caller's promise; rows, columns and elements lie within the operands.
    unsafe {
        let mut unit = U::new();
        let scratch = Scratch::new(p.scratch);
        for i in (0..p.w.m).step_by(PAIRS * ROWS) {
            for first in (0..k).step_by(BLOCK / PARTS) {
                let part = Part {
                    first,
                    end: k.min(first + BLOCK / PARTS),
                };
                copy_rest::<PARTS>(p, &part, scratch.rest);
                for (pair, i) in (i..p.w.m).step_by(ROWS).take(PAIRS).enumerate() {
                    pack::<V, U, PARTS>(p, &part, i, &scratch);
                    let all_columns = (0..p.n).step_by(COLUMNS).enumerate();
                    for (block, j) in all_columns {
                        let n_blocks = p.n.div_ceil(COLUMNS);
                        let sums = scratch.sums.add(if is_one { 0 } else { pair * n_blocks + block });
                        add::<U, PARTS>(&mut unit, p, &part, j, &scratch, sums);
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
unsafe fn copy_rest<const PARTS: usize>(p: &PanelProduct, part: &Part, rest: *mut u8) {
    let bytes = (part.end - part.first) * BF16;
    for (column, j) in (p.n / COLUMNS * COLUMNS..p.n).enumerate() {
        for of_x in 0..PARTS {
            // SAFETY: the caller's promise; the columns and the copies of a block's elements are there.
            unsafe {
                let from = p.x.add(j * p.x_stride + of_x * part_bytes(p.w.k) + part.first * BF16);
                let to = rest.add(column * REST_STRIDE + of_x * (BLOCK / PARTS * BF16));
                to.copy_from_nonoverlapping(from, bytes);
            }
        }
    }
}

/// Adds the product of packed weights and the columns from `j` on.
///
/// # Safety
/// As for [`multiply`]; the weights of the part are packed.
#[inline(always)]
unsafe fn add<U: TileUnit, const PARTS: usize>(
    unit: &mut U,
    p: &PanelProduct,
    part: &Part,
    j: usize,
    scratch: &Scratch,
    sums: *mut TileSums,
) {
    // SAFETY: the caller's promise; there are as many columns, or as many copies.
    unsafe {
        let (x, x_stride, x_part) = if j + COLUMNS <= p.n {
            let x = p.x.add(j * p.x_stride + part.first * BF16);
            (x, p.x_stride, part_bytes(p.w.k))
        } else {
            (scratch.rest.cast_const(), REST_STRIDE, BLOCK / PARTS * BF16)
        };
        let terms = TERMS.map(|(of_x, of_w)| Term {
            x: x.wrapping_add(of_x * x_part),
            w: scratch.weights.wrapping_add(of_w * (Scratch::WEIGHTS / PARTS)),
        });
        unit.add(&TileBlock {
            terms: if PARTS == 1 { &terms[..1] } else { &terms },
            x_stride,
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
unsafe fn pack<V: IntSimd, U: TileUnit, const PARTS: usize>(
    p: &PanelProduct,
    part: &Part,
    i: usize,
    scratch: &Scratch,
) {
    for at in (part.first..part.end).step_by(CHUNK) {
        for half in 0..ROWS / PANEL_ROWS {
            // SAFETY: the caller's promise; the chunk and its tiles lie within the scratch memory.
            unsafe {
                fill::<V, WideValues>(&p.w, i + half * PANEL_ROWS, at / CHUNK, &mut *scratch.chunk);
                let step = (at - part.first) / STEP;
                let to = scratch.weights.add((2 * step + half) * TILE_BYTES);
                let runs = RUNS.min((part.end - at) / RUN);
                pack_chunk::<U, PARTS>(&*scratch.chunk, &p.w.integers, runs, to);
            }
        }
    }
}

/// Packs the first `runs` runs of a panel's chunk: a tile for each, with room for that of another panel between them.
///
/// # Safety
/// The CPU has the unit; `to` is valid for the tiles.
#[inline(always)]
unsafe fn pack_chunk<U: TileUnit, const PARTS: usize>(
    from: &PanelChunk<WideValues>,
    integers: &Integers,
    runs: usize,
    to: *mut u8,
) {
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
                        let to = to.add(row + at * BF16);
                        U::store_bf16(w, to);
                        if PARTS == 2 {
                            let lacking = w.sub(U::Float::load_bf16(to));
                            U::store_bf16(lacking, to.add(Scratch::WEIGHTS / PARTS));
                        }
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
