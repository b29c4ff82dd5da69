//! Algorithms of the kernels, written once over the traits of [`simd`](crate::simd) (registers) and
//! [`layout`](crate::layout) (formats of weights).
//!
//! Functions that use registers are `#[inline(always)]`. They are compiled as part of the functions that
//! `dispatch` instantiates for each instruction set, so the compiler may use its instructions.
//!
//! The matmul modules, by the number of columns `n` and the form of the activations:
//!
//! | module | weights | activations | used for |
//! |---|---|---|---|
//! | [`products`] | decoded to f32 | f32 | any `n` |
//! | [`float_panels`] | decoded to f32, transposed | f32 | F32, F16, BF16 with large `n` |
//! | [`interleaved8`], [`interleaved8_zmm`] | row groups | i16 | small `n` |
//! | [`group_panels`] | row groups, as panels of bytes | i16 | 4 columns or more with AVX512-VNNI |
//! | [`pair_panels`] | decoded, as panels of 16-bit integers | i16 pairs | F16, BF16 with large `n` |
//! | [`int_products`], [`rows_zmm`] | file layout | i16 | small `n` |
//! | [`panel_products`] | panels | i16 | larger `n` |
//! | [`gemm_u8`] | panels | u8 with outliers | large `n` |
//! | [`byte_tiles`] | row groups | i16 | 5 to 31 columns with AMX |
//! | [`tiles`] | packed to bf16 tiles | bf16 | large `n` with AMX |

pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod byte_tiles;
pub(crate) mod decode_attention;
pub(crate) mod float_panels;
pub(crate) mod functions;
pub(crate) mod gemm_u8;
pub(crate) mod group_panels;
pub(crate) mod int_attention;
pub(crate) mod int_products;
pub(crate) mod integers;
pub(crate) mod interleaved8;
mod interleaved8_schedule;
pub(crate) mod interleaved8_zmm;
pub(crate) mod pack;
pub(crate) mod pair_panels;
pub(crate) mod panel_products;
pub(crate) mod products;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod rows;
pub(crate) mod rows_zmm;
mod streams;
pub(crate) mod tile_attention;
pub(crate) mod tile_packing;
pub(crate) mod tiles;
pub(crate) mod u8_chunks;
pub(crate) mod weight_prefetch;
