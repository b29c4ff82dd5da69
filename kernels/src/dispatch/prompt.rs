//! Kernels of attention of prompts.

use crate::generic::prompt_attention::{self, CachedRows, Matrix, PanelPage};
use crate::simd::Simd;
use crate::simd::portable::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::{avx2::Avx2, avx512::Avx512};

/// Kernels of attention whose queries are lanes.
pub(crate) struct PromptKernels {
    /// Lanes of a register.
    pub lanes: usize,
    /// Attends a panel to a page: those at `r - 1` are for `r` registers.
    pub attend: &'static [unsafe fn(&PanelPage)],
    /// Reads keys or values as floats; false if a number is not finite.
    pub convert: unsafe fn(&CachedRows) -> bool,
    /// Rows to columns.
    pub transpose: unsafe fn(&Matrix),
}

/// Instantiates the generic kernels for a register type, in functions with its instructions enabled.
macro_rules! instantiate {
    ($module:ident, $V:ty, [$($registers:literal)*], $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            #[$attribute]
            unsafe fn attend<const R: usize>(page: &PanelPage) {
                // SAFETY: the caller's promise.
                unsafe { prompt_attention::attend::<$V, R>(page) }
            }

            #[$attribute]
            unsafe fn convert(rows: &CachedRows) -> bool {
                // SAFETY: the caller's promise.
                unsafe { prompt_attention::convert::<$V>(rows) }
            }

            #[$attribute]
            unsafe fn transpose(matrix: &Matrix) {
                // SAFETY: the caller's promise.
                unsafe { prompt_attention::transpose::<$V>(matrix) }
            }

            pub(in crate::dispatch) static KERNELS: PromptKernels = PromptKernels {
                lanes: <$V>::LANES,
                attend: &[$( attend::<$registers> ),*],
                convert,
                transpose,
            };
        }
    };
}

// Sums and operands fill 16 registers, of four lanes, of eight, or half of 32.
instantiate!(scalar, Portable, [1], inline(never));
#[cfg(target_arch = "x86_64")]
instantiate!(avx2, Avx2, [1 2], target_feature(enable = "avx2,fma,f16c"));
#[cfg(target_arch = "x86_64")]
instantiate!(
    avx512,
    Avx512,
    [1 2 3],
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
);
