//! SIMD implementations for x86-64.

pub(crate) mod amx;
pub(crate) mod avx2;
pub(crate) mod avx512;
pub(crate) mod bf16_dots;
pub(crate) mod dots512;
pub(crate) mod int256;
mod pair_dots;
pub(crate) mod transpose;

/// Implements methods of [`Simd`](super::Simd), [`IntSimd`](super::IntSimd), and
/// [`DotProduct`](int256::DotProduct) as expressions over intrinsics.
macro_rules! methods {
    ($( $(#[$doc:meta])* fn $name:ident ($($arg:ident $(: $ty:ty)?),*) -> $ret:ty = $body:expr; )*) => { $(
        $(#[$doc])*
        #[inline(always)]
        fn $name ($($arg $(: $ty)?),*) -> $ret {
            #[allow(unused_unsafe, reason = "some bodies only call other methods")]
            // SAFETY: the intrinsics only use registers, and the existence of a register value proves that
            // the CPU supports them.
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
            // SAFETY: the CPU supports the instruction set, and pointers are valid (trait contract). No
            // access requires alignment.
            unsafe {
                $body
            }
        }
    )* };
}
use methods;
