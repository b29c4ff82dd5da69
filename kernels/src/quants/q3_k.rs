//! Q3_K: 256 values of 3 bits around 4 in 16 groups of 16, each with a 6-bit scale.

use std::mem::offset_of;

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Sink};
use crate::simd::Simd;

/// A value of group `g` is `d * (scale[g] - 32) * (q - 4)`. The low two bits of q lie in `qs` as in [`BlockQ2K`](super::BlockQ2K);
/// the third of value `32 j + l` is bit `j` of `hmask[l]`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ3K {
    hmask: [u8; 32],
    qs: [u8; 64],
    scales: [u8; 12],
    d: Half,
}
const _: () = assert!(size_of::<BlockQ3K>() == 110);

impl BlockQ3K {
    /// The 16 scales: low 4 bits in the nibbles of bytes 0..8, high 2 bits in bytes 8..12.
    fn scales(&self) -> [i8; 16] {
        std::array::from_fn(|g| {
            let low = self.scales[g % 8] >> (g / 8 * 4) & 15;
            let high = self.scales[8 + g % 4] >> (g / 4 * 2) & 3;
            (low | high << 4) as i8 - 32
        })
    }
}

impl Block for BlockQ3K {
    const TYPE: GgmlType = GgmlType::Q3_K;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for ((g, group), scale) in out.chunks_exact_mut(16).enumerate().zip(self.scales()) {
            let scale = d * f32::from(scale);
            let (first, shift) = (g / 8 * 32 + g % 2 * 16, g % 8 / 2 * 2);
            for (l, v) in group.iter_mut().enumerate() {
                let high = self.hmask[g % 2 * 16 + l] >> (g / 2) & 1;
                let q = self.qs[first + l] >> shift & 3 | high << 2;
                *v = scale * (i32::from(q) - 4) as f32;
            }
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ3K {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            let packed = (*p.cast::<Self>()).scales();
            let mut scales = [0.0; 16];
            for g in (0..16).step_by(V::LANES) {
                V::from_int(V::load_i8(packed.as_ptr().add(g).cast()))
                    .mul(d)
                    .store(scales.as_mut_ptr().add(g));
            }
            let scales = std::hint::black_box(&scales);
            for g in 0..16 {
                let scale = V::splat(scales[g]);
                let (first, shift) = (g / 8 * 32 + g % 2 * 16, (g % 8 / 2 * 2) as u32);
                for l in (0..16).step_by(V::LANES) {
                    let q = V::load_u8(p.add(offset_of!(Self, qs) + first + l));
                    let high = V::load_u8(p.add(offset_of!(Self, hmask) + g % 2 * 16 + l));
                    let q = V::from_int(V::and(V::shr(q, shift), 3)).sub(V::splat(4.0));
                    let q = q.add_where(V::has_bit(high, 1 << (g / 2)), V::splat(4.0));
                    sink.put(g * 16 + l, q.mul(scale));
                }
            }
        }
    }
}
