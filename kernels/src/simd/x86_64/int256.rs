//! 256-bit integer registers (AVX2). CPUs with AVX-512 use them as well, because rows are interleaved for
//! 32-byte registers.

use std::arch::asm;
use std::arch::x86_64::*;
use std::marker::PhantomData;

use super::avx2::Avx2;
use super::methods;
use super::pair_dots::add_pairs_vex;
use super::transpose::transpose;
use crate::simd::IntSimd;

/// A register of 32 bytes. `P` selects the dot-product instructions.
#[derive(Clone, Copy)]
pub(crate) struct Int256<P>(__m256i, PhantomData<P>);

/// Dot-product instructions, the only difference between instruction sets with 256-bit registers.
/// Implementing types are markers without values.
///
/// # Safety
/// Callers of the unsafe functions guarantee that the CPU supports the instruction set.
pub(crate) trait DotProduct: Copy {
    /// See [`IntSimd::REGISTERS`].
    const REGISTERS: usize;
    /// See [`IntSimd::HAS_DOT4`].
    const HAS_DOT4: bool;
    /// See [`IntSimd::add_pairs`].
    unsafe fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i;
    /// See [`IntSimd::dot4`].
    unsafe fn dot4(sums: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

/// AVX2, or AVX-512 without VNNI: separate multiplications and additions on a CPU with `REGISTERS` vector
/// registers.
#[derive(Clone, Copy)]
pub(crate) struct Separate<const REGISTERS: usize>;

/// AVX-VNNI: VEX-encoded dot-product instructions.
#[derive(Clone, Copy)]
pub(crate) struct Vex;

/// AVX512-VNNI: EVEX-encoded dot-product instructions with 32 registers.
#[derive(Clone, Copy)]
pub(crate) struct Evex;

pub(crate) type Avx2Int = Int256<Separate<16>>;
pub(crate) type Avx512Int = Int256<Separate<32>>;
pub(crate) type AvxVnniInt = Int256<Vex>;
pub(crate) type Avx512VnniInt = Int256<Evex>;

impl<const N: usize> DotProduct for Separate<N> {
    const REGISTERS: usize = N;
    const HAS_DOT4: bool = false;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(sums, _mm256_madd_epi16(a, b));
        fn dot4(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = {
            let [a, b] = [Avx2Int::new(a).widen(), Avx2Int::new(b).widen_signed()];
            Self::add_pairs(Self::add_pairs(sums, a[0].0, b[0].0), a[1].0, b[1].0)
        };
    }
}

impl DotProduct for Vex {
    const REGISTERS: usize = 16;
    const HAS_DOT4: bool = true;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = add_pairs_vex(sums, a, b);
        fn dot4(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpbusd_avx_epi32(sums, a, b);
    }
}

impl DotProduct for Evex {
    const REGISTERS: usize = 32;
    const HAS_DOT4: bool = true;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpwssd_epi32(sums, a, b);
        fn dot4(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = _mm256_dpbusd_epi32(sums, a, b);
    }
}

/// Emulation of VNNI with AVX2, for testing VNNI kernels on CPUs without it.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(crate) struct Model;

#[cfg(test)]
pub(crate) type VnniModelInt = Int256<Model>;

#[cfg(test)]
impl DotProduct for Model {
    const REGISTERS: usize = 32;
    const HAS_DOT4: bool = true;

    methods! { unsafe
        fn add_pairs(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = Separate::<16>::add_pairs(sums, a, b);
        fn dot4(sums: __m256i, a: __m256i, b: __m256i) -> __m256i = Separate::<16>::dot4(sums, a, b);
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

/// Implements [`IntSimd::compute_together`]: an empty assembly block that makes each result depend on both
/// operands.
///
/// # Safety
/// The CPU supports AVX.
#[inline]
#[target_feature(enable = "avx")]
unsafe fn compute_together(mut a: __m256i, mut b: __m256i) -> [__m256i; 2] {
    // SAFETY: the assembly block contains no instruction, so the registers keep their values.
    unsafe {
        asm!("/* {} {} */", inout(ymm_reg) a, inout(ymm_reg) b, options(pure, nomem, nostack, preserves_flags));
    }
    [a, b]
}

/// Concatenates the two bytes at each of `p + i * stride` for `i` in `0..4`.
///
/// # Safety
/// Two bytes at each of these addresses are valid for reads.
#[inline(always)]
unsafe fn join(p: *const u8, stride: usize) -> u64 {
    let mut word = 0;
    for i in 0..4 {
        // SAFETY: two bytes are readable at each address (function contract).
        let half = unsafe { p.add(i * stride).cast::<u16>().read_unaligned() };
        word |= u64::from(half) << (16 * i);
    }
    word
}

impl<P: DotProduct> IntSimd for Int256<P> {
    type Float = Avx2;
    const REGISTERS: usize = P::REGISTERS;
    const HAS_DOT4: bool = P::HAS_DOT4;

    methods! { unsafe
        fn load(p: *const u8) -> Self = Self::new(_mm256_loadu_si256(p.cast()));
        fn store(self, p: *mut u8) -> () = _mm256_storeu_si256(p.cast(), self.0);
        fn load_nibbles(p: *const u8) -> Self = {
            // Broadcast the bytes to both halves and shift those of the second.
            let bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast()));
            let nibbles = _mm256_srlv_epi32(bytes, _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4));
            Self::new(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)))
        };
        fn load_nibbles_by_8(p: *const u8) -> Self = {
            // Duplicate each 8 bytes and shift the second copy.
            let bytes = _mm256_castsi128_si256(_mm_loadu_si128(p.cast()));
            let twice = _mm256_permute4x64_epi64::<0b01_01_00_00>(bytes);
            let nibbles = _mm256_srlv_epi64(twice, _mm256_setr_epi64x(0, 4, 0, 4));
            Self::new(_mm256_and_si256(nibbles, _mm256_set1_epi8(15)))
        };
        fn load_bit_pairs(p: *const u8) -> Self = {
            // Zero-extend each byte to 32 bits, then OR copies shifted by 6, 12, and 18. Each copy moves its pair of
            // bits to the start of the next byte.
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
            // Repeat each byte of `bits` eight times, then test one bit per byte.
            let bytes = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bit = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let spread = _mm256_shuffle_epi8(_mm256_set1_epi32(bits as i32), bytes);
            Self::new(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit))
        };
        fn from_floats(x: [Avx2; 4]) -> [Self; 2] = {
            // Move even lanes before odd ones, then pair halves so that packing, which works per half,
            // preserves the order.
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
            // Scalar loads, because the vector units are the bottleneck.
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
        fn broadcast_halves(rows: &[[f32; 8]; 2], i: usize) -> Avx2 = {
            // Load four entries of each row, which serve four calls, then select one in each half.
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
        fn prefetch(p: *const u8) -> () = _mm_prefetch::<_MM_HINT_T1>(p.cast());
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
        // Counts are passed in a register; the compiler uses the immediate form, because they are constants
        // after inlining.
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
        fn dot4(self, a: Self, b: Self) -> Self = Self::new(P::dot4(self.0, a.0, b.0));
        fn add16(self, other: Self) -> Self = Self::new(_mm256_add_epi16(self.0, other.0));
        fn compute_together(values: [Self; 2]) -> [Self; 2] = {
            let [a, b] = values;
            compute_together(a.0, b.0).map(Self::new)
        };
        fn transpose(registers: [Self; 8]) -> [Self; 8] = {
            let [a, b, c, d, e, f, g, h] = registers;
            transpose([a.0, b.0, c.0, d.0, e.0, f.0, g.0, h.0]).map(Self::new)
        };
        fn add32(self, other: Self) -> Self = Self::new(_mm256_add_epi32(self.0, other.0));
        fn sub32(self, other: Self) -> Self = Self::new(_mm256_sub_epi32(self.0, other.0));
        fn shl32(self, n: u32) -> Self = Self::new(_mm256_sll_epi32(self.0, _mm_cvtsi32_si128(n as i32)));
        fn to_floats(self) -> Avx2 = Avx2::from(_mm256_cvtepi32_ps(self.0));
        fn to_float_bits(self) -> Avx2 = Avx2::from(_mm256_castsi256_ps(self.0));
    }
}
