//! Packing of weights into bf16 tiles.
//!
//! Packing proceeds one step (32 elements) at a time. A tile unit leaves the other execution ports idle, so
//! the next block is packed while the current one is multiplied.
//!
//! ```text
//! tile of 16 rows x 32 elements, as the unit reads it:
//!             row 0       row 1             row 15
//! pair 0   | w0 w1     | w0 w1     |  ..  | w0 w1     |      bf16 pairs of adjacent elements
//! pair 1   | w2 w3     | w2 w3     |  ..  | w2 w3     |
//!   ..
//! pair 15  | w30 w31   | w30 w31   |  ..  | w30 w31   |
//!
//! pack(step):
//!     for panel in 0..2:                               # 16 rows each
//!         row groups:      unpack 4 weights of 8 rows per register, scale, store as two rows of the tile
//!         file layout:     fill a panel chunk (see `pack`), then as above
//!         16-bit floats:   convert 16 rows, transpose 16 x 16 pairs
//! ```

use std::mem::MaybeUninit;

use super::int_products::each_of_8;
use super::interleaved8::has_mins;
use super::pack::{GROUPS, I8Values, IntFormat, PANEL_ROWS, PanelChunk, SIGN, WeightRows, fill};
use crate::layout::groups::{GroupScales, LANES, UnpackGroup};
use crate::layout::runs::{CHUNK, HALVES, RUN, RUNS};
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::simd::tiles::{BF16, ROWS, STEP, TILE_BYTES, TILE_ROWS, TILE_WIDTH, TileScales};
use crate::simd::{IntSimd, Simd, TileUnit};

const _: () = assert!(STEP == RUN && PANEL_ROWS == TILE_ROWS);

/// Elements `first..end` of [`ROWS`] rows of weights.
#[derive(Clone, Copy)]
pub(crate) struct WeightBlock {
    /// First row.
    pub row: usize,
    /// First element.
    pub first: usize,
    /// End of the element range.
    pub end: usize,
}

impl WeightBlock {
    /// Returns the number of steps, each of which fills a tile per panel.
    pub fn steps(&self) -> usize {
        (self.end - self.first).div_ceil(STEP)
    }
}

/// Rows of weights with their method of packing. The last row is repeated beyond the end, and elements beyond
/// the end of a row are zero.
pub(crate) trait TileRows: Copy {
    /// Returns the number of rows.
    fn m(&self) -> usize;
    /// Returns the number of elements per row.
    fn k(&self) -> usize;
    /// Packs the tiles of step `packing.step`.
    ///
    /// # Safety
    /// - The CPU supports `U` and the instructions that unpack the rows.
    /// - The rows are valid for reads, and the pointers in `packing` for a whole block.
    /// - The previous steps of the block have been packed.
    unsafe fn pack<U: TileUnit>(&self, packing: &Packing<Self>);
}

/// Number of panels per block.
pub(super) const PANELS: usize = ROWS / PANEL_ROWS;

/// State of packing a block, one step (the tiles multiplied together) at a time.
pub(crate) struct Packing<'a, R> {
    pub rows: &'a R,
    pub block: WeightBlock,
    /// The block to prefetch, which is packed next.
    pub next: WeightBlock,
    /// Destination of the tiles, in the order of [`TileBlock`](crate::simd::tiles::TileBlock).
    pub to: *mut u8,
    /// Scratch memory for the scales of the current chunk.
    pub scales: *mut [PanelScales; PANELS],
    /// Scratch memory for the current chunk of rows in file layout.
    pub chunks: *mut [PanelChunk<I8Values>; PANELS],
    /// Index of the next step.
    pub step: usize,
}

impl<R: TileRows> Packing<'_, R> {
    /// Packs all steps before `end` that are not packed yet.
    ///
    /// # Safety
    /// - The CPU supports `U` and the instructions that unpack the rows.
    /// - The rows are valid for reads, and the pointers of this packing for a whole block.
    #[inline(always)]
    pub unsafe fn pack_until<U: TileUnit>(&mut self, end: usize) {
        while self.step < end.min(self.block.steps()) {
            // SAFETY: steps are packed in order and end at the block's last step.
            unsafe { self.rows.pack::<U>(self) };
            self.step += 1;
        }
    }
}

/// Rows of an integer type in either layout. `groups` unpacks interleaved rows.
#[derive(Clone, Copy)]
pub(super) struct IntegerRows<'a> {
    pub rows: &'a WeightRows,
    pub groups: Option<PackGroups>,
}

/// Functions that pack a panel of interleaved rows of some type, given a chunk of each of its two groups.
#[derive(Clone, Copy)]
pub(crate) struct PackGroups {
    /// See [`set_scales`].
    pub scales: unsafe fn([*const u8; GROUPS], usize, &mut PanelScales),
    /// See [`pack_run`].
    pub run: unsafe fn([*const u8; GROUPS], usize, &PanelScales, *mut u8),
}

/// Scales and minimums of a panel's chunk for each half run. Second halves are unset if they share a scale
/// with the first half.
pub(crate) type PanelScales = [TileScales; HALVES];

/// Computes the scales of the first `runs` runs of a chunk.
///
/// # Safety
/// - The CPU supports `U`.
/// - Each pointer in `p` is valid for a chunk of a row group with at least `runs` runs.
#[inline(always)]
pub(crate) unsafe fn set_scales<U: TileUnit, D: UnpackGroup<U::Int>>(
    p: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelScales,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; GROUPS];
    // SAFETY: each group has `runs` runs (function contract), and `group_scales` initializes the scales
    // before they are read.
    unsafe {
        for group in 0..GROUPS {
            D::group_scales(p[group], runs, scales[group].as_mut_ptr());
        }
        let scales: *const GroupScales = scales.as_ptr().cast();
        for at in 0..if D::BY_16 { 2 * runs } else { runs } {
            let both = [GroupScales::scale(scales, at), GroupScales::scale(scales.add(1), at)];
            let own = if has_mins::<U::Int, D>() {
                Some([GroupScales::min(scales, at), GroupScales::min(scales.add(1), at)])
            } else {
                None
            };
            let mins = unsigned_mins(both, own, &const { IntFormat::of::<U::Int, D>() });
            U::store_scales(both, mins, &mut to[if D::BY_16 { at } else { 2 * at }]);
        }
    }
}

/// Returns the minimums of unsigned bytes: minimums of the type, if any, plus minimums implied by its zero point.
#[inline(always)]
fn unsigned_mins<V: Simd>(scales: [V; GROUPS], own: Option<[V; GROUPS]>, integers: &IntFormat) -> [V; GROUPS] {
    match own {
        Some(own) if !integers.signed => own,
        Some(own) => {
            let [first, second] = zero_min(scales, integers);
            [own[0].add(first), own[1].add(second)]
        }
        None => zero_min(scales, integers),
    }
}

/// Returns the minimums implied by the unsigned byte that represents 0: its negative times the scale.
#[inline(always)]
fn zero_min<V: Simd>(scales: [V; GROUPS], integers: &IntFormat) -> [V; GROUPS] {
    let zero = if integers.signed { SIGN } else { integers.zero };
    let mut mins = scales;
    for group in 0..GROUPS {
        mins[group] = scales[group].mul(scales[group].constant(-f32::from(zero)));
    }
    mins
}

/// Returns the bits to flip to make a type's bytes unsigned.
const fn flip(integers: &IntFormat) -> u8 {
    if integers.signed { SIGN } else { 0 }
}

/// Packs run `i` of a chunk into a tile.
///
/// # Safety
/// - The CPU supports `U`.
/// - Each pointer in `p` is valid for a chunk of a row group with more than `i` runs, and `tile` for writes
///   of a tile.
#[inline(always)]
pub(crate) unsafe fn pack_run<U: TileUnit, D: UnpackGroup<U::Int>>(
    p: [*const u8; GROUPS],
    i: usize,
    scales: &PanelScales,
    tile: *mut u8,
) {
    let flip = const { flip(&IntFormat::of::<U::Int, D>()) };
    // SAFETY: run `i` has 8 words per group, and the tile has two rows for each (function contract).
    unsafe {
        each_of_8!(U::Int, j => {
            let scales = &scales[2 * i + if D::BY_16 { j / 4 } else { 0 }];
            let bytes = [D::group_values(p[0], i, j), D::group_values(p[1], i, j)];
            U::store_weights(bytes, flip, scales, tile.add(j * 2 * TILE_WIDTH));
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
            // SAFETY: rows and groups are clamped to the last one, and the tile and the chunk are within the
            // scratch memory (contract of `pack`).
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
                        fill::<U::Int, I8Values>(self.rows, row, chunk, values);
                        set_chunk_scales::<U>(values, &self.rows.integers, runs, scales);
                    }
                    pack_chunk_run::<U>(values, &self.rows.integers, run, scales, tile);
                }
            }
        }
    }
}

impl IntegerRows<'_> {
    /// Returns chunk `c` of the groups starting at row `i`. The last group is repeated beyond the end.
    #[inline(always)]
    fn groups_at(&self, i: usize, c: usize) -> [*const u8; GROUPS] {
        let mut chunks = [self.rows.w; GROUPS];
        for group in 0..GROUPS {
            let i = (i + group * LANES).min(self.rows.m - LANES);
            chunks[group] = self.rows.w.wrapping_add(self.rows.group_offset(i, c));
        }
        chunks
    }

    /// Prefetches run `run` of chunk `c` of the groups starting at row `i`. Addresses beyond the last row or element
    /// are harmless.
    #[inline(always)]
    fn prefetch(&self, i: usize, c: usize, run: usize) {
        let bytes = LANES * self.rows.chunk_bytes / RUNS;
        for group in 0..GROUPS {
            let at = self.rows.group_offset(i + group * LANES, c) + run * bytes;
            for line in (0..bytes).step_by(CACHE_LINE) {
                prefetch(self.rows.w.wrapping_add(at + line), CacheLevel::First);
            }
        }
    }
}

/// Computes the scales of the first `runs` runs from a panel chunk.
///
/// # Safety
/// The CPU supports `U`.
#[inline(always)]
unsafe fn set_chunk_scales<U: TileUnit>(
    from: &PanelChunk<I8Values>,
    integers: &IntFormat,
    runs: usize,
    to: &mut PanelScales,
) {
    for half in 0..2 * runs {
        // SAFETY: the CPU supports `U` (function contract), and each group has 8 lanes.
        unsafe {
            let scales = load_both(&from.scales[half]);
            let own = if integers.has_own_mins() {
                Some(load_both(&from.mins[half]))
            } else {
                None
            };
            U::store_scales(scales, unsigned_mins(scales, own, integers), &mut to[half]);
        }
    }
}

/// Loads the lanes of both groups.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
unsafe fn load_both<V: Simd>(lanes: &[[f32; LANES]; GROUPS]) -> [V; GROUPS] {
    // SAFETY: each array has 8 floats, and the CPU supports `V` (function contract).
    unsafe { [V::load(lanes[0].as_ptr()), V::load(lanes[1].as_ptr())] }
}

/// Packs run `run` of a panel chunk into a tile.
///
/// # Safety
/// - The CPU supports `U`.
/// - `tile` is valid for writes of a tile.
#[inline(always)]
unsafe fn pack_chunk_run<U: TileUnit>(
    from: &PanelChunk<I8Values>,
    integers: &IntFormat,
    run: usize,
    scales: &PanelScales,
    tile: *mut u8,
) {
    for j in 0..RUN / 4 {
        let values = &from.values.0[run * (RUN / 4) + j];
        // SAFETY: each group has 32 bytes, and the tile has two rows for each word (function contract).
        unsafe {
            let zero = U::Int::splat(integers.zero);
            let first = U::Int::load(values[0].as_ptr()).add(zero);
            let second = U::Int::load(values[1].as_ptr()).add(zero);
            let scales = &scales[2 * run + j / 4];
            U::store_weights([first, second], flip(integers), scales, tile.add(j * 2 * TILE_WIDTH));
        }
    }
}

/// Function that converts elements of a row to floats; see [`dequantize_row`](crate::dequantize_row()).
pub(crate) type Dequantize = unsafe fn(*const u8, *mut f32, usize);

/// Contiguous rows of a floating-point type.
#[derive(Clone, Copy)]
pub(crate) struct FloatRows {
    pub w: *const u8,
    /// Distance between rows in bytes.
    pub stride: usize,
    /// Size of a float in bytes.
    pub float_bytes: usize,
    /// Whether the rows are bf16 and need no rounding.
    pub is_bf16: bool,
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
                // SAFETY: the row is clamped to `m - 1` and `at + n <= k`; `n` floats fit in `floats`.
                unsafe {
                    let from = self.w.add(i * self.stride + at * self.float_bytes);
                    if self.is_bf16 && n == STEP {
                        *to = from.cast::<[u8; TILE_WIDTH]>().read_unaligned();
                        continue;
                    }
                    (self.dequantize)(from, floats.as_mut_ptr(), n);
                    for lane in (0..STEP).step_by(U::Float::LANES) {
                        U::store_bf16(
                            U::Float::load(floats.as_ptr().add(lane)),
                            to.as_mut_ptr().add(lane * BF16),
                        );
                    }
                }
            }
            // SAFETY: the tile of this step and panel is within the scratch memory (contract of `pack`).
            unsafe {
                let to = packing.to.add((PANELS * packing.step + panel) * TILE_BYTES);
                transpose::<U::Float>(tile.0.as_ptr().cast(), to.cast());
            }
        }
    }
}

/// A tile with one row of weights per row.
#[repr(align(64))]
struct RowTile([[u8; TILE_WIDTH]; TILE_ROWS]);

/// Transposes a tile of 32-bit words.
///
/// # Safety
/// - The CPU supports `V`.
/// - `from` is valid for reads of a tile and `to` for writes.
#[inline(always)]
pub(super) unsafe fn transpose<V: Simd>(from: *const f32, to: *mut f32) {
    const N: usize = 8;
    for i in (0..TILE_ROWS).step_by(N) {
        for j in (0..TILE_ROWS).step_by(N) {
            // SAFETY: each 8 x 8 square is within the tiles (function contract).
            unsafe {
                let (from, to) = (from.add(i * TILE_ROWS + j), to.add(j * TILE_ROWS + i));
                V::transpose(from, TILE_ROWS, to, TILE_ROWS);
            }
        }
    }
}
