//! AVX2 with FMA and F16C: 8 floats per register.

use std::arch::x86_64::*;

use super::methods;
use super::transpose::transpose;
use crate::simd::Simd;

/// A register of eight floats.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(__m256);

impl Avx2 {
    #[inline(always)]
    pub(super) fn register(self) -> __m256 {
        self.0
    }
}

impl From<__m256> for Avx2 {
    #[inline(always)]
    fn from(register: __m256) -> Avx2 {
        Avx2(register)
    }
}

/// Returns a mask with all bits set in the first `n` lanes.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
unsafe fn first(n: usize) -> __m256i {
    static ONES_THEN_ZEROS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    debug_assert!(n <= 8);
    // SAFETY: the 8 integers from index `8 - n` on are within the table.
    unsafe { _mm256_loadu_si256(ONES_THEN_ZEROS.as_ptr().add(8 - n).cast()) }
}

/// Returns `x * 2^n` in two steps, because 2^n may be out of range.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
unsafe fn mul_pow2(x: __m256, n: __m256i) -> __m256 {
    // SAFETY: the CPU supports AVX2 (function contract).
    unsafe {
        let half = _mm256_srai_epi32::<1>(n);
        let bias = _mm256_set1_epi32(127);
        let a = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
        let b = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias));
        _mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(a)), _mm256_castsi256_ps(b))
    }
}

/// Converts floats to bf16 in the low halves of the lanes, rounded to nearest even. NaN stays NaN.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
unsafe fn to_bf16(x: __m256) -> __m256i {
    // SAFETY: the CPU supports AVX2 (function contract).
    unsafe {
        let bits = _mm256_castps_si256(x);
        let lsb = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), lsb);
        let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
        _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, is_nan))
    }
}

/// Adds the two halves.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
unsafe fn fold(x: __m256) -> __m128 {
    // SAFETY: the CPU supports AVX2 (function contract).
    unsafe { _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x)) }
}

/// Returns the sum of the lanes of each value, computed as (0 + 1) + (2 + 3) of the folded halves.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
pub(super) unsafe fn sum4(v: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the CPU supports AVX2 (function contract).
    unsafe {
        let pairs = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
        let mut sums = [0.0; 4];
        _mm_storeu_ps(sums.as_mut_ptr(), fold(pairs));
        sums
    }
}

/// Returns the largest lane of each value. Pairs of lanes are compared first, so that two values can share a
/// register.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
pub(super) unsafe fn largest4(v: [__m256; 4]) -> [f32; 4] {
    // SAFETY: the CPU supports AVX2 (function contract).
    unsafe {
        let ab = _mm256_max_ps(_mm256_unpacklo_ps(v[0], v[1]), _mm256_unpackhi_ps(v[0], v[1]));
        let cd = _mm256_max_ps(_mm256_unpacklo_ps(v[2], v[3]), _mm256_unpackhi_ps(v[2], v[3]));
        let abcd = _mm256_max_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
        let mut largest = [0.0; 4];
        let (low, high) = (_mm256_castps256_ps128(abcd), _mm256_extractf128_ps::<1>(abcd));
        _mm_storeu_ps(largest.as_mut_ptr(), _mm_max_ps(low, high));
        largest
    }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    type Int = __m256i;
    type Mask = __m256i;
    type Table = [__m256; 2];
    type Line = (Self, Self);

    methods! { unsafe
        fn splat(x: f32) -> Self = Avx2(_mm256_set1_ps(x));
        fn load(p: *const f32) -> Self = Avx2(_mm256_loadu_ps(p));
        fn load_partial(p: *const f32, n: usize) -> Self = Avx2(_mm256_maskload_ps(p, first(n)));
        fn store(self, p: *mut f32) -> () = _mm256_storeu_ps(p, self.0);
        fn store_partial(self, p: *mut f32, n: usize) -> () = _mm256_maskstore_ps(p, first(n), self.0);
        fn splat_f16(p: *const u8) -> Self = {
            Avx2(_mm256_cvtph_ps(_mm_set1_epi16(p.cast::<i16>().read_unaligned())))
        };
        fn load_f16(p: *const u8) -> Self = Avx2(_mm256_cvtph_ps(_mm_loadu_si128(p.cast())));
        fn store_f16(self, p: *mut u8) -> () = {
            _mm_storeu_si128(p.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0))
        };
        fn load_bf16(p: *const u8) -> Self = {
            let halves = _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<16>(halves)))
        };
        fn store_bf16(self, p: *mut u8) -> () = {
            let words = to_bf16(self.0);
            let packed = _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(p.cast(), packed)
        };
        fn load_u8(p: *const u8) -> __m256i = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        fn load_i8(p: *const u8) -> __m256i = _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()));
        fn load_words(p: *const u8) -> __m256i = _mm256_loadu_si256(p.cast());
        fn store_i8(self, p: *mut u8) -> () = {
            let x = _mm256_cvtps_epi32(self.0);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(words, words))
        };
        fn store_i16(self, p: *mut u8) -> () = {
            let x = _mm256_cvtps_epi32(self.0);
            let words = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256::<1>(x));
            _mm_storeu_si128(p.cast(), words)
        };
        fn store_i16_pairs(even: Self, odd: Self, p: *mut u8) -> () = {
            let (even, odd) = (_mm256_cvtps_epi32(even.0), _mm256_slli_epi32::<16>(_mm256_cvtps_epi32(odd.0)));
            _mm256_storeu_si256(p.cast(), _mm256_blend_epi16::<0xaa>(even, odd))
        };
        fn bytes(words: [u64; 2]) -> __m256i = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(words[0] as i64));
        fn mask(bits: u32, at: usize) -> __m256i = {
            // Each lane tests one bit of the mask; the shift is folded at compile time if `at` is a constant.
            let lanes = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            let lanes = _mm256_sll_epi32(lanes, _mm_cvtsi32_si128(at as i32));
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(bits as i32), lanes), lanes)
        };
        fn transpose(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) -> () = {
            let rows = std::array::from_fn(|i| _mm256_loadu_si256(from.add(i * from_stride).cast()));
            for (i, column) in transpose(rows).into_iter().enumerate() {
                _mm256_storeu_si256(to.add(i * to_stride).cast(), column);
            }
        };
    }

    methods! {
        fn add(self, other: Self) -> Self = Avx2(_mm256_add_ps(self.0, other.0));
        fn sub(self, other: Self) -> Self = Avx2(_mm256_sub_ps(self.0, other.0));
        fn mul(self, other: Self) -> Self = Avx2(_mm256_mul_ps(self.0, other.0));
        fn div(self, other: Self) -> Self = Avx2(_mm256_div_ps(self.0, other.0));
        fn mul_add(self, a: Self, b: Self) -> Self = Avx2(_mm256_fmadd_ps(self.0, a.0, b.0));
        fn max(self, other: Self) -> Self = Avx2(_mm256_max_ps(self.0, other.0));
        fn min(self, other: Self) -> Self = Avx2(_mm256_min_ps(self.0, other.0));
        fn abs(self) -> Self = Avx2(_mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0));
        fn round(self) -> Self = {
            Avx2(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0))
        };
        fn mul_pow2(self, n: Self) -> Self = Avx2(mul_pow2(self.0, _mm256_cvtps_epi32(n.0)));
        fn pow2(self) -> Self = {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(self.0), _mm256_set1_epi32(127));
            Avx2(_mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        };
        fn add_where(self, mask: __m256i, x: Self) -> Self = {
            Avx2(_mm256_add_ps(self.0, _mm256_and_ps(_mm256_castsi256_ps(mask), x.0)))
        };
        fn negate_where(self, mask: __m256i) -> Self = {
            // Selected lanes have all bits set, including the sign bit.
            Avx2(_mm256_xor_ps(self.0, _mm256_and_ps(_mm256_castsi256_ps(mask), _mm256_set1_ps(-0.0))))
        };
        fn equals(self, other: Self) -> __m256i = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0));
        fn select(mask: __m256i, a: Self, b: Self) -> Self = {
            Avx2(_mm256_blendv_ps(b.0, a.0, _mm256_castsi256_ps(mask)))
        };
        fn sum(self) -> f32 = sum4([self.0; 4])[0];
        fn largest(self) -> f32 = {
            let x = _mm_max_ps(_mm256_castps256_ps128(self.0), _mm256_extractf128_ps::<1>(self.0));
            let x = _mm_max_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)))
        };
        fn sum4(values: [Self; 4]) -> [f32; 4] = sum4([values[0].0, values[1].0, values[2].0, values[3].0]);
        fn largest4(values: [Self; 4]) -> [f32; 4] = {
            largest4([values[0].0, values[1].0, values[2].0, values[3].0])
        };
        fn and(bits: __m256i, x: u32) -> __m256i = _mm256_and_si256(bits, _mm256_set1_epi32(x as i32));
        fn or(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        fn xor(bits: __m256i, x: u32) -> __m256i = _mm256_xor_si256(bits, _mm256_set1_epi32(x as i32));
        fn plus(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        // Counts are passed in a register; the compiler uses the immediate form, because they are constants
        // after inlining.
        fn shl(bits: __m256i, n: u32) -> __m256i = _mm256_sll_epi32(bits, _mm_cvtsi32_si128(n as i32));
        fn shr(bits: __m256i, n: u32) -> __m256i = _mm256_srl_epi32(bits, _mm_cvtsi32_si128(n as i32));
        fn has_bit(bits: __m256i, bit: u32) -> __m256i = {
            let bit = _mm256_set1_epi32(bit as i32);
            _mm256_cmpeq_epi32(_mm256_and_si256(bits, bit), bit)
        };
        fn plus_one(bits: __m256i) -> __m256i = _mm256_add_epi32(bits, _mm256_set1_epi32(1));
        fn from_bits(bits: __m256i) -> Self = Avx2(_mm256_castsi256_ps(bits));
        fn from_int(bits: __m256i) -> Self = Avx2(_mm256_cvtepi32_ps(bits));
        fn table(values: &[f32; 16], scale: Self) -> [__m256; 2] = [
            _mm256_mul_ps(_mm256_loadu_ps(values.as_ptr()), scale.0),
            _mm256_mul_ps(_mm256_loadu_ps(values.as_ptr().add(8)), scale.0),
        ];
        fn lookup(table: [__m256; 2], bits: __m256i) -> Self = {
            let low = _mm256_permutevar8x32_ps(table[0], bits);
            let high = _mm256_permutevar8x32_ps(table[1], bits);
            // Bit 3 selects the half: a blend tests the sign bit.
            Avx2(_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(bits))))
        };
        fn line(d: Self, m: Self) -> (Self, Self) = (d, m);
        fn low4(line: (Self, Self), bits: __m256i) -> Self = {
            Self::from_int(Self::and(bits, 15)).mul_add(line.0, line.1)
        };
        fn high4(line: (Self, Self), bits: __m256i) -> Self = {
            Self::from_int(Self::shr(bits, 4)).mul_add(line.0, line.1)
        };
        fn low5(line: (Self, Self), bits: __m256i, fifth: __m256i) -> Self = {
            Self::from_int(_mm256_or_si256(Self::and(bits, 15), Self::and(fifth, 16))).mul_add(line.0, line.1)
        };
        fn high5(line: (Self, Self), bits: __m256i, fifth: __m256i) -> Self = {
            Self::from_int(_mm256_or_si256(Self::shr(bits, 4), Self::and(fifth, 16))).mul_add(line.0, line.1)
        };
    }
}
