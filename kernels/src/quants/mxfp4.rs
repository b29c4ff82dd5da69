//! MXFP4 (OCP Microscaling Formats v1.0): 32 4-bit floats (E2M1) with a power-of-two scale (E8M0).

use std::mem::offset_of;

use super::iq4_nl::to_floats;
use crate::GgmlType;
use crate::layout::block::Block;
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{Field, GroupScales, Interleaved, Unit, UnpackGroup, block_at_run, field, group_nibbles};
use crate::layout::runs::{Scales, Unpack};
use crate::simd::{IntSimd, Simd};

/// E2M1 values, doubled to be integers.
pub(super) const VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// Integer that represents 0 in [`SHIFTED`].
pub(super) const ZERO: u8 = 16;

/// E2M1 values as unsigned 5-bit integers.
pub(super) const SHIFTED: [i8; 16] = {
    let mut shifted = VALUES;
    let mut i = 0;
    while i < shifted.len() {
        shifted[i] += ZERO as i8;
        i += 1;
    }
    shifted
};

/// E2M1 values as floats.
pub(super) static FLOATS: [f32; 16] = to_floats(VALUES);

/// A block of 32 values: value `j` is `2^(e - 128) * VALUES[q]`. Byte `j` holds `q` of values `j` (low
/// nibble) and `j + 16` (high nibble).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockMXFP4 {
    e: u8,
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockMXFP4>() == 17);

impl BlockMXFP4 {
    /// Returns `2^(e - 128)`, half the block's scale because the values are doubled. The two smallest scales
    /// are subnormal.
    fn half_scale(&self) -> f32 {
        let e = u32::from(self.e);
        f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
    }
}

impl Block for BlockMXFP4 {
    const TYPE: GgmlType = GgmlType::MXFP4;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.half_scale();
        let (low, high) = out.split_at_mut(16);
        for j in 0..16 {
            low[j] = f32::from(VALUES[usize::from(self.qs[j] & 15)]) * d;
            high[j] = f32::from(VALUES[usize::from(self.qs[j] >> 4)]) * d;
        }
    }
}

impl BlockMXFP4 {
    /// Returns half of the scale that the code `e` represents.
    pub(crate) fn half_scale_of(e: u8) -> f32 {
        BlockMXFP4 { e, qs: [0; 16] }.half_scale()
    }

    /// Makes a block from the code of its scale and the indices of its elements.
    pub(crate) fn from_code(e: u8, q: &[u8; 32]) -> Self {
        BlockMXFP4 {
            e,
            qs: std::array::from_fn(|j| q[j] | q[j + 16] << 4),
        }
    }
}

impl<V: Simd> Decode<V> for BlockMXFP4 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let table = V::table(&FLOATS, V::splat((*p.cast::<Self>()).half_scale()));
            for at in (0..16).step_by(V::LANES) {
                let q = V::load_u8(p.add(offset_of!(Self, qs) + at));
                sink.put(at, V::lookup(table, q));
                sink.put(at + 16, V::lookup(table, V::shr(q, 4)));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockMXFP4 {
    const BITS: u32 = 5;
    const ZERO: u8 = ZERO;

    #[inline(always)]
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales) {
        for i in 0..runs {
            // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a
            // block.
            let scale = unsafe { (*p.cast::<Self>().add(i)).half_scale() };
            to.scales[0][i] = scale;
            to.mins[0][i] = scale * -f32::from(ZERO);
        }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_nibbles(p.add(i * size_of::<Self>() + offset_of!(Self, qs))).lookup(&SHIFTED) }
    }
}

impl Interleaved for BlockMXFP4 {
    const FIELDS: &'static [Field] = &[field(1, Unit::One), field(16, Unit::Four)];
}

impl<V: IntSimd> UnpackGroup<V> for BlockMXFP4 {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        for i in 0..runs {
            // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets
            // are within a block.
            unsafe {
                let e = V::Float::load_u8(block_at_run::<Self>(p, i));
                let n = V::Float::from_int(e).sub(V::Float::splat(128.0));
                GroupScales::set(to, i, V::Float::splat(1.0).mul_pow2(n));
            }
        }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let p = block_at_run::<Self>(p, i);
            group_nibbles::<V>(p, offset_of!(Self, qs), j).lookup(&SHIFTED)
        }
    }
}
