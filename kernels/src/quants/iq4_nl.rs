//! IQ4_NL: 32 4-bit indices into a table of non-uniformly spaced values, with one scale.

use std::mem::offset_of;

use super::fit::{best_scale, inverse};
use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half, Quantize};
use crate::layout::decode::{Decode, Encode, Sink};
use crate::layout::groups::{Field, Interleaved, Unit, UnpackGroup, block_at_run, field, group_nibbles};
use crate::layout::runs::Unpack;
use crate::simd::{IntSimd, Simd};

/// Table of the values of IQ4_NL and IQ4_XS.
pub(crate) const VALUES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Table of the values as floats.
pub(super) static FLOATS: [f32; 16] = to_floats(VALUES);

/// A block of 32 values: value `j` is `d * VALUES[q]`. Byte `j` holds `q` of values `j` (low nibble) and `j +
/// 16` (high nibble).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockIQ4NL {
    d: Half,
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockIQ4NL>() == 18);

impl Block for BlockIQ4NL {
    const TYPE: GgmlType = GgmlType::IQ4_NL;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let (low, high) = out.split_at_mut(16);
        for j in 0..16 {
            low[j] = d * f32::from(VALUES[usize::from(self.qs[j] & 15)]);
            high[j] = d * f32::from(VALUES[usize::from(self.qs[j] >> 4)]);
        }
    }
}

impl FromScale for BlockIQ4NL {
    fn from_scale(d: Half, q: &[u8]) -> Self {
        BlockIQ4NL {
            d,
            qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4),
        }
    }
}

impl<V: Simd> Decode<V> for BlockIQ4NL {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let table = V::table(&FLOATS, V::splat_f16(p));
            for at in (0..16).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::lookup(table, q));
                sink.put(at + 16, V::lookup(table, V::shr(q, 4)));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockIQ4NL {
    const SIGNED: bool = true;

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_nibbles(p.add(i * size_of::<Self>() + offset_of!(Self, qs))).lookup(&VALUES) }
    }
}

impl Interleaved for BlockIQ4NL {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(16, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockIQ4NL {
    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let p = block_at_run::<Self>(p, i);
            group_nibbles::<V>(p, offset_of!(Self, qs), j).lookup(&VALUES)
        }
    }
}

impl Quantize for BlockIQ4NL {
    fn quantize(x: &[f32]) -> Self {
        // Map the largest element to a value near either end of the table.
        let ends = (-140..=-100)
            .step_by(4)
            .chain((96..=128).step_by(4))
            .map(|end| end as f32);
        let d = Half::new(best_scale(x, ends, |v| f32::from(VALUES[usize::from(nearest(v))])));
        let inv = inverse(d.get());
        BlockIQ4NL {
            d,
            qs: std::array::from_fn(|j| nearest(x[j] * inv) | nearest(x[j + 16] * inv) << 4),
        }
    }
}

impl<V: Simd> Encode<V> for BlockIQ4NL {}

/// Returns the index of the table value nearest to `x`.
fn nearest(x: f32) -> u8 {
    let above = VALUES.partition_point(|&value| f32::from(value) < x).clamp(1, 15);
    let nearer_above = f32::from(VALUES[above]) - x < x - f32::from(VALUES[above - 1]);
    if nearer_above { above as u8 } else { above as u8 - 1 }
}

/// Converts a table of small integers to floats.
pub(super) const fn to_floats(values: [i8; 16]) -> [f32; 16] {
    let mut floats = [0.0; 16];
    let mut i = 0;
    while i < 16 {
        floats[i] = values[i] as f32;
        i += 1;
    }
    floats
}
