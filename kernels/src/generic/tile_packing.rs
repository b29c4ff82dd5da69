//! Weights to tiles of bfloat16, a step at a time: a unit that multiplies tiles leaves the other instructions time, so that the next block of weights is packed while the
//! one before it is multiplied.
//!
//! Interleaved rows are unpacked in registers from their blocks to tiles. Rows as they lie in a file become a [`PanelChunk`] first.

use std::mem::MaybeUninit;

use super::interleaved8::{GroupScales, UnpackGroup, has_mins};
use super::int_products::each_of_8;
use super::integers::{CHUNK, RUN, RUNS};
use super::pack::{GROUPS, HALVES, Integers, LANES, PANEL_ROWS, PanelChunk, SIGN, SignedValues, WeightRows, fill};
use super::tiles::BF16;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::tiles::{ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileScales};
use crate::simd::{IntSimd, Simd, TileUnit};

const _: () = assert!(STEP == RUN && PANEL_ROWS == TILE_ROWS);

/// Some elements of [`ROWS`] rows of weights.
#[derive(Clone, Copy)]
pub(crate) struct WeightBlock {
    /// The first row.
    pub row: usize,
    /// The first element.
    pub first: usize,
    /// Where the elements end.
    pub end: usize,
}

impl WeightBlock {
    /// Tiles of a panel that the elements fill.
    pub fn steps(&self) -> usize {
        (self.end - self.first).div_ceil(STEP)
    }
}

/// Rows of weights, which are packed in one way or another. Rows beyond the last are copies of it, elements beyond it zero.
pub(crate) trait TileRows: Copy {
    /// Rows.
    fn m(&self) -> usize;
    /// Elements of a row.
    fn k(&self) -> usize;
    /// Packs the tiles of a step, after those before it.
    ///
    /// # Safety
    /// As for [`multiply`](super::tiles::multiply).
    unsafe fn pack<U: TileUnit>(&self, packing: &Packing<Self>);
}

/// Panels of a block.
pub(super) const PANELS: usize = ROWS / PANEL_ROWS;

/// The packing of a block, a step at a time: the tiles that are multiplied together.
pub(crate) struct Packing<'a, R> {
    pub rows: &'a R,
    pub block: WeightBlock,
    /// What is packed after it, which is prefetched.
    pub next: WeightBlock,
    /// Where the tiles go, as [`TileBlock`](crate::simd::tiles::TileBlock) wants them.
    pub to: *mut u8,
    /// Scratch memory: the scales of the chunk that is being packed.
    pub scales: *mut [PanelScales; PANELS],
    /// Scratch memory: the chunk itself, of rows as they lie in a file.
    pub chunks: *mut [PanelChunk<SignedValues>; PANELS],
    /// The step that comes next.
    pub step: usize,
}

impl<R: TileRows> Packing<'_, R> {
    /// Packs up to step `end`, if there are as many.
    ///
    /// # Safety
    /// As for [`multiply`](super::tiles::multiply).
    #[inline(always)]
    pub unsafe fn pack_until<U: TileUnit>(&mut self, end: usize) {
        while self.step < end.min(self.block.steps()) {
            // SAFETY: the caller's promise.
            unsafe { self.rows.pack::<U>(self) };
            self.step += 1;
        }
    }
}

/// Rows of integers, in either layout. Those of interleaved rows are unpacked by `groups`.
#[derive(Clone, Copy)]
pub(super) struct IntegerRows<'a> {
    pub rows: &'a WeightRows,
    pub groups: Option<PackGroups>,
}

/// What packs a panel of interleaved rows of some type, which is two groups: chunks of both are given.
#[derive(Clone, Copy)]
pub(crate) struct PackGroups {
    /// See [`set_scales`].
    pub scales: unsafe fn([*const u8; GROUPS], usize, &mut PanelScales),
    /// See [`pack_run`].
    pub run: unsafe fn([*const u8; GROUPS], usize, &PanelScales, *mut u8),
}

/// The scales and minimums of a panel's chunk, for each half of a run. Those of second halves are not set if they share a scale with the first.
pub(crate) type PanelScales = [TileScales; HALVES];

/// Sets the scales of the first `runs` runs of a chunk.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn set_scales<U: TileUnit, D: UnpackGroup<U::Int>>(
    p: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelScales,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; GROUPS];
    // SAFETY: the caller's promise. Scales of the runs are set before they are read.
    unsafe {
        for group in 0..GROUPS {
            D::group_scales(p[group], runs, scales[group].as_mut_ptr());
        }
        let scales: *const GroupScales = scales.as_ptr().cast();
        for at in 0..if D::BY_16 { 2 * runs } else { runs } {
            let both = [GroupScales::scale(scales, at), GroupScales::scale(scales.add(1), at)];
            let mins = if has_mins::<U::Int, D>() {
                [GroupScales::min(scales, at), GroupScales::min(scales.add(1), at)]
            } else {
                min_of_zero(both, &const { Integers::of::<U::Int, D>() })
            };
            U::put_scales(both, mins, &mut to[if D::BY_16 { at } else { 2 * at }]);
        }
    }
}

/// What weights without minimums of their own have for one: the unsigned byte that stands for 0, times the scale.
#[inline(always)]
fn min_of_zero<V: Simd>(scales: [V; GROUPS], integers: &Integers) -> [V; GROUPS] {
    let zero = if integers.signed { SIGN } else { integers.zero };
    let mut mins = scales;
    for group in 0..GROUPS {
        mins[group] = scales[group].mul(scales[group].constant(-f32::from(zero)));
    }
    mins
}

/// Bits that make the bytes of a type unsigned.
const fn flip(integers: &Integers) -> u8 {
    if integers.signed { SIGN } else { 0 }
}

/// Packs run `i` of a chunk, which becomes a tile.
///
/// # Safety
/// As for [`UnpackGroup`]; `tile` is valid for a tile.
#[inline(always)]
pub(crate) unsafe fn pack_run<U: TileUnit, D: UnpackGroup<U::Int>>(
    p: [*const u8; GROUPS],
    i: usize,
    scales: &PanelScales,
    tile: *mut u8,
) {
    let flip = const { flip(&Integers::of::<U::Int, D>()) };
    // SAFETY: the caller's promise; a run has 8 registers.
    unsafe {
        each_of_8!(U::Int, j => {
            let scales = &scales[2 * i + if D::BY_16 { j / 4 } else { 0 }];
            let bytes = [D::group_values(p[0], i, j), D::group_values(p[1], i, j)];
            U::put_weights(bytes, flip, scales, tile.add(j * 2 * TILE_WIDTH));
        });
    }
}

impl TileRows for IntegerRows<'_> {
    fn m(&self) -> usize {
        self.rows.m
    }

    fn k(&self) -> usize {
        self.rows.k
    }

    #[inline(always)]
    unsafe fn pack<U: TileUnit>(&self, packing: &Packing<Self>) {
        let WeightBlock { row, first, end } = packing.block;
        let at = first + packing.step * STEP;
        let (chunk, run) = (at / CHUNK, at % CHUNK / RUN);
        let runs = RUNS.min((end - chunk * CHUNK) / RUN);
        for panel in 0..PANELS {
            let row = row + panel * PANEL_ROWS;
            // SAFETY: the caller's promise; the chunk and its tiles lie within the scratch memory.
            unsafe {
                let tile = packing.to.add((PANELS * packing.step + panel) * TILE_BYTES);
                let scales = &mut (*packing.scales)[panel];
                if let Some(pack) = self.groups {
                    let next = &packing.next;
                    self.prefetch(
                        next.row + panel * PANEL_ROWS,
                        next.first / CHUNK + (chunk - first / CHUNK),
                        run,
                    );
                    let groups = self.groups_at(row, chunk);
                    if run == 0 {
                        (pack.scales)(groups, runs, scales);
                    }
                    (pack.run)(groups, run, scales, tile);
                } else {
                    let values = &mut (*packing.chunks)[panel];
                    if run == 0 {
                        fill::<U::Int, SignedValues>(self.rows, row, chunk, values);
                        set_scales_of_chunk::<U>(values, &self.rows.integers, runs, scales);
                    }
                    pack_run_of_chunk::<U>(values, &self.rows.integers, run, scales, tile);
                }
            }
        }
    }
}

impl IntegerRows<'_> {
    /// Chunk `c` of the groups from row `i` on; those beyond the last are copies of it.
    #[inline(always)]
    fn groups_at(&self, i: usize, c: usize) -> [*const u8; GROUPS] {
        let mut chunks = [self.rows.w; GROUPS];
        for group in 0..GROUPS {
            let i = (i + group * LANES).min(self.rows.m - LANES);
            chunks[group] = self.rows.w.wrapping_add(self.rows.place_in_groups(i, c));
        }
        chunks
    }

    /// Prefetches run `run` of chunk `c` of the groups from row `i` on. Addresses beyond the last row or element do no harm.
    #[inline(always)]
    fn prefetch(&self, i: usize, c: usize, run: usize) {
        let bytes = LANES * self.rows.chunk_bytes / RUNS;
        for group in 0..GROUPS {
            let at = self.rows.place_in_groups(i + group * LANES, c) + run * bytes;
            for line in (0..bytes).step_by(CACHE_LINE) {
                prefetch(self.rows.w.wrapping_add(at + line), CacheLevel::First);
            }
        }
    }
}

/// As [`set_scales`], with the scales and minimums of a chunk.
///
/// # Safety
/// The CPU has the unit.
#[inline(always)]
unsafe fn set_scales_of_chunk<U: TileUnit>(
    from: &PanelChunk<SignedValues>,
    integers: &Integers,
    runs: usize,
    to: &mut PanelScales,
) {
    for half in 0..2 * runs {
        // SAFETY: the caller's promise; 8 lanes of each group.
        unsafe {
            let scales = load_both(&from.scales[half]);
            let mins = if integers.has_own_mins() {
                load_both(&from.mins[half])
            } else {
                min_of_zero(scales, integers)
            };
            U::put_scales(scales, mins, &mut to[half]);
        }
    }
}

/// The lanes of both groups.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn load_both<V: Simd>(lanes: &[[f32; LANES]; GROUPS]) -> [V; GROUPS] {
    // SAFETY: the caller's promise; 8 lanes of each.
    unsafe { [V::load(lanes[0].as_ptr()), V::load(lanes[1].as_ptr())] }
}

/// As [`pack_run`], with the integers of a chunk.
///
/// # Safety
/// The CPU has the unit; `tile` is valid for a tile.
#[inline(always)]
unsafe fn pack_run_of_chunk<U: TileUnit>(
    from: &PanelChunk<SignedValues>,
    integers: &Integers,
    run: usize,
    scales: &PanelScales,
    tile: *mut u8,
) {
    for j in 0..RUN / 4 {
        let values = &from.values.0[run * (RUN / 4) + j];
        // SAFETY: the caller's promise; 32 bytes of each group.
        unsafe {
            let zero = U::Int::splat(integers.zero);
            let first = U::Int::load(values[0].as_ptr()).add(zero);
            let second = U::Int::load(values[1].as_ptr()).add(zero);
            let scales = &scales[2 * run + j / 4];
            U::put_weights([first, second], flip(integers), scales, tile.add(j * 2 * TILE_WIDTH));
        }
    }
}

/// Reads elements of a row as floats: see [`dequantize_row`](crate::dequantize_row()).
pub(crate) type Dequantize = unsafe fn(*const u8, *mut f32, usize);

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

impl TileRows for FloatRows {
    fn m(&self) -> usize {
        self.m
    }

    fn k(&self) -> usize {
        self.k
    }

    #[inline(always)]
    unsafe fn pack<U: TileUnit>(&self, packing: &Packing<Self>) {
        let WeightBlock { row, first, end } = packing.block;
        let at = first + packing.step * STEP;
        let n = STEP.min(end - at);
        for panel in 0..PANELS {
            let mut tile = RowTile([[0u8; TILE_WIDTH]; TILE_ROWS]);
            let mut floats = [0.0f32; STEP];
            for (i, to) in tile.0.iter_mut().enumerate() {
                let i = (row + panel * TILE_ROWS + i).min(self.m - 1);
                // SAFETY: the caller's promise; the elements lie within the row, and within the arrays.
                unsafe {
                    let from = self.w.add(i * self.stride + at * self.float_bytes);
                    (self.dequantize)(from, floats.as_mut_ptr(), n);
                    for lane in (0..STEP).step_by(U::Float::LANES) {
                        U::store_bf16(
                            U::Float::load(floats.as_ptr().add(lane)),
                            to.as_mut_ptr().add(lane * BF16),
                        );
                    }
                }
            }
            // SAFETY: the caller's promise: tiles within the scratch memory.
            unsafe {
                let to = packing.to.add((PANELS * packing.step + panel) * TILE_BYTES);
                transpose::<U::Float>(tile.0.as_ptr().cast(), to.cast());
            }
        }
    }
}

/// A tile whose rows are those of weights.
#[repr(align(64))]
struct RowTile([[u8; TILE_WIDTH]; TILE_ROWS]);

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
