//! Registers of x86-64.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod dots512;
pub(crate) mod int256;
mod pair_dots;

/// Implements methods of [`Simd`](super::Simd), [`IntSimd`](super::IntSimd) and [`Products`](int256::Products) by expressions over intrinsics.
macro_rules! methods {
    ($( $(#[$doc:meta])* fn $name:ident ($($arg:ident $(: $ty:ty)?),*) -> $ret:ty = $body:expr; )*) => { $(
        $(#[$doc])*
        #[inline(always)]
        fn $name ($($arg $(: $ty)?),*) -> $ret {
            #[allow(unused_unsafe, reason = "some bodies only call other methods")]
            // SAFETY: registers go in, registers come out, and a register is proof that the CPU has the instructions.
            unsafe {
                $body
            }
        }
    )* };
    (unsafe $( $(#[$doc:meta])* fn $name:ident($($arg:ident $(: $ty:ty)?),*) -> $ret:ty = $body:expr; )*) => { $(
        $(#[$doc])*
        #[inline(always)]
        unsafe fn $name($($arg $(: $ty)?),*) -> $ret {
            #[allow(unused_unsafe, reason = "some bodies only convert integers")]
            // SAFETY: the caller's promise. No access needs alignment.
            unsafe {
                $body
            }
        }
    )* };
}
use methods;
