//! Encoders of weights: the scales with the smallest squared error, weighted by the importance of each column.
//!
//! - `cpu`: loops over the elements of a group, compiled for each instruction set
//! - `lanes`: eight groups of weights at a time
//! - `lines`: types with scales and minimums
//! - `scales`: types with scales
//! - `floats`: types of 4-bit floats
//! - `shifted`, `shifted_rows`: types with scales and a choice of two tables
//! - `equal`, `equal_lines`, `words`, `reals`: scales for weights of equal importance, in integers
//! - `grid`, `cells`: types whose elements are points of a grid
//! - `ternary`: types with one or two magnitudes
//! - `feedback`, `rounding`: rounding that compensates the errors of earlier columns
//! - `moments`: second moments of inputs, which determine the compensation
//!
//! A search starts from several ranges, then alternates between rounding elements and fitting scales. Types
//! with integer scales do both for whole blocks. The layouts are in [`quants`](crate::quants).

mod cells;
mod cpu;
mod equal;
mod equal_lines;
mod feedback;
mod floats;
mod grid;
mod lanes;
mod lines;
mod moments;
mod reals;
mod rounding;
mod scales;
mod shifted;
mod shifted_rows;
mod ternary;
mod words;

use std::marker::PhantomData;
use std::sync::LazyLock;

use bytemuck::Zeroable;

use self::cells::Bits;
use self::cpu::for_this_cpu;
use self::equal::Halves;
use self::equal_lines::EncodedLines;
pub use self::feedback::Feedback;
use self::grid::{Grid, Search};
use self::lanes::{Groups, N};
use self::lines::{COARSE, COARSE_WEIGHTED, FINE, Limits, WEIGHTED};
pub use self::moments::{FACTOR_ROWS, add_moments, factor_diagonal, factor_rows};
use self::rounding::{GridPoints, IntLines, IntScaled, Line, Mxfp4, Nvfp4, Scaled, Shifted, ShiftedRows};
use self::scales::{Integers, Iq4, Levels, Range};
use self::shifted::ShiftedLevels;
use crate::GgmlType;
use crate::layout::assemble::{FromLine, FromLines, FromScale, FromScales, FromShifted};
use crate::layout::block::Block;
use crate::prefetch::{CACHE_LINE, CacheLevel, prefetch};
use crate::quants::grids::GridBlock;
use crate::quants::{grids, *};

type Encode = fn(&[f32], Option<&[f32]>, &mut [u8]);

/// Returns true if [`encode_row`] supports this type.
pub fn can_encode(ty: GgmlType) -> bool {
    encoder(ty).is_some()
}

/// Encodes a row of weights, minimizing the sum of squared errors, each multiplied by the importance of its
/// column. The search is slower and more exact than that of [`quantize_row`](crate::quantize_row), which
/// serves caches. Results are the same on every CPU.
///
/// Magnitudes above the range of the type become the largest representable values. Non-finite weights yield
/// arbitrary blocks. Importance is not negative; only its ratios within a block matter.
///
/// # Panics
/// Panics if the type has no encoder (see [`can_encode`]), or the lengths disagree.
pub fn encode_row(ty: GgmlType, src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
    let encode = encoder(ty).unwrap_or_else(|| panic!("{ty} cannot be encoded"));
    crate::lengths::check_lengths(ty, dst.len(), src.len());
    if let Some(importance) = importance {
        crate::lengths::same_length(src.len(), importance.len());
    }
    encode(src, importance, dst);
}

/// Returns the encoder of a type.
fn encoder(ty: GgmlType) -> Option<Encode> {
    let encode: Encode = match ty {
        GgmlType::F32 => plain::<BlockF32>,
        GgmlType::F16 => plain::<BlockF16>,
        GgmlType::BF16 => plain::<BlockBF16>,
        GgmlType::Q8_0 => q8_0,
        GgmlType::Q4_0 => scaled::<BlockQ4_0, Integers<-8, 7>, 32>,
        GgmlType::Q5_0 => scaled::<BlockQ5_0, Integers<-16, 15>, 32>,
        GgmlType::IQ4_NL => scaled::<BlockIQ4NL, Iq4, 32>,
        GgmlType::Q2_0 => scaled::<BlockQ2_0, Integers<-1, 2>, 64>,
        GgmlType::Q4_1 => line::<BlockQ4_1, 15>,
        GgmlType::Q5_1 => line::<BlockQ5_1, 31>,
        GgmlType::Q2_K => lines::<BlockQ2K, 2, 16, 16, 3, 15>,
        GgmlType::Q4_K => lines::<BlockQ4K, 1, 32, 8, 15, 63>,
        GgmlType::Q5_K => lines::<BlockQ5K, 1, 32, 8, 31, 63>,
        GgmlType::Q3_K => scales::<BlockQ3K, Integers<-4, 3>, 2, 16, 16, 32>,
        GgmlType::Q6_K => scales::<BlockQ6K, Integers<-32, 31>, 2, 16, 16, 128>,
        GgmlType::IQ4_XS => scales::<BlockIQ4XS, Iq4, 1, 32, 8, 32>,
        GgmlType::IQ4_K => shifted::<BlockIQ4K, Iq4, 32>,
        GgmlType::IQ4_KS => iq4_ks,
        GgmlType::IQ1_S => iq1::<BlockIQ1S, 32>,
        GgmlType::IQ1_M => iq1::<BlockIQ1M, 16>,
        GgmlType::IQ2_XXS => iq2_xxs,
        GgmlType::IQ2_XS => iq2_xs,
        GgmlType::IQ2_S => iq2_s,
        GgmlType::IQ3_XXS => iq3_xxs,
        GgmlType::IQ3_S => iq3_s,
        GgmlType::TQ1_0 => ternary::<BlockTQ1_0>,
        GgmlType::TQ2_0 => ternary::<BlockTQ2_0>,
        GgmlType::Q1_0 => signs,
        GgmlType::MXFP4 => floats::mxfp4,
        GgmlType::NVFP4 => nvfp4,
        _ => return None,
    };
    Some(encode)
}

/// Returns true if [`encode_rows`] supports this type.
pub fn can_encode_rows(ty: GgmlType) -> bool {
    encode_with(ty, None, &[], &mut [])
}

/// Encodes rows of a matrix, minimizing the squared error of its outputs: errors of a column are compensated by the
/// columns after it. Results are the same on every CPU.
///
/// # Panics
/// Panics if the type has no encoder with feedback (see [`can_encode_rows`]), or the lengths disagree.
pub fn encode_rows(ty: GgmlType, src: &[f32], feedback: &Feedback, dst: &mut [u8]) {
    let n_in = feedback.n_in();
    let is_whole = n_in > 0 && n_in.is_multiple_of(ty.block_size()) && src.len().is_multiple_of(n_in);
    assert!(
        is_whole,
        "rows must have {n_in} elements in whole blocks of {ty}, found {}",
        src.len()
    );
    let n_rows = src.len() / n_in;
    let expected = ty.row_bytes(n_in).and_then(|bytes| bytes.checked_mul(n_rows));
    assert!(
        expected == Some(dst.len()),
        "{ty}: expected {n_rows} rows of {n_in} elements, found {} bytes",
        dst.len()
    );
    assert!(
        encode_with(ty, Some(feedback), src, dst),
        "{ty} cannot be encoded with feedback"
    );
}

/// Encodes rows if there is feedback. Returns false if the type has no encoder for rows.
fn encode_with(ty: GgmlType, feedback: Option<&Feedback>, x: &[f32], out: &mut [u8]) -> bool {
    macro_rules! encode {
        ($rounding:expr) => {
            if let Some(feedback) = feedback {
                feedback::encode(&$rounding, feedback, x, out)
            }
        };
    }
    match ty {
        GgmlType::Q4_0 => encode!(Scaled::<BlockQ4_0, Integers<-8, 7>, 32>::new()),
        GgmlType::Q5_0 => encode!(Scaled::<BlockQ5_0, Integers<-16, 15>, 32>::new()),
        GgmlType::IQ4_NL => encode!(Scaled::<BlockIQ4NL, Iq4, 32>::new()),
        GgmlType::Q2_0 => encode!(Scaled::<BlockQ2_0, Integers<-1, 2>, 64>::new()),
        GgmlType::Q4_1 => encode!(Line::<BlockQ4_1>(line_limits(15, true), PhantomData)),
        GgmlType::Q5_1 => encode!(Line::<BlockQ5_1>(line_limits(31, true), PhantomData)),
        GgmlType::Q2_K => encode!(IntLines::<BlockQ2K, 2, 16, 16>(lines_limits(3, 15, true), PhantomData)),
        GgmlType::Q4_K => encode!(IntLines::<BlockQ4K, 1, 32, 8>(lines_limits(15, 63, true), PhantomData)),
        GgmlType::Q5_K => encode!(IntLines::<BlockQ5K, 1, 32, 8>(lines_limits(31, 63, true), PhantomData)),
        GgmlType::Q3_K => encode!(IntScaled::<BlockQ3K, Integers<-4, 3>, 2, 16, 16>(
            range_of(32),
            PhantomData
        )),
        GgmlType::Q6_K => encode!(IntScaled::<BlockQ6K, Integers<-32, 31>, 2, 16, 16>(
            range_of(128),
            PhantomData
        )),
        GgmlType::IQ4_XS => encode!(IntScaled::<BlockIQ4XS, Iq4, 1, 32, 8>(range_of(32), PhantomData)),
        GgmlType::IQ4_K => encode!(Shifted::<BlockIQ4K, Iq4>(range_of(32), PhantomData)),
        GgmlType::IQ4_KS => {
            if let Some(feedback) = feedback {
                iq4_ks_rows(feedback, x, out)
            }
        }
        GgmlType::IQ1_S => encode!(GridPoints::<BlockIQ1S, 8>(iq1_search::<BlockIQ1S>(32), PhantomData)),
        GgmlType::IQ1_M => encode!(GridPoints::<BlockIQ1M, 8>(iq1_search::<BlockIQ1M>(16), PhantomData)),
        GgmlType::IQ2_XXS => encode!(GridPoints::<BlockIQ2XXS, 8>(iq2_xxs_search(), PhantomData)),
        GgmlType::IQ2_XS => encode!(GridPoints::<BlockIQ2XS, 8>(iq2_xs_search(), PhantomData)),
        GgmlType::IQ2_S => encode!(GridPoints::<BlockIQ2S, 8>(iq2_s_search(), PhantomData)),
        GgmlType::IQ3_XXS => encode!(GridPoints::<BlockIQ3XXS, 4>(iq3_xxs_search(), PhantomData)),
        GgmlType::IQ3_S => encode!(GridPoints::<BlockIQ3S, 4>(iq3_s_search(), PhantomData)),
        GgmlType::TQ1_0 => encode!(rounding::digits::<BlockTQ1_0>()),
        GgmlType::TQ2_0 => encode!(rounding::digits::<BlockTQ2_0>()),
        GgmlType::Q1_0 => encode!(rounding::binary()),
        GgmlType::MXFP4 => encode!(Mxfp4),
        GgmlType::NVFP4 => encode!(Nvfp4),
        _ => return false,
    }
    true
}

/// Yields the chunks of a row with their importance. The last chunk may be shorter.
fn chunks<'a>(x: &'a [f32], w: Option<&'a [f32]>, n: usize) -> impl Iterator<Item = (&'a [f32], Option<&'a [f32]>)> {
    x.chunks(n)
        .enumerate()
        .map(move |(i, x)| (x, w.map(|w| &w[i * n..i * n + x.len()])))
}

/// Prefetches the elements after a chunk. Otherwise, fast encoders would wait for memory.
#[inline(always)]
fn prefetch_after(x: &[f32]) {
    for i in 0..size_of_val(x).div_ceil(CACHE_LINE) {
        let next = x.as_ptr_range().end.wrapping_byte_add(i * CACHE_LINE);
        prefetch(next.cast(), CacheLevel::First);
    }
}

/// Encodes types without a search.
fn plain<B: Block>(x: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    crate::quantize_row(B::TYPE, x, out);
}

/// Encodes Q8_0. Ignores importance, which hardly affects its error.
fn q8_0(x: &[f32], _: Option<&[f32]>, out: &mut [u8]) {
    /// Largest representable magnitude: the largest F16 times the largest element.
    const LIMIT: f32 = 65504.0 * 127.0;
    let mut limited = [0.0; 256];
    for (x, out) in x.chunks(256).zip(out.chunks_mut(8 * size_of::<BlockQ8_0>())) {
        for (to, x) in limited.iter_mut().zip(x) {
            *to = x.clamp(-LIMIT, LIMIT);
        }
        crate::quantize_row(GgmlType::Q8_0, &limited[..x.len()], out);
    }
}

for_this_cpu! {
    /// Encodes types with one scale per `L` elements.
    fn scaled[B: FromScale, T: Levels, const L: usize][B, T, L](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_scaled;
    /// Encodes types with one scale and minimum per 32 elements.
    fn line[B: FromLine, const MAX: i32][B, MAX](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_line;
    /// Encodes types with `G` integer scales and minimums, for groups of `L` elements in `S` sets of lanes.
    fn lines[B: FromLines<G>, const S: usize, const L: usize, const G: usize, const MAX: i32, const SCALE: i32][B, S, L, G, MAX, SCALE](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_lines;
    /// Encodes types with `G` integer scales of at least `-LIMIT`, for groups of `L` elements in `S` sets of lanes.
    fn scales[B: FromScales<G>, T: Levels, const S: usize, const L: usize, const G: usize, const LIMIT: i32][B, T, S, L, G, LIMIT](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_scales;
    /// Encodes types with integer scales of at least `-LIMIT`, for groups of 16 elements with a choice of two tables.
    fn shifted[B: FromShifted, T: ShiftedLevels, const LIMIT: i32][B, T, LIMIT](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_shifted;
    /// Encodes ternary types.
    fn ternary[B: FromScale][B](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_ternary;
    /// Encodes a row of IQ4_KS.
    fn iq4_ks[][](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_iq4_ks;
    fn nvfp4[][](x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_nvfp4;
}

/// See [`scaled`].
#[inline(always)]
fn encode_scaled<B: FromScale, T: Levels, const L: usize>(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for ((x, w), blocks) in chunks(x, w, N * L * equal::SETS).zip(blocks.chunks_mut(N * equal::SETS)) {
        prefetch_after(x);
        let quick = match (T::EQUAL, w) {
            (Some(ends), None) => equal::scales(x.as_chunks().0, ends),
            _ => [None; equal::SETS],
        };
        for (((x, w), blocks), quick) in chunks(x, w, N * L).zip(blocks.chunks_mut(N)).zip(quick) {
            let scales = match quick {
                Some(scales) => scales,
                None => scales::fit_half::<T, L>(&Groups::new(x, w)),
            };
            write_scaled::<B, T, L>(x, &scales, blocks);
        }
    }
}

/// Writes at most `N` blocks with these scales.
#[inline(always)]
fn write_scaled<B: FromScale, T: Levels, const L: usize>(x: &[f32], scales: &[Half; N], blocks: &mut [B]) {
    if let (Some(levels), Ok(x)) = (T::EQUAL, x.try_into()) {
        let mut q = [[0; 32]; N];
        let (low, high) = (f32::from(levels.low), f32::from(levels.high));
        let (scales, mins) = (*scales, [Half::default(); N]);
        equal::indices(x, &Halves { scales, mins }, -low, high - low, &mut q);
        for ((d, q), block) in scales.iter().zip(&q).zip(blocks) {
            *block = B::from_scale(*d, q);
        }
        return;
    }
    for ((x, d), block) in x.chunks_exact(L).zip(scales).zip(blocks) {
        let mut q = [0; L];
        scales::indices_of::<T>(x, d.get(), &mut q);
        *block = B::from_scale(*d, &q);
    }
}

/// Returns the limits of a type with one scale and minimum per 32 elements.
fn line_limits(max: i32, is_weighted: bool) -> Limits {
    Limits {
        q: max as f32,
        scale: 1.0,
        signed: true,
        narrowings: if is_weighted { WEIGHTED } else { FINE },
    }
}

/// Returns the limits of a type with integer scales and minimums.
fn lines_limits(max: i32, scale: i32, is_weighted: bool) -> Limits {
    Limits {
        q: max as f32,
        scale: scale as f32,
        signed: false,
        narrowings: match (max < 15, is_weighted) {
            (true, true) => COARSE_WEIGHTED,
            (true, false) => COARSE,
            (false, true) => WEIGHTED,
            (false, false) => FINE,
        },
    }
}

/// Returns the range of integer scales of at least `-limit`.
fn range_of(limit: i32) -> Range {
    Range {
        low: -limit as f32,
        high: (limit - 1) as f32,
    }
}

/// See [`line`].
#[inline(always)]
fn encode_line<B: FromLine, const MAX: i32>(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let limits = line_limits(MAX, w.is_some());
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    let mut found = [const { EncodedLines::new() }; equal::SETS];
    for ((x, w), blocks) in chunks(x, w, N * 32 * found.len()).zip(blocks.chunks_mut(N * found.len())) {
        prefetch_after(x);
        let equal = if w.is_some() { &[] } else { x.as_chunks().0 };
        equal_lines::encode(equal, MAX as u8, &mut found);
        let sets = chunks(x, w, N * 32).zip(&mut found).zip(blocks.chunks_mut(N));
        for (i, (((x, w), found), blocks)) in sets.enumerate() {
            if i >= equal.len() || !found.is_complete {
                found.fitted = lines::fit_halves::<32>(&Groups::new(x, w), limits);
                let fitted = found.fitted.scales.iter().zip(&found.fitted.mins);
                for ((x, (d, min)), q) in x.chunks_exact(32).zip(fitted).zip(&mut found.q) {
                    lines::indices_of(x, d.get(), min.get(), limits.q, q);
                }
            }
            // The compiler unrolls the usual number of blocks.
            if let Ok(blocks) = <&mut [B; N]>::try_from(&mut *blocks) {
                assemble_lines(found, blocks);
            } else {
                assemble_lines(found, blocks);
            }
        }
    }
}

/// Writes at most `N` blocks.
#[inline(always)]
fn assemble_lines<B: FromLine>(found: &EncodedLines, blocks: &mut [B]) {
    let fitted = found.fitted.scales.iter().zip(&found.fitted.mins);
    for (((d, min), q), block) in fitted.zip(&found.q).zip(blocks) {
        *block = B::from_line(*d, min.negated(), q);
    }
}

/// See [`lines`].
#[inline(always)]
fn encode_lines<B, const S: usize, const L: usize, const G: usize, const MAX: i32, const SCALE: i32>(
    x: &[f32],
    w: Option<&[f32]>,
    out: &mut [u8],
) where
    B: FromLines<G>,
{
    let limits = lines_limits(MAX, SCALE, w.is_some());
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for ((x, w), block) in chunks(x, w, 256).zip(blocks) {
        let found = lines::best_lines::<S, L, G>(&Groups::sets(x, w), limits);
        let mut q = [0; 256];
        for (g, (x, q)) in x.chunks_exact(L).zip(q.chunks_exact_mut(L)).enumerate() {
            let scale = found.d.get() * f32::from(found.scales[g]);
            let min = found.dmin.get() * f32::from(found.mins[g]);
            lines::indices_of(x, scale, min, limits.q, q);
        }
        *block = B::from_lines(&found, &q);
    }
}

/// See [`scales`].
#[inline(always)]
fn encode_scales<B, T, const S: usize, const L: usize, const G: usize, const LIMIT: i32>(
    x: &[f32],
    w: Option<&[f32]>,
    out: &mut [u8],
) where
    B: FromScales<G>,
    T: Levels,
{
    let range = range_of(LIMIT);
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for ((x, w), block) in chunks(x, w, 256).zip(blocks) {
        let found = scales::best_scales::<T, S, L, G>(&Groups::sets(x, w), range, w.is_none());
        let mut q = [0; 256];
        for (g, (x, q)) in x.chunks_exact(L).zip(q.chunks_exact_mut(L)).enumerate() {
            scales::indices_of::<T>(x, found.d.get() * f32::from(found.scales[g]), q);
        }
        *block = B::from_scales(&found, &q);
    }
}

/// See [`shifted`].
#[inline(always)]
fn encode_shifted<B: FromShifted, T: ShiftedLevels, const LIMIT: i32>(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for ((x, w), block) in chunks(x, w, 256).zip(blocks) {
        let found = shifted::best_scales::<T>(&Groups::sets(x, w), range_of(LIMIT));
        let mut q = [0; 256];
        for (g, (x, q)) in x.chunks_exact(16).zip(q.chunks_exact_mut(16)).enumerate() {
            shifted::indices_of::<T>(x, &found, g, q);
        }
        *block = B::from_shifted(&found, &q);
    }
}

/// See [`iq4_ks`].
#[inline(always)]
fn encode_iq4_ks(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let scales = shifted_rows::search::<Iq4>(x, w);
    let blocks = scales.iter().zip(x.chunks_exact(256)).map(|(found, x)| {
        let mut q = [0; 256];
        for (g, (x, q)) in x.chunks_exact(32).zip(q.chunks_exact_mut(32)).enumerate() {
            let (scale, shift) = shifted_rows::scale_and_shift::<Iq4>(found, g);
            shifted::indices_with::<Iq4>(x, scale, shift, q);
        }
        BlockIQ4KS::from_row_scales(found, &q)
    });
    write_row(GgmlType::IQ4_KS, blocks, out);
}

/// Encodes rows of IQ4_KS. The factors of rows are those without feedback.
fn iq4_ks_rows(feedback: &Feedback, x: &[f32], out: &mut [u8]) {
    let n = feedback.n_in();
    let row_bytes = out.len() / (x.len() / n).max(1);
    let mut blocks = vec![BlockIQ4KS::zeroed(); N * n / 256];
    for (x, out) in x.chunks(N * n).zip(out.chunks_mut(N * row_bytes)) {
        let first = |x| shifted_rows::search::<Iq4>(x, Some(feedback.variances()))[0];
        let factors = x.chunks_exact(n).map(|x| first(x).d).collect();
        let blocks = &mut blocks[..x.len() / 256];
        feedback::encode(&ShiftedRows(factors), feedback, x, bytemuck::cast_slice_mut(blocks));
        for (blocks, out) in blocks.chunks_exact(n / 256).zip(out.chunks_exact_mut(row_bytes)) {
            write_row(GgmlType::IQ4_KS, blocks.iter().copied(), out);
        }
    }
}

/// Writes a row whose blocks in memory start with the header of the row.
fn write_row<B: Block>(ty: GgmlType, blocks: impl Iterator<Item = B>, out: &mut [u8]) {
    let (header, out) = out.split_at_mut(ty.row_header());
    for (block, out) in blocks.zip(out.chunks_exact_mut(ty.block_bytes())) {
        let (factor, rest) = bytemuck::bytes_of(&block).split_at(header.len());
        header.copy_from_slice(factor);
        out.copy_from_slice(rest);
    }
}

/// Returns a grid of points with 8 elements.
fn of_eight(points: &[u64], zero: f32) -> Grid<8> {
    Grid::new(points.iter().map(|point| point.to_le_bytes()), zero)
}

/// Returns a grid of points with 4 elements.
fn of_four(points: &[u32]) -> Grid<4> {
    Grid::new(points.iter().map(|point| point.to_le_bytes()), 0.0)
}

/// Encodes IQ1 types, whose scales serve `UNIT` elements.
#[inline(always)]
fn iq1<B: GridBlock, const UNIT: usize>(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    grid::encode::<B, 8>(&iq1_search::<B>(UNIT), x, w, bytemuck::cast_slice_mut(out));
}

/// Returns the search for an IQ1 type.
fn iq1_search<B: GridBlock>(unit: usize) -> Search<'static, 8> {
    static GRID: LazyLock<Grid<8>> = LazyLock::new(|| of_eight(&grids::IQ1, 1.0));
    Search {
        grid: &GRID,
        bits: if unit == 32 { Bits::UnitShift } else { Bits::CellShift },
        unit,
        n_scales: 8.0,
        factor: B::FACTOR,
        positions: &[1.0, 1.2, 1.45, 1.75, 2.1, 2.6],
    }
}

/// Returns the search for a grid type with 16 integer scales.
fn search_of<B: GridBlock, const E: usize>(
    grid: &'static Grid<E>,
    bits: Bits,
    positions: &'static [f32],
) -> Search<'static, E> {
    Search {
        grid,
        bits,
        unit: if B::BY_16 { 16 } else { 32 },
        n_scales: 16.0,
        factor: B::FACTOR,
        positions,
    }
}

/// Positions of the largest magnitude among the levels of IQ2 types. The largest level is 43.
const IQ2_POSITIONS: &[f32] = &[43.0, 40.0, 46.0, 50.0, 55.0, 61.0, 69.0, 80.0, 36.0];

/// Defines the encoders of grid types and the searches that they use.
macro_rules! grid_types {
    ($( $encode:ident $search:ident: $block:ident, $e:literal, $grid:expr, $bits:ident, $positions:expr; )*) => { $(
        fn $search() -> Search<'static, $e> {
            static GRID: LazyLock<Grid<$e>> = LazyLock::new(|| $grid);
            search_of::<$block, $e>(&GRID, Bits::$bits, $positions)
        }

        #[inline(always)]
        fn $encode(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
            grid::encode::<$block, $e>(&$search(), x, w, bytemuck::cast_slice_mut(out));
        }
    )* };
}

grid_types! {
    iq2_xxs iq2_xxs_search: BlockIQ2XXS, 8, of_eight(&grids::IQ2_XXS, 0.0), EvenSigns, IQ2_POSITIONS;
    iq2_xs iq2_xs_search: BlockIQ2XS, 8, of_eight(&grids::IQ2_XS, 0.0), EvenSigns, IQ2_POSITIONS;
    iq2_s iq2_s_search: BlockIQ2S, 8, of_eight(&grids::IQ2_S, 0.0), Signs, IQ2_POSITIONS;
    iq3_xxs iq3_xxs_search: BlockIQ3XXS, 4, of_four(&grids::IQ3_XXS), EvenSigns,
        &[62.0, 58.0, 66.0, 71.0, 54.0, 77.0, 85.0, 100.0];
    iq3_s iq3_s_search: BlockIQ3S, 4, of_four(&grids::IQ3_S), Signs,
        &[15.0, 14.2, 15.9, 17.0, 13.3, 18.4, 20.3, 24.0];
}

/// See [`ternary`].
#[inline(always)]
fn encode_ternary<B: FromScale>(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let blocks: &mut [B] = bytemuck::cast_slice_mut(out);
    for ((x, w), block) in chunks(x, w, 256).zip(blocks) {
        prefetch_after(x);
        let (d, digits) = ternary::best_digits(x, w);
        *block = B::from_scale(d, &digits);
    }
}

fn signs(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let blocks: &mut [BlockQ1_0] = bytemuck::cast_slice_mut(out);
    for ((x, w), block) in chunks(x, w, 128).zip(blocks) {
        let q: [u8; 128] = std::array::from_fn(|i| u8::from(x[i] >= 0.0));
        *block = BlockQ1_0::from_scale(ternary::magnitude(x, w), &q);
    }
}

#[inline(always)]
fn encode_nvfp4(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let blocks: &mut [BlockNVFP4] = bytemuck::cast_slice_mut(out);
    for ((x, w), blocks) in chunks(x, w, N * 16).zip(blocks.chunks_mut(2)) {
        let codes = floats::nvfp4_codes(&Groups::new(x, w));
        for (i, block) in blocks.iter_mut().enumerate() {
            let mut q = [0; 64];
            let d: [u8; 4] = std::array::from_fn(|g| codes[4 * i + g]);
            for g in 0..4 {
                let x = &x[i * 64 + g * 16..][..16];
                scales::indices_of::<floats::E2M1>(x, BlockNVFP4::half_scale_of(d[g]), &mut q[g * 16..][..16]);
            }
            *block = BlockNVFP4::from_codes(d, &q);
        }
    }
}

#[cfg(test)]
mod feedback_tests;
#[cfg(test)]
mod tests;
