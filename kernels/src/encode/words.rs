//! Eight groups of 32 weights as 16-bit integers. Sums of products are exact, so results do not depend on the
//! instruction set.

use super::lanes::{Lanes, N, round_to_byte};
use super::reals::Reals;

/// Elements of a group.
pub(super) const LEN: usize = 32;

/// Registers that hold the elements of eight groups.
pub(super) const WORDS: usize = LEN / 2;

/// Integers of 16 bits: two elements of each of 8 groups.
pub(super) trait Words: Copy {
    /// Sums of 32 bits, one per group.
    type Sums: Copy;

    /// Floats, one per group.
    type Floats: Reals;

    /// Sums of integers from 0 to 31 and of their squares.
    type Counts: Copy;

    /// Returns the smallest and the largest element of each group.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn ranges(x: &[f32; N * LEN]) -> (Self::Floats, Self::Floats);

    /// Returns `x * factor`, rounded. The order of elements within a group is unspecified.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn load(x: &[f32; N * LEN], factor: Self::Floats) -> [Self; WORDS];

    /// Writes `(x - low) * factor + offset`, rounded and limited to `0..=max`, which is at most 255.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn indices(
        x: &[f32; N * LEN],
        low: Self::Floats,
        factor: Self::Floats,
        offset: f32,
        max: f32,
        out: &mut [[u8; LEN]; N],
    );

    /// Writes integers in the order that [`load`](Words::load) returns, limited to `0..=max`, as bytes.
    fn store(q: &[Self; WORDS], max: u8, out: &mut [[u8; LEN]; N]);

    /// Returns the integers of the groups, each in both of its elements.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn per_group(x: Self::Floats) -> Self;

    /// Returns `self + other`.
    fn plus(self, other: Self) -> Self;

    /// Returns `self - other`.
    fn minus(self, other: Self) -> Self;

    /// Returns `self * other / 32768`, rounded half up.
    fn times(self, other: Self) -> Self;

    /// Returns `self * other / 65536`, rounded down.
    fn high(self, other: Self) -> Self;

    /// Returns the larger integers.
    fn at_least(self, other: Self) -> Self;

    /// Returns the smaller integers.
    fn at_most(self, other: Self) -> Self;

    /// Returns the sum of the products of both elements of each group.
    fn dots(self, other: Self) -> Self::Sums;

    /// Returns sums of 0.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn none() -> Self::Counts;

    /// Adds integers from 0 to 31, at most 16 registers in all.
    fn count(counts: Self::Counts, a: Self, b: Self) -> Self::Counts;

    /// Returns the sums of all groups, and the sums of squares.
    fn counts(counts: Self::Counts) -> [Self::Sums; 2];

    /// Returns `a + b`.
    fn add(a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Returns `32 a - b c`.
    fn determinant(a: Self::Sums, b: Self::Sums, c: Self::Sums) -> Self::Sums;

    /// Converts sums.
    fn to_floats(sums: Self::Sums) -> Self::Floats;
}

/// Integers for CPUs without AVX2: the elements of group `i` are at `2 i` and `2 i + 1`.
#[derive(Clone, Copy)]
pub(super) struct PortableWords([i16; 2 * N]);

impl PortableWords {
    #[inline(always)]
    fn map(self, other: PortableWords, f: impl Fn(i32, i32) -> i32) -> PortableWords {
        PortableWords(std::array::from_fn(|i| {
            f(i32::from(self.0[i]), i32::from(other.0[i])) as i16
        }))
    }
}

impl Words for PortableWords {
    type Sums = [i32; N];
    type Floats = Lanes;
    type Counts = [[i32; N]; 2];

    #[inline(always)]
    unsafe fn ranges(x: &[f32; N * LEN]) -> (Lanes, Lanes) {
        let (mut low, mut high) = (Lanes::ZERO, Lanes::ZERO);
        for (g, x) in x.as_chunks::<LEN>().0.iter().enumerate() {
            low.0[g] = x.iter().fold(x[0], |min, &x| if x < min { x } else { min });
            high.0[g] = x.iter().fold(x[0], |max, &x| if x > max { x } else { max });
        }
        (low, high)
    }

    #[inline(always)]
    unsafe fn load(x: &[f32; N * LEN], factor: Lanes) -> [PortableWords; WORDS] {
        std::array::from_fn(|k| {
            PortableWords(std::array::from_fn(|i| {
                let x = x[i / 2 * LEN + 2 * k + i % 2] * factor.0[i / 2];
                x.round_ties_even() as i16
            }))
        })
    }

    #[inline(always)]
    unsafe fn indices(x: &[f32; N * LEN], low: Lanes, factor: Lanes, offset: f32, max: f32, out: &mut [[u8; LEN]; N]) {
        for (g, (x, out)) in x.as_chunks::<LEN>().0.iter().zip(out).enumerate() {
            for (q, x) in out.iter_mut().zip(x) {
                let real = (x - low.0[g]) * factor.0[g] + offset;
                let real = if real < max { real } else { max };
                *q = round_to_byte(if real > 0.0 { real } else { 0.0 });
            }
        }
    }

    #[inline(always)]
    fn store(q: &[PortableWords; WORDS], max: u8, out: &mut [[u8; LEN]; N]) {
        for (g, out) in out.iter_mut().enumerate() {
            for (i, out) in out.iter_mut().enumerate() {
                *out = q[i / 2].0[2 * g + i % 2].clamp(0, max.into()) as u8;
            }
        }
    }

    #[inline(always)]
    unsafe fn per_group(x: Lanes) -> PortableWords {
        PortableWords(std::array::from_fn(|i| x.0[i / 2].round_ties_even() as i16))
    }

    #[inline(always)]
    fn plus(self, other: PortableWords) -> PortableWords {
        self.map(other, |a, b| a + b)
    }

    #[inline(always)]
    fn minus(self, other: PortableWords) -> PortableWords {
        self.map(other, |a, b| a - b)
    }

    #[inline(always)]
    fn times(self, other: PortableWords) -> PortableWords {
        self.map(other, |a, b| (a * b + 0x4000) >> 15)
    }

    #[inline(always)]
    fn high(self, other: PortableWords) -> PortableWords {
        self.map(other, |a, b| (a * b) >> 16)
    }

    #[inline(always)]
    fn at_least(self, other: PortableWords) -> PortableWords {
        self.map(other, i32::max)
    }

    #[inline(always)]
    fn at_most(self, other: PortableWords) -> PortableWords {
        self.map(other, i32::min)
    }

    #[inline(always)]
    fn dots(self, other: PortableWords) -> [i32; N] {
        let product = |i: usize| i32::from(self.0[i]) * i32::from(other.0[i]);
        std::array::from_fn(|i| product(2 * i) + product(2 * i + 1))
    }

    #[inline(always)]
    unsafe fn none() -> [[i32; N]; 2] {
        [[0; N]; 2]
    }

    #[inline(always)]
    fn count([sums, squares]: [[i32; N]; 2], a: PortableWords, b: PortableWords) -> [[i32; N]; 2] {
        let one = PortableWords([1; 2 * N]);
        let pair = Self::add(a.dots(one), b.dots(one));
        let squared = Self::add(a.dots(a), b.dots(b));
        [Self::add(sums, pair), Self::add(squares, squared)]
    }

    #[inline(always)]
    fn counts(counts: [[i32; N]; 2]) -> [[i32; N]; 2] {
        counts
    }

    #[inline(always)]
    fn add(a: [i32; N], b: [i32; N]) -> [i32; N] {
        std::array::from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn determinant(a: [i32; N], b: [i32; N], c: [i32; N]) -> [i32; N] {
        std::array::from_fn(|i| LEN as i32 * a[i] - b[i] * c[i])
    }

    #[inline(always)]
    fn to_floats(sums: [i32; N]) -> Lanes {
        Lanes(sums.map(|sum| sum as f32))
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    //! Integers in AVX2 registers.

    use std::arch::x86_64::*;

    use super::super::reals::avx2::Avx2Reals;
    use super::{LEN, N, Reals, WORDS, Words};
    use crate::simd::x86_64::transpose::transpose;

    /// A register. Its existence proves that the CPU supports AVX2.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2Words(__m256i);

    // Closures and `map` would not be inlined, because they lack the target feature.

    /// Returns the four registers of a group.
    #[inline(always)]
    unsafe fn registers(x: &[f32; LEN]) -> [__m256; 4] {
        // SAFETY: all loads are within `x`, and the CPU supports AVX2 (function contract).
        unsafe {
            [
                _mm256_loadu_ps(x.as_ptr()),
                _mm256_loadu_ps(x.as_ptr().add(8)),
                _mm256_loadu_ps(x.as_ptr().add(16)),
                _mm256_loadu_ps(x.as_ptr().add(24)),
            ]
        }
    }

    /// Returns the maximum of each of 8 registers.
    #[inline(always)]
    unsafe fn maxima(x: [__m256; N]) -> __m256 {
        // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
        unsafe {
            let [a, b, c, d, e, f, g, h] = x;
            let ab = _mm256_max_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let cd = _mm256_max_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let ef = _mm256_max_ps(_mm256_unpacklo_ps(e, f), _mm256_unpackhi_ps(e, f));
            let gh = _mm256_max_ps(_mm256_unpacklo_ps(g, h), _mm256_unpackhi_ps(g, h));
            let abcd = _mm256_max_ps(_mm256_shuffle_ps::<0x44>(ab, cd), _mm256_shuffle_ps::<0xee>(ab, cd));
            let efgh = _mm256_max_ps(_mm256_shuffle_ps::<0x44>(ef, gh), _mm256_shuffle_ps::<0xee>(ef, gh));
            _mm256_max_ps(
                _mm256_permute2f128_ps::<0x20>(abcd, efgh),
                _mm256_permute2f128_ps::<0x31>(abcd, efgh),
            )
        }
    }

    /// Returns `x * factor` as integers.
    #[inline(always)]
    unsafe fn scaled(x: __m256, factor: __m256) -> __m256i {
        // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
        unsafe { _mm256_cvtps_epi32(_mm256_mul_ps(x, factor)) }
    }

    /// Returns `(x - low) * factor + offset` as integers of at most `max`.
    #[inline(always)]
    unsafe fn index(x: __m256, low: __m256, factor: __m256, offset: __m256, max: __m256) -> __m256i {
        // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
        unsafe {
            let real = _mm256_add_ps(_mm256_mul_ps(_mm256_sub_ps(x, low), factor), offset);
            _mm256_cvtps_epi32(_mm256_min_ps(real, max))
        }
    }

    /// Returns 8 elements of each half of each group, from pairs of elements. The first halves of groups 0, 1, 4, and
    /// 5 precede those of groups 2, 3, 6, and 7. The second halves follow.
    #[inline(always)]
    unsafe fn halves(a: __m256i, b: __m256i, c: __m256i, d: __m256i) -> [__m256i; 4] {
        // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
        unsafe {
            let (ab, cd) = (_mm256_unpacklo_epi16(a, b), _mm256_unpacklo_epi16(c, d));
            let (ab_upper, cd_upper) = (_mm256_unpackhi_epi16(a, b), _mm256_unpackhi_epi16(c, d));
            [
                _mm256_unpacklo_epi32(ab, cd),
                _mm256_unpackhi_epi32(ab, cd),
                _mm256_unpacklo_epi32(ab_upper, cd_upper),
                _mm256_unpackhi_epi32(ab_upper, cd_upper),
            ]
        }
    }

    impl Words for Avx2Words {
        type Sums = __m256i;
        type Floats = Avx2Reals;
        /// Sums in bytes, and sums of squares in 16 bits. Each half of a register has the first registers of 4 groups,
        /// then their second registers.
        type Counts = [__m256i; 2];

        #[inline(always)]
        unsafe fn ranges(x: &[f32; N * LEN]) -> (Avx2Reals, Avx2Reals) {
            // SAFETY: the CPU supports AVX2 (function contract).
            unsafe {
                let sign = _mm256_set1_ps(-0.0);
                let (mut lows, mut highs) = ([sign; N], [sign; N]);
                for (g, x) in x.as_chunks::<LEN>().0.iter().enumerate() {
                    let [a, b, c, d] = registers(x);
                    let low = _mm256_min_ps(_mm256_min_ps(a, b), _mm256_min_ps(c, d));
                    lows[g] = _mm256_xor_ps(low, sign);
                    highs[g] = _mm256_max_ps(_mm256_max_ps(a, b), _mm256_max_ps(c, d));
                }
                (Avx2Reals(_mm256_xor_ps(maxima(lows), sign)), Avx2Reals(maxima(highs)))
            }
        }

        #[inline(always)]
        unsafe fn load(x: &[f32; N * LEN], factor: Avx2Reals) -> [Avx2Words; WORDS] {
            // SAFETY: the CPU supports AVX2 (function contract).
            unsafe {
                let factor = factor.to_lanes();
                let mut words = [Avx2Words(_mm256_setzero_si256()); WORDS];
                // The data of all groups would not fit in the registers.
                for (half, words) in words.as_chunks_mut::<N>().0.iter_mut().enumerate() {
                    let mut rows = [_mm256_setzero_si256(); N];
                    for (g, x) in x.as_chunks::<LEN>().0.iter().enumerate() {
                        let factor = _mm256_set1_ps(factor.0[g]);
                        let x = registers(x);
                        rows[g] = _mm256_packs_epi32(scaled(x[2 * half], factor), scaled(x[2 * half + 1], factor));
                    }
                    for (words, row) in words.iter_mut().zip(transpose(rows)) {
                        *words = Avx2Words(row);
                    }
                }
                words
            }
        }

        #[inline(always)]
        unsafe fn indices(
            x: &[f32; N * LEN],
            low: Avx2Reals,
            factor: Avx2Reals,
            offset: f32,
            max: f32,
            out: &mut [[u8; LEN]; N],
        ) {
            // SAFETY: the stores are within `out`, and the CPU supports AVX2 (function contract).
            unsafe {
                let (low, factor) = (low.to_lanes(), factor.to_lanes());
                let (offset, max) = (_mm256_set1_ps(offset), _mm256_set1_ps(max));
                // Packing interleaves the halves of the registers.
                let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
                for (g, (x, out)) in x.as_chunks::<LEN>().0.iter().zip(out).enumerate() {
                    let (low, factor) = (_mm256_set1_ps(low.0[g]), _mm256_set1_ps(factor.0[g]));
                    let [a, b, c, d] = registers(x);
                    let ab = _mm256_packs_epi32(index(a, low, factor, offset, max), index(b, low, factor, offset, max));
                    let cd = _mm256_packs_epi32(index(c, low, factor, offset, max), index(d, low, factor, offset, max));
                    let q = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(ab, cd), order);
                    _mm256_storeu_si256(out.as_mut_ptr().cast(), q);
                }
            }
        }

        #[inline(always)]
        fn store(q: &[Avx2Words; WORDS], max: u8, out: &mut [[u8; LEN]; N]) {
            // SAFETY: `q` proves that the CPU supports AVX2, and all stores are within `out`.
            unsafe {
                let max = _mm256_set1_epi8(max.cast_signed());
                // Pairs of elements from both halves of the groups: 8 bytes have those of groups 0 to 3 or 4 to 7.
                let mut pairs = [max; WORDS / 2];
                for (i, pairs) in pairs.iter_mut().enumerate() {
                    *pairs = _mm256_min_epu8(_mm256_packus_epi16(q[i].0, q[i + WORDS / 2].0), max);
                }
                // Loading interleaved pairs 2 and 3 with 4 and 5.
                let [a, b, c, d, e, f, g, h] = pairs;
                let [first, second] = [halves(a, b, e, f), halves(c, d, g, h)];
                for i in 0..2 {
                    let low = _mm256_unpacklo_epi64(first[i], second[i]);
                    let high = _mm256_unpackhi_epi64(first[i], second[i]);
                    let low_upper = _mm256_unpacklo_epi64(first[i + 2], second[i + 2]);
                    let high_upper = _mm256_unpackhi_epi64(first[i + 2], second[i + 2]);
                    for (g, [lower, upper]) in [[low, low_upper], [high, high_upper]].into_iter().enumerate() {
                        let g = 2 * i + g;
                        let [near, far] = [
                            _mm256_permute2x128_si256::<0x20>(lower, upper),
                            _mm256_permute2x128_si256::<0x31>(lower, upper),
                        ];
                        _mm256_storeu_si256(out[g].as_mut_ptr().cast(), near);
                        _mm256_storeu_si256(out[g + 4].as_mut_ptr().cast(), far);
                    }
                }
            }
        }

        #[inline(always)]
        unsafe fn per_group(x: Avx2Reals) -> Avx2Words {
            // SAFETY: the CPU supports AVX2 (function contract).
            unsafe {
                let x = _mm256_cvtps_epi32(x.0);
                let low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
                Avx2Words(_mm256_or_si256(low, _mm256_slli_epi32::<16>(x)))
            }
        }

        #[inline(always)]
        fn plus(self, other: Avx2Words) -> Avx2Words {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Words(unsafe { _mm256_add_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn minus(self, other: Avx2Words) -> Avx2Words {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Words(unsafe { _mm256_sub_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn times(self, other: Avx2Words) -> Avx2Words {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Words(unsafe { _mm256_mulhrs_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn high(self, other: Avx2Words) -> Avx2Words {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Words(unsafe { _mm256_mulhi_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn at_least(self, other: Avx2Words) -> Avx2Words {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Words(unsafe { _mm256_max_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn at_most(self, other: Avx2Words) -> Avx2Words {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Words(unsafe { _mm256_min_epi16(self.0, other.0) })
        }

        #[inline(always)]
        fn dots(self, other: Avx2Words) -> __m256i {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe { _mm256_madd_epi16(self.0, other.0) }
        }

        #[inline(always)]
        unsafe fn none() -> [__m256i; 2] {
            // SAFETY: the CPU supports AVX2 (function contract).
            unsafe { [_mm256_setzero_si256(); 2] }
        }

        #[inline(always)]
        fn count([sums, squares]: [__m256i; 2], a: Avx2Words, b: Avx2Words) -> [__m256i; 2] {
            // SAFETY: `self` proves that the CPU supports AVX2. Sums of 8 integers fit in bytes, sums of 16 squares in
            // 16 bits.
            unsafe {
                let bytes = _mm256_packus_epi16(a.0, b.0);
                [
                    _mm256_add_epi8(sums, bytes),
                    _mm256_add_epi16(squares, _mm256_maddubs_epi16(bytes, bytes)),
                ]
            }
        }

        #[inline(always)]
        fn counts([sums, squares]: [__m256i; 2]) -> [__m256i; 2] {
            // SAFETY: counts exist only on CPUs that support AVX2.
            unsafe {
                let mut counts = [_mm256_maddubs_epi16(sums, _mm256_set1_epi8(1)), squares];
                for words in &mut counts {
                    let sums = _mm256_add_epi16(*words, _mm256_srli_si256::<8>(*words));
                    let sums = _mm256_permute4x64_epi64::<0b1000>(sums);
                    *words = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(sums));
                }
                counts
            }
        }

        #[inline(always)]
        fn add(a: __m256i, b: __m256i) -> __m256i {
            // SAFETY: sums exist only on CPUs that support AVX2.
            unsafe { _mm256_add_epi32(a, b) }
        }

        #[inline(always)]
        fn determinant(a: __m256i, b: __m256i, c: __m256i) -> __m256i {
            // SAFETY: sums exist only on CPUs that support AVX2.
            unsafe { _mm256_sub_epi32(_mm256_slli_epi32::<5>(a), _mm256_mullo_epi32(b, c)) }
        }

        #[inline(always)]
        fn to_floats(sums: __m256i) -> Avx2Reals {
            // SAFETY: sums exist only on CPUs that support AVX2.
            Avx2Reals(unsafe { _mm256_cvtepi32_ps(sums) })
        }
    }
}
