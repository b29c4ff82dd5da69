//! Kernels of attention for many queries and some pages: by products of integers, or by a unit for tiles (see [`tiles`](super::tiles)).

use crate::generic::int_attention;
use crate::generic::tile_attention::{PageRows, TileScores, TileValues, TileWeights};
use crate::simd::dots::ByteDots;
#[cfg(test)]
use crate::simd::portable_int::PortableInt;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::dots512::{SeparateDots512, VnniDots512};
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::int256::Avx2Int;

/// These kernels, whose operands have a form of their own.
pub(crate) struct AttentionTiles {
    pub sizes: OperandSizes,
    /// Writes a query.
    pub put_query: unsafe fn(*const f32, usize, *mut u8),
    /// Packs the keys of a page, unless one is such that scores with others would not be right.
    pub put_keys: unsafe fn(&PageRows) -> bool,
    /// Products of queries with keys.
    pub scores: unsafe fn(&TileScores),
    /// A step of the online softmax.
    pub weights: unsafe fn(&TileWeights),
    /// Packs the values of a page, unless one is not finite.
    pub put_values: unsafe fn(&PageRows) -> bool,
    /// Weighted sums of values.
    pub values: unsafe fn(&TileValues),
}

/// Bytes of operands.
pub(crate) struct OperandSizes {
    /// A query of so many elements.
    pub query: fn(usize) -> usize,
    /// The keys of a page, of so many elements.
    pub keys: fn(usize) -> usize,
    /// The values of a page, of so many elements.
    pub values: fn(usize) -> usize,
    /// The weights of a query for so many pages.
    pub weights: fn(usize) -> usize,
}

/// Instantiates the kernels over integers for a register type, in functions with its instructions enabled.
macro_rules! by_integers {
    ($module:ident, $D:ty, $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            type V = <$D as ByteDots>::Float;
            const N: usize = <$D as ByteDots>::QUERIES;

            #[$attribute]
            unsafe fn put_query(x: *const f32, d: usize, out: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { int_attention::put_query::<V>(x, d, out) }
            }

            #[$attribute]
            unsafe fn put_keys(keys: &PageRows) -> bool {
                // SAFETY: the caller's promise.
                unsafe { int_attention::put_keys::<V>(keys) }
            }

            #[$attribute]
            unsafe fn put_values(values: &PageRows) -> bool {
                // SAFETY: the caller's promise.
                unsafe { int_attention::put_values::<V>(values) }
            }

            #[$attribute]
            unsafe fn scores(args: &TileScores) {
                // SAFETY: the caller's promise.
                unsafe { int_attention::scores::<$D, N>(args) }
            }

            #[$attribute]
            unsafe fn weights(args: &TileWeights) {
                // SAFETY: the caller's promise.
                unsafe { int_attention::weights::<V>(args) }
            }

            #[$attribute]
            unsafe fn values(args: &TileValues) {
                // SAFETY: the caller's promise.
                unsafe { int_attention::values::<$D, N>(args) }
            }

            pub(in crate::dispatch) static KERNELS: AttentionTiles = AttentionTiles {
                sizes: OperandSizes {
                    query: int_attention::query_bytes,
                    keys: int_attention::key_bytes,
                    values: int_attention::value_bytes,
                    weights: int_attention::weight_stride,
                },
                put_query,
                put_keys,
                scores,
                weights,
                put_values,
                values,
            };
        }
    };
}

#[cfg(test)]
by_integers!(scalar, PortableInt, inline(never));
#[cfg(target_arch = "x86_64")]
by_integers!(avx2, Avx2Int, target_feature(enable = "avx2,fma,f16c"));
#[cfg(target_arch = "x86_64")]
by_integers!(
    avx512,
    SeparateDots512,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
);
#[cfg(target_arch = "x86_64")]
by_integers!(
    avx512_vnni,
    VnniDots512,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
);
