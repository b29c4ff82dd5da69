//! Transposition of 32-bit words in registers.

use std::arch::x86_64::*;

/// Transposes 8 x 8 words, one row per register.
///
/// # Safety
/// The CPU supports AVX2.
#[inline(always)]
pub(crate) unsafe fn transpose(rows: [__m256i; 8]) -> [__m256i; 8] {
    let [a, b, c, d, e, f, g, h] = rows;
    // SAFETY: the intrinsics only use registers, and the CPU supports AVX2 (function contract).
    unsafe {
        // Interleave pairs of registers, then groups of four, within each half; then exchange the halves.
        let (ab, ab_high) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
        let (cd, cd_high) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
        let (ef, ef_high) = (_mm256_unpacklo_epi32(e, f), _mm256_unpackhi_epi32(e, f));
        let (gh, gh_high) = (_mm256_unpacklo_epi32(g, h), _mm256_unpackhi_epi32(g, h));
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
            _mm256_permute2x128_si256::<0x20>(first[0], second[0]),
            _mm256_permute2x128_si256::<0x20>(first[1], second[1]),
            _mm256_permute2x128_si256::<0x20>(first[2], second[2]),
            _mm256_permute2x128_si256::<0x20>(first[3], second[3]),
            _mm256_permute2x128_si256::<0x31>(first[0], second[0]),
            _mm256_permute2x128_si256::<0x31>(first[1], second[1]),
            _mm256_permute2x128_si256::<0x31>(first[2], second[2]),
            _mm256_permute2x128_si256::<0x31>(first[3], second[3]),
        ]
    }
}
