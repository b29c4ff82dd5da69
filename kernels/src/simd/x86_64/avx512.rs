//! AVX-512 (F, BW, DQ, VL): 16 floats per register.

use std::arch::x86_64::*;

use super::avx2::{self, Avx2};
use super::methods;
use crate::simd::Simd;

/// A register of sixteen floats.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(__m512);

impl Avx512 {
    #[inline(always)]
    pub(super) fn register(self) -> __m512 {
        self.0
    }
}

impl From<__m512> for Avx512 {
    #[inline(always)]
    fn from(register: __m512) -> Self {
        Avx512(register)
    }
}

/// The integers 0 to 31 as floats.
static COUNT: [f32; 32] = {
    let mut count = [0.0; 32];
    let mut i = 0;
    while i < 32 {
        count[i] = i as f32;
        i += 1;
    }
    count
};

/// Returns the mask of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> __mmask16 {
    debug_assert!(n <= 16);
    ((1u32 << n) - 1) as __mmask16
}

/// Adds the two halves.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline(always)]
unsafe fn fold(x: __m512) -> __m256 {
    // SAFETY: the CPU supports AVX-512 (function contract).
    unsafe { _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)) }
}

/// Adds the halves of `a`, and the halves of `b`.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline(always)]
unsafe fn add_halves(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the CPU supports AVX-512 (function contract).
    unsafe { _mm512_add_ps(_mm512_shuffle_f32x4::<0x44>(a, b), _mm512_shuffle_f32x4::<0xee>(a, b)) }
}

/// Adds neighbors in each 128-bit lane: two sums of `a`, then two of `b`.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline(always)]
unsafe fn add_neighbors(a: __m512, b: __m512) -> __m512 {
    // SAFETY: the CPU supports AVX-512 (function contract).
    unsafe { _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b)) }
}

/// Returns the sums of the lanes of each value, in the order of additions of [`Simd::sum4`]. Every step adds
/// several values in one register.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline(always)]
unsafe fn sum8([a, b, c, d]: [Avx512; 4], [e, f, g, h]: [Avx512; 4]) -> __m256 {
    // SAFETY: the CPU supports AVX-512 (function contract).
    unsafe {
        let first = add_neighbors(add_halves(a.0, b.0), add_halves(c.0, d.0));
        let second = add_neighbors(add_halves(e.0, f.0), add_halves(g.0, h.0));
        let sums = add_neighbors(first, second);
        // Lanes 0 and 1 have the sums of `a`, `c`, `e`, and `g`. Lanes 2 and 3 have the sums of `b`, `d`, `f`, and `h`.
        let sums = fold(_mm512_shuffle_f32x4::<0xd8>(sums, sums));
        _mm256_permutevar8x32_ps(sums, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
    }
}

/// Returns the larger lanes of the two halves.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline(always)]
unsafe fn larger_half(x: __m512) -> __m256 {
    // SAFETY: the CPU supports AVX-512 (function contract).
    unsafe { _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)) }
}

/// Converts floats to bf16, rounded to nearest even. NaN stays NaN.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline(always)]
unsafe fn to_bf16(x: __m512) -> __m256i {
    // SAFETY: the CPU supports AVX-512 (function contract). The AVX512-BF16 instruction is not used, because
    // it flushes subnormal numbers.
    unsafe {
        let bits = _mm512_castps_si512(x);
        let lsb = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), lsb);
        let is_nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
        let bits = _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x0040_0000));
        _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(bits))
    }
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    type Int = __m512i;
    type Mask = __mmask16;
    type Table = Self;
    type Line = [Self; 2];

    methods! { unsafe
        fn splat(x: f32) -> Self = Avx512(_mm512_set1_ps(x));
        fn load(p: *const f32) -> Self = Avx512(_mm512_loadu_ps(p));
        fn load_partial(p: *const f32, n: usize) -> Self = Avx512(_mm512_maskz_loadu_ps(first(n), p));
        fn store(self, p: *mut f32) -> () = _mm512_storeu_ps(p, self.0);
        fn store_partial(self, p: *mut f32, n: usize) -> () = _mm512_mask_storeu_ps(p, first(n), self.0);
        fn splat_f16(p: *const u8) -> Self = {
            Avx512(_mm512_cvtph_ps(_mm256_set1_epi16(p.cast::<i16>().read_unaligned())))
        };
        fn load_f16(p: *const u8) -> Self = Avx512(_mm512_cvtph_ps(_mm256_loadu_si256(p.cast())));
        fn store_f16(self, p: *mut u8) -> () = {
            _mm256_storeu_si256(p.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0))
        };
        fn load_bf16(p: *const u8) -> Self = {
            let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            Avx512(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves)))
        };
        fn store_bf16(self, p: *mut u8) -> () = _mm256_storeu_si256(p.cast(), to_bf16(self.0));
        fn load_u8(p: *const u8) -> __m512i = _mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast()));
        fn load_i8(p: *const u8) -> __m512i = _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()));
        fn load_words(p: *const u8) -> __m512i = _mm512_loadu_si512(p.cast());
        fn store_i8(self, p: *mut u8) -> () = {
            _mm_storeu_si128(p.cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(self.0)))
        };
        fn store_i16(self, p: *mut u8) -> () = {
            _mm256_storeu_si256(p.cast(), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(self.0)))
        };
        fn store_i16_pairs(even: Self, odd: Self, p: *mut u8) -> () = {
            let (even, odd) = (_mm512_cvtps_epi32(even.0), _mm512_slli_epi32::<16>(_mm512_cvtps_epi32(odd.0)));
            _mm512_storeu_si512(p.cast(), _mm512_mask_blend_epi16(0xaaaa_aaaa, even, odd))
        };
        fn bytes(words: [u64; 2]) -> __m512i = {
            _mm512_cvtepu8_epi32(_mm_set_epi64x(words[1] as i64, words[0] as i64))
        };
        fn mask(bits: u32, at: usize) -> __mmask16 = (bits >> at) as __mmask16;
        fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) -> () = {
            Avx2::transpose(from, from_stride, to, to_stride)
        };
    }

    methods! {
        fn add(self, other: Self) -> Self = Avx512(_mm512_add_ps(self.0, other.0));
        fn sub(self, other: Self) -> Self = Avx512(_mm512_sub_ps(self.0, other.0));
        fn mul(self, other: Self) -> Self = Avx512(_mm512_mul_ps(self.0, other.0));
        fn div(self, other: Self) -> Self = Avx512(_mm512_div_ps(self.0, other.0));
        fn mul_add(self, a: Self, b: Self) -> Self = Avx512(_mm512_fmadd_ps(self.0, a.0, b.0));
        fn max(self, other: Self) -> Self = Avx512(_mm512_max_ps(self.0, other.0));
        fn min(self, other: Self) -> Self = Avx512(_mm512_min_ps(self.0, other.0));
        fn abs(self) -> Self = Avx512(_mm512_abs_ps(self.0));
        fn round(self) -> Self = {
            Avx512(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
        };
        fn mul_pow2(self, n: Self) -> Self = Avx512(_mm512_scalef_ps(self.0, n.0));
        fn pow2(self) -> Self = Avx512(_mm512_scalef_ps(_mm512_set1_ps(1.0), self.0));
        fn add_where(self, mask: __mmask16, x: Self) -> Self = {
            Avx512(_mm512_mask_add_ps(self.0, mask, self.0, x.0))
        };
        fn negate_where(self, mask: __mmask16) -> Self = {
            Avx512(_mm512_mask_xor_ps(self.0, mask, self.0, _mm512_set1_ps(-0.0)))
        };
        fn equals(self, other: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0);
        fn select(mask: __mmask16, a: Self, b: Self) -> Self = Avx512(_mm512_mask_blend_ps(mask, b.0, a.0));
        fn sum(self) -> f32 = avx2::sum4([fold(self.0); 4])[0];
        fn largest(self) -> f32 = _mm512_reduce_max_ps(self.0);
        fn sum4(values: [Self; 4]) -> [f32; 4] = {
            avx2::sum4([fold(values[0].0), fold(values[1].0), fold(values[2].0), fold(values[3].0)])
        };
        fn sum4_of_two(values: [[Self; 4]; 2]) -> [[f32; 4]; 2] = {
            std::mem::transmute::<__m256, [[f32; 4]; 2]>(sum8(values[0], values[1]))
        };
        fn largest4(values: [Self; 4]) -> [f32; 4] = avx2::largest4([
            larger_half(values[0].0),
            larger_half(values[1].0),
            larger_half(values[2].0),
            larger_half(values[3].0),
        ]);
        fn and(bits: __m512i, x: u32) -> __m512i = _mm512_and_si512(bits, _mm512_set1_epi32(x as i32));
        fn or(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn xor(bits: __m512i, x: u32) -> __m512i = _mm512_xor_si512(bits, _mm512_set1_epi32(x as i32));
        fn plus(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        // The count is passed in a register; the compiler uses the immediate form if it is constant.
        fn shl(bits: __m512i, n: u32) -> __m512i = _mm512_sll_epi32(bits, _mm_cvtsi32_si128(n as i32));
        fn shr(bits: __m512i, n: u32) -> __m512i = _mm512_srl_epi32(bits, _mm_cvtsi32_si128(n as i32));
        fn has_bit(bits: __m512i, bit: u32) -> __mmask16 = {
            _mm512_test_epi32_mask(bits, _mm512_set1_epi32(bit as i32))
        };
        fn plus_one(bits: __m512i) -> __m512i = _mm512_add_epi32(bits, _mm512_set1_epi32(1));
        fn from_bits(bits: __m512i) -> Self = Avx512(_mm512_castsi512_ps(bits));
        fn from_int(bits: __m512i) -> Self = Avx512(_mm512_cvtepi32_ps(bits));
        fn table(values: &[f32; 16], scale: Self) -> Self = {
            Avx512(_mm512_mul_ps(_mm512_loadu_ps(values.as_ptr()), scale.0))
        };
        // Permutations use only the low 4 bits of each index.
        fn lookup(table: Self, bits: __m512i) -> Self = Avx512(_mm512_permutexvar_ps(bits, table.0));
        // All 32 values of the function are computed once, then looked up.
        fn line(d: Self, m: Self) -> [Self; 2] = [
            Avx512(_mm512_fmadd_ps(_mm512_loadu_ps(COUNT.as_ptr()), d.0, m.0)),
            Avx512(_mm512_fmadd_ps(_mm512_loadu_ps(COUNT.as_ptr().add(16)), d.0, m.0)),
        ];
        fn low4(line: [Self; 2], bits: __m512i) -> Self = Self::lookup(line[0], bits);
        fn high4(line: [Self; 2], bits: __m512i) -> Self = Self::lookup(line[0], Self::shr(bits, 4));
        fn low5(line: [Self; 2], bits: __m512i, fifth: __mmask16) -> Self = {
            let low = Self::lookup(line[0], bits);
            Avx512(_mm512_mask_permutexvar_ps(low.0, fifth, bits, line[1].0))
        };
        fn high5(line: [Self; 2], bits: __m512i, fifth: __mmask16) -> Self = {
            Self::low5(line, Self::shr(bits, 4), fifth)
        };
    }
}
