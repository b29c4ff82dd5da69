//! Block layouts of the tensor types, with dequantization and quantization.
//!
//! There is one file per type. A file contains:
//! - the `#[repr(C)]` block and its scalar decoder, which defines the type;
//! - the vector decoder, which must produce the same bits;
//! - the quantizer, if any.
//!
//! To add a type, add a file and a row in the table of `for_each_block`.

mod bf16;
mod f16;
mod f32;
mod grids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_nl;
mod iq4_xs;
mod levels;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod tq1_0;
mod tq2_0;

use bytemuck::{Pod, Zeroable};

use crate::GgmlType;
use crate::dispatch::kernels;

pub use self::bf16::BlockBF16;
pub use self::f16::BlockF16;
pub use self::f32::BlockF32;
pub use self::iq1_m::BlockIQ1M;
pub use self::iq1_s::BlockIQ1S;
pub use self::iq2_s::BlockIQ2S;
pub use self::iq2_xs::BlockIQ2XS;
pub use self::iq2_xxs::BlockIQ2XXS;
pub use self::iq3_s::BlockIQ3S;
pub use self::iq3_xxs::BlockIQ3XXS;
pub use self::iq4_nl::BlockIQ4NL;
pub use self::iq4_xs::BlockIQ4XS;
pub use self::mxfp4::BlockMXFP4;
pub use self::nvfp4::BlockNVFP4;
pub use self::q1_0::BlockQ1_0;
pub use self::q2_0::BlockQ2_0;
pub use self::q2_k::BlockQ2K;
pub use self::q3_k::BlockQ3K;
pub use self::q4_0::BlockQ4_0;
pub use self::q4_1::BlockQ4_1;
pub use self::q4_k::BlockQ4K;
pub use self::q5_0::BlockQ5_0;
pub use self::q5_1::BlockQ5_1;
pub use self::q5_k::BlockQ5K;
pub use self::q6_k::BlockQ6K;
pub use self::q8_0::BlockQ8_0;
pub use self::tq1_0::BlockTQ1_0;
pub use self::tq2_0::BlockTQ2_0;

/// A block of a tensor type. Blocks have alignment 1, so any bytes of the right length are blocks.
pub(crate) trait Block: Pod {
    /// Tensor type of the block.
    const TYPE: GgmlType;

    /// Decodes the block into `out`, which has one block's elements. This scalar decoder defines the type.
    fn dequantize(&self, out: &mut [f32]);
}

/// A block that can be encoded from floats.
pub(crate) trait Quantize: Block {
    /// Encodes `x`, which has one block's elements. Non-finite values yield an arbitrary block and never
    /// panic.
    fn quantize(x: &[f32]) -> Self;
}

/// Passes the list of supported types to the macro `$then`. Each row names the block and the traits it
/// implements besides [`Block`]: [`Quantize`], [`Unpack`](crate::generic::integers::Unpack), and
/// [`UnpackGroup`](crate::generic::interleaved8::UnpackGroup) with
/// [`Interleaved`](crate::interleaved::Interleaved).
macro_rules! for_each_block {
    ($then:ident!($($args:tt)*)) => {
        $then! { ($($args)*)
            BlockF32 [quantize] [] [];
            BlockF16 [quantize] [] [];
            BlockBF16 [quantize] [] [];
            BlockQ4_0 [quantize] [unpack] [interleave];
            BlockQ4_1 [quantize] [unpack] [interleave];
            BlockQ5_0 [quantize] [unpack] [interleave];
            BlockQ5_1 [quantize] [unpack] [interleave];
            BlockQ8_0 [quantize] [unpack] [interleave];
            BlockQ2K [] [unpack] [interleave];
            BlockQ3K [] [unpack] [interleave];
            BlockQ4K [] [unpack] [interleave];
            BlockQ5K [] [unpack] [interleave];
            BlockQ6K [] [unpack] [interleave];
            BlockIQ2XXS [] [unpack] [interleave];
            BlockIQ2XS [] [unpack] [interleave];
            BlockIQ3XXS [] [unpack] [interleave];
            BlockIQ1S [] [unpack] [interleave];
            BlockIQ4NL [quantize] [unpack] [interleave];
            BlockIQ3S [] [unpack] [interleave];
            BlockIQ2S [] [unpack] [interleave];
            BlockIQ4XS [] [unpack] [interleave];
            BlockIQ1M [] [unpack] [interleave];
            BlockMXFP4 [] [unpack] [interleave];
            BlockTQ1_0 [] [unpack] [interleave];
            BlockTQ2_0 [] [unpack] [interleave];
            BlockNVFP4 [] [unpack] [interleave];
            BlockQ1_0 [] [unpack] [interleave];
            BlockQ2_0 [] [unpack] [interleave];
        }
    };
}
pub(crate) use for_each_block;

/// Returns true if [`dequantize_row`] and the matmuls support this type.
pub fn can_dequantize(ty: GgmlType) -> bool {
    kernels().find(ty).is_some()
}

/// Returns true if [`quantize_row`] supports this type.
pub fn can_quantize(ty: GgmlType) -> bool {
    kernels().find(ty).is_some_and(|kernels| kernels.quantize.is_some())
}

/// Decodes the blocks of `src` to floats. `src` may be unaligned.
///
/// # Panics
/// If the type has no decoder (see [`can_dequantize`]), or the lengths disagree.
pub fn dequantize_row(ty: GgmlType, src: &[u8], dst: &mut [f32]) {
    let kernels = kernels().for_type(ty);
    check_lengths(ty, src.len(), dst.len());
    // SAFETY: `check_lengths` checked both lengths; `kernels()` matches this CPU.
    unsafe { (kernels.dequantize)(src.as_ptr(), dst.as_mut_ptr(), dst.len()) }
}

/// Encodes floats to blocks. `dst` may be unaligned.
///
/// # Panics
/// If the type has no encoder (see [`can_quantize`]), or the lengths disagree.
pub fn quantize_row(ty: GgmlType, src: &[f32], dst: &mut [u8]) {
    let quantize = kernels()
        .for_type(ty)
        .quantize
        .unwrap_or_else(|| panic!("{ty} cannot be quantized"));
    check_lengths(ty, dst.len(), src.len());
    // SAFETY: `check_lengths` checked both lengths; `kernels()` matches this CPU.
    unsafe { quantize(src.as_ptr(), dst.as_mut_ptr(), src.len()) }
}

/// Panics if the lengths disagree. That is a bug of the caller, because sizes in files are checked when they
/// are opened.
fn check_lengths(ty: GgmlType, n_bytes: usize, n: usize) {
    assert!(
        ty.row_bytes(n) == Some(n_bytes),
        "{ty}: expected whole rows, found {n_bytes} bytes for {n} elements"
    );
}

/// Points of a type's grid. Elements are bytes, the first in the lowest byte.
#[derive(Clone, Copy, Debug)]
pub enum Points {
    /// Grid points of 8 elements.
    OfEight(&'static [u64]),
    /// Grid points of 4 elements.
    OfFour(&'static [u32]),
}

/// Returns the grid of a type, or `None` for types without a grid.
pub fn points_of(ty: GgmlType) -> Option<Points> {
    match ty {
        GgmlType::IQ1_S | GgmlType::IQ1_M => Some(Points::OfEight(&grids::IQ1)),
        GgmlType::IQ2_XXS => Some(Points::OfEight(&grids::IQ2_XXS)),
        GgmlType::IQ2_XS => Some(Points::OfEight(&grids::IQ2_XS)),
        GgmlType::IQ2_S => Some(Points::OfEight(&grids::IQ2_S)),
        GgmlType::IQ3_XXS => Some(Points::OfFour(&grids::IQ3_XXS)),
        GgmlType::IQ3_S => Some(Points::OfFour(&grids::IQ3_S)),
        _ => None,
    }
}

/// An unaligned little-endian f16.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Pod, Zeroable)]
#[repr(transparent)]
pub struct Half(pub [u8; 2]);

impl Half {
    /// Converts the value to f32.
    pub fn get(self) -> f32 {
        half::f16::from_le_bytes(self.0).to_f32()
    }

    /// Rounds to the nearest f16.
    pub fn new(x: f32) -> Half {
        Half(half::f16::from_f32(x).to_le_bytes())
    }
}

/// Prevents the compiler from optimizing `values`, which are references to scales, out of memory. Scales are
/// computed a register at a time and then used individually, each broadcast by one load.
///
/// With AVX2, a matrix-vector product of Q2_K becomes 6 % faster; other types do not change. The function
/// also keeps compilation of the tests fast: without it, rustc takes minutes longer.
#[inline(always)]
fn in_memory<T>(values: T) -> T {
    std::hint::black_box(values)
}

/// Converts a table of small integers to floats.
const fn to_floats(values: [i8; 16]) -> [f32; 16] {
    let mut floats = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        floats[i] = values[i] as f32;
        i += 1;
    }
    floats
}

/// Returns the element of largest magnitude with its sign, or 0 for an empty slice.
fn signed_max(x: &[f32]) -> f32 {
    x.iter()
        .fold(0.0, |max: f32, &v| if v.abs() > max.abs() { v } else { max })
}

/// Returns the smallest and the largest element.
fn min_max(x: &[f32]) -> (f32, f32) {
    x.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(min, max), &v| {
        (min.min(v), max.max(v))
    })
}

/// Returns the scale with the least squared error for `x ~ scale * value(x / scale)`. Candidates map the
/// element of largest magnitude to one of `ends` before rounding.
fn best_scale(x: &[f32], ends: impl Iterator<Item = f32>, value: impl Fn(f32) -> f32) -> f32 {
    let max = signed_max(x);
    if max == 0.0 {
        return 0.0;
    }
    let (mut best, mut best_gain) = (0.0, 0.0);
    for end in ends {
        let inv = end / max;
        // For fixed indices, the best scale is `sum(x v) / sum(v^2)`; it reduces the squared error by `sum(x
        // v)^2 / sum(v^2)`.
        let (mut sum_xv, mut sum_vv) = (0.0, 0.0);
        for &x in x {
            let v = value(x * inv);
            sum_xv += x * v;
            sum_vv += v * v;
        }
        let gain = sum_xv * sum_xv / sum_vv;
        if gain > best_gain {
            (best, best_gain) = (sum_xv / sum_vv, gain);
        }
    }
    best
}

/// Returns the scale and minimum with the least squared error for `x ~ scale * q + min` with `q` in
/// `0..=max_q`. Candidates are found by alternately rounding and fitting a line, starting from slightly
/// narrowed ranges.
fn best_line(x: &[f32], max_q: f32) -> (f32, f32) {
    let (low, high) = min_max(x);
    let (mut best, mut best_gain) = (((high - low) / max_q, low), 0.0);
    for (narrow_low, narrow_high) in (0..25).map(|i| ((i % 5) as f32 * 0.4, (i / 5) as f32 * 0.4)) {
        let scale = (high - low) / (max_q - narrow_low - narrow_high);
        let mut line = (scale, low + narrow_low * scale);
        for _ in 0..3 {
            let (fitted, gain) = fit_line(x, line, max_q);
            if gain > best_gain {
                (best, best_gain) = (fitted, gain);
            }
            line = fitted;
        }
    }
    best
}

/// Fits a line through `x` over its indices as rounded by `line`. Also returns the reduction of the squared
/// error around the mean.
fn fit_line(x: &[f32], line: (f32, f32), max_q: f32) -> ((f32, f32), f32) {
    let n = x.len() as f32;
    let inv = inverse(line.0);
    let q = |x: f32| f32::from(round_to((x - line.1) * inv, max_q));
    let mean_x = x.iter().sum::<f32>() / n;
    let mean_q = x.iter().map(|&x| q(x)).sum::<f32>() / n;
    let (mut sum_xq, mut sum_qq) = (0.0, 0.0);
    for &x in x {
        sum_xq += (x - mean_x) * (q(x) - mean_q);
        sum_qq += (q(x) - mean_q).powi(2);
    }
    let scale = sum_xq / sum_qq;
    ((scale, mean_x - scale * mean_q), sum_xq * scale)
}

/// Returns `1 / x`, or 0 if `x` is 0, for scales that may be zero.
fn inverse(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// Rounds `x` to the nearest integer in `0..=max`.
fn round_to(x: f32, max: f32) -> u8 {
    x.round_ties_even().clamp(0.0, max) as u8
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{scalar_decoders, scalar_encoders};
