//! AVX512-VNNI with all 512 bits: the sums of 16 rows.

use std::arch::x86_64::*;

use super::avx512::Avx512;
use super::methods;
use crate::simd::dots::ByteDots;

/// 64 bytes, or 16 sums.
#[derive(Clone, Copy)]
pub(crate) struct Dots512(__m512i);

impl ByteDots for Dots512 {
    type Float = Avx512;
    const COLUMNS: usize = 6;

    methods! { unsafe
        fn zero() -> Self = Dots512(_mm512_setzero_si512());
        fn load(p: *const u8) -> Self = Dots512(_mm512_loadu_si512(p.cast()));
        fn broadcast(p: *const u8) -> Self = Dots512(_mm512_set1_epi32(p.cast::<i32>().read_unaligned()));
    }

    methods! {
        fn add_dots(self, unsigned: Self, signed: Self) -> Self = {
            Dots512(_mm512_dpbusd_epi32(self.0, unsigned.0, signed.0))
        };
        fn floats(self) -> Avx512 = Avx512::from(_mm512_cvtepi32_ps(self.0));
    }
}
