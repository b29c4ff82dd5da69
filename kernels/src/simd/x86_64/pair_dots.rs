//! `VPDPWSSD` as inline assembly.
//!
//! LLVM replaces the intrinsic by a multiplication and an addition, to shorten dependency chains that are not
//! the bottleneck here. This halves the rate with 512-bit registers, and needs one more register where there
//! are only 16. With 256-bit registers on AVX-512 CPUs both forms are equally fast, so the intrinsic is used
//! there.

use std::arch::asm;
use std::arch::x86_64::{__m256i, __m512i};

/// Defines functions `(sums, a, b) -> sums` that multiply 16-bit integers and add each pair of adjacent
/// products to a 32-bit sum.
macro_rules! pair_dots {
    ($( $(#[$doc:meta])* $name:ident($register:ty, $class:ident, $features:literal) = $instruction:literal; )*) => { $(
        $(#[$doc])*
        ///
        /// # Safety
        /// The CPU supports the instruction.
        #[inline]
        #[target_feature(enable = $features)]
        pub(super) unsafe fn $name(mut sums: $register, a: $register, b: $register) -> $register {
            // SAFETY: the instruction only uses registers, and the CPU supports it (function contract).
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
    /// Uses AVX-VNNI with 256-bit registers.
    add_pairs_vex(__m256i, ymm_reg, "avx2,avxvnni") = "{{vex}} vpdpwssd";
    /// Uses AVX512-VNNI with 512-bit registers.
    add_pairs_512(__m512i, zmm_reg, "avx512f,avx512vnni") = "vpdpwssd";
}
