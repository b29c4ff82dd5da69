//! Skinny matmuls over row groups: weights of 8 interleaved rows times a few columns of integer activations.
//!
//! [`interleaved`](crate::interleaved) describes the layout. One 32-byte load yields 4 adjacent weights of
//! each of the 8 rows, so every 32-bit lane belongs to one row:
//!
//! ```text
//!              lane 0         lane 1                  lane 7
//! load j   | w0[4j..4j+4] | w1[4j..4j+4] |  ...  | w7[4j..4j+4] |      wr = weights of row r, one byte each
//! scales   |   scale r0   |   scale r1   |  ...  |   scale r7   |
//! ```
//!
//! A dot product therefore never adds across lanes. A *run* is 32 weights of a row (8 loads); a *chunk* is 8
//! runs. For `N` columns and `G` groups at a time:
//!
//! ```text
//! for groups in schedule:                       # G groups, one memory stream each
//!     sums[N][G] = 0.0                          # f32, a lane per row
//!     for chunk in 0..k / 256:
//!         scales, mins = group_scales(chunk)    # decoded once per chunk
//!         for run in 0..8:
//!             prefetch the bytes PREFETCH_DISTANCE ahead
//!             total[N][G] = 0                   # i32, exact
//!             for j in 0..8:
//!                 w = group_values(run, j)      # unpacked in registers, never stored
//!                 for column in 0..N:
//!                     total += dot4(w, broadcast(x[4j..4j+4]))
//!             sums += f32(total - zero * sum(x)) * scale
//!         sums += sum over runs of min * sum(x)
//!     out[column][row] = sums * scale of x
//! ```
//!
//! An activation is a 16-bit integer. [`Accumulate`] implements `dot4` in three ways:
//!
//! | implementation | instruction | operands | chosen if |
//! |---|---|---|---|
//! | [`DotI32x4`] | `vpdpbusd` (VNNI) | weights and both bytes of `x` | VNNI, and the sums fit the registers |
//! | [`MaddI16`] | `vpmaddubsw` | weights and both bytes of `x` | no VNNI, at most 2 columns, unsigned, at most 6 bits |
//! | [`MaddI32`] | `vpmaddwd` | weights widened to 16 bits, and `x` | otherwise |
//!
//! All three implementations compute the same integers, so a result does not depend on the choice.
//!
//! # Limits
//!
//! - Weights are unpacked again for every `N` columns, and `N` is at most 4, since the sums must fit the registers.
//!   Panels unpack once for all columns. They are faster above some number of columns, which depends on the CPU
//!   (`IntKernels::group_columns`, and 4 with [`group_panels`](super::group_panels)).
//! - The loop needs whole groups, so only matrices whose number of rows is a multiple of 8 are interleaved.
//! - Runs are added in f32 in the order of the row. The bits of a result depend neither on `N` nor on `G`.

use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::int_products::{IntProduct, each_of_8};
use super::integers::I16Header;
use super::interleaved8_schedule::{GroupChunk, Schedule};
use super::pack::{GROUPS, IntFormat, PanelChunk, PanelValues, SIGN};
use crate::layout::groups::{GROUP_ROWS, GroupScales, LANES, UnpackGroup, bytes_in_group};
use crate::layout::runs::{CHUNK, RUN, RUNS, Unpack};
use crate::prefetch::CACHE_LINE;
use crate::simd::{IntSimd, Simd};

/// Registers (32-byte loads) per run.
pub(super) const WORDS: usize = RUN / 4;

/// Prefetch distance of each group's stream in bytes. A smaller value does not hide the memory latency of a
/// core that could read faster (Zen 5). A larger one costs a few percent where all cores together saturate
/// the memory bandwidth.
pub(super) const PREFETCH_DISTANCE: usize = 4096;

const _: () = assert!(GROUP_ROWS == LANES && WORDS == RUNS);

/// Groups multiplied by the same activations at a time, each read as its own stream. Two streams reach a
/// higher memory bandwidth than one.
const STREAMS: usize = 2;

/// Like [`STREAMS`] for one column and long streams, on CPUs with enough registers: 1 to 3 % faster.
const MATVEC_STREAMS: usize = 4;

/// Group size in bytes up to which one stream is as fast as two.
const SHORT_GROUP_BYTES: usize = 8 << 10;

/// Maximum columns for [`MaddI16`]; the sums of more columns do not fit the registers.
const MADD16_COLUMNS: usize = 2;

/// Returns true if the sums of `n` columns in [`DotI32x4`] fit the registers.
const fn use_dot4<V: IntSimd>(n: usize) -> bool {
    V::HAS_DOT4 && 2 * STREAMS * n + STREAMS < V::REGISTERS
}

/// Returns true if [`MaddI16`] handles `n` columns of this type on CPUs without VNNI.
const fn use_madd16<V: IntSimd, D: Unpack<V>>(n: usize) -> bool {
    !V::HAS_DOT4 && n <= MADD16_COLUMNS && !D::SIGNED && D::BITS <= MADD16_BITS
}

/// Multiplies row groups by `N` columns. `p.m` must be a multiple of [`GROUP_ROWS`], and `p.row_stride` is an
/// eighth of a group's size. The bits of a result do not depend on `N`.
///
/// # Safety
/// The CPU supports `V`, `p` satisfies the invariants of [`IntProduct`], and `p.n >= N`.
#[inline(always)]
pub(crate) unsafe fn multiply<V: IntSimd, D: UnpackGroup<V>, const N: usize>(p: &IntProduct) {
    // SAFETY: the caller upholds the contract of `multiply_by`.
    unsafe {
        if const { use_dot4::<V>(N) } {
            multiply_by::<V, D, DotI32x4, N>(p);
        } else if const { use_madd16::<V, D>(N) } {
            multiply_by::<V, D, MaddI16, N>(p);
        } else {
            multiply_by::<V, D, MaddI32, N>(p);
        }
    }
}

/// Multiplies with the accumulation method `T`.
///
/// # Safety
/// The CPU supports `V` and `T`, `p` satisfies the invariants of [`IntProduct`], and `p.n >= N`.
#[inline(always)]
unsafe fn multiply_by<V: IntSimd, D: UnpackGroup<V>, T: Accumulate, const N: usize>(p: &IntProduct) {
    // SAFETY: the caller upholds the contract of `multiply_with`.
    unsafe {
        if const { N == 1 && V::REGISTERS > 16 } {
            let order = Schedule::streamed(p);
            if order.stream_len > 1 {
                multiply_with::<V, D, SumsByGroup<V, D, T, N, MATVEC_STREAMS>, MATVEC_STREAMS>(p, &order);
                return;
            }
        }
        let order = Schedule::streamed(p);
        // One stream is not worth its code where computing takes longer than reading.
        if const { N == 1 && V::UNROLLED } && order.group_bytes <= SHORT_GROUP_BYTES && order.stream_len == 1 {
            multiply_with::<V, D, SumsByGroup<V, D, T, N, 1>, 1>(p, &Schedule::new(p, 1));
        } else {
            multiply_with::<V, D, SumsByGroup<V, D, T, N, STREAMS>, STREAMS>(p, &order);
        }
    }
}

/// Accumulators for `G` row groups times some columns.
pub(super) trait GroupSums<const G: usize> {
    /// Returns zeroed sums.
    ///
    /// # Safety
    /// The CPU supports the register types of the implementation.
    unsafe fn new() -> Self;

    /// Adds the products of a chunk.
    ///
    /// # Safety
    /// The CPU supports the register types, and `part` describes a chunk whose scales are set.
    unsafe fn add_chunk(&mut self, part: &GroupChunk<G>);

    /// Writes the sums to `p.out`. `rows` holds the first row of each group.
    ///
    /// # Safety
    /// The CPU supports the register types, `rows[g] + GROUP_ROWS <= p.m`, and `p` satisfies the invariants
    /// of [`IntProduct`].
    unsafe fn store_results(&self, p: &IntProduct, rows: [usize; G]);
}

/// Multiplies `G` groups at a time in the given order.
///
/// # Safety
/// - The CPU supports the register types of `S`.
/// - `p` satisfies the invariants of [`IntProduct`] for at least as many columns as `S` accumulates.
#[inline(always)]
pub(super) unsafe fn multiply_with<V: IntSimd, D: UnpackGroup<V>, S: GroupSums<G>, const G: usize>(
    p: &IntProduct,
    order: &Schedule<G>,
) {
    let mut scales = [const { MaybeUninit::<GroupScales>::uninit() }; G];
    for step in 0..order.len() {
        let groups = order.groups(step);
        // SAFETY: the schedule yields groups below `p.m / GROUP_ROWS`, and `c < p.k`. `group_scales`
        // initializes the scales before `add_chunk` reads them.
        unsafe {
            let mut sums = S::new();
            for c in (0..p.k).step_by(CHUNK) {
                let part = groups.part::<V, D>(p, c, scales.as_ptr().cast());
                for g in 0..G {
                    group_scales::<V, D>(part.w[g], part.runs, scales[g].as_mut_ptr());
                }
                sums.add_chunk(&part);
            }
            sums.store_results(p, groups.rows());
        }
    }
}

/// A value for each column and group.
type ByGroup<T, const N: usize, const G: usize> = [[T; G]; N];

/// Computes exact dot products of weights and activations that share a scale: a run or half a run.
trait Accumulate {
    /// Returns the i32 dot products of run `i` (or its half `half`) for each column and group.
    ///
    /// # Safety
    /// The CPU supports `V` and `Self`, and `part` describes a chunk with more than `i` runs.
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &GroupChunk<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G>;
}

/// Multiplies weights widened to 16 bits by 16-bit activations (`vpmaddwd`).
struct MaddI32;

/// Multiplies weights of any type by both [byte parts](super::integers::I16Chunk::parts) of the activations
/// and accumulates in 32 bits (`vpdpbusd`).
struct DotI32x4;

/// Multiplies unsigned weights of at most [`MADD16_BITS`] bits by both [byte
/// parts](super::integers::I16Chunk::parts) of the activations (`vpmaddubsw`). Products are accumulated in 16
/// bits while that is exact, which halves the work per weight and needs no widening.
struct MaddI16;

const MADD16_BITS: u32 = 6;

/// Returns how many words of `bits`-bit weights can be accumulated in 16 bits without overflow. Each word
/// adds two products of at most `(2^bits - 1) * 128`.
const fn words_per_i16_sum(bits: u32) -> usize {
    let most = i16::MAX as usize / (2 * 128 * ((1 << bits) - 1));
    match most {
        0 => 1,
        1..WORDS => most,
        _ => WORDS,
    }
}
const _: () = assert!(words_per_i16_sum(4) == 8 && words_per_i16_sum(5) == 4 && words_per_i16_sum(6) == 2);

impl Accumulate for MaddI32 {
    #[inline(always)]
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &GroupChunk<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G> {
        // SAFETY: `i < part.runs`, so the run's words and each column's activations are readable.
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
                            totals[j] = compute_together(totals[j]);
                        }
                    }
                }
            });
            totals
        }
    }
}

impl Accumulate for MaddI16 {
    #[inline(always)]
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &GroupChunk<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G> {
        let at_once = const { words_per_i16_sum(D::BITS) };
        // SAFETY: `i < part.runs`, so the run's words and each column's activations are readable.
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
                        compute_parts_together(&mut sums[j]);
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

impl Accumulate for DotI32x4 {
    #[inline(always)]
    unsafe fn of<V: IntSimd, D: UnpackGroup<V>, const N: usize, const G: usize>(
        part: &GroupChunk<G>,
        i: usize,
        half: usize,
    ) -> ByGroup<V, N, G> {
        // SAFETY: `i < part.runs`, so the run's words and each column's activations are readable.
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
                                sums[j][g][high] = sums[j][g][high].dot4(values[g], x);
                            }
                        }
                        compute_parts_together(&mut sums[j]);
                    }
                }
            });
            let mut totals = [[V::splat(0); G]; N];
            for j in 0..N {
                let sign_correction = if D::SIGNED {
                    zero_correction::<V, D, G>(part, i, half, j, SIGN)
                } else {
                    V::splat(0)
                };
                for g in 0..G {
                    let [low, high] = sums[j][g];
                    totals[j][g] = low.add32(high.shl32(8)).sub32(sign_correction);
                }
            }
            totals
        }
    }
}

/// Keeps the sums of all groups for a column [computed together](IntSimd::compute_together).
#[inline(always)]
fn compute_together<V: IntSimd, const G: usize>(mut sums: [V; G]) -> [V; G] {
    if let [a, b] = &mut sums[..] {
        [*a, *b] = V::compute_together([*a, *b]);
    }
    sums
}

/// Keeps the sums for both byte parts of the activations [computed together](IntSimd::compute_together).
#[inline(always)]
fn compute_parts_together<V: IntSimd, const G: usize>(sums: &mut [[V; 2]; G]) {
    if let [a, b] = &mut sums[..] {
        for part in 0..2 {
            [a[part], b[part]] = V::compute_together([a[part], b[part]]);
        }
    }
}

/// Returns `zero * sum(x)` for column `j`: the excess in the dot product when weights are stored with the
/// power of two `zero` added.
///
/// # Safety
/// The CPU supports `V`, and `part` describes a chunk with more than `i` runs and more than `j` columns.
#[inline(always)]
unsafe fn zero_correction<V: IntSimd, D: Unpack<V>, const G: usize>(
    part: &GroupChunk<G>,
    i: usize,
    half: usize,
    j: usize,
    zero: u8,
) -> V {
    // SAFETY: column `j` has a chunk here with sums for 8 runs, and `i < 8` (function contract).
    unsafe {
        let totals = &raw const (*part.column(j)).totals[sums_row::<V, D>(half)][i];
        V::broadcast(totals.cast()).shl32(zero.trailing_zeros())
    }
}

/// Returns the row of [`I16Chunk::totals`](super::integers::I16Chunk::totals) and
/// [`sums`](super::integers::I16Chunk::sums) that matches a scale: 0 for whole runs, 1 and 2 for halves.
#[inline(always)]
pub(super) fn sums_row<V: IntSimd, D: Unpack<V>>(half: usize) -> usize {
    if D::BY_16 { 1 + half } else { 0 }
}

/// Returns the word of a run to multiply in step `step`, if any. Types with a scale per half visit only the words of
/// `half`. Other types alternate between words `j` and `j + 4`, because they share bytes.
#[inline(always)]
pub(super) fn word<V: IntSimd, D: Unpack<V>>(step: usize, half: usize) -> Option<usize> {
    if !D::BY_16 {
        Some(step % 2 * (WORDS / 2) + step / 2)
    } else if step / (WORDS / 2) == half {
        Some(step)
    } else {
        None
    }
}

/// Prefetches one run's worth of bytes at [`PREFETCH_DISTANCE`] in each group's stream. Prefetching more
/// lines than the core has fill buffers would stall other loads, so this is called once per run.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
pub(super) unsafe fn prefetch<V: IntSimd, D: UnpackGroup<V>, const G: usize>(part: &GroupChunk<G>, i: usize) {
    let run_bytes = bytes_in_group::<D>(CHUNK) / RUNS;
    let at = PREFETCH_DISTANCE + i * run_bytes;
    let skip = if at < part.remaining { 0 } else { part.skip };
    for w in part.w {
        for line in 0..run_bytes.div_ceil(CACHE_LINE) {
            // SAFETY: a prefetch may take any address.
            unsafe { V::prefetch(w.wrapping_add(at + skip + line * CACHE_LINE)) };
        }
    }
}

/// Returns true if the type has minimums other than those implied by `ZERO`.
pub(super) const fn has_mins<V: IntSimd, D: Unpack<V>>() -> bool {
    D::HAS_MINS && D::ZERO == 0
}

/// Sums with one register per group, accumulated with method `T`.
struct SumsByGroup<V: IntSimd, D, T, const N: usize, const G: usize> {
    sums: ByGroup<V::Float, N, G>,
    by: PhantomData<(D, T)>,
}

impl<V: IntSimd, D: UnpackGroup<V>, T: Accumulate, const N: usize, const G: usize> GroupSums<G>
    for SumsByGroup<V, D, T, N, G>
{
    #[inline(always)]
    unsafe fn new() -> Self {
        SumsByGroup {
            // SAFETY: the CPU supports `V` (function contract).
            sums: unsafe { [[V::Float::splat(0.0); G]; N] },
            by: PhantomData,
        }
    }

    /// Uses the same sequence of floating-point operations as [`panel_products`](super::panel_products), so
    /// results agree in every bit.
    #[inline(always)]
    unsafe fn add_chunk(&mut self, part: &GroupChunk<G>) {
        let sums = &mut self.sums;
        // SAFETY: `i < part.runs`, as `add_totals` requires; the scales of those runs are set (function
        // contract).
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
    unsafe fn store_results(&self, p: &IntProduct, rows: [usize; G]) {
        for j in 0..N {
            // SAFETY: `rows[g] + 8 <= p.m` and `j < N <= p.n`, so the 8 floats are within the output
            // (function contract).
            unsafe {
                let scale = V::Float::splat(I16Header::scale_at(p.x.add(j * p.x_stride)));
                for g in 0..G {
                    self.sums[j][g].mul(scale).store(p.out.add(j * p.out_stride + rows[g]));
                }
            }
        }
    }
}

/// Adds the products that share one scale (run `i` or its half `half`) to `sums`, and the minimums' part to
/// `mins`.
///
/// # Safety
/// The CPU supports `V` and `T`, and `part` describes a chunk with more than `i` runs whose scales are set.
#[inline(always)]
unsafe fn add_totals<V: IntSimd, D: UnpackGroup<V>, T: Accumulate, const N: usize, const G: usize>(
    part: &GroupChunk<G>,
    i: usize,
    half: usize,
    sums: &mut ByGroup<V::Float, N, G>,
    mins: &mut ByGroup<V::Float, N, G>,
) {
    let at = if D::BY_16 { 2 * i + half } else { i };
    // SAFETY: `i < part.runs`; a `BY_16` type has scales for both halves, so `at < HALVES` and scale `at` is
    // set.
    unsafe {
        let totals = T::of::<V, D, N, G>(part, i, half);
        for j in 0..N {
            let zero_correction = if D::ZERO > 0 {
                zero_correction::<V, D, G>(part, i, half, j, D::ZERO)
            } else {
                V::splat(0)
            };
            let sum_of_x = (&raw const (*part.column(j)).sums[sums_row::<V, D>(half)][i]).read_unaligned();
            for g in 0..G {
                let scales = part.scales.add(g);
                let total = totals[j][g].sub32(zero_correction).to_floats();
                sums[j][g] = total.mul_add(GroupScales::scale(scales, at), sums[j][g]);
                if has_mins::<V, D>() {
                    let min: V::Float = GroupScales::min(scales, at);
                    mins[j][g] = min.mul_add(V::Float::splat(sum_of_x), mins[j][g]);
                }
            }
        }
    }
}

/// Fills a panel's chunk from the same chunk of each of its groups.
///
/// # Safety
/// The CPU supports `V`, and each pointer in `groups` is valid for a chunk of a row group with at least
/// `runs` runs.
#[inline(always)]
pub(crate) unsafe fn fill_panel<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    groups: [*const u8; GROUPS],
    runs: usize,
    to: &mut PanelChunk<F>,
) {
    for (group, p) in groups.into_iter().enumerate() {
        // SAFETY: the caller upholds the contract of `fill_group` for each group.
        unsafe { fill_group::<V, D, F>(p, runs, group, to) }
    }
}

/// Fills one group's part of a panel's chunk from the group's chunk at `p`.
///
/// # Safety
/// The CPU supports `V`, `p` is valid for a chunk of a row group with at least `runs` runs, and `group <
/// GROUPS`.
#[inline(always)]
unsafe fn fill_group<V: IntSimd, D: UnpackGroup<V>, F: PanelValues>(
    p: *const u8,
    runs: usize,
    group: usize,
    to: &mut PanelChunk<F>,
) {
    if !V::UNROLLED {
        // SAFETY: the caller upholds the contract of `fill_portable_group`.
        return unsafe { fill_portable_group::<V, F>(p, runs, group, &const { PortableGroup::of::<D>() }, to) };
    }
    let integers = &const { IntFormat::of::<V, D>() };
    let mut scales = MaybeUninit::<GroupScales>::uninit();
    // SAFETY: `p` is valid for `runs` runs (function contract); `group_scales` initializes the scales.
    unsafe {
        D::group_scales(p, runs, scales.as_mut_ptr());
        fill_scales::<V, F>(scales.as_ptr(), runs, group, integers, to);
        for i in 0..runs {
            to.values.store_run(i, group, run_words::<V, D>(p, i), integers);
        }
    }
}

/// Copies the scales and minimums of a group to a panel's chunk, for each half run that `F` reads.
///
/// # Safety
/// The CPU supports `V`, the scales of `runs` runs are set, and `group < GROUPS`.
#[inline(always)]
unsafe fn fill_scales<V: IntSimd, F: PanelValues>(
    from: *const GroupScales,
    runs: usize,
    group: usize,
    integers: &IntFormat,
    to: &mut PanelChunk<F>,
) {
    // Without separate scales, second halves need a copy only if a form reads it.
    let step = if integers.by_16 || F::EVERY_HALF { 1 } else { 2 };
    for half in (0..2 * runs).step_by(step) {
        let at = if integers.by_16 { half } else { half / 2 };
        // SAFETY: scale `at` of the `runs` runs is set (function contract), and each group has 8 lanes.
        unsafe {
            let scale: V::Float = GroupScales::scale(from, at);
            scale.store(to.scales[half][group].as_mut_ptr());
            if integers.has_mins {
                let min: V::Float = if integers.zero > 0 {
                    scale.mul(V::Float::splat(-f32::from(integers.zero)))
                } else {
                    GroupScales::min(from, at)
                };
                min.store(to.mins[half][group].as_mut_ptr());
            }
        }
    }
}

/// Unpacks the scales of a group; see [`UnpackGroup::group_scales`].
///
/// # Safety
/// The contract of [`UnpackGroup::group_scales`] holds.
#[inline(always)]
unsafe fn group_scales<V: IntSimd, D: UnpackGroup<V>>(p: *const u8, runs: usize, to: *mut GroupScales) {
    // SAFETY: the caller upholds the contract of `UnpackGroup::group_scales`.
    unsafe {
        if V::UNROLLED {
            D::group_scales(p, runs, to)
        } else {
            portable_group_scales::<V, D>(p, runs, to)
        }
    }
}

/// Portable unpacking of row groups. The functions of a type can be called, because they need no target
/// features, so all other code is compiled once for all types.
struct PortableGroup<V> {
    integers: IntFormat,
    scales: unsafe fn(*const u8, usize, *mut GroupScales),
    words: unsafe fn(*const u8, usize) -> [V; WORDS],
}

impl<V: IntSimd> PortableGroup<V> {
    const fn of<D: UnpackGroup<V>>() -> PortableGroup<V> {
        PortableGroup {
            integers: IntFormat::of::<V, D>(),
            scales: portable_group_scales::<V, D>,
            words: portable_run_words::<V, D>,
        }
    }
}

/// [`fill_group`] as a function that all types share.
///
/// # Safety
/// The contract of [`fill_group`] holds for the type of `format`.
#[inline(never)]
unsafe fn fill_portable_group<V: IntSimd, F: PanelValues>(
    p: *const u8,
    runs: usize,
    group: usize,
    format: &PortableGroup<V>,
    to: &mut PanelChunk<F>,
) {
    let mut scales = MaybeUninit::<GroupScales>::uninit();
    // SAFETY: `p` is valid for `runs` runs (function contract); the scales are set before they are read.
    unsafe {
        (format.scales)(p, runs, scales.as_mut_ptr());
        fill_scales::<V, F>(scales.as_ptr(), runs, group, &format.integers, to);
        for i in 0..runs {
            to.values.store_run(i, group, (format.words)(p, i), &format.integers);
        }
    }
}

/// Unpacks the words of run `i` of a group.
///
/// # Safety
/// The CPU supports `V`, and `p` is valid for a chunk of a row group with more than `i` runs.
#[inline(always)]
unsafe fn run_words<V: IntSimd, D: UnpackGroup<V>>(p: *const u8, i: usize) -> [V; WORDS] {
    // SAFETY: the run's 8 words are readable at `p` (function contract).
    unsafe {
        let mut words = [V::splat(0); WORDS];
        each_of_8!(V, j => { words[j] = D::group_values(p, i, j) });
        words
    }
}

/// [`run_words`] as a function.
///
/// # Safety
/// The contract of [`run_words`] holds.
#[inline(never)]
unsafe fn portable_run_words<V: IntSimd, D: UnpackGroup<V>>(p: *const u8, i: usize) -> [V; WORDS] {
    // SAFETY: the caller upholds the contract of `run_words`.
    unsafe { run_words::<V, D>(p, i) }
}

/// [`UnpackGroup::group_scales`] as a function.
///
/// # Safety
/// The contract of [`UnpackGroup::group_scales`] holds.
#[inline(never)]
unsafe fn portable_group_scales<V: IntSimd, D: UnpackGroup<V>>(p: *const u8, runs: usize, to: *mut GroupScales) {
    // SAFETY: the caller upholds the contract of `UnpackGroup::group_scales`.
    unsafe { D::group_scales(p, runs, to) }
}
