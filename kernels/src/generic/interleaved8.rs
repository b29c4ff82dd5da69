//! Groups of interleaved rows: their blocks to integers, and the product with a few columns. See [`interleaved`](crate::interleaved).
//!
//! A register holds 4 neighbouring weights of each row, so that a lane of 32 bits belongs to one row: sums need not be added up across lanes, and the scales
//! of the rows are the lanes of a register, too.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::interleaved8_zmm::{DoubleWidthSums, TwoRegisterSums};
use super::interleaved8_schedule::{Order, Part};
use super::int_products::{IntProduct, each_of_8};
use super::integers::{CHUNK, I16Header, RUN, RUNS, Unpack};
use super::pack::{GROUPS, HALVES, Integers, LANES, PanelChunk, PanelValues, SIGN};
use crate::interleaved::{GROUP_ROWS, Interleaved, bytes_in_group};
use crate::prefetch::CACHE_LINE;
use crate::simd::dots::DoubleWidth;
use crate::simd::{IntSimd, Simd};

/// Registers of a run.
pub(super) const WORDS: usize = RUN / 4;

/// Bytes by which each stream of groups is prefetched. Fewer do not cover the latency of memory for a core that could read faster (Zen 5); more cost a few percent where all cores
/// together read as fast as memory allows.
const AHEAD: usize = 4096;

const _: () = assert!(GROUP_ROWS == LANES);

/// What turns the integers of a chunk into weights, a row in each lane: for each half of a run if the type is [`BY_16`](Unpack::BY_16), else for
/// each run.
#[repr(C, align(64))]
pub(crate) struct GroupScales {
    pub scales: [[f32; LANES]; HALVES],
    /// Not set if the type has none but for its [`ZERO`](Unpack::ZERO).
    pub mins: [[f32; LANES]; HALVES],
}

impl GroupScales {
    /// Sets scale `i`.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions and `to` is valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn set<V: Simd>(to: *mut GroupScales, i: usize, scale: V) {
        // SAFETY: 8 lanes.
        unsafe { scale.store((&raw mut (*to).scales[i]).cast()) }
    }

    /// Sets minimum `i`.
    ///
    /// # Safety
    /// As for [`set`](GroupScales::set).
    #[inline(always)]
    pub(crate) unsafe fn set_min<V: Simd>(to: *mut GroupScales, i: usize, min: V) {
        // SAFETY: 8 lanes.
        unsafe { min.store((&raw mut (*to).mins[i]).cast()) }
    }

    /// Scale `i`.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions, and the scale was set.
    #[inline(always)]
    pub(super) unsafe fn scale<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: 8 lanes.
        unsafe { V::load((&raw const (*from).scales[i]).cast()) }
    }

    /// Minimum `i`.
    ///
    /// # Safety
    /// The CPU has `V`'s instructions, and the minimum was set.
    #[inline(always)]
    pub(super) unsafe fn min<V: Simd>(from: *const GroupScales, i: usize) -> V {
        // SAFETY: 8 lanes.
        unsafe { V::load((&raw const (*from).mins[i]).cast()) }
    }
}

/// A type of which groups of rows can be unpacked.
///
/// # Safety
/// As for [`Unpack`]; `p` is where a chunk of a group starts.
pub(crate) trait UnpackGroup<V: IntSimd>: Unpack<V> + Interleaved {
    /// Sets the scales of the first `runs` runs of a chunk, and the minimums if there are any but for the type's [`ZERO`](Unpack::ZERO).
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales);

    /// Weights `4 j` to `4 j + 3` of run `i` of a chunk, of each row. `j` is mostly a constant once inlined; `i` is not, so that code for one run serves
    /// all of them: measured, that is faster.
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V;
}

/// Bytes `at` to `at + 3` of the block of each row of a group.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn word_of_group<V: IntSimd>(p: *const u8, at: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { V::load(p.add(GROUP_ROWS * at)) }
}

/// What 16 bytes hold as low and high nibbles, of each row of a group: the values of word `j`, given the offset of the bytes in the group's block.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn nibbles_of_group<V: IntSimd>(p: *const u8, at: usize, j: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let both: V = word_of_group(p, at + j % 4 * 4);
        let nibbles = if j < 4 { both } else { both.shr(4) };
        nibbles.and(V::splat(15))
    }
}

/// What 8 bytes hold as pairs of bits, lowest first, of each row of a group: as [`nibbles_of_group`].
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn pairs_of_group<V: IntSimd>(p: *const u8, at: usize, j: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let pairs: V = word_of_group(p, at + j % 2 * 4);
        pairs.shr(j as u32 / 2 * 2).and(V::splat(3))
    }
}

/// Byte `at` of the blocks of a group.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn bytes_of_group<V: Simd>(p: *const u8, at: usize) -> V::Int {
    // SAFETY: the caller's promise.
    unsafe { V::load_u8(p.add(GROUP_ROWS * at)) }
}

/// The half floats at byte `at` of the blocks of a group.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn halves_of_group<V: Simd>(p: *const u8, at: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe { V::load_f16(p.add(GROUP_ROWS * at)) }
}

/// The group's block that has run `i` of a chunk.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn block_of_run<B: Interleaved>(p: *const u8, i: usize) -> *const u8 {
    let block_size = B::TYPE.block_size();
    // SAFETY: the caller's promise.
    unsafe { p.add(bytes_in_group::<B>(i * RUN / block_size * block_size)) }
}

/// Sets the scales of runs to what blocks have as a half float at byte `at`.
///
/// # Safety
/// As for [`UnpackGroup::group_scales`].
#[inline(always)]
pub(crate) unsafe fn set_group_scales<V: Simd, B: Interleaved>(
    p: *const u8,
    at: usize,
    runs: usize,
    to: *mut GroupScales,
) {
    let runs_of_block = B::TYPE.block_size() / RUN;
    for first in (0..runs).step_by(runs_of_block) {
        // SAFETY: the caller's promise: runs make up whole blocks.
        unsafe {
            let scale: V = halves_of_group(block_of_run::<B>(p, first), at);
            for i in first..first + runs_of_block {
                GroupScales::set(to, i, scale);
            }
        }
    }
}

const _: () = assert!(WORDS == RUNS);

/// Groups that are multiplied with the same activations at a time, each read as a stream: two streams come faster from memory than one.
const STREAMS: usize = 2;

/// The same of long pieces with one column, where registers are enough: memory gives them 1 to 3 % faster.
const STREAMS_OF_ONE: usize = 4;

/// Bytes of a group up to which neighbours are read one after the other: as two streams they come no faster.
const SHORT: usize = 8 << 10;

/// Most columns for which weights are multiplied as bytes, see [`Narrow`]: with more of them the sums would not fit the registers.
const NARROW_COLUMNS: usize = 2;

/// Whether [`Fours`] is the way to multiply with `n` columns: its sums fit the registers.
const fn takes_fours<V: IntSimd>(n: usize) -> bool {
    V::HAS_FOURS && 2 * STREAMS * n + STREAMS < V::REGISTERS
}

/// Whether [`Narrow`] is, where the instruction set does not have what [`Fours`] needs.
const fn takes_narrow<V: IntSimd, D: Unpack<V>>(n: usize) -> bool {
    !V::HAS_FOURS && n <= NARROW_COLUMNS && !D::SIGNED && D::BITS <= NARROW_BITS
}

/// `N` columns times groups of rows: `p.m` is a multiple of [`GROUP_ROWS`], `p.row_stride` an eighth of what a group takes. Weights are unpacked in
/// registers and never stored. An element has the same bits for any `N`.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()), with at least `N` columns.
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, D: UnpackGroup<V>, const N: usize>(p: &IntProduct) {
    // SAFETY: the caller's promise.
    unsafe {
        if const { takes_fours::<V>(N) } {
            multiply_by::<V, D, Fours, N>(p);
        } else if const { takes_narrow::<V, D>(N) } {
            multiply_by::<V, D, Narrow, N>(p);
        } else {
            multiply_by::<V, D, Wide, N>(p);
        }
    }
}

/// Whether memory gives weights of a type no faster than one or two columns are multiplied with them in registers of 256 bits: those of 4 bits and more. Twice the width then
/// gains nothing, and costs a few percent.
const fn waits_for_memory<D: Interleaved>(n: usize) -> bool {
    n <= 2 && 8 * bytes_in_group::<D>(CHUNK) >= 4 * GROUP_ROWS * CHUNK
}

/// Fewest columns that may take four groups at a time, in two registers: an activation is read once for both.
const COLUMNS_OF_FOUR_GROUPS: usize = 3;

/// Whether `n` columns do, with rows of `k` elements. With 3 and 4 columns short rows were 2 to 4 % slower (SmolLM2's of 576).
const fn takes_four_groups(n: usize, k: usize) -> bool {
    n >= 5 || n >= COLUMNS_OF_FOUR_GROUPS && k >= 1024
}

/// [`multiply`] with two groups in one register `W` of twice the width, or four in two of them, where that pays.
///
/// # Safety
/// As for [`multiply`], and the CPU has `W`'s instructions.
#[inline(always)]
pub(crate) unsafe fn multiply_double_width<V: IntSimd, W: DoubleWidth<V>, D: UnpackGroup<V>, const N: usize>(
    p: &IntProduct,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if const { waits_for_memory::<D>(N) } {
            multiply::<V, D, N>(p);
        } else if const { N >= COLUMNS_OF_FOUR_GROUPS } && takes_four_groups(N, p.k) {
            // Four groups at a time, and what is left over.
            let m = p.m / (4 * GROUP_ROWS) * (4 * GROUP_ROWS);
            let (fours, rest) = (IntProduct { m, ..*p }, p.rows_from(m));
            multiply_with::<V, D, TwoRegisterSums<V, W, D, N>, 4>(&fours, &Order::of_streams(&fours));
            multiply_with::<V, D, DoubleWidthSums<V, W, D, N>, 2>(&rest, &Order::of_streams(&rest));
        } else {
            multiply_with::<V, D, DoubleWidthSums<V, W, D, N>, 2>(p, &Order::of_streams(p));
        }
    }
}

/// [`multiply`] by the instructions of `T`.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_by<V: IntSimd, D: UnpackGroup<V>, T: Totals, const N: usize>(p: &IntProduct) {
    // SAFETY: the caller's promise.
    unsafe {
        if const { N == 1 && V::REGISTERS > 16 } {
            let order = Order::of_streams(p);
            if order.neighbours > 1 {
                multiply_with::<V, D, SumsByGroup<V, D, T, N, STREAMS_OF_ONE>, STREAMS_OF_ONE>(p, &order);
                return;
            }
        }
        let order = Order::of_streams(p);
        if N == 1 && order.group_bytes <= SHORT && order.neighbours == 1 {
            multiply_with::<V, D, SumsByGroup<V, D, T, N, 1>, 1>(p, &Order::new(p, 1));
        } else {
            multiply_with::<V, D, SumsByGroup<V, D, T, N, STREAMS>, STREAMS>(p, &order);
        }
    }
}

/// The sums of `G` groups of rows with some columns.
pub(super) trait GroupSums<const G: usize> {
    /// Sums of nothing.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn new() -> Self;

    /// Adds the products of a chunk.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn add_chunk(&mut self, part: &Part<G>);

    /// Writes them as results, given the first row of each group.
    ///
    /// # Safety
    /// As for [`multiply`].
    unsafe fn put(&self, p: &IntProduct, rows: [usize; G]);
}

/// [`multiply`] with `G` groups at a time, in some order.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn multiply_with<V: IntSimd, D: UnpackGroup<V>, S: GroupSums<G>, const G: usize>(
    p: &IntProduct,
    order: &Order<G>,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; G];
    for step in 0..order.len() {
        let groups = order.groups(step);
        // SAFETY: the caller's promise; groups lie below `m`, chunks below `k`. Scales are set before they are read.
        unsafe {
            let mut sums = S::new();
            for c in (0..p.k).step_by(CHUNK) {
                let part = groups.part::<V, D>(p, c, scales.as_ptr().cast());
                for g in 0..G {
                    D::group_scales(part.w[g], part.runs, scales[g].as_mut_ptr());
                }
                sums.add_chunk(&part);
            }
            sums.put(p, groups.rows());
        }
    }
}

/// Sums of floats, or of integers of 32 bits, for each column and group.
type ByGroup<T, const N: usize, const G: usize> = [[T; G]; N];

/// The products of weights and activations of a run, or of half of one, which have one scale: exact sums.
trait Totals {
    /// # Safety
    /// As for [`multiply`].
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &Part<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G>;
}

/// Weights of 8 bits and activations of 16 bits, as words.
struct Wide;

/// Any weights and both [parts](super::integers::I16Chunk::parts) of activations, as bytes that are added up in 32 bits at once.
struct Fours;

/// Unsigned weights of at most [`NARROW_BITS`] bits and both [parts](super::integers::I16Chunk::parts) of activations, as bytes. Products are added up in 16 bits as long as
/// they fit: half the steps for a weight that need not be widened.
struct Narrow;

const NARROW_BITS: u32 = 6;

/// Words of unsigned weights whose products with bytes fit integers of 16 bits together: each adds two products of up to `2^bits - 1` times 128.
const fn words_of_sum(bits: u32) -> usize {
    let most = i16::MAX as usize / (2 * 128 * ((1 << bits) - 1));
    match most {
        0 => 1,
        1..WORDS => most,
        _ => WORDS,
    }
}
const _: () = assert!(words_of_sum(4) == 8 && words_of_sum(5) == 4 && words_of_sum(6) == 2);

impl Totals for Wide {
    #[inline(always)]
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &Part<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G> {
        // SAFETY: the caller's promise; a run has 8 registers.
        unsafe {
            let mut totals = [[V::splat(0); G]; N];
            each_of_8!(V, step => {
                if let Some(word) = word::<V, D>(step, half) {
                    let mut values = [[V::splat(0); 2]; G];
                    for g in 0..G {
                        let bytes = D::group_values(part.w[g], i, word);
                        values[g] = if D::SIGNED { bytes.widen_signed() } else { bytes.widen() };
                    }
                    for j in 0..N {
                        let x = (&raw const (*part.column(j)).values[i]).cast::<u8>();
                        for odd in 0..2 {
                            let x = V::broadcast(x.add(RUN * odd + 4 * word));
                            for g in 0..G {
                                totals[j][g] = totals[j][g].add_pairs(values[g][odd], x);
                            }
                        }
                        totals[j] = side_by_side(totals[j]);
                    }
                }
            });
            totals
        }
    }
}

impl Totals for Narrow {
    #[inline(always)]
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &Part<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G> {
        let at_once = const { words_of_sum(D::BITS) };
        // SAFETY: the caller's promise; a run has 8 registers.
        unsafe {
            let factors = [V::words(1), V::words(256)];
            let mut totals = [[V::splat(0); G]; N];
            let mut sums = [[[V::splat(0); 2]; G]; N];
            each_of_8!(V, step => {
                if let Some(word) = word::<V, D>(step, half) {
                    let mut values = [V::splat(0); G];
                    for g in 0..G {
                        values[g] = D::group_values(part.w[g], i, word);
                    }
                    for j in 0..N {
                        let x = (&raw const (*part.column(j)).parts[i]).cast::<u8>();
                        for high in 0..2 {
                            let x = V::broadcast(x.add(RUN * high + 4 * word));
                            for g in 0..G {
                                sums[j][g][high] = sums[j][g][high].add16(values[g].multiply_bytes(x));
                            }
                        }
                        parts_side_by_side(&mut sums[j]);
                    }
                    if (step + 1) % at_once == 0 || step + 1 == WORDS / 2 * (1 + half) && D::BY_16 {
                        for j in 0..N {
                            for g in 0..G {
                                for high in 0..2 {
                                    totals[j][g] = totals[j][g].add_pairs(sums[j][g][high], factors[high]);
                                }
                                sums[j][g] = [V::splat(0); 2];
                            }
                        }
                    }
                }
            });
            totals
        }
    }
}

impl Totals for Fours {
    #[inline(always)]
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &Part<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G> {
        // SAFETY: the caller's promise; a run has 8 registers.
        unsafe {
            let mut sums = [[[V::splat(0); 2]; G]; N];
            each_of_8!(V, step => {
                if let Some(word) = word::<V, D>(step, half) {
                    let mut values = [V::splat(0); G];
                    for g in 0..G {
                        let bytes = D::group_values(part.w[g], i, word);
                        values[g] = if D::SIGNED { bytes.xor(V::splat(SIGN)) } else { bytes };
                    }
                    for j in 0..N {
                        let x = (&raw const (*part.column(j)).parts[i]).cast::<u8>();
                        for high in 0..2 {
                            let x = V::broadcast(x.add(RUN * high + 4 * word));
                            for g in 0..G {
                                sums[j][g][high] = sums[j][g][high].add_fours(values[g], x);
                            }
                        }
                        parts_side_by_side(&mut sums[j]);
                    }
                }
            });
            let mut totals = [[V::splat(0); G]; N];
            for j in 0..N {
                let of_sign = if D::SIGNED {
                    of_zero::<V, D, G>(part, i, half, j, SIGN)
                } else {
                    V::splat(0)
                };
                for g in 0..G {
                    let [low, high] = sums[j][g];
                    totals[j][g] = low.add32(high.shl32(8)).sub32(of_sign);
                }
            }
            totals
        }
    }
}

/// The sums of all groups with a column, computed [together](IntSimd::side_by_side) so far.
#[inline(always)]
fn side_by_side<V: IntSimd, const G: usize>(mut sums: [V; G]) -> [V; G] {
    if let [a, b] = &mut sums[..] {
        [*a, *b] = V::side_by_side([*a, *b]);
    }
    sums
}

/// The same of the sums of both parts.
#[inline(always)]
fn parts_side_by_side<V: IntSimd, const G: usize>(sums: &mut [[V; 2]; G]) {
    if let [a, b] = &mut sums[..] {
        for part in 0..2 {
            [a[part], b[part]] = V::side_by_side([a[part], b[part]]);
        }
    }
}

/// What `zero`, a power of two, adds to the products of weights and column `j` if it stands for 0 in the weights.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn of_zero<V: IntSimd, D: Unpack<V>, const G: usize>(
    part: &Part<G>,
    i: usize,
    half: usize,
    j: usize,
    zero: u8,
) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        let totals = &raw const (*part.column(j)).totals[row_of_sums::<V, D>(half)][i];
        V::broadcast(totals.cast()).shl32(zero.trailing_zeros())
    }
}

/// The row of [`I16Chunk::totals`](super::integers::I16Chunk::totals) and [`sums`](super::integers::I16Chunk::sums) that belongs to a scale.
#[inline(always)]
pub(super) fn row_of_sums<V: IntSimd, D: Unpack<V>>(half: usize) -> usize {
    if D::BY_16 { 1 + half } else { 0 }
}

/// The word of a run that is multiplied in some step: those of the half if it has a scale of its own, else all, of which `j` and `j + 4` share bytes.
#[inline(always)]
pub(super) fn word<V: IntSimd, D: Unpack<V>>(step: usize, half: usize) -> Option<usize> {
    if D::BY_16 {
        (step / (WORDS / 2) == half).then_some(step)
    } else {
        Some(step % 2 * (WORDS / 2) + step / 2)
    }
}

/// Prefetches what follows run `i` of a chunk by some distance in the stream of each group, which goes on behind the others. A run at a
/// time, because more at once than a core has buffers for would hold up other loads.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
pub(super) unsafe fn prefetch<V: IntSimd, D: UnpackGroup<V>, const G: usize>(part: &Part<G>, i: usize) {
    let of_run = bytes_in_group::<D>(CHUNK) / RUNS;
    let at = AHEAD + i * of_run;
    let others = if at < part.left { 0 } else { part.others };
    for w in part.w {
        for line in 0..of_run.div_ceil(CACHE_LINE) {
            // SAFETY: any address may be prefetched.
            unsafe { V::prefetch(w.wrapping_add(at + others + line * CACHE_LINE)) };
        }
    }
}

/// Whether a type has minimums that are not due to its zero.
pub(super) const fn has_mins<V: IntSimd, D: Unpack<V>>() -> bool {
    D::HAS_MINS && D::ZERO == 0
}

/// Sums that have a register for each group, multiplied by the instructions of `T`.
struct SumsByGroup<V: IntSimd, D, T, const N: usize, const G: usize> {
    sums: ByGroup<V::Float, N, G>,
    by: PhantomData<(D, T)>,
}

impl<V: IntSimd, D: UnpackGroup<V>, T: Totals, const N: usize, const G: usize> GroupSums<G>
    for SumsByGroup<V, D, T, N, G>
{
    #[inline(always)]
    unsafe fn new() -> Self {
        SumsByGroup {
            // SAFETY: the caller's promise.
            sums: unsafe { [[V::Float::splat(0.0); G]; N] },
            by: PhantomData,
        }
    }

    /// By the same floating-point operations as panels: see [`panel_products`](super::panel_products).
    #[inline(always)]
    unsafe fn add_chunk(&mut self, part: &Part<G>) {
        let sums = &mut self.sums;
        // SAFETY: the caller's promise.
        unsafe {
            let mut mins = [[V::Float::splat(0.0); G]; N];
            for i in 0..part.runs {
                prefetch::<V, D, G>(part, i);
                if D::BY_16 {
                    add_totals::<V, D, T, N, G>(part, i, 0, sums, &mut mins);
                    add_totals::<V, D, T, N, G>(part, i, 1, sums, &mut mins);
                } else {
                    add_totals::<V, D, T, N, G>(part, i, 0, sums, &mut mins);
                }
            }
            if has_mins::<V, D>() {
                for j in 0..N {
                    for g in 0..G {
                        sums[j][g] = sums[j][g].add(mins[j][g]);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put(&self, p: &IntProduct, rows: [usize; G]) {
        for j in 0..N {
            // SAFETY: the caller's promise: rows of groups that the result has.
            unsafe {
                let scale = V::Float::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
                for g in 0..G {
                    self.sums[j][g].mul(scale).store(p.out.add(j * p.out_stride + rows[g]));
                }
            }
        }
    }
}

/// Adds what belongs to one scale, run `i` or half of it, to `sums`, and the minimums to `mins`.
///
/// # Safety
/// As for [`multiply`].
#[inline(always)]
unsafe fn add_totals<V: IntSimd, D: UnpackGroup<V>, T: Totals, const N: usize, const G: usize>(
    part: &Part<G>,
    i: usize,
    half: usize,
    sums: &mut ByGroup<V::Float, N, G>,
    mins: &mut ByGroup<V::Float, N, G>,
) {
    let at = if D::BY_16 { 2 * i + half } else { i };
    // SAFETY: the caller's promise; a type that is `BY_16` has scales for both halves.
    unsafe {
        let totals = T::of::<V, D, N, G>(part, i, half);
        for j in 0..N {
            let of_zero = if D::ZERO > 0 {
                of_zero::<V, D, G>(part, i, half, j, D::ZERO)
            } else {
                V::splat(0)
            };
            let of_x = (&raw const (*part.column(j)).sums[row_of_sums::<V, D>(half)][i]).read_unaligned();
            for g in 0..G {
                let scales = part.scales.add(g);
                let total = totals[j][g].sub32(of_zero).to_floats();
                sums[j][g] = total.mul_add(GroupScales::scale(scales, at), sums[j][g]);
                if has_mins::<V, D>() {
                    let min: V::Float = GroupScales::min(scales, at);
                    mins[j][g] = min.mul_add(V::Float::splat(of_x), mins[j][g]);
                }
            }
        }
    }
}

/// Fills a panel's chunk from the chunks of its groups.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
pub(crate) unsafe fn fill_panel<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    groups: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelChunk<F>,
) {
    for (group, p) in groups.into_iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe { fill_group::<V, D, F>(p, runs, group, to) }
    }
}

/// Fills the part of a panel's chunk that a group is, from the group's chunk at `p`.
///
/// # Safety
/// As for [`UnpackGroup`].
#[inline(always)]
unsafe fn fill_group<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    p: *const u8,
    runs: usize,
    group: usize,
    to: &mut PanelChunk<F>,
) {
    let mut scales = MaybeUninit::<GroupScales>::uninit();
    // SAFETY: the caller's promise. Scales of the runs are set before they are read.
    unsafe {
        D::group_scales(p, runs, scales.as_mut_ptr());
        for half in 0..2 * runs {
            let at = if D::BY_16 { half } else { half / 2 };
            let scale: V::Float = GroupScales::scale(scales.as_ptr(), at);
            scale.store(to.scales[half][group].as_mut_ptr());
            if D::HAS_MINS {
                let min: V::Float = if D::ZERO > 0 {
                    scale.mul(V::Float::splat(-f32::from(D::ZERO)))
                } else {
                    GroupScales::min(scales.as_ptr(), at)
                };
                min.store(to.mins[half][group].as_mut_ptr());
            }
        }
        for i in 0..runs {
            put_run::<V, D, F>(p, i, group, to);
        }
    }
}

/// A function that is [`fill_panel`] for some type.
pub(crate) type FillPanel<F> = unsafe fn([*const u8; GROUPS], usize, &mut PanelChunk<F>);

/// Puts one run of a group.
///
/// # Safety
/// As for [`fill_group`].
#[inline(always)]
unsafe fn put_run<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    p: *const u8,
    i: usize,
    group: usize,
    to: &mut PanelChunk<F>,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut words = [V::splat(0); WORDS];
        each_of_8!(V, j => { words[j] = D::group_values(p, i, j) });
        to.values.put(i, group, words, &const { Integers::of::<V, D>() });
    }
}
