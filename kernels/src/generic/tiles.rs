//! Products of weights with many rows of activations, both as bfloat16, by a unit that multiplies tiles.
//!
//! Weights of integers, in either layout, become the bytes and scales of a [`PanelChunk`] first, and those bfloat16, with scales and minimums multiplied in;
//! weights of floats are rounded. So sums stay in tiles over many elements.
//!
//! The order in which an element of the result is added up only depends on the length of a row.

use std::marker::PhantomData;
use std::ops::Range;

use super::integers::{CHUNK, RUN, RUNS, spread};
use super::panel_products::PanelProduct;
use super::panels::{Integers, PANEL_ROWS, PanelChunk, SIGN, SignedValues, WeightRows, fill};
use crate::GgmlType;
use crate::simd::tiles::{COLUMNS, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileBlock, TileSums};
use crate::simd::{IntSimd, Simd, TileUnit};

/// Elements of a row that are multiplied at a time, but for the last ones. Weights of [`ROWS`] rows then take 16 KiB and so do [`COLUMNS`] columns: the first-level
/// cache holds both, so that the weights stay there while all columns are multiplied with them.
const BLOCK: usize = 256;

/// Most elements of the last block: fewer left over would be a block of their own that hardly pays for reading and writing the sums.
const LAST_BLOCK: usize = BLOCK + BLOCK / 4;

/// Rows of weights that the unit multiplies at a time: a product of fewer takes as long, so work is to be split in multiples of them.
pub const LEAST_TILE_ROWS: usize = ROWS;

/// Rows of weights that are multiplied with the same elements of the columns, which stay in the second-level cache meanwhile, together with the sums.
/// The columns are read from beyond that cache once for so many rows.
pub const MOST_TILE_ROWS: usize = 256;

/// Most columns that are multiplied at a time, for the same reason.
const MAX_COLUMNS: usize = 512;

/// Bytes to whose multiples operands are aligned.
const ALIGN: usize = 64;

/// Bytes from one of the last columns to the next, where those are copied.
const REST_STRIDE: usize = spread(LAST_BLOCK * BF16);

/// Bytes of a bfloat16.
const BF16: usize = 2;

const _: () = assert!(STEP == RUN && PANEL_ROWS == TILE_ROWS && BLOCK.is_multiple_of(CHUNK));

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
    let bytes = Scratch::WEIGHTS + Scratch::CHUNK + Scratch::REST + n_sums(k, n) * size_of::<TileSums>();
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

/// Reads elements of a row as floats: see [`dequantize_row`](crate::dequantize_row()).
pub(crate) type Dequantize = unsafe fn(*const u8, *mut f32, usize);

/// Scratch memory.
#[derive(Clone, Copy)]
pub(crate) struct Scratch {
    /// [`ROWS`] rows of a block.
    weights: *mut u8,
    chunk: *mut PanelChunk<SignedValues>,
    /// The last columns of a block, if they are fewer than [`COLUMNS`].
    rest: *mut u8,
    sums: *mut TileSums,
}

impl Scratch {
    const WEIGHTS: usize = ROWS * LAST_BLOCK * BF16;
    const CHUNK: usize = size_of::<PanelChunk<SignedValues>>();
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

/// Rows of weights, which are packed in one way or another.
pub(crate) trait TileRows: Copy {
    /// Rows.
    fn m(&self) -> usize;
    /// Elements of a row.
    fn k(&self) -> usize;
    /// Packs the part of [`ROWS`] rows from row `i` on. Rows beyond the last are copies of it, elements beyond it zero.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn pack<U: TileUnit>(&self, part: &Part, i: usize, scratch: &Scratch);
}

/// Rows of integers, unpacked by `V`.
struct IntegerRows<V> {
    rows: WeightRows,
    by: PhantomData<V>,
}

impl<V> Clone for IntegerRows<V> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<V> Copy for IntegerRows<V> {}

/// Rows of floats, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct FloatRows {
    pub w: *const u8,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Bytes of a float.
    pub float_bytes: usize,
    pub m: usize,
    pub k: usize,
    pub dequantize: Dequantize,
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

/// Multiplies weights of integers.
///
/// # Safety
/// The CPU has the unit and `V`'s instructions, no other unit is in use in this thread, and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn multiply_integers<V: IntSimd, U: TileUnit>(p: &PanelProduct) {
    let product = TileProduct {
        w: IntegerRows::<V> {
            rows: p.w,
            by: PhantomData,
        },
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

/// Multiplies. Blocks of some rows are packed, then multiplied with all columns. Sums of rows that are longer wait in scratch memory.
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
    let n_blocks = n_blocks(p.w.k());
    for block in 0..n_blocks {
        let is_last = block + 1 == n_blocks;
        let first = block * BLOCK;
        let end = if is_last { p.w.k() } else { first + BLOCK };
        let part = Part { first, end };
        // SAFETY: the caller's promise; sums are kept for as many rows and columns.
        unsafe {
            copy_rest(p, &part, scratch.rest);
            let mut sums = scratch.sums;
            for i in rows.clone().step_by(ROWS) {
                p.w.pack::<U>(&part, i, scratch);
                for j in (0..p.n).step_by(COLUMNS) {
                    // Whole results go where they belong at once.
                    if is_last && i + ROWS <= p.w.m() && j + COLUMNS <= p.n {
                        let to = p.out.add(j * p.out_stride + i);
                        add::<R, U>(unit, p, &part, j, scratch, sums, (to, p.out_stride * size_of::<f32>()));
                    } else {
                        add::<R, U>(unit, p, &part, j, scratch, sums, (sums.cast(), TileSums::STRIDE));
                        if is_last {
                            put(p, i, j, &*sums);
                        }
                    }
                    if n_blocks > 1 {
                        sums = sums.add(1);
                    }
                }
            }
        }
    }
}

/// Elements `first..end` of the rows.
pub(crate) struct Part {
    first: usize,
    end: usize,
}

impl Part {
    /// Tiles that the elements fill.
    fn steps(&self) -> usize {
        (self.end - self.first).div_ceil(STEP)
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
unsafe fn copy_rest<R>(p: &TileProduct<R>, part: &Part, rest: *mut u8) {
    let bytes = part.steps() * TILE_WIDTH;
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
unsafe fn add<R, U: TileUnit>(
    unit: &mut U,
    p: &TileProduct<R>,
    part: &Part,
    j: usize,
    scratch: &Scratch,
    sums: *const TileSums,
    (to, to_stride): (*mut f32, usize),
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
            steps: part.steps(),
            sums: if part.first == 0 { std::ptr::null() } else { sums },
            to,
            to_stride,
        });
    }
}

impl<V: IntSimd> TileRows for IntegerRows<V> {
    fn m(&self) -> usize {
        self.rows.m
    }

    fn k(&self) -> usize {
        self.rows.k
    }

    #[inline(always)]
    unsafe fn pack<U: TileUnit>(&self, part: &Part, i: usize, scratch: &Scratch) {
        for at in (part.first..part.end).step_by(CHUNK) {
            for half in 0..ROWS / PANEL_ROWS {
                // SAFETY: the caller's promise; the chunk and its tiles lie within the scratch memory.
                unsafe {
                    fill::<V, SignedValues>(&self.rows, i + half * PANEL_ROWS, at / CHUNK, &mut *scratch.chunk);
                    let step = (at - part.first) / STEP;
                    let to = scratch.weights.add((2 * step + half) * TILE_BYTES);
                    let runs = RUNS.min((part.end - at) / RUN);
                    pack_chunk::<U>(&*scratch.chunk, &self.rows.integers, runs, to);
                }
            }
        }
    }
}

impl TileRows for FloatRows {
    fn m(&self) -> usize {
        self.m
    }

    fn k(&self) -> usize {
        self.k
    }

    #[inline(always)]
    unsafe fn pack<U: TileUnit>(&self, part: &Part, i: usize, scratch: &Scratch) {
        let (n, mut floats) = (part.end - part.first, [0.0f32; LAST_BLOCK]);
        for half in 0..ROWS / TILE_ROWS {
            let mut rows = [[[0u8; TILE_WIDTH]; TILE_ROWS]; LAST_BLOCK / STEP];
            for row in 0..TILE_ROWS {
                let i = (i + half * TILE_ROWS + row).min(self.m - 1);
                // SAFETY: the caller's promise; the part lies within the row, and within the arrays.
                unsafe {
                    let from = self.w.add(i * self.stride + part.first * self.float_bytes);
                    (self.dequantize)(from, floats.as_mut_ptr(), n);
                    for at in (0..part.steps() * STEP).step_by(U::Float::LANES) {
                        let to = rows[at / STEP][row].as_mut_ptr().add(at % STEP * BF16);
                        U::store_bf16(U::Float::load(floats.as_ptr().add(at)), to);
                    }
                }
            }
            for (step, rows) in rows.iter().enumerate().take(part.steps()) {
                // SAFETY: the caller's promise: tiles within the scratch memory.
                unsafe {
                    let to = scratch.weights.add((2 * step + half) * TILE_BYTES);
                    transpose::<U::Float>(rows.as_ptr().cast(), to.cast());
                }
            }
        }
    }
}

/// A tile of words, transposed.
///
/// # Safety
/// The CPU has `V`'s instructions, and both are valid for a tile.
#[inline(always)]
pub(super) unsafe fn transpose<V: Simd>(from: *const f32, to: *mut f32) {
    const N: usize = 8;
    for i in (0..TILE_ROWS).step_by(N) {
        for j in (0..TILE_ROWS).step_by(N) {
            // SAFETY: the caller's promise: squares of the tile.
            unsafe {
                let (from, to) = (from.add(i * TILE_ROWS + j), to.add(j * TILE_ROWS + i));
                V::transpose(from, TILE_ROWS, to, TILE_ROWS);
            }
        }
    }
}

/// Packs the first `runs` runs of a panel's chunk: a tile for each, with room for that of another panel between them.
///
/// # Safety
/// The CPU has the unit; `to` is valid for the tiles.
#[inline(always)]
unsafe fn pack_chunk<U: TileUnit>(from: &PanelChunk<SignedValues>, integers: &Integers, runs: usize, to: *mut u8) {
    const FOURS_OF_HALF: usize = RUN / 8;
    // Bytes are made unsigned, so that they become floats without their neighbours; those of a type with minimums are.
    let sign = if integers.has_own_mins() { 0 } else { SIGN };
    for half in 0..2 * runs {
        let tile = to.wrapping_add(half / 2 * 2 * TILE_BYTES + half % 2 * FOURS_OF_HALF * 2 * TILE_WIDTH);
        for lane in (0..PANEL_ROWS).step_by(U::Float::LANES) {
            // SAFETY: the caller's promise; registers, scales and minimums are those of the same rows.
            unsafe {
                let scale = U::Float::load(from.scales[half].as_flattened().as_ptr().add(lane));
                let min = if integers.has_own_mins() {
                    U::Float::load(from.mins[half].as_flattened().as_ptr().add(lane))
                } else {
                    scale.mul(scale.constant(-f32::from(SIGN)))
                };
                for four in 0..FOURS_OF_HALF {
                    let words = from.values.0[half * FOURS_OF_HALF + four].as_flattened();
                    let words = U::Float::load_words(words.as_ptr().add(4 * lane));
                    let words = U::Float::xor(words, u32::from_ne_bytes([sign; 4]));
                    let mut w = [scale; 4];
                    for i in 0..4 {
                        let byte = U::Float::and(U::Float::shr(words, 8 * i as u32), 0xff);
                        w[i] = U::Float::from_int(byte).mul_add(scale, min);
                    }
                    let to = tile.add(four * 2 * TILE_WIDTH + lane * 2 * BF16);
                    U::store_bf16_pairs(w[0], w[1], to);
                    U::store_bf16_pairs(w[2], w[3], to.add(TILE_WIDTH));
                }
            }
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
