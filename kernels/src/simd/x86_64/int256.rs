//! AVX2: 32 bytes. Also what CPUs with AVX-512 use, because 512 bits would hold other rows than weights are interleaved by.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2::Avx2;
use super::methods;
use super::pair_dots::add_pairs_vex;
use crate::simd::IntSimd;

/// 32 bytes in a register. `P` says how products of them are added up.
#[derive(Clone, Copy)]
pub(crate) struct Int256<P>(__m256i, PhantomData<P>);

/// How products are added up, which is all that instruction sets with registers of 256 bits differ in here. Types that implement it are only names.
///
/// # Safety
/// The functions may be called only on a CPU with the instruction set.
pub(crate) trait Products: Copy {
    /// See [`IntSimd::REGISTERS`].
    const REGISTERS: usize;
    /// See [`IntSimd::HAS_FOURS`].
    const HAS_FOURS: bool;
    /// See [`IntSimd::add_pairs`].
    unsafe fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i;
    /// See [`IntSimd::add_fours`].
    unsafe fn add_fours(sums: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

/// AVX2, and AVX-512 without VNNI: products and their sums by separate instructions. The CPU has `REGISTERS` registers.
#[derive(Clone, Copy)]
pub(crate) struct Separate<const REGISTERS: usize>;

/// Products added up by one instruction, VNNI: the form with the prefix VEX (AVX-VNNI).
#[derive(Clone, Copy)]
pub(crate) struct Vex;

/// The form with the prefix EVEX (AVX512-VNNI), which has twice as many registers.
#[derive(Clone, Copy)]
pub(crate) struct Evex;

pub(crate) type Avx2Int = Int256<Separate<16>>;
pub(crate) type Avx512Int = Int256<Separate<32>>;
pub(crate) type AvxVnniInt = Int256<Vex>;
pub(crate) type Avx512VnniInt = Int256<Evex>;

impl<const N: usize> Products for Separate<N> {
    const REGISTERS: usize = N;
    const HAS_FOURS: bool = false;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
        fn add_fours(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = {
            let [a, b] = [Avx2Int::new(a).widen(), Avx2Int::new(b).widen_signed()];
            Self::add_pairs(Self::add_pairs(sums, a[0].0, b[0].0), a[1].0, b[1].0)
        };
    }
}

impl Products for Vex {
    const REGISTERS: usize = 16;
    const HAS_FOURS: bool = true;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = add_pairs_vex(sums, a, b);
        fn add_fours(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpbusd_avx_epi32(sums, a, b);
    }
}

impl Products for Evex {
    const REGISTERS: usize = 32;
    const HAS_FOURS: bool = true;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpwssd_epi32(sums, a, b);
        fn add_fours(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpbusd_epi32(sums, a, b);
    }
}

/// What VNNI does, by the instructions of AVX2: so that kernels for it are tested on CPUs without it.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct Model;

#[cfg(test)]
pub(crate) type VnniModelInt = Int256<Model>;

#[cfg(test)]
impl Products for Model {
    const REGISTERS: usize = 32;
    const HAS_FOURS: bool = true;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = Separate::<16>::add_pairs(sums, a, b);
        fn add_fours(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = Separate::<16>::add_fours(sums, a, b);
    }
}

impl<P> Int256<P> {
    #[inline(always)]
    fn new(register: __m256i) -> Self {
        Int256(register, PhantomData)
    }

    #[inline(always)]
    pub(super) fn register(self) -> __m256i {
        self.0
    }
}

/// See [`IntSimd::side_by_side`]: no instruction, but the compiler takes each result to depend on both operands.
///
/// # Safety
/// The CPU has AVX.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn side_by_side(mut a: __m256i, mut b: __m256i) -> [__m256i; 2] {
    // SAFETY: there is no instruction in it, and the registers keep their values.
    unsafe {
        asm!("/* {} {} */", inout(ymm_reg) a, inout(ymm_reg) b, options(pure, nomem, nostack, preserves_flags));
    }
    [a, b]
}

/// Two bytes at each of `p + i stride` for `i` in `0..4`.
///
/// # Safety
/// All of them are valid for reads.
#[inline(always)]
unsafe fn join(p: *const u8, stride: usize) -> u64 {
    let mut word = 0;
    for i in 0..4 {
        // SAFETY: the caller's promise.
        let half = unsafe { p.add(i * stride).cast::<u16>().read_unaligned() };
        word |= u64::from(half) << (16 * i);
    }
    word
}

impl<P: Products> IntSimd for Int256<P> {
    type Float = Avx2;
    const REGISTERS: usize = P::REGISTERS;
    const HAS_FOURS: bool = P::HAS_FOURS;

    methods! { unsafe
        fn load(p: *const u8) -> Self = Self::new(_mm256_loadu_si256(p.cast()));
        fn store(self, p: *mut u8) -> () = _mm256_storeu_si256(p.cast(), self.0);
        fn load_nibbles(p: *const u8) -> Self = {
            // All bytes in both halves; those of the second shifted.
            let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            let nibbles = _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
            Self::new(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)))
        };
        fn load_nibbles_by_8(p: *const u8) -> Self = {
            // Every 8 bytes twice; the second time shifted.
            let bytes = _mm256_castsi128_si256(_mm_loadu_si128(p.cast()));
            let twice = _mm256_permute4x64_epi64::<0b01_01_00_00>(bytes);
            let nibbles = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4));
            Self::new(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)))
        };
        fn load_pairs(p: *const u8) -> Self = {
            // Each byte in a lane of its own, then copies shifted by 6, 12 and 18: two bits more than the width of a byte each.
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
            let twice = _mm256_or_si256(bytes, _mm256_slli_epi32::<12>(bytes));
            let pairs = _mm256_or_si256(twice, _mm256_slli_epi32::<6>(twice));
            Self::new(_mm256_and_si256(pairs, _mm256_set1_epi8(3)))
        };
        fn splat(x: u8) -> Self = Self::new(_mm256_set1_epi8(x as i8));
        fn words(x: i16) -> Self = Self::new(_mm256_set1_epi16(x));
        fn broadcast(p: *const u8) -> Self = Self::new(_mm256_set1_epi32(p.cast::<i32>().read_unaligned()));
        fn from_words(words: [u64; 4]) -> Self = {
            let [a, b, c, d] = words;
            Self::new(_mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64))
        };
        fn from_bits(bits: u32) -> Self = {
            // Each byte of the bits eight times, then one bit of it for each byte.
            let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), bytes);
            Self::new(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit))
        };
        fn from_floats(x: [Avx2; 4]) -> [Self; 2] = {
            // Even lanes below odd ones; then the halves so that packing, which works in halves, leaves the order as it is.
            let split = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
            let a = _mm256_permutevar8x32_epi32(_mm256_cvtps_epi32(x[0].register()), split);
            let b = _mm256_permutevar8x32_epi32(_mm256_cvtps_epi32(x[1].register()), split);
            let c = _mm256_permutevar8x32_epi32(_mm256_cvtps_epi32(x[2].register()), split);
            let d = _mm256_permutevar8x32_epi32(_mm256_cvtps_epi32(x[3].register()), split);
            let (even_ac, even_bd) = (_mm256_permute2x128_si256::<0x20>(a, c), _mm256_permute2x128_si256::<0x20>(b, d));
            let (odd_ac, odd_bd) = (_mm256_permute2x128_si256::<0x31>(a, c), _mm256_permute2x128_si256::<0x31>(b, d));
            [Self::new(_mm256_packs_epi32(even_ac, even_bd)), Self::new(_mm256_packs_epi32(odd_ac, odd_bd))]
        };
        fn gather_f16(p: *const u8, stride: usize) -> Avx2 = {
            // Joined as words, because the units for vectors have more to do than those for words.
            let low = join(p, stride);
            let high = join(p.add(4 * stride), stride);
            let halves = _mm_set_epi64x(high as i64, low as i64);
            Avx2::from(_mm256_cvtph_ps(halves))
        };
        fn load_even_odd_i8(p: *const u8) -> [Avx2; 2] = {
            let bytes = _mm_loadu_si128(p.cast());
            let even = _mm256_cvtepi16_epi32(_mm_srai_epi16::<8>(_mm_slli_epi16::<8>(bytes)));
            let odd = _mm256_cvtepi16_epi32(_mm_srai_epi16::<8>(bytes));
            [Avx2::from(_mm256_cvtepi32_ps(even)), Avx2::from(_mm256_cvtepi32_ps(odd))]
        };
        fn halves(rows: &[[f32; 8]; 2], i: usize) -> Avx2 = {
            // Four entries of each row, which serve four calls; then one of them in each half.
            let first = _mm_loadu_ps(rows[0].as_ptr().add(i & 4));
            let second = _mm_loadu_ps(rows[1].as_ptr().add(i & 4));
            let fours = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(first), second);
            Avx2::from(match i & 3 {
                0 => _mm256_permute_ps::<0b00_00_00_00>(fours),
                1 => _mm256_permute_ps::<0b01_01_01_01>(fours),
                2 => _mm256_permute_ps::<0b10_10_10_10>(fours),
                _ => _mm256_permute_ps::<0b11_11_11_11>(fours),
            })
        };
        fn prefetch(p: *const u8) -> () = _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }

    methods! {
        fn and(self, other: Self) -> Self = Self::new(_mm256_and_si256(self.0, other.0));
        fn or(self, other: Self) -> Self = Self::new(_mm256_or_si256(self.0, other.0));
        fn xor(self, other: Self) -> Self = Self::new(_mm256_xor_si256(self.0, other.0));
        fn add(self, other: Self) -> Self = Self::new(_mm256_add_epi8(self.0, other.0));
        fn sub(self, other: Self) -> Self = Self::new(_mm256_sub_epi8(self.0, other.0));
        fn at_least(self, other: Self) -> Self = {
            Self::new(_mm256_cmpeq_epi8(_mm256_max_epu8(self.0, other.0), self.0))
        };
        // By a count in a register, which the compiler turns into the immediate form: counts are constants once inlined.
        fn shl(self, n: u32) -> Self = Self::new(_mm256_sll_epi16(self.0, _mm_cvtsi32_si128(n as i32)));
        fn shr(self, n: u32) -> Self = Self::new(_mm256_srl_epi16(self.0, _mm_cvtsi32_si128(n as i32)));
        fn lookup(self, table: &[i8; 16]) -> Self = {
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            Self::new(_mm256_shuffle_epi8(table, self.0))
        };
        fn widen(self) -> [Self; 2] = [
            Self::new(_mm256_and_si256(self.0, _mm256_set1_epi16(0x00ff))),
            Self::new(_mm256_srli_epi16::<8>(self.0)),
        ];
        fn widen_signed(self) -> [Self; 2] = [
            Self::new(_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(self.0))),
            Self::new(_mm256_srai_epi16::<8>(self.0)),
        ];
        fn multiply_pairs(self, other: Self) -> Self = Self::new(_mm256_madd_epi16(self.0, other.0));
        fn multiply_bytes(self, other: Self) -> Self = Self::new(_mm256_maddubs_epi16(self.0, other.0));
        fn add_pairs(self, a: Self, b: Self) -> Self = Self::new(P::add_pairs(self.0, a.0, b.0));
        fn add_fours(self, a: Self, b: Self) -> Self = Self::new(P::add_fours(self.0, a.0, b.0));
        fn add16(self, other: Self) -> Self = Self::new(_mm256_add_epi16(self.0, other.0));
        fn side_by_side(values: [Self; 2]) -> [Self; 2] = {
            let [a, b] = values;
            side_by_side(a.0, b.0).map(Self::new)
        };
        fn transpose(registers: [Self; 8]) -> [Self; 8] = {
            let [a, b, c, d, e, f, g, h] = registers;
            // Groups of two registers side by side, then of four, within each half; then the halves.
            let (ab, ab_high) = (_mm256_unpacklo_epi32(a.0, b.0), _mm256_unpackhi_epi32(a.0, b.0));
            let (cd, cd_high) = (_mm256_unpacklo_epi32(c.0, d.0), _mm256_unpackhi_epi32(c.0, d.0));
            let (ef, ef_high) = (_mm256_unpacklo_epi32(e.0, f.0), _mm256_unpackhi_epi32(e.0, f.0));
            let (gh, gh_high) = (_mm256_unpacklo_epi32(g.0, h.0), _mm256_unpackhi_epi32(g.0, h.0));
            let first = [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ];
            let second = [
                _mm256_unpacklo_epi64(ef, gh),
                _mm256_unpackhi_epi64(ef, gh),
                _mm256_unpacklo_epi64(ef_high, gh_high),
                _mm256_unpackhi_epi64(ef_high, gh_high),
            ];
            [
                Self::new(_mm256_permute2x128_si256::<0x20>(first[0], second[0])),
                Self::new(_mm256_permute2x128_si256::<0x20>(first[1], second[1])),
                Self::new(_mm256_permute2x128_si256::<0x20>(first[2], second[2])),
                Self::new(_mm256_permute2x128_si256::<0x20>(first[3], second[3])),
                Self::new(_mm256_permute2x128_si256::<0x31>(first[0], second[0])),
                Self::new(_mm256_permute2x128_si256::<0x31>(first[1], second[1])),
                Self::new(_mm256_permute2x128_si256::<0x31>(first[2], second[2])),
                Self::new(_mm256_permute2x128_si256::<0x31>(first[3], second[3])),
            ]
        };
        fn add32(self, other: Self) -> Self = Self::new(_mm256_add_epi32(self.0, other.0));
        fn sub32(self, other: Self) -> Self = Self::new(_mm256_sub_epi32(self.0, other.0));
        fn shl32(self, n: u32) -> Self = Self::new(_mm256_sll_epi32(self.0, _mm_cvtsi32_si128(n as i32)));
        fn to_floats(self) -> Avx2 = Avx2::from(_mm256_cvtepi32_ps(self.0));
        fn to_float_bits(self) -> Avx2 = Avx2::from(_mm256_castsi256_ps(self.0));
    }
}
