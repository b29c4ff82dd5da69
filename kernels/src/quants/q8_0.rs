//! Q8_0: 32 signed bytes with one scale.

use std::mem::offset_of;

use super::fit::{inverse, signed_max};
use crate::GgmlType;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Decode, Encode, Sink};
use crate::layout::groups::{Field, Interleaved, Unit, UnpackGroup, block_at_run, field, group_word};
use crate::layout::runs::Unpack;
use crate::simd::{IntSimd, Simd};

/// A block of 32 values: value `j` is `d * q`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ8_0 {
    d: Half,
    qs: [i8; 32],
}
const _: () = assert!(size_of::<BlockQ8_0>() == 34);

impl Block for BlockQ8_0 {
    const TYPE: GgmlType = GgmlType::Q8_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (v, &q) in out.iter_mut().zip(&self.qs) {
            *v = f32::from(q) * d;
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ8_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p);
            for at in (0..32).step_by(V::LANES) {
                let q = V::load_i8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::from_int(q).mul(d));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ8_0 {
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load(p.add(i * size_of::<Self>() + offset_of!(Self, qs))) }
    }
}

impl Interleaved for BlockQ8_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(32, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ8_0 {
    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let p = block_at_run::<Self>(p, i);
            group_word(p, offset_of!(Self, qs) + j * 4)
        }
    }
}

impl Quantize for BlockQ8_0 {
    fn quantize(x: &[f32]) -> Self {
        let d = Half::new(signed_max(x).abs() / 127.0);
        let inv = inverse(d.get());
        let q = |v: f32| (v * inv).round_ties_even().clamp(-127.0, 127.0) as i8;
        BlockQ8_0 {
            d,
            qs: std::array::from_fn(|j| q(x[j])),
        }
    }
}

impl<V: Simd> Encode<V> for BlockQ8_0 {
    #[inline(always)]
    unsafe fn encode(x: *const f32, out: *mut u8, n: usize) {
        // SAFETY: reads of `x` and writes of `out` end at `n` elements (trait contract).
        unsafe {
            for i in 0..n / 32 {
                let (x, block) = (x.add(i * 32), out.add(i * size_of::<Self>()));
                let mut max = V::splat(0.0);
                for at in (0..32).step_by(V::LANES) {
                    max = V::load(x.add(at)).abs().max(max);
                }
                let d = Half::new(max.largest() / 127.0);
                block.cast::<Half>().write(d);
                let (inv, limit) = (V::splat(inverse(d.get())), V::splat(127.0));
                for at in (0..32).step_by(V::LANES) {
                    let q = V::load(x.add(at)).mul(inv).round().min(limit).max(V::splat(-127.0));
                    q.store_i8(block.add(offset_of!(Self, qs) + at));
                }
            }
        }
    }
}
