//! Attention kernels for many queries per page of the KV cache: with 16-bit integers, or with a tile unit
//! (see [`tiles`](super::tiles)).

use crate::generic::int_attention;
use crate::generic::tile_attention::{PageRows, TileScores, TileValues, TileWeights};
use crate::simd::dots::ByteDots;
#[cfg(test)]
use crate::simd::portable_int::PortableInt;
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::dots512::{SeparateDots512, VnniDots512};
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::int256::Avx2Int;

/// Attention kernels for many queries, which read operands in a specific packed format.
pub(crate) struct AttentionTiles {
    pub sizes: OperandSizes,
    /// Packs a query for tiles.
    pub pack_query: unsafe fn(*const f32, usize, *mut u8),
    /// Packs the keys of a page. Returns false if a key is unsuitable, in which case scores with the packed
    /// keys would be wrong.
    pub pack_keys: unsafe fn(&PageRows) -> bool,
    /// Computes the scores of queries and keys.
    pub scores: unsafe fn(&TileScores),
    /// Computes a step of the online softmax.
    pub weights: unsafe fn(&TileWeights),
    /// Packs the values of a page. Returns false if a value is not finite.
    pub pack_values: unsafe fn(&PageRows) -> bool,
    /// Computes weighted sums of values.
    pub values: unsafe fn(&TileValues),
}

/// Sizes of packed operands in bytes.
pub(crate) struct OperandSizes {
    /// Size of a query, given its number of elements.
    pub query: fn(usize) -> usize,
    /// Size of a page of keys, given the elements per key.
    pub keys: fn(usize) -> usize,
    /// Size of a page of values, given the elements per value.
    pub values: fn(usize) -> usize,
    /// Size of a query's weights, given the number of pages.
    pub weights: fn(usize) -> usize,
}

/// Instantiates the integer attention kernels for a register type in functions that enable its instructions.
macro_rules! integer_attention {
    ($module:ident, $D:ty, $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            type V = <$D as ByteDots>::Float;
            const N: usize = <$D as ByteDots>::QUERIES;

            #[$attribute]
            unsafe fn pack_query(x: *const f32, d: usize, out: *mut u8) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `V`.
                unsafe { int_attention::pack_query::<V>(x, d, out) }
            }

            #[$attribute]
            unsafe fn pack_keys(keys: &PageRows) -> bool {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `V`.
                unsafe { int_attention::pack_keys::<V>(keys) }
            }

            #[$attribute]
            unsafe fn pack_values(values: &PageRows) -> bool {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `V`.
                unsafe { int_attention::pack_values::<V>(values) }
            }

            #[$attribute]
            unsafe fn scores(args: &TileScores) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$D`.
                unsafe { int_attention::scores::<$D, N>(args) }
            }

            #[$attribute]
            unsafe fn weights(args: &TileWeights) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `V`.
                unsafe { int_attention::weights::<V>(args) }
            }

            #[$attribute]
            unsafe fn values(args: &TileValues) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$D`.
                unsafe { int_attention::values::<$D, N>(args) }
            }

            pub(in crate::dispatch) static KERNELS: AttentionTiles = AttentionTiles {
                sizes: OperandSizes {
                    query: int_attention::query_bytes,
                    keys: int_attention::key_bytes,
                    values: int_attention::value_bytes,
                    weights: int_attention::weight_stride,
                },
                pack_query,
                pack_keys,
                scores,
                weights,
                pack_values,
                values,
            };
        }
    };
}

#[cfg(test)]
integer_attention!(scalar, PortableInt, inline(never));
#[cfg(target_arch = "x86_64")]
integer_attention!(avx2, Avx2Int, target_feature(enable = "avx2,fma,f16c"));
#[cfg(target_arch = "x86_64")]
integer_attention!(
    avx512,
    SeparateDots512,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl")
);
#[cfg(target_arch = "x86_64")]
integer_attention!(
    avx512_vnni,
    VnniDots512,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
);
