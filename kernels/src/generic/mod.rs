//! The algorithms, written once over [`Simd`](crate::simd::Simd). Everything is `#[inline(always)]`: it becomes code inside the
//! functions that `dispatch` instantiates for each instruction set.

pub(crate) mod attention;
pub(crate) mod blocks;
pub(crate) mod byte_tiles;
pub(crate) mod decode_attention;
pub(crate) mod dots;
pub(crate) mod double_width;
pub(crate) mod double_width_rows;
pub(crate) mod float_panels;
pub(crate) mod functions;
mod group_order;
pub(crate) mod groups;
pub(crate) mod int_attention;
pub(crate) mod int_products;
pub(crate) mod integers;
pub(crate) mod next_weights;
pub(crate) mod panel_products;
pub(crate) mod panels;
pub(crate) mod products;
pub(crate) mod recurrent;
pub(crate) mod rope;
pub(crate) mod rows;
mod streams;
pub(crate) mod tile_attention;
pub(crate) mod tile_packing;
pub(crate) mod tiles;
pub(crate) mod u8_chunks;
