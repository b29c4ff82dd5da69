//! Kernels over tiles of bfloat16 and of bytes.

use super::N_TYPES;
use super::attention_tiles::{AttentionTiles, OperandSizes};
use crate::generic::byte_tiles;
use crate::generic::interleaved8::UnpackGroup;
use crate::generic::int_products::IntProduct;
use crate::generic::panel_products::PanelProduct;
use crate::generic::pack::{GROUPS, RowLayout};
use crate::generic::tile_attention::{self, PageRows, TileScores, TileValues, TileWeights};
use crate::generic::tile_packing::{self, FloatRows, PackGroups, PanelScales};
use crate::generic::tiles::{self, TileProduct};
use crate::quants::{self, Block, for_each_block};
use crate::simd::TileUnit;
use crate::simd::byte_tiles::{ByteTileUnit, MOST_TILES};
#[cfg(test)]
use crate::simd::portable::Portable;
#[cfg(test)]
use crate::simd::tile_model::{ByteTileModel, TileModel};
#[cfg(target_arch = "x86_64")]
use crate::simd::x86_64::amx::{Amx, AmxBytes};

/// All kernels over tiles of an instruction set.
pub(crate) struct TileKernels {
    /// Writes a row of activations.
    pub quantize: unsafe fn(*const f32, usize, *mut u8),
    /// Multiplies with weights of any type that has integers.
    pub multiply: unsafe fn(&PanelProduct),
    /// Multiplies interleaved rows of each type, by id, with up to so many tiles of columns: see [`byte_tiles`].
    pub columns: [Option<ByTiles>; N_TYPES],
    /// Multiplies with weights of floats.
    pub multiply_floats: unsafe fn(&TileProduct<FloatRows>),
    /// See [`tiles::multiply_in_cache`].
    pub multiply_in_cache: unsafe fn(usize) -> usize,
}

/// Products with one tile of columns, with two and so on.
pub(crate) type ByTiles = [unsafe fn(&IntProduct); MOST_TILES];

/// What there is for interleaved rows of each type, by type id.
macro_rules! group_table {
    (($of_type:ident) $( $block:ident $quantize:tt $unpack:tt [$($interleave:ident)?]; )*) => { {
        let mut table = [const { None }; N_TYPES];
        $( group_table!(@ table $of_type $block $($interleave)?); )*
        table
    } };
    (@ $table:ident $of_type:ident $block:ident) => {};
    (@ $table:ident $of_type:ident $block:ident interleave) => {
        $table[<quants::$block as Block>::TYPE.id() as usize] = Some($of_type::<quants::$block>());
    };
}

/// Instantiates the generic kernels for a unit, in functions with their instructions enabled.
macro_rules! instantiate {
    ($module:ident, $U:ty, $B:ty, $attribute:meta) => {
        pub(super) mod $module {
            use super::*;

            #[$attribute]
            unsafe fn quantize(x: *const f32, k: usize, out: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { tiles::quantize_bf16::<$U>(x, k, out) }
            }

            #[$attribute]
            unsafe fn set_scales<D: UnpackGroup<<$U as TileUnit>::Int>>(
                p: [*const u8; GROUPS],
                runs: usize,
                to: &mut PanelScales,
            ) {
                // SAFETY: the caller's promise.
                unsafe { tile_packing::set_scales::<$U, D>(p, runs, to) }
            }

            #[$attribute]
            unsafe fn pack_run<D: UnpackGroup<<$U as TileUnit>::Int>>(
                p: [*const u8; GROUPS],
                i: usize,
                scales: &PanelScales,
                tile: *mut u8,
            ) {
                // SAFETY: the caller's promise.
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
                    RowLayout::Groups(_) => TYPES[product.w.ty.id() as usize],
                };
                // SAFETY: the caller's promise.
                unsafe { tiles::multiply_integers::<$U>(product, groups) }
            }

            #[$attribute]
            unsafe fn columns<D: UnpackGroup<<$B as ByteTileUnit>::Int>, const TILES: usize>(product: &IntProduct) {
                // SAFETY: the caller's promise.
                unsafe { byte_tiles::multiply::<$B, D, TILES>(product) }
            }

            const fn by_columns<D: UnpackGroup<<$B as ByteTileUnit>::Int>>() -> ByTiles {
                [columns::<D, 1>, columns::<D, 2>]
            }

            #[$attribute]
            unsafe fn multiply_floats(product: &TileProduct<FloatRows>) {
                // SAFETY: the caller's promise.
                unsafe { tiles::multiply::<FloatRows, $U>(product) }
            }

            #[$attribute]
            unsafe fn multiply_in_cache(rounds: usize) -> usize {
                // SAFETY: the caller's promise.
                unsafe { tiles::multiply_in_cache::<$U>(rounds) }
            }

            #[$attribute]
            unsafe fn put_query(x: *const f32, d: usize, out: *mut u8) {
                // SAFETY: the caller's promise.
                unsafe { tile_attention::put_query::<$U>(x, d, out) }
            }

            #[$attribute]
            unsafe fn put_keys(keys: &PageRows) -> bool {
                // SAFETY: the caller's promise.
                unsafe { tile_attention::put_keys::<$U>(keys) }
            }

            #[$attribute]
            unsafe fn put_values(values: &PageRows) -> bool {
                // SAFETY: the caller's promise.
                unsafe { tile_attention::put_values::<$U>(values) }
            }

            #[$attribute]
            unsafe fn scores(args: &TileScores) {
                // SAFETY: the caller's promise.
                unsafe { tile_attention::scores::<$U>(args) }
            }

            #[$attribute]
            unsafe fn weights(args: &TileWeights) {
                // SAFETY: the caller's promise.
                unsafe { tile_attention::weights::<$U>(args) }
            }

            #[$attribute]
            unsafe fn values(args: &TileValues) {
                // SAFETY: the caller's promise.
                unsafe { tile_attention::values::<$U>(args) }
            }

            pub(in crate::dispatch) static KERNELS: TileKernels = TileKernels {
                quantize,
                multiply,
                columns: for_each_block!(group_table!(by_columns)),
                multiply_floats,
                multiply_in_cache,
            };

            pub(in crate::dispatch) static ATTENTION: AttentionTiles = AttentionTiles {
                sizes: OperandSizes {
                    query: tile_attention::query_bytes,
                    keys: tile_attention::key_bytes,
                    values: tile_attention::value_bytes,
                    weights: tile_attention::weight_stride,
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

#[cfg(target_arch = "x86_64")]
instantiate!(
    amx,
    Amx,
    AmxBytes,
    target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
);
#[cfg(test)]
instantiate!(model, TileModel<Portable>, ByteTileModel<Portable>, inline(never));
