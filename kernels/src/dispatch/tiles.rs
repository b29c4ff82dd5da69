//! Kernels for bf16 and int8 tiles (AMX), and for bf16 dot products.

use super::attention_tiles::{AttentionTiles, OperandSizes};
use crate::generic::byte_tiles;
use crate::generic::int_products::IntProduct;
use crate::generic::pack::{GROUPS, RowLayout};
use crate::generic::panel_products::PanelProduct;
use crate::generic::tile_attention::{self, PageRows, TileScores, TileValues, TileWeights};
use crate::generic::tile_packing::{self, FloatRows, PackGroups, PanelScales};
use crate::generic::tiles::{self, TileProduct};
use crate::layout::block::Block;
use crate::layout::groups::UnpackGroup;
use crate::quants::{self, for_each_block};
use crate::simd::TileUnit;
use crate::simd::byte_tiles::{ByteTileUnit, MAX_TILES};
#[cfg(test)]
use crate::simd::portable::Portable;
#[cfg(test)]
use crate::simd::tile_model::{ByteTileModel, TileModel};
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::{
    amx::{Amx, AmxBytes},
    bf16_dots::Bf16Dots,
};
use crate::types::N_TYPES;

/// Kernels for weights of a floating-point type and bf16 activations.
pub(crate) struct FloatTileKernels {
    /// Rounds a row of activations to bf16.
    pub quantize: unsafe fn(*const f32, usize, *mut u8),
    pub multiply: unsafe fn(&TileProduct<FloatRows>),
    /// See [`tiles::multiply_in_cache`].
    pub multiply_in_cache: unsafe fn(usize) -> usize,
}

/// Kernels of a tile unit for weights of other types.
pub(crate) struct TileKernels {
    /// Multiplies weights of any type that unpacks to integers.
    pub multiply: unsafe fn(&PanelProduct),
    /// Multiply interleaved rows by up to [`MAX_TILES`] tiles of columns, indexed by [`GgmlType::index`]; see
    /// [`byte_tiles`].
    pub columns: [Option<ColumnTileKernels>; N_TYPES],
}

/// Matmuls with one tile of columns, with two, and so on.
pub(crate) type ColumnTileKernels = [unsafe fn(&IntProduct); MAX_TILES];

/// Builds a table for all interleaved types, indexed by [`GgmlType::index`].
macro_rules! group_table {
    (($kernels_for:ident) $( $block:ident $quantize:tt $unpack:tt [$($interleave:ident)?]; )*) => { {
        let mut table = [const { None }; N_TYPES];
        $( group_table!(@ table $kernels_for $block $($interleave)?); )*
        table
    } };
    (@ $table:ident $kernels_for:ident $block:ident) => {};
    (@ $table:ident $kernels_for:ident $block:ident interleave) => {
        $table[<quants::$block as Block>::TYPE.index()] = Some($kernels_for::<quants::$block>());
    };
}

/// Instantiates the kernels for weights of floating-point types in functions that enable the instructions of a
/// unit.
macro_rules! instantiate_floats {
    ($module:ident, $U:ty, $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            #[$attribute]
            unsafe fn quantize(x: *const f32, k: usize, out: *mut u8) {
                // SAFETY: the caller upholds the contract of `tiles::quantize_bf16`; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tiles::quantize_bf16::<$U>(x, k, out) }
            }

            #[$attribute]
            unsafe fn multiply(product: &TileProduct<FloatRows>) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tiles::multiply::<FloatRows, $U>(product) }
            }

            #[$attribute]
            unsafe fn multiply_in_cache(rounds: usize) -> usize {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tiles::multiply_in_cache::<$U>(rounds) }
            }

            pub(in crate::dispatch) static KERNELS: FloatTileKernels = FloatTileKernels {
                quantize,
                multiply,
                multiply_in_cache,
            };
        }
    };
}

/// Instantiates the generic kernels for a tile unit in functions that enable its instructions.
macro_rules! instantiate {
    ($module:ident, $U:ty, $B:ty, $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            #[$attribute]
            unsafe fn set_scales<D: UnpackGroup<<$U as TileUnit>::Int>>(
                p: [*const u8; GROUPS],
                runs: usize,
                to: &mut PanelScales,
            ) {
                // SAFETY: the caller upholds the contract of `tile_packing::set_scales`; `$attribute` enables
                // the instructions of `$U`.
                unsafe { tile_packing::set_scales::<$U, D>(p, runs, to) }
            }

            #[$attribute]
            unsafe fn pack_run<D: UnpackGroup<<$U as TileUnit>::Int>>(
                p: [*const u8; GROUPS],
                i: usize,
                scales: &PanelScales,
                tile: *mut u8,
            ) {
                // SAFETY: the caller upholds the contract of `tile_packing::pack_run`; `$attribute` enables
                // the instructions of `$U`.
                unsafe { tile_packing::pack_run::<$U, D>(p, i, scales, tile) }
            }

            static TYPES: [Option<PackGroups>; N_TYPES] = for_each_block!(group_table!(pack_groups));

            const fn pack_groups<D: UnpackGroup<<$U as TileUnit>::Int>>() -> PackGroups {
                PackGroups {
                    scales: set_scales::<D>,
                    run: pack_run::<D>,
                }
            }

            #[$attribute]
            unsafe fn multiply(product: &PanelProduct) {
                let groups = match product.w.layout {
                    RowLayout::Rows(_) => None,
                    RowLayout::Groups(_) => TYPES[product.w.ty.index()],
                };
                // SAFETY: the caller upholds the contract of `multiply_integers`; `groups` belongs to the
                // type of the weights.
                unsafe { tiles::multiply_integers::<$U>(product, groups) }
            }

            #[$attribute]
            unsafe fn columns<D: UnpackGroup<<$B as ByteTileUnit>::Int>, const TILES: usize>(product: &IntProduct) {
                // SAFETY: the caller upholds the contract of `byte_tiles::multiply`; `$attribute` enables the
                // instructions of `$B`.
                unsafe { byte_tiles::multiply::<$B, D, TILES>(product) }
            }

            const fn column_kernels<D: UnpackGroup<<$B as ByteTileUnit>::Int>>() -> ColumnTileKernels {
                [columns::<D, 1>, columns::<D, 2>]
            }

            #[$attribute]
            unsafe fn pack_query(x: *const f32, d: usize, out: *mut u8) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tile_attention::pack_query::<$U>(x, d, out) }
            }

            #[$attribute]
            unsafe fn pack_keys(keys: &PageRows) -> bool {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tile_attention::pack_keys::<$U>(keys) }
            }

            #[$attribute]
            unsafe fn pack_values(values: &PageRows) -> bool {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tile_attention::pack_values::<$U>(values) }
            }

            #[$attribute]
            unsafe fn scores(args: &TileScores) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tile_attention::scores::<$U>(args) }
            }

            #[$attribute]
            unsafe fn weights(args: &TileWeights) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tile_attention::weights::<$U>(args) }
            }

            #[$attribute]
            unsafe fn values(args: &TileValues) {
                // SAFETY: the caller upholds the contract of the callee; `$attribute` enables the
                // instructions of `$U`.
                unsafe { tile_attention::values::<$U>(args) }
            }

            pub(in crate::dispatch) static KERNELS: TileKernels = TileKernels {
                multiply,
                columns: for_each_block!(group_table!(column_kernels)),
            };

            pub(in crate::dispatch) static ATTENTION: AttentionTiles = AttentionTiles {
                sizes: OperandSizes {
                    query: tile_attention::query_bytes,
                    keys: tile_attention::key_bytes,
                    values: tile_attention::value_bytes,
                    weights: tile_attention::weight_stride,
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

#[cfg(target_arch = "x86_64")]
instantiate!(
    amx,
    Amx,
    AmxBytes,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
);
#[cfg(test)]
instantiate!(model, TileModel<Portable>, ByteTileModel<Portable>, inline(never));

#[cfg(target_arch = "x86_64")]
instantiate_floats!(
    amx_floats,
    Amx,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
);
#[cfg(target_arch = "x86_64")]
instantiate_floats!(
    bf16_dots,
    Bf16Dots,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
);
#[cfg(test)]
instantiate_floats!(model_floats, TileModel<Portable>, inline(never));
