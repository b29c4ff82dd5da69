//! Implementation of the traits of a grid type (IQ1, IQ2, IQ3) through [`GridBlock`](super::grids::GridBlock).
//!
//! ```text
//! iq2_xs.rs etc.   the block of a type and its parts: scales, bits, elements    impl GridBlock
//! grids.rs         rows in a file: look up each point in the grid               Block, Decode, Unpack
//! levels.rs        row groups: levels of a point instead of its index           Interleaved, UnpackGroup
//! ```

/// Implements the traits of the block `$block` of type `GgmlType::$ty`, which implements `GridBlock`.
macro_rules! grid_block {
    ($block:ident, $ty:ident) => {
        impl $crate::layout::block::Block for $block {
            const TYPE: $crate::GgmlType = $crate::GgmlType::$ty;

            fn dequantize(&self, out: &mut [f32]) {
                $crate::quants::grids::dequantize(self, out);
            }
        }

        impl<V: $crate::simd::Simd> $crate::layout::decode::Decode<V> for $block {
            #[inline(always)]
            unsafe fn decode<S: $crate::layout::decode::Sink<V>>(p: *const u8, sink: &mut S) {
                // SAFETY: the caller upholds the contract of the callee.
                unsafe { $crate::quants::grids::decode::<V, Self, S>(p, sink) }
            }
        }

        impl<V: $crate::simd::IntSimd> $crate::layout::runs::Unpack<V> for $block {
            const BITS: u32 = <Self as $crate::quants::grids::GridBlock>::BITS;
            const BY_16: bool = <Self as $crate::quants::grids::GridBlock>::BY_16;
            const SIGNED: bool = <Self as $crate::quants::grids::GridBlock>::ZERO == 0;
            const ZERO: u8 = <Self as $crate::quants::grids::GridBlock>::ZERO;

            #[inline(always)]
            unsafe fn scales(p: *const u8, _: usize, to: &mut $crate::layout::runs::Scales) {
                // SAFETY: the caller upholds the contract of the callee.
                unsafe { $crate::quants::grids::integer_scales::<V::Float, Self>(p, to) }
            }

            #[inline(always)]
            unsafe fn values(p: *const u8, i: usize) -> V {
                // SAFETY: the caller upholds the contract of the callee.
                unsafe { $crate::quants::grids::integers::<V, Self>(p, i) }
            }
        }

        impl $crate::layout::groups::Interleaved for $block {
            const FIELDS: &'static [$crate::layout::groups::Field] = $crate::quants::levels::fields::<Self>();
            const REWRITE: Option<$crate::layout::groups::Rewrite> = Some($crate::quants::levels::rewrite::<Self>());
        }

        impl<V: $crate::simd::IntSimd> $crate::layout::groups::UnpackGroup<V> for $block {
            #[inline(always)]
            unsafe fn group_scales(p: *const u8, _: usize, to: *mut $crate::layout::groups::GroupScales) {
                // SAFETY: the caller upholds the contract of the callee.
                unsafe { $crate::quants::levels::group_scales::<V::Float, Self>(p, to) }
            }

            #[inline(always)]
            unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
                // SAFETY: the caller upholds the contract of the callee.
                unsafe { $crate::quants::levels::group_values::<V, Self>(p, i, j) }
            }
        }
    };
}
pub(super) use grid_block;
