//! `VPDPWSSD` as inline assembly. Of its intrinsic the compiler makes a product and a sum, to shorten chains of sums that are not what takes the time: half the rate with 512 bits,
//! and a register more where there are 16. With 256 bits and 32 registers the two are as fast, and take operands from memory: there the intrinsic stays.

use std::arch::asm;
use std::arch::x86_64::{__m256i, __m512i};

/// A function `(sums, a, b) -> sums`, with products of integers of 16 bits added, those of two neighbours to each sum of 32.
macro_rules! pair_dots {
    ($( $(#[$doc:meta])* $name:ident($register:ty, $class:ident, $features:literal) = $instruction:literal; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU has the instruction.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(mut sums: $register, a: $register, b: $register) -> $register {
            // SAFETY: registers go in, a register comes out.
            unsafe {
                asm!(
                    concat!($instruction, " {sums}, {a}, {b}"),
                    sums = inout($class) sums,
                    a = in($class) a,
                    b = in($class) b,
                    options(pure, nomem, nostack, preserves_flags),
                );
            }
            sums
        }
    )* };
}

pair_dots! {
    /// AVX-VNNI.
    add_pairs_vex(__m256i, ymm_reg, "avx2,avxvnni") = "{{vex}} vpdpwssd";
    /// AVX512-VNNI, 512 bits.
    add_pairs_512(__m512i, zmm_reg, "avx512f,avx512vnni") = "vpdpwssd";
}
