//! Panels: rows of weights as integers, interleaved so that a register holds neighbouring weights of [`LANES`] rows.
//!
//! What depends on the type of the weights is one function, which unpacks a chunk of a row; everything else is shared by all types.

use super::interleaved8::FillPanel;
use super::integers::{CHUNK, RUN, RUNS, Scales, Unpack};
use crate::GgmlType;
use crate::simd::IntSimd;

/// Rows in a register.
pub(crate) const LANES: usize = 8;

/// Registers that are multiplied with the same activations.
pub(crate) const GROUPS: usize = 2;

/// Rows of weights that are multiplied with many columns at a time. A product of fewer rows takes as long, so work is to be split in multiples of them.
pub const PANEL_ROWS: usize = GROUPS * LANES;

/// Halves of the runs of a chunk, which may have scales of their own: numbered in the order of the weights.
pub(crate) const HALVES: usize = 2 * RUNS;

/// Flips the sign of a byte: signed bytes then are unsigned, with this for 0.
pub(crate) const SIGN: u8 = 128;

/// What is known of a type's integers: see [`Unpack`].
#[derive(Clone, Copy)]
pub(crate) struct Integers {
    pub bits: u32,
    pub by_16: bool,
    pub signed: bool,
    pub zero: u8,
    pub has_mins: bool,
}

impl Integers {
    /// Whether there are minimums besides those that stand for a zero.
    pub(crate) const fn has_own_mins(&self) -> bool {
        self.has_mins && self.zero == 0
    }

    /// By how many bits unsigned integers can be shifted up and fit signed bytes, less [`ZERO`](Unpack::ZERO). Signed ones have none to spare.
    pub(crate) const fn spare_bits(&self) -> u32 {
        if self.signed {
            return 0;
        }
        let is_centered = self.zero as u32 == 1 << self.bits >> 1;
        i8::BITS - self.bits - if is_centered { 0 } else { 1 }
    }
}

impl Integers {
    /// How many sums of 16 bits the products of a run take: of weights, less [`ZERO`](Unpack::ZERO), with integers from -127 to 127, where each lane of 16 bits adds up 2 of every 4
    /// neighbours. 0 if one or two sums do not hold them, or if two products with unsigned bytes do not fit (`vpmaddubsw` would saturate).
    pub(crate) const fn sums_of_16_bits(&self) -> usize {
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

    pub(crate) const fn of<V: IntSimd, D: Unpack<V>>() -> Integers {
        Integers {
            bits: D::BITS,
            signed: D::SIGNED,
            zero: D::ZERO,
            by_16: D::BY_16,
            has_mins: D::HAS_MINS,
        }
    }
}

/// A chunk of a row.
#[derive(Default)]
#[repr(C, align(32))]
pub(crate) struct RowChunk {
    pub scales: Scales,
    values: [[u8; RUN]; RUNS],
}

/// Unpacks the first `runs` runs of a chunk of a row.
///
/// # Safety
/// As for [`Unpack`]; `to` is valid for writes.
#[inline(always)]
pub(crate) unsafe fn unpack_row<V: IntSimd, D: Unpack<V>>(p: *const u8, runs: usize, to: &mut RowChunk) {
    // SAFETY: the caller's promise.
    unsafe {
        D::scales(p, runs, &mut to.scales);
        for i in 0..runs {
            D::values(p, i).store(to.values[i].as_mut_ptr());
        }
    }
}

/// A function that is [`unpack_row`] for some type.
pub(crate) type UnpackRow = unsafe fn(*const u8, usize, &mut RowChunk);

/// Rows of weights of some type.
#[derive(Clone, Copy)]
pub(crate) struct WeightRows {
    pub ty: GgmlType,
    pub w: *const u8,
    /// Bytes of a row. Those of [`LANES`] rows are a group, if rows are interleaved.
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    /// Bytes of a chunk of a row.
    pub chunk_bytes: usize,
    pub integers: Integers,
    pub layout: RowLayout,
}

impl WeightRows {
    /// Bytes to chunk `c` of the group of interleaved rows that begins with row `i`.
    #[inline(always)]
    pub(crate) fn place_in_groups(&self, i: usize, c: usize) -> usize {
        i * self.row_stride + LANES * c * self.chunk_bytes
    }
}

/// How rows lie in memory, and what unpacks them.
#[derive(Clone, Copy)]
pub(crate) enum RowLayout {
    /// One after the other.
    Rows(UnpackRow),
    /// In groups.
    Groups(FillGroups),
}

/// What fills panels of either form with groups.
#[derive(Clone, Copy)]
pub(crate) struct FillGroups {
    pub words: FillPanel<WideValues>,
    pub signed: FillPanel<SignedValues>,
    pub shifted: FillPanel<ShiftedValues>,
}

/// A chunk of [`PANEL_ROWS`] rows. `F` holds the integers; those of runs that a row lacks are not set.
#[repr(C, align(64))]
pub(crate) struct PanelChunk<F> {
    pub values: F,
    pub scales: [[[f32; LANES]; GROUPS]; HALVES],
    pub mins: [[[f32; LANES]; GROUPS]; HALVES],
}

/// A form of the integers of a panel's chunk.
pub(crate) trait PanelValues: Sized {
    /// What fills panels of this form.
    fn of(fill: &FillGroups) -> FillPanel<Self>;

    /// Puts a run of a group's rows, given the registers that each hold 4 neighbouring weights of all rows.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions.
    unsafe fn put<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &Integers);
}

/// Integers of 16 bits, around 0 if the type has a [`ZERO`](Unpack::ZERO): of 4 neighbouring weights of each row those with even and those with odd
/// index, `[4 weights][group][odd]`.
#[repr(C)]
pub(crate) struct WideValues(pub [[[[u8; 4 * LANES]; 2]; GROUPS]; CHUNK / 4]);

impl PanelValues for WideValues {
    fn of(fill: &FillGroups) -> FillPanel<Self> {
        fill.words
    }

    #[inline(always)]
    unsafe fn put<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &Integers) {
        for (i, register) in registers.into_iter().enumerate() {
            let [even, odd] = if integers.signed {
                register.widen_signed()
            } else {
                register.widen()
            };
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the caller's promise; 32 bytes each.
            unsafe {
                let zero = V::words(-i16::from(integers.zero));
                even.add16(zero).store(to[0].as_mut_ptr());
                odd.add16(zero).store(to[1].as_mut_ptr());
            }
        }
    }
}

/// Signed bytes, 4 neighbouring weights of each row: `[4 weights][group]`. Around 0 if the type has a [`ZERO`](Unpack::ZERO).
#[repr(C)]
pub(crate) struct SignedValues(pub [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4]);

impl PanelValues for SignedValues {
    fn of(fill: &FillGroups) -> FillPanel<Self> {
        fill.signed
    }

    #[inline(always)]
    unsafe fn put<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &Integers) {
        for (i, register) in registers.into_iter().enumerate() {
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the caller's promise; 32 bytes.
            unsafe {
                register.sub(V::splat(integers.zero)).store(to.as_mut_ptr());
            }
        }
    }
}

/// [`SignedValues`] times 2^[`spare_bits`](Integers::spare_bits).
#[repr(C)]
pub(crate) struct ShiftedValues(pub [[[u8; 4 * LANES]; GROUPS]; CHUNK / 4]);

impl PanelValues for ShiftedValues {
    fn of(fill: &FillGroups) -> FillPanel<Self> {
        fill.shifted
    }

    #[inline(always)]
    unsafe fn put<V: IntSimd>(&mut self, run: usize, group: usize, registers: [V; 8], integers: &Integers) {
        let (zero, n) = (integers.zero, integers.spare_bits());
        for (i, register) in registers.into_iter().enumerate() {
            let to = &mut self.0[run * (RUN / 4) + i][group];
            // SAFETY: the caller's promise; 32 bytes.
            unsafe {
                register.shl(n).sub(V::splat(zero << n)).store(to.as_mut_ptr());
            }
        }
    }
}

/// Fills a panel's chunk with [`PANEL_ROWS`] rows from row `i` on, chunk `c` of each. Rows beyond the last are copies of it.
///
/// # Safety
/// The CPU has `V`'s instructions, and the rows are as `w` says.
#[inline(always)]
pub(crate) unsafe fn fill<V: IntSimd, F: PanelValues>(w: &WeightRows, i: usize, c: usize, to: &mut PanelChunk<F>) {
    let runs = RUNS.min((w.k - c * CHUNK) / RUN);
    // SAFETY: the caller's promise; groups and a chunk that the operand has.
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
                    *p = p.add(w.place_in_groups((i + group * LANES).min(w.m - LANES), c));
                }
                F::of(fill)(groups, runs, to);
            }
        }
    }
}

/// Fills one group of a panel's chunk with rows from row `i` on.
///
/// # Safety
/// As for [`fill`].
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
        // SAFETY: a row and a chunk that the operand has.
        unsafe { unpack(w.w.add(i * w.row_stride + c * w.chunk_bytes), runs, row) }
    }
    put_scales(&w.integers, &rows, group, to);
    for run in 0..runs {
        // SAFETY: the caller's promise; a run is 32 bytes.
        unsafe {
            let mut registers = [V::splat(0); LANES];
            for lane in 0..LANES {
                registers[lane] = V::load(rows[lane].values[run].as_ptr());
            }
            to.values.put(run, group, V::transpose(registers), &w.integers);
        }
    }
}

/// The scales and minimums of a group's rows, for each half of a run.
#[inline(always)]
fn put_scales<F>(integers: &Integers, rows: &[RowChunk; LANES], group: usize, to: &mut PanelChunk<F>) {
    for half in 0..HALVES {
        let (run, second) = (half / 2, if integers.by_16 { half % 2 } else { 0 });
        for (lane, row) in rows.iter().enumerate() {
            to.scales[half][group][lane] = row.scales.scales[second][run];
            to.mins[half][group][lane] = row.scales.mins[second][run];
        }
    }
}
