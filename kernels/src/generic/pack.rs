//! Panels: 16 rows of weights unpacked to integers for matmuls with many columns.
//!
//! A panel chunk holds 256 weights of [`PANEL_ROWS`] rows. Its integers are interleaved like [row
//! groups](crate::interleaved), so that a register holds 4 adjacent weights of [`LANES`] rows:
//!
//! ```text
//!               group 0 (rows 0..8)                     group 1 (rows 8..16)
//! word 0    | w0[0..4] | w1[0..4] | .. | w7[0..4] |   | w8[0..4] | .. | w15[0..4] |       32 bytes per group
//! word 1    | w0[4..8] | w1[4..8] | .. | w7[4..8] |   | w8[4..8] | .. | w15[4..8] |
//!   ..
//! word 63   | w0[252..256] ..                     |   | w8[252..256] ..           |
//! scales[half run][group][row], mins[half run][group][row]: f32
//! ```
//!
//! Only the unpacking depends on the type of the weights; all matmul loops are shared:
//!
//! ```text
//! fill(rows i..i+16, chunk c):
//!     for group in 0..2:
//!         weights in rows (file layout):  unpack 8 rows to bytes, then transpose 8x8 words per run
//!         weights in row groups:          group_values() yields the words directly
//!         store the words as I16Values (16 bits), I8Values (8 bits), or ShiftedI8Values (8 bits, shifted up)
//! ```
//!
//! A panel chunk has 6 KiB with 8-bit integers and 10 KiB with 16-bit integers. A few of them thus stay in the L1 or L2
//! cache. Filling them pays off above some number of columns ([`PANEL_COLUMNS`](crate::limits::PANEL_COLUMNS)).

use crate::GgmlType;
use crate::layout::block::bytes_of;
use crate::layout::groups::LANES;
use crate::layout::runs::{CHUNK, HALVES, RUN, RUNS, Scales, Unpack};
use crate::simd::IntSimd;

/// Number of registers multiplied by the same activations.
pub(crate) const GROUPS: usize = 2;

/// Rows of weights in a panel. A matmul with fewer rows takes just as long, so work should be split in
/// multiples of this number.
pub const PANEL_ROWS: usize = GROUPS * LANES;

/// Sign bit of a byte. XOR with it maps signed bytes to unsigned bytes in which 128 represents 0.
pub(crate) const SIGN: u8 = 128;

/// Properties of the integers that [`Unpack`] produces for a type.
#[derive(Clone, Copy)]
pub(crate) struct IntFormat {
    pub bits: u32,
    pub by_16: bool,
    pub signed: bool,
    pub zero: u8,
    pub has_mins: bool,
}

impl IntFormat {
    /// Returns true if the type has minimums other than those implied by its zero point.
    pub(crate) const fn has_own_mins(&self) -> bool {
        self.has_mins && self.zero == 0
    }

    /// Returns by how many bits unsigned integers, minus [`ZERO`](Unpack::ZERO), can be shifted up and still
    /// fit signed bytes. Returns 0 for signed integers.
    pub(crate) const fn spare_bits(&self) -> u32 {
        if self.signed {
            return 0;
        }
        let is_centered = self.zero as u32 == 1 << self.bits >> 1;
        i8::BITS - self.bits - if is_centered { 0 } else { 1 }
    }
}

impl IntFormat {
    /// Returns how many 16-bit accumulators hold the products of a run, or 0 if one or two do not suffice.
    ///
    /// The products are weights, minus [`ZERO`](Unpack::ZERO), times integers from -127 to 127. Each 16-bit lane adds 2
    /// of every 4 adjacent products. The result is also 0 if two products with unsigned bytes exceed 16 bits, because
    /// `vpmaddubsw` would saturate.
    pub(crate) const fn i16_sums_per_run(&self) -> usize {
        let largest = if self.signed || self.zero > 0 {
            1 << self.bits >> 1
        } else {
            (1 << self.bits) - 1
        };
        let words = i16::MAX as usize / (2 * 127 * largest);
        match (RUN / 4).div_ceil(if words > 0 { words } else { 1 }) {
            n @ 1..=2 if 2 * 255 * largest <= i16::MAX as usize => n,
            _ => 0,
        }
    }

    pub(crate) const fn of<V: IntSimd, D: Unpack<V>>() -> IntFormat {
        IntFormat {
            bits: D::BITS,
            signed: D::SIGNED,
            zero: D::ZERO,
            by_16: D::BY_16,
            has_mins: D::HAS_MINS,
        }
    }
}

/// A chunk of one row, unpacked to bytes.
#[derive(Default)]
#[repr(C, align(32))]
pub(crate) struct RowChunk {
    pub scales: Scales,
    pub(super) values: [[u8; RUN]; RUNS],
}

/// Unpacks the first `runs` runs of a row's chunk.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` points to the start of a chunk and is valid for reads of the blocks of `runs` runs.
#[inline(always)]
pub(crate) unsafe fn unpack_row<V: IntSimd, D: Unpack<V>>(p: *const u8, runs: usize, to: &mut RowChunk) {
    // SAFETY: `p` is valid for `runs` runs (function contract), and `to.values[i]` has 32 bytes.
    unsafe {
        D::scales(p, runs, &mut to.scales);
        for i in 0..runs {
            D::values(p, i).store(to.values[i].as_mut_ptr());
        }
    }
}

/// Function pointer to an instantiation of [`unpack_row`].
pub(crate) type UnpackRow = unsafe fn(*const u8, usize, &mut RowChunk);

/// Rows of some type in file layout, with the function that unpacks them.
pub(crate) struct RowFormat {
    pub integers: IntFormat,
    /// Size of a chunk of a row in bytes.
    pub chunk_bytes: usize,
    pub unpack: UnpackRow,
}

impl RowFormat {
    pub(crate) const fn of<V: IntSimd, D: Unpack<V>>(unpack: UnpackRow) -> RowFormat {
        RowFormat {
            integers: IntFormat::of::<V, D>(),
            chunk_bytes: bytes_of::<D>(CHUNK),
            unpack,
        }
    }
}

/// Weights of a matmul and the functions that unpack them.
///
/// Invariants, checked in [`matmul_with`](crate::matmul::matmul_with):
/// - `w` is valid for reads of `m` rows, `row_stride` bytes apart.
/// - `k` is a whole number of blocks and of runs.
/// - With [`RowLayout::Groups`], `m` is a multiple of [`LANES`].
#[derive(Clone, Copy)]
pub(crate) struct WeightRows {
    pub ty: GgmlType,
    pub w: *const u8,
    /// Bytes per row. With [`RowLayout::Groups`], an eighth of a group's size.
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    /// Size of a row's chunk in bytes.
    pub chunk_bytes: usize,
    pub integers: IntFormat,
    pub layout: RowLayout,
}

impl WeightRows {
    /// Returns the byte offset of chunk `c` of the row group that starts at row `i`.
    #[inline(always)]
    pub(crate) fn group_offset(&self, i: usize, c: usize) -> usize {
        i * self.row_stride + LANES * c * self.chunk_bytes
    }
}

/// Layout of rows in memory, with the functions that unpack it.
#[derive(Clone, Copy)]
pub(crate) enum RowLayout {
    /// Contiguous weight rows in file order.
    Rows(UnpackRow),
    /// Row groups (see [`interleaved`](crate::interleaved)).
    Groups(FillGroups),
}

/// Function pointer to an instantiation of [`fill_panel`](super::interleaved8::fill_panel).
pub(crate) type FillPanel<F> = unsafe fn([*const u8; GROUPS], usize, &mut PanelChunk<F>);

/// Functions that fill a panel from row groups, one per form of its integers. An instruction set multiplies
/// either signed or shifted bytes (see [`SUMS_IN_I16`](crate::simd::dots::ByteDots::SUMS_IN_I16)). Only
/// [`group_panels`](super::group_panels) multiplies `bytes`.
#[derive(Clone, Copy)]
pub(crate) struct FillGroups {
    pub words: FillPanel<I16Values>,
    pub signed: FillPanel<I8Values>,
    pub shifted: FillPanel<ShiftedI8Values>,
    pub bytes: FillPanel<ByteValues>,
}

/// Substitutes for a [`FillPanel`] in a form of integers that an instruction set never multiplies.
///
/// # Panics
/// Always panics.
pub(crate) unsafe fn no_panel<F>(_: [*const u8; GROUPS], _: usize, _: &mut PanelChunk<F>) {
    unreachable!("the instruction set multiplies panels of another form");
}

/// A chunk of [`PANEL_ROWS`] rows, with integers in the form `F`. Runs beyond the end of a row are
/// uninitialized.
#[repr(C, align(64))]
pub(crate) struct PanelChunk<F> {
    pub values: F,
    pub scales: [[[f32; LANES]; GROUPS]; HALVES],
    pub mins: [[[f32; LANES]; GROUPS]; HALVES],
}

/// Integer format of a panel.
pub(crate) trait PanelValues: Sized {
    /// Whether multiplications read the scales of second halves of runs even if they equal the scales of the first.
    const EVERY_HALF: bool = true;

    /// Selects the function that fills panels of this format.
    fn select(fill: &FillGroups) -> FillPanel<Self>;

    /// Stores a run of a row group. Each register holds 4 adjacent weights of all 8 rows.
    ///
    /// # Safety
    /// The CPU supports `V`.
    unsafe fn store_run<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &IntFormat);
}

/// 16-bit integers minus [`ZERO`](Unpack::ZERO): `[word][group][odd]`. Each word of 4 weights is split into
/// weights with even and with odd index.
#[repr(C)]
pub(crate) struct I16Values(pub [[[[u8; 4 * LANES]; 2]; GROUPS]; CHUNK / 4]);

impl PanelValues for I16Values {
    const EVERY_HALF: bool = false;

    fn select(fill: &FillGroups) -> FillPanel<Self> {
        fill.words
    }

    #[inline(always)]
    unsafe fn store_run<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &IntFormat) {
        for (i, register) in registers.into_iter().enumerate() {
            let [even, odd] = if integers.signed {
                register.widen_signed()
            } else {
                register.widen()
            };
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the CPU supports `V` (function contract); `to[0]` and `to[1]` have 32 bytes each.
            unsafe {
                let zero = V::words(-i16::from(integers.zero));
                even.add16(zero).store(to[0].as_mut_ptr());
                odd.add16(zero).store(to[1].as_mut_ptr());
            }
        }
    }
}

/// Signed bytes minus [`ZERO`](Unpack::ZERO): `[word][group]`, 4 adjacent weights per row.
#[repr(C)]
pub(crate) struct I8Values(pub [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4]);

impl PanelValues for I8Values {
    fn select(fill: &FillGroups) -> FillPanel<Self> {
        fill.signed
    }

    #[inline(always)]
    unsafe fn store_run<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &IntFormat) {
        for (i, register) in registers.into_iter().enumerate() {
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the CPU supports `V` (function contract); `to` has 32 bytes.
            unsafe {
                register.sub(V::splat(integers.zero)).store(to.as_mut_ptr());
            }
        }
    }
}

/// [`I8Values`] times 2^[`spare_bits`](IntFormat::spare_bits).
#[repr(C)]
pub(crate) struct ShiftedI8Values(pub [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4]);

impl PanelValues for ShiftedI8Values {
    fn select(fill: &FillGroups) -> FillPanel<Self> {
        fill.shifted
    }

    #[inline(always)]
    unsafe fn store_run<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &IntFormat) {
        let (zero, n) = (integers.zero, integers.spare_bits());
        for (i, register) in registers.into_iter().enumerate() {
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the CPU supports `V` (function contract); `to` has 32 bytes.
            unsafe {
                register.shl(n).sub(V::splat(zero << n)).store(to.as_mut_ptr());
            }
        }
    }
}

/// Unsigned bytes as they are stored: `[word][group]`, 4 adjacent weights per row. [`SIGN`] is added to signed
/// integers.
#[repr(C)]
pub(crate) struct ByteValues(pub [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4]);

impl PanelValues for ByteValues {
    const EVERY_HALF: bool = false;

    fn select(fill: &FillGroups) -> FillPanel<Self> {
        fill.bytes
    }

    #[inline(always)]
    unsafe fn store_run<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &IntFormat) {
        for (i, register) in registers.into_iter().enumerate() {
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the CPU supports `V` (function contract); `to` has 32 bytes.
            unsafe {
                let bytes = if integers.signed {
                    register.xor(V::splat(SIGN))
                } else {
                    register
                };
                bytes.store(to.as_mut_ptr());
            }
        }
    }
}

/// Fills a panel with chunk `c` of [`PANEL_ROWS`] rows starting at row `i`. The last row or group is repeated if the
/// panel extends beyond it.
///
/// # Safety
/// - The CPU supports `V`.
/// - `w` satisfies the invariants of [`WeightRows`], `i < w.m`, and `c * CHUNK < w.k`.
#[inline(always)]
pub(crate) unsafe fn fill<V: IntSimd, F: PanelValues>(w: &WeightRows, i: usize, c: usize, to: &mut PanelChunk<F>) {
    let runs = RUNS.min((w.k - c * CHUNK) / RUN);
    // SAFETY: rows are clamped to `m - 1` and groups to `m - LANES`, and `runs` ends at `k`, so all reads are
    // within the weights.
    unsafe {
        match &w.layout {
            RowLayout::Rows(unpack) => {
                for group in 0..GROUPS {
                    fill_with_rows::<V, F>(w, *unpack, i + group * LANES, c, runs, group, to);
                }
            }
            RowLayout::Groups(fill) => {
                let mut groups = [w.w; GROUPS];
                for (group, p) in groups.iter_mut().enumerate() {
                    *p = p.add(w.group_offset((i + group * LANES).min(w.m - LANES), c));
                }
                F::select(fill)(groups, runs, to);
            }
        }
    }
}

/// Fills one group of a panel from contiguous rows, starting at row `i`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `w` satisfies the invariants of [`WeightRows`] and has at least `runs` runs in chunk `c`.
#[inline(always)]
unsafe fn fill_with_rows<V: IntSimd, F: PanelValues>(
    w: &WeightRows,
    unpack: UnpackRow,
    i: usize,
    c: usize,
    runs: usize,
    group: usize,
    to: &mut PanelChunk<F>,
) {
    let mut rows: [RowChunk; LANES] = Default::default();
    for (lane, row) in rows.iter_mut().enumerate() {
        let i = (i + lane).min(w.m - 1);
        // SAFETY: the row is clamped to `m - 1`, and chunk `c` has `runs` runs (function contract).
        unsafe { unpack(w.w.add(i * w.row_stride + c * w.chunk_bytes), runs, row) }
    }
    store_scales(&w.integers, &rows, group, to);
    for run in 0..runs {
        // SAFETY: the CPU supports `V` (function contract), and a run has 32 bytes.
        unsafe {
            let mut registers = [V::splat(0); LANES];
            for lane in 0..LANES {
                registers[lane] = V::load(rows[lane].values[run].as_ptr());
            }
            to.values.store_run(run, group, V::transpose(registers), &w.integers);
        }
    }
}

/// Stores the scales and minimums of a group's rows for each half run.
#[inline(always)]
fn store_scales<F>(integers: &IntFormat, rows: &[RowChunk; LANES], group: usize, to: &mut PanelChunk<F>) {
    for half in 0..HALVES {
        let (run, second) = (half / 2, if integers.by_16 { half % 2 } else { 0 });
        for (lane, row) in rows.iter().enumerate() {
            to.scales[half][group][lane] = row.scales.scales[second][run];
            to.mins[half][group][lane] = row.scales.mins[second][run];
        }
    }
}
