//! TQ1_0: 256 values of -1, 0 or 1, five to a byte, one scale.

use std::mem::offset_of;

use super::{Block, Half};
use crate::GgmlType;
use crate::generic::blocks::{Decode, Sink};
use crate::generic::integers::{Scales, Unpack, set_scales};
use crate::simd::{IntSimd, Simd};

/// A byte `b` stands for the number 0.t0t1t2t3t4 to base 3, rounded up to 1/256; a value is `d * (t - 1)`. Digit `t` of byte `j` of
/// a run of bytes is value `t * run length + j` of its part: 32 bytes of `qs` for 160 values, 16 for 80, and `qh` for 16 (four digits).
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTQ1_0 {
    qs: [u8; 48],
    qh: [u8; 4],
    d: Half,
}
const _: () = assert!(size_of::<BlockTQ1_0>() == 54);

impl Block for BlockTQ1_0 {
    const TYPE: GgmlType = GgmlType::TQ1_0;

    fn dequantize(&self, out: &mut [f32]) {
        let d = self.d.get();
        let (first, rest) = out.split_at_mut(160);
        let (second, third) = rest.split_at_mut(80);
        for (run, out) in [(&self.qs[..32], first), (&self.qs[32..], second), (&self.qh, third)] {
            let mut power = 1u8;
            for values in out.chunks_exact_mut(run.len()) {
                for (v, &b) in values.iter_mut().zip(run) {
                    // Powers of 3 shift digits out of the byte; the next is the integer part of 3 times what is left.
                    let digit = (u16::from(b.wrapping_mul(power)) * 3) >> 8;
                    *v = (f32::from(digit) - 1.0) * d;
                }
                power = power.wrapping_mul(3);
            }
        }
    }
}

impl BlockTQ1_0 {
    /// Of the last 96 values the bytes whose first digits are values `32 i ..`: five times 16 bytes of `qs`, then four times `qh`.
    #[inline(always)]
    fn last_digits(&self, i: usize) -> [u64; 4] {
        let [.., first, second] = bytemuck::cast::<_, [[u8; 8]; 6]>(self.qs).map(u64::from_le_bytes);
        let digits = |n: usize| [first, second].map(|bytes| (0..n).fold(bytes, |bytes, _| next_digits(bytes)));
        let [a, b] = digits(2 * i);
        let [c, d] = if i < 2 { digits(2 * i + 1) } else { self.qh_digits() };
        [a, b, c, d]
    }

    /// The bytes whose first digits are the last 16 values.
    #[inline(always)]
    fn qh_digits(&self) -> [u64; 2] {
        let q0 = u64::from(u32::from_le_bytes(self.qh));
        let q1 = next_digits(q0);
        let q2 = next_digits(q1);
        [q0 | q1 << 32, q2 | next_digits(q2) << 32]
    }
}

/// Every byte of the word times 3, without what goes beyond a byte: the first digit is shifted out.
#[inline(always)]
fn next_digits(bytes: u64) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    (((bytes & EVEN) * 3) & EVEN) | ((((bytes >> 8) & EVEN) * 3) & EVEN) << 8
}

impl<V: Simd> Decode<V> for BlockTQ1_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            let one = V::splat(1.0);
            for (run, run_len, first) in [(0, 32, 0), (32, 16, 160)] {
                for at in (0..run_len).step_by(V::LANES) {
                    let mut bytes = V::load_u8(p.add(offset_of!(Self, qs) + run + at));
                    for t in 0..5 {
                        // The digit is what 3 times the byte has beyond a byte, the rest holds the next digits.
                        let three = V::plus(bytes, V::shl(bytes, 1));
                        let digit = V::from_int(V::shr(three, 8));
                        sink.put(first + t * run_len + at, digit.sub(one).mul(d));
                        bytes = V::and(three, 255);
                    }
                }
            }
            let words = (*p.cast::<Self>()).qh_digits();
            for at in (0..16).step_by(V::LANES) {
                let bytes = V::bytes([words[at / 8], words[1]]);
                let three = V::plus(bytes, V::shl(bytes, 1));
                sink.put(240 + at, V::from_int(V::shr(three, 8)).sub(one).mul(d));
            }
        }
    }
}

impl<V: IntSimd> Unpack<V> for BlockTQ1_0 {
    const BITS: u32 = 2;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe { set_scales(V::Float::splat_f16(p.add(offset_of!(Self, d))), 1.0, to) }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: the caller's promise; offsets are those of the block.
        unsafe {
            let bytes = if i < 5 {
                let bytes = V::load(p.add(offset_of!(Self, qs)));
                (0..i).fold(bytes, |bytes, _| bytes.add(bytes).add(bytes))
            } else {
                V::from_words((*p.cast::<Self>()).last_digits(i - 5))
            };
            // A third of 256, rounded up, is where the first digit becomes 1; at two thirds it becomes 2.
            let digits = V::splat(0).sub(bytes.at_least(V::splat(86)));
            digits.sub(bytes.at_least(V::splat(171)))
        }
    }
}
