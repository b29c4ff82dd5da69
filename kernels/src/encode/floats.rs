//! Types whose elements are 4-bit floats (E2M1) with an 8-bit float as scale.

use super::equal::{splat, with_words};
use super::lanes::{Groups, Lanes, MAGIC, MAX_MAGNITUDE, N, largest_importance};
use super::reals::Reals;
use super::scales::{self, Levels};
use super::words::{LEN, PortableWords, Words};
use super::{chunks, prefetch_after};
use crate::quants::{BlockMXFP4, BlockNVFP4};

/// Doubled values of E2M1.
pub(super) struct E2M1;

impl Levels for E2M1 {
    const ENDS: &'static [f32] = &[12.0];
    const LOWEST: f32 = -12.0;

    #[inline(always)]
    fn nearest(x: Lanes) -> Lanes {
        // SAFETY: every CPU supports lanes.
        unsafe { nearest_magnitude(x.abs()) }.with_sign_of(x)
    }

    #[inline(always)]
    fn index(x: f32) -> u8 {
        let magnitude = match x.abs() {
            a if a < 4.0 => a.round_ties_even() as u8,
            a if a < 8.0 => (a / 2.0).round_ties_even() as u8 + 2,
            a => (a.min(12.0) / 4.0).round_ties_even() as u8 + 4,
        };
        // Zero has a single code, without a sign.
        if x < 0.0 && magnitude > 0 {
            magnitude | 8
        } else {
            magnitude
        }
    }

    #[inline(always)]
    fn indices(x: Lanes) -> [u8; N] {
        // SAFETY: every CPU supports lanes.
        let level = unsafe { nearest_magnitude(x.abs()) };
        // Codes of levels increase by 1 for 1 up to 4, for 2 up to 8, and for 4 up to 12.
        let twos = level * Lanes::splat(0.5) + Lanes::splat(2.0);
        let fours = level * Lanes::splat(0.25) + Lanes::splat(4.0);
        let code = level.min(twos).min(fours) + Lanes::splat(MAGIC);
        let mut indices = [0; N];
        for i in 0..N {
            let magnitude = code.0[i].to_bits() & 7;
            // Zero has a single code, without a sign. The sign of the difference is set if the magnitude is not 0.
            let sign = x.0[i].to_bits() & 0u32.wrapping_sub(magnitude);
            indices[i] = (sign >> 28 & 8 | magnitude) as u8;
        }
        indices
    }

    #[inline(always)]
    fn value(index: u8) -> f32 {
        let magnitude = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][usize::from(index & 7)];
        if index & 8 == 0 { magnitude } else { -magnitude }
    }
}

/// Operations on the levels of 32 elements.
trait Codes: Words {
    /// Converts levels of E2M1 with the signs of `x`.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn codes(levels: [Self::Floats; REGISTERS], x: [Self::Floats; REGISTERS]) -> [u8; LEN];
}

/// Registers with the elements of an MXFP4 block.
const REGISTERS: usize = LEN / N;

with_words! {
    /// Encodes MXFP4.
    fn mxfp4(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) -> () = encode_mxfp4;
    /// Returns the code of the scale of an MXFP4 block with the smallest squared error. `largest` is the largest
    /// importance.
    fn mxfp4_code(x: &[f32; LEN], w: Option<&[f32; LEN]>, largest: f32) -> u8 = code_of_block;
}

/// See [`mxfp4`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn encode_mxfp4<W: Codes>(x: &[f32], w: Option<&[f32]>, out: &mut [u8]) {
    let blocks: &mut [BlockMXFP4] = bytemuck::cast_slice_mut(out);
    for ((x, w), blocks) in chunks(x, w, N * LEN).zip(blocks.chunks_mut(N)) {
        prefetch_after(x);
        let largest = w.map_or(1.0, largest_importance);
        for (i, (x, block)) in x.as_chunks().0.iter().zip(blocks).enumerate() {
            let w = w.map(|w| &w.as_chunks().0[i]);
            // SAFETY: function contract.
            unsafe {
                let code = code_of_block::<W>(x, w, largest);
                let inverse = splat::<W>(BlockMXFP4::half_scale_of(code)).reciprocal();
                let x = load::<W>(x);
                let mut levels = x;
                for level in &mut levels {
                    *level = nearest_magnitude(level.magnitude() * inverse);
                }
                *block = BlockMXFP4::from_code(code, &W::codes(levels, x));
            }
        }
    }
}

/// Returns the elements of a block.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn load<W: Words>(x: &[f32; LEN]) -> [W::Floats; REGISTERS] {
    // SAFETY: function contract.
    unsafe {
        let mut registers = [splat::<W>(0.0); REGISTERS];
        for (register, x) in registers.iter_mut().zip(x.as_chunks().0) {
            *register = W::Floats::from_lanes(&Lanes(*x));
        }
        registers
    }
}

/// Returns the doubled value of E2M1 nearest to a magnitude.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn nearest_magnitude<R: Reals>(a: R) -> R {
    // SAFETY: function contract.
    unsafe {
        let a = a.smaller(R::splat(12.0));
        // Levels are 1 apart below 4, and half a power of two apart above. Adding this number rounds to these
        // distances.
        let magic = a.power_of_two().larger(R::splat(2.0)) * R::splat(6_291_456.0);
        (a + magic) - magic
    }
}

/// See [`mxfp4_code`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn code_of_block<W: Words>(x: &[f32; LEN], w: Option<&[f32; LEN]>, largest: f32) -> u8 {
    // SAFETY: function contract.
    unsafe {
        let mut x = load::<W>(x);
        for x in &mut x {
            *x = x.magnitude().smaller(splat::<W>(MAX_MAGNITUDE));
        }
        let w = w.map(|w| {
            let w = w.as_chunks().0;
            [0, 1, 2, 3].map(|i| Lanes(w[i]).relative_to(largest))
        });
        let max = x[0].larger(x[1]).larger(x[2].larger(x[3])).to_lanes().largest();
        // The usual scale makes the largest magnitude at least 4 and less than 8; 6 is the largest value.
        let usual = (max.to_bits() >> 23) as i32 - 2;
        let codes = [usual, usual + 1, usual - 1].map(|code| code.clamp(0, 254) as u8);
        let half_scale = BlockMXFP4::half_scale_of(codes[0]);
        let (mut best, mut best_error) = (codes[0], error_of::<W>(&x, &w, half_scale));
        // Up to 7, the levels of the doubled scale are among those of the usual one.
        if max > 14.0 * half_scale {
            let error = error_of::<W>(&x, &w, 2.0 * half_scale);
            if error < best_error {
                (best, best_error) = (codes[1], error);
            }
        }
        // The halved scale limits values to 3.
        let above = max - 6.0 * half_scale;
        if (w.is_some() || above * above < best_error)
            && error_of::<W>(&x, &w, BlockMXFP4::half_scale_of(codes[2])) < best_error
        {
            best = codes[2];
        }
        best
    }
}

/// Returns the squared error of the magnitudes for a scale, given as half its value.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn error_of<W: Words>(x: &[W::Floats; REGISTERS], w: &Option<[Lanes; REGISTERS]>, half_scale: f32) -> f32 {
    // SAFETY: function contract.
    unsafe {
        let scale = splat::<W>(half_scale);
        let (inverse, mut error) = (scale.reciprocal(), splat::<W>(0.0));
        for (i, &x) in x.iter().enumerate() {
            let difference = x - scale * nearest_magnitude(x * inverse);
            let square = difference * difference;
            error = match w {
                Some(w) => error + W::Floats::from_lanes(&w[i]) * square,
                None => error + square,
            };
        }
        error.to_lanes().sum()
    }
}

impl Codes for PortableWords {
    #[inline(always)]
    unsafe fn codes(levels: [Lanes; REGISTERS], x: [Lanes; REGISTERS]) -> [u8; LEN] {
        std::array::from_fn(|i| {
            let level = levels[i / N].0[i % N];
            E2M1::index(level.copysign(x[i / N].0[i % N]))
        })
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! Codes in AVX2 registers.

    use std::arch::x86_64::*;

    use super::super::lanes::MAGIC;
    use super::super::reals::avx2::Avx2Reals;
    use super::super::words::avx2::Avx2Words;
    use super::{Codes, LEN, REGISTERS};

    impl Codes for Avx2Words {
        #[inline(always)]
        unsafe fn codes(levels: [Avx2Reals; REGISTERS], x: [Avx2Reals; REGISTERS]) -> [u8; LEN] {
            // SAFETY: the store is within `codes`, and the CPU supports AVX2 (function contract).
            unsafe {
                let mut words = [_mm256_setzero_si256(); REGISTERS];
                for i in 0..REGISTERS {
                    // Codes of levels increase by 1 for 1 up to 4, for 2 up to 8, and for 4 up to 12.
                    let level = levels[i].0;
                    let twos = _mm256_add_ps(_mm256_mul_ps(level, _mm256_set1_ps(0.5)), _mm256_set1_ps(2.0));
                    let fours = _mm256_add_ps(_mm256_mul_ps(level, _mm256_set1_ps(0.25)), _mm256_set1_ps(4.0));
                    let code = _mm256_add_ps(_mm256_min_ps(_mm256_min_ps(level, twos), fours), _mm256_set1_ps(MAGIC));
                    let code = _mm256_and_si256(_mm256_castps_si256(code), _mm256_set1_epi32(7));
                    let sign = _mm256_and_si256(_mm256_castps_si256(x[i].0), _mm256_set1_epi32(i32::MIN));
                    words[i] = _mm256_or_si256(code, _mm256_srli_epi32::<28>(sign));
                }
                let [a, b, c, d] = words;
                let bytes = _mm256_packus_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
                // Packing interleaves the halves of the registers.
                let bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
                // Zero has a single code, without a sign.
                let is_zero = _mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(8));
                let mut codes = [0; LEN];
                _mm256_storeu_si256(codes.as_mut_ptr().cast(), _mm256_andnot_si256(is_zero, bytes));
                codes
            }
        }
    }
}

/// Returns the codes of the scales of groups of NVFP4 blocks.
pub(super) fn nvfp4_codes(groups: &Groups<16>) -> [u8; N] {
    /// Offsets from the code of a sixth of the largest magnitude. There are 8 codes per power of two.
    const OFFSETS: &[i32] = &[0, 1, -1, 2, -2, 3, 4, 5, 6, 7, -3];
    let usual = BlockNVFP4::code_of_largest;
    best_codes(groups, OFFSETS, 126, usual, BlockNVFP4::half_scale_of)
}

/// Returns the code of the scale with the smallest squared error in each lane. Candidates are at `offsets` from the
/// code that `usual` returns for the largest magnitude of a group. `scale` returns half the value of a code.
fn best_codes<const L: usize>(
    groups: &Groups<L>,
    offsets: &[i32],
    limit: i32,
    usual: impl Fn(f32) -> i32,
    scale: impl Fn(u8) -> f32,
) -> [u8; N] {
    let (low, high) = groups.range();
    let usual = high.max(Lanes::ZERO - low).0.map(usual);
    let (mut best, mut best_error) = ([0; N], Lanes::splat(f32::MAX));
    for offset in offsets {
        let codes = usual.map(|usual| (usual + offset).clamp(0, limit) as u8);
        let (_, error) = scales::round::<E2M1, L>(groups, Lanes(codes.map(&scale)));
        for lane in 0..N {
            if error.0[lane] < best_error.0[lane] {
                (best[lane], best_error.0[lane]) = (codes[lane], error.0[lane]);
            }
        }
    }
    best
}
