//! Block layouts of the tensor types, with dequantization and quantization.
//!
//! There is one file per type. A file contains:
//! - the `#[repr(C)]` block and its scalar decoder, which defines the type;
//! - the vector decoder, which must produce the same bits;
//! - the unpacking of rows and of row groups to integers, if the type has integer kernels;
//! - the quantizer of caches and the assembly of encoded blocks, if any.
//!
//! Shared code is in `fit` (search for scales), and in `grids`, `levels`, and `grid_block` (the grid types IQ1, IQ2,
//! and IQ3). `shifted` has shared code of IQ4_K, IQ5_K, IQ6_K, IQ4_KS, and IQ5_KS.
//!
//! To add a type, add a file and a row in the table of `for_each_block`.

mod bf16;
mod f16;
mod f32;
mod fit;
mod grid_block;
pub(crate) mod grids;
mod iq1_m;
mod iq1_s;
mod iq2_s;
mod iq2_xs;
mod iq2_xxs;
mod iq3_s;
mod iq3_xxs;
mod iq4_k;
mod iq4_ks;
mod iq4_nl;
mod iq4_xs;
mod iq5_k;
mod iq5_ks;
mod iq6_k;
mod levels;
mod mxfp4;
mod nvfp4;
mod q1_0;
mod q2_0;
mod q2_k;
mod q3_k;
mod q4_0;
mod q4_1;
mod q4_k;
mod q5_0;
mod q5_1;
mod q5_k;
mod q6_k;
mod q8_0;
mod shifted;
mod tq1_0;
mod tq2_0;

pub use self::bf16::BlockBF16;
pub use self::f16::BlockF16;
pub use self::f32::BlockF32;
pub use self::iq1_m::BlockIQ1M;
pub use self::iq1_s::BlockIQ1S;
pub use self::iq2_s::BlockIQ2S;
pub use self::iq2_xs::BlockIQ2XS;
pub use self::iq2_xxs::BlockIQ2XXS;
pub use self::iq3_s::BlockIQ3S;
pub use self::iq3_xxs::BlockIQ3XXS;
pub use self::iq4_k::BlockIQ4K;
pub(crate) use self::iq4_k::SHIFT as IQ4_K_SHIFT;
pub use self::iq4_ks::BlockIQ4KS;
pub use self::iq4_nl::BlockIQ4NL;
pub(crate) use self::iq4_nl::VALUES as IQ4_VALUES;
pub use self::iq4_xs::BlockIQ4XS;
pub use self::iq5_k::BlockIQ5K;
pub use self::iq5_ks::BlockIQ5KS;
pub use self::iq6_k::BlockIQ6K;
pub use self::mxfp4::BlockMXFP4;
pub use self::nvfp4::BlockNVFP4;
pub use self::q1_0::BlockQ1_0;
pub use self::q2_0::BlockQ2_0;
pub use self::q2_k::BlockQ2K;
pub use self::q3_k::BlockQ3K;
pub use self::q4_0::BlockQ4_0;
pub use self::q4_1::BlockQ4_1;
pub use self::q4_k::BlockQ4K;
pub use self::q5_0::BlockQ5_0;
pub use self::q5_1::BlockQ5_1;
pub use self::q5_k::BlockQ5K;
pub use self::q6_k::BlockQ6K;
pub use self::q8_0::BlockQ8_0;
pub use self::tq1_0::BlockTQ1_0;
pub use self::tq2_0::BlockTQ2_0;
use crate::GgmlType;
pub use crate::layout::block::Half;

/// Passes the list of supported types to the macro `$then`. Each row names the block and the traits it implements in
/// addition to [`Block`](crate::layout::block::Block): [`Quantize`](crate::layout::block::Quantize),
/// [`Unpack`](crate::layout::runs::Unpack), and [`UnpackGroup`](crate::layout::groups::UnpackGroup) with
/// [`Interleaved`](crate::layout::groups::Interleaved).
macro_rules! for_each_block {
    ($then:ident!($($args:tt)*)) => {
        $then! { ($($args)*)
            BlockF32 [quantize] [] [];
            BlockF16 [quantize] [] [];
            BlockBF16 [quantize] [] [];
            BlockQ4_0 [quantize] [unpack] [interleave];
            BlockQ4_1 [quantize] [unpack] [interleave];
            BlockQ5_0 [quantize] [unpack] [interleave];
            BlockQ5_1 [quantize] [unpack] [interleave];
            BlockQ8_0 [quantize] [unpack] [interleave];
            BlockQ2K [] [unpack] [interleave];
            BlockQ3K [] [unpack] [interleave];
            BlockQ4K [] [unpack] [interleave];
            BlockQ5K [] [unpack] [interleave];
            BlockQ6K [] [unpack] [interleave];
            BlockIQ2XXS [] [unpack] [interleave];
            BlockIQ2XS [] [unpack] [interleave];
            BlockIQ3XXS [] [unpack] [interleave];
            BlockIQ1S [] [unpack] [interleave];
            BlockIQ4NL [quantize] [unpack] [interleave];
            BlockIQ3S [] [unpack] [interleave];
            BlockIQ2S [] [unpack] [interleave];
            BlockIQ4XS [] [unpack] [interleave];
            BlockIQ1M [] [unpack] [interleave];
            BlockMXFP4 [] [unpack] [interleave];
            BlockTQ1_0 [] [unpack] [interleave];
            BlockTQ2_0 [] [unpack] [interleave];
            BlockNVFP4 [] [unpack] [interleave];
            BlockQ1_0 [] [unpack] [interleave];
            BlockQ2_0 [] [unpack] [interleave];
            BlockIQ4K [] [unpack] [interleave];
            BlockIQ5K [] [unpack] [];
            BlockIQ6K [] [unpack] [];
            BlockIQ4KS [] [unpack] [interleave];
            BlockIQ5KS [] [unpack] [];
        }
    };
}
pub(crate) use for_each_block;

/// Points of a type's grid. Elements are bytes, the first in the lowest byte.
#[derive(Clone, Copy, Debug)]
pub enum Points {
    /// Grid points of 8 elements.
    OfEight(&'static [u64]),
    /// Grid points of 4 elements.
    OfFour(&'static [u32]),
}

/// Returns the grid of a type, or `None` for types without a grid.
pub fn points_of(ty: GgmlType) -> Option<Points> {
    match ty {
        GgmlType::IQ1_S | GgmlType::IQ1_M => Some(Points::OfEight(&grids::IQ1)),
        GgmlType::IQ2_XXS => Some(Points::OfEight(&grids::IQ2_XXS)),
        GgmlType::IQ2_XS => Some(Points::OfEight(&grids::IQ2_XS)),
        GgmlType::IQ2_S => Some(Points::OfEight(&grids::IQ2_S)),
        GgmlType::IQ3_XXS => Some(Points::OfFour(&grids::IQ3_XXS)),
        GgmlType::IQ3_S => Some(Points::OfFour(&grids::IQ3_S)),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::{scalar_decoders, scalar_encoders};
