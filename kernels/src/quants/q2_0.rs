//! Q2_0: 64 2-bit values from -1 to 2, with one scale.

use std::mem::offset_of;

use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{Field, Interleaved, Rewrite, Unit, UnpackGroup, block_at_run, field, group_bit_pairs};
use crate::layout::runs::Unpack;
use crate::simd::{IntSimd, Simd};

/// A block of 64 values: value `j` is `d * (q - 1)`, with `q` in bits `2 (j % 4)` and `2 (j % 4) + 1` of byte
/// `j / 4`.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockQ2_0 {
    d: Half,
    qs: [u8; 16],
}
const _: () = assert!(size_of::<BlockQ2_0>() == 18);

impl Block for BlockQ2_0 {
    const TYPE: GgmlType = GgmlType::Q2_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        for (j, v) in out.iter_mut().enumerate() {
            let q = self.qs[j / 4] >> (j % 4 * 2) & 3;
            *v = (f32::from(q) - 1.0) * d;
        }
    }
}

impl FromScale for BlockQ2_0 {
    fn from_scale(d: Half, q: &[u8]) -> Self {
        BlockQ2_0 {
            d,
            qs: std::array::from_fn(|i| (0..4).fold(0, |byte, j| byte | q[4 * i + j] << (2 * j))),
        }
    }
}

impl<V: Simd> Decode<V> for BlockQ2_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p);
            for at in (0..64).step_by(V::LANES) {
                let qs = p.add(offset_of!(Self, qs) + at / 4).cast::<[u8; 2]>();
                let words = [0, V::LANES / 8 - 1].map(|i| spread(*qs.add(i)));
                sink.put(at, V::from_int(V::bytes(words)).sub(V::splat(1.0)).mul(d));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockQ2_0 {
    const BITS: u32 = 2;
    const ZERO: u8 = 1;

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe { V::load_bit_pairs(p.add(i / 2 * size_of::<Self>() + offset_of!(Self, qs) + i % 2 * 8)) }
    }
}

impl Interleaved for BlockQ2_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(16, Unit::Four)];

    /// Rearranges each 8 bytes, which hold a run, to the order of [`group_bit_pairs`].
    const REWRITE: Option<Rewrite> = Some(Rewrite {
        to_group: |block, to| {
            to.copy_from_slice(block);
            for run in to[offset_of!(Self, qs)..].as_chunks_mut::<8>().0 {
                let [a, b, c, d] = bytemuck::cast::<_, [[u8; 2]; 4]>(*run).map(spread);
                *run = (a | b << 2 | c << 4 | d << 6).to_le_bytes();
            }
        },
        to_file: |block, to| {
            to.copy_from_slice(block);
            for run in to[offset_of!(Self, qs)..].as_chunks_mut::<8>().0 {
                let pairs = u64::from_le_bytes(*run);
                *run = bytemuck::cast([0, 2, 4, 6].map(|at| unspread(pairs >> at)));
            }
        },
    });
}

impl<V: IntSimd> UnpackGroup<V> for BlockQ2_0 {
    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and all offsets are
        // within it.
        unsafe {
            let block = block_at_run::<Self>(p, i);
            group_bit_pairs(block, offset_of!(Self, qs) + i % 2 * 8, j)
        }
    }
}

/// Expands each pair of bits to a byte.
#[inline(always)]
fn spread(qs: [u8; 2]) -> u64 {
    let [low, high] = qs.map(u64::from);
    let q = low | high << 32;
    (q | q << 6 | q << 12 | q << 18) & 0x0303_0303_0303_0303
}

/// Packs bytes to pairs of bits; the inverse of [`spread`]. The upper bits of each byte are ignored.
fn unspread(pairs: u64) -> [u8; 2] {
    let q = pairs & 0x0303_0303_0303_0303;
    let q = (q | q >> 6) & 0x000f_000f_000f_000f;
    let q = q | q >> 12;
    [q as u8, (q >> 32) as u8]
}
