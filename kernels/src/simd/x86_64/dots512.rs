//! 512-bit dot-product registers (AVX-512), which hold the sums of 16 rows.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2::Avx2;
use super::avx512::Avx512;
use super::int256::{DotProduct, Evex, Int256, Separate};
use super::methods;
use super::pair_dots::add_pairs_512;
use crate::simd::dots::{ByteDots, DoubleWidth};

/// A register of 64 bytes or 16 sums. `P` selects the dot-product instructions.
#[derive(Clone, Copy)]
pub(crate) struct Dots512<P>(__m512i, PhantomData<P>);

/// 512-bit registers with VNNI.
pub(crate) type VnniDots512 = Dots512<Evex>;

/// 512-bit registers without VNNI.
pub(crate) type SeparateDots512 = Dots512<Separate<32>>;

/// Dot-product instructions for 512-bit registers.
///
/// # Safety
/// Callers of the unsafe functions guarantee that the CPU supports the instruction set.
pub(crate) trait DotProduct512: DotProduct {
    /// See [`ByteDots::COLUMNS`].
    const COLUMNS: usize;
    /// See [`ByteDots::add_pair_dots`].
    unsafe fn add_pairs_512(sums: __m512i, a: __m512i, b: __m512i) -> __m512i;
    /// See [`ByteDots::add_dots`].
    unsafe fn dot4_512(sums: __m512i, a: __m512i, b: __m512i) -> __m512i;
}

impl DotProduct512 for Evex {
    const COLUMNS: usize = 7;

    methods! { unsafe
        fn add_pairs_512(sums: __m512i, a: __m512i, b: __m512i) -> __m512i = add_pairs_512(sums, a, b);
        fn dot4_512(sums: __m512i, a: __m512i, b: __m512i) -> __m512i = _mm512_dpbusd_epi32(sums, a, b);
    }
}

impl DotProduct512 for Separate<32> {
    const COLUMNS: usize = 6;

    methods! { unsafe
        fn add_pairs_512(sums: __m512i, a: __m512i, b: __m512i) -> __m512i = {
            _mm512_add_epi32(sums, _mm512_madd_epi16(a, b))
        };
        fn dot4_512(sums: __m512i, a: __m512i, b: __m512i) -> __m512i = {
            // Multiply bytes with even index as 16-bit integers, then those with odd index.
            let even = _mm512_and_si512(a, _mm512_set1_epi16(0x00ff));
            let even_signed = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(b));
            let sums = Self::add_pairs_512(sums, even, even_signed);
            Self::add_pairs_512(sums, _mm512_srli_epi16::<8>(a), _mm512_srai_epi16::<8>(b))
        };
    }
}

impl<P> Dots512<P> {
    #[inline(always)]
    fn new(register: __m512i) -> Self {
        Dots512(register, PhantomData)
    }

    #[inline(always)]
    pub(super) fn register(self) -> __m512i {
        self.0
    }
}

/// Implements [`ByteDots::compute_together`]: an empty assembly block that makes each result depend on both
/// operands.
///
/// # Safety
/// The CPU supports AVX-512.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn compute_together(mut a: __m512i, mut b: __m512i) -> [__m512i; 2] {
    // SAFETY: the assembly block contains no instruction, so the registers keep their values.
    unsafe {
        asm!("/* {} {} */", inout(zmm_reg) a, inout(zmm_reg) b, options(pure, nomem, nostack, preserves_flags));
    }
    [a, b]
}

impl<P: DotProduct512> ByteDots for Dots512<P> {
    type Float = Avx512;
    const COLUMNS: usize = P::COLUMNS;
    const QUERIES: usize = 8;
    const SUMS_IN_I16: bool = !P::HAS_DOT4;

    methods! { unsafe
        fn zero() -> Self = Self::new(_mm512_setzero_si512());
        fn words(x: i16) -> Self = Self::new(_mm512_set1_epi16(x));
        fn load(p: *const u8) -> Self = Self::new(_mm512_loadu_si512(p.cast()));
        fn broadcast(p: *const u8) -> Self = Self::new(_mm512_set1_epi32(p.cast::<i32>().read_unaligned()));
        fn store_subtracted_from(self, from: u32, p: *mut u8) -> () = {
            _mm512_storeu_si512(p.cast(), _mm512_sub_epi32(_mm512_set1_epi32(from as i32), self.0))
        };
        fn store_negated_words(self, p: *mut u8) -> () = {
            _mm512_storeu_si512(p.cast(), _mm512_sub_epi16(_mm512_setzero_si512(), self.0))
        };
    }

    methods! {
        fn add_dots(self, unsigned: Self, signed: Self) -> Self = {
            Self::new(P::dot4_512(self.0, unsigned.0, signed.0))
        };
        fn add_byte_pairs(self, unsigned: Self, signed: Self) -> Self = {
            Self::new(_mm512_add_epi16(self.0, _mm512_maddubs_epi16(unsigned.0, signed.0)))
        };
        fn add_pair_dots(self, a: Self, b: Self) -> Self = Self::new(P::add_pairs_512(self.0, a.0, b.0));
        // The count is passed in a register; the compiler uses the immediate form if it is constant.
        fn add_shifted(self, other: Self, n: u32) -> Self = {
            Self::new(_mm512_add_epi32(self.0, _mm512_sll_epi32(other.0, _mm_cvtsi32_si128(n as i32))))
        };
        fn floats(self) -> Avx512 = Avx512::from(_mm512_cvtepi32_ps(self.0));
        fn float_bits(self) -> Avx512 = Avx512::from(_mm512_castsi512_ps(self.0));
        fn compute_together(values: [Self; 2]) -> [Self; 2] = compute_together(values[0].0, values[1].0).map(Self::new);
    }
}

impl<P: DotProduct512> DoubleWidth<Int256<P>> for Dots512<P> {
    methods! { unsafe
        fn store(self, p: *mut u8) -> () = _mm512_storeu_si512(p.cast(), self.0);
    }

    methods! {
        fn join(first: Int256<P>, second: Int256<P>) -> Self = {
            Self::new(_mm512_inserti64x4::<1>(_mm512_castsi256_si512(first.register()), second.register()))
        };
        fn join_floats(first: Avx2, second: Avx2) -> Avx512 = {
            let first = _mm512_castps256_ps512(first.register());
            Avx512::from(_mm512_insertf32x8::<1>(first, second.register()))
        };
        fn split_floats(both: Avx512) -> [Avx2; 2] = {
            let both = both.register();
            [_mm512_castps512_ps256(both), _mm512_extractf32x8_ps::<1>(both)].map(Avx2::from)
        };
        fn permute(floats: Avx512, places: &[i32; 16]) -> Avx512 = {
            let places = _mm512_loadu_si512(places.as_ptr().cast());
            Avx512::from(_mm512_permutexvar_ps(places, floats.register()))
        };
        fn sub_bytes(self, other: Self) -> Self = Self::new(_mm512_sub_epi8(self.0, other.0));
        fn xor(self, other: Self) -> Self = Self::new(_mm512_xor_si512(self.0, other.0));
        fn add32(self, other: Self) -> Self = Self::new(_mm512_add_epi32(self.0, other.0));
        fn sub32(self, other: Self) -> Self = Self::new(_mm512_sub_epi32(self.0, other.0));
        // The count is passed in a register; the compiler uses the immediate form if it is constant.
        fn shl32(self, n: u32) -> Self = Self::new(_mm512_sll_epi32(self.0, _mm_cvtsi32_si128(n as i32)));
    }
}
