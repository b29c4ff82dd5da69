//! The algorithms, written once over [`Simd`](crate::simd::Simd). Everything is `#[inline(always)]`: it becomes code inside the
//! functions that `dispatch` instantiates for each instruction set.

pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod byte_tiles;
pub(crate) mod decode_attention;
pub(crate) mod gemm_u8;
pub(crate) mod interleaved8_zmm;
pub(crate) mod rows_zmm;
pub(crate) mod float_panels;
pub(crate) mod functions;
mod interleaved8_schedule;
pub(crate) mod interleaved8;
pub(crate) mod int_attention;
pub(crate) mod int_products;
pub(crate) mod integers;
pub(crate) mod weight_prefetch;
pub(crate) mod panel_products;
pub(crate) mod pack;
pub(crate) mod products;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod rows;
mod streams;
pub(crate) mod tile_attention;
pub(crate) mod tile_packing;
pub(crate) mod tiles;
pub(crate) mod u8_chunks;
