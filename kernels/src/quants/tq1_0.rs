//! TQ1_0: 256 ternary values (-1, 0, 1), five per byte, with one scale.

use std::mem::offset_of;

use crate::GgmlType;
use crate::layout::assemble::FromScale;
use crate::layout::block::{Block, Half};
use crate::layout::decode::{Decode, Sink};
use crate::layout::groups::{
    Field, GroupScales, Interleaved, Rewrite, Unit, UnpackGroup, field, group_bit_pairs, set_group_scales,
};
use crate::layout::runs::{Scales, Unpack, set_scales};
use crate::simd::{IntSimd, Simd};

/// A block of 256 values `d * (t - 1)` with ternary digits `t`.
///
/// A byte represents the base-3 fraction 0.t0t1t2t3t4, rounded up to a multiple of 1/256. The block has three
/// parts: 32 bytes of `qs` for 160 values, 16 for 80, and `qh` for 16 (four digits per byte). Digit `t` of
/// byte `j` of a part is value `t * (bytes of the part) + j` of that part.
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub struct BlockTQ1_0 {
    qs: [u8; 48],
    qh: [u8; 4],
    d: Half,
}
const _: () = assert!(size_of::<BlockTQ1_0>() == 54);

/// Number of digits per byte.
const DIGITS: usize = 5;

/// 3 to the power of [`DIGITS`].
const POWER: u32 = 243;

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
                    // Multiplying by powers of 3 shifts digits out of the byte. The next digit is the integer
                    // part of 3 times the remaining fraction.
                    let digit = (u16::from(b.wrapping_mul(power)) * 3) >> 8;
                    *v = (f32::from(digit) - 1.0) * d;
                }
                power = power.wrapping_mul(3);
            }
        }
    }
}

/// A block with 2 bits per value, which is unpacked in far fewer instructions than base-3 digits. It has the size of a
/// TQ2_0 block.
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct PairBlock {
    d: Half,
    /// Digits of each 32 values, in the order of [`group_bit_pairs`].
    digits: [[u8; 8]; 8],
}

impl BlockTQ1_0 {
    /// Returns the three parts of a block, each with the index of its first value.
    fn parts(&self) -> [(&[u8], usize); 3] {
        [(&self.qs[..32], 0), (&self.qs[32..], 160), (&self.qh, 240)]
    }

    fn to_pairs(self) -> PairBlock {
        let mut digits = [0u8; 256];
        for (bytes, first) in self.parts() {
            let mut rest = [0; 32];
            let rest = &mut rest[..bytes.len()];
            rest.copy_from_slice(bytes);
            for digits in digits[first..].chunks_exact_mut(bytes.len()).take(DIGITS) {
                for (digit, rest) in digits.iter_mut().zip(rest.iter_mut()) {
                    let three = u16::from(*rest) * 3;
                    (*digit, *rest) = ((three >> 8) as u8, three as u8);
                }
            }
        }
        let words: [[u64; 4]; 8] = bytemuck::cast(digits);
        PairBlock {
            d: self.d,
            digits: words.map(|[a, b, c, d]| (a | b << 2 | c << 4 | d << 6).to_le_bytes()),
        }
    }

    /// Converts back to base-3 digits; the inverse of [`to_pairs`](BlockTQ1_0::to_pairs). If several bytes
    /// represent the same digits, the result is the one that encoders write.
    fn from_pairs(pairs: &PairBlock) -> BlockTQ1_0 {
        let words = pairs.digits.map(|run| {
            let pairs = u64::from_le_bytes(run);
            [0, 2, 4, 6].map(|at| pairs >> at & 0x0303_0303_0303_0303)
        });
        let digits: [u8; 256] = bytemuck::cast(words);
        Self::from_digits(pairs.d, &digits)
    }

    /// Packs digits to base 3.
    #[inline(always)]
    fn from_digits(d: Half, digits: &[u8]) -> BlockTQ1_0 {
        let mut block = BlockTQ1_0 {
            qs: [0; 48],
            qh: [0; 4],
            d,
        };
        let (first, second) = block.qs.split_at_mut(32);
        first.copy_from_slice(&pack::<32>(&digits[..160]));
        second.copy_from_slice(&pack::<16>(&digits[160..240]));
        block.qh = pack(&digits[240..]);
        block
    }

    /// Returns the bytes whose first digits are values `32 i..32 i + 32` of the last 96 values. These are five digits
    /// of 16 bytes of `qs`, then four of `qh`.
    #[inline(always)]
    fn last_digits(&self, i: usize) -> [u64; 4] {
        let [.., first, second] = bytemuck::cast::<_, [[u8; 8]; 6]>(self.qs).map(u64::from_le_bytes);
        let digits = |n: usize| [first, second].map(|bytes| (0..n).fold(bytes, |bytes, _| next_digits(bytes)));
        let [a, b] = digits(2 * i);
        let [c, d] = if i < 2 { digits(2 * i + 1) } else { self.qh_digits() };
        [a, b, c, d]
    }

    /// Returns the bytes whose first digits are the last 16 values.
    #[inline(always)]
    fn qh_digits(&self) -> [u64; 2] {
        let q0 = u64::from(u32::from_le_bytes(self.qh));
        let q1 = next_digits(q0);
        let q2 = next_digits(q1);
        [q0 | q1 << 32, q2 | next_digits(q2) << 32]
    }
}

/// Packs runs of `N` digits: byte `j` holds digit `j` of each run. Missing runs are zero.
#[inline(always)]
fn pack<const N: usize>(digits: &[u8]) -> [u8; N] {
    let mut numbers = [0u16; N];
    for t in 0..DIGITS {
        let run = digits.get(t * N..(t + 1) * N).unwrap_or(&[0; N]);
        for (number, digit) in numbers.iter_mut().zip(run) {
            *number = 3 * *number + u16::from(*digit);
        }
    }
    let mut bytes = [0; N];
    for (byte, number) in bytes.iter_mut().zip(numbers) {
        *byte = (number * 256).div_ceil(POWER as u16) as u8;
    }
    bytes
}

/// Multiplies every byte of the word by 3 modulo 256, which shifts out the first digit.
#[inline(always)]
fn next_digits(bytes: u64) -> u64 {
    const EVEN: u64 = 0x00ff_00ff_00ff_00ff;
    (((bytes & EVEN) * 3) & EVEN) | ((((bytes >> 8) & EVEN) * 3) & EVEN) << 8
}

impl FromScale for BlockTQ1_0 {
    #[inline(always)]
    fn from_scale(d: Half, q: &[u8]) -> Self {
        Self::from_digits(d, q)
    }
}

impl<V: Simd> Decode<V> for BlockTQ1_0 {
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        // SAFETY: `p` is valid for a block (trait contract), and all offsets are within it.
        unsafe {
            let d = V::splat_f16(p.add(offset_of!(Self, d)));
            let one = V::splat(1.0);
            for (run, run_len, first) in [(0, 32, 0), (32, 16, 160)] {
                for at in (0..run_len).step_by(V::LANES) {
                    let mut bytes = V::load_u8(p.add(offset_of!(Self, qs) + run + at));
                    for t in 0..5 {
                        // The digit is the carry of 3 times the byte; the low byte holds the next digits.
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
    const ZERO: u8 = 1;

    #[inline(always)]
    unsafe fn scales(p: *const u8, _: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the chunk's blocks (trait contract), and all offsets are within a block.
        unsafe { set_scales(V::Float::splat_f16(p.add(offset_of!(Self, d))), 1.0, to) }
    }

    #[inline(always)]
    unsafe fn values(p: *const u8, i: usize) -> V {
        // SAFETY: `p` is valid for the block of run `i` (trait contract), and all offsets are within it.
        unsafe {
            let bytes = if i < 5 {
                let bytes = V::load(p.add(offset_of!(Self, qs)));
                (0..i).fold(bytes, |bytes, _| bytes.add(bytes).add(bytes))
            } else {
                V::from_words((*p.cast::<Self>()).last_digits(i - 5))
            };
            // The first digit is 1 for bytes of at least 86 (a third of 256, rounded up), and 2 for bytes of at least
            // 171.
            let digits = V::splat(0).sub(bytes.at_least(V::splat(86)));
            digits.sub(bytes.at_least(V::splat(171)))
        }
    }
}

impl Interleaved for BlockTQ1_0 {
    const FIELDS: &'static [Field] = &[field(2, Unit::Two), field(64, Unit::Four)];

    const REWRITE: Option<Rewrite> = Some(Rewrite {
        to_group: |block, to| {
            let pairs = bytemuck::from_bytes::<Self>(block).to_pairs();
            to.copy_from_slice(bytemuck::bytes_of(&pairs));
        },
        to_file: |block, to| {
            let block = Self::from_pairs(bytemuck::from_bytes(block));
            to.copy_from_slice(bytemuck::bytes_of(&block));
        },
    });
}

impl<V: IntSimd> UnpackGroup<V> for BlockTQ1_0 {
    #[inline(always)]
    unsafe fn group_scales(p: *const u8, runs: usize, to: *mut GroupScales) {
        // SAFETY: `p` is valid for the chunk's blocks of a row group (trait contract), and all offsets are
        // within a block.
        unsafe { set_group_scales::<V::Float, Self>(p, offset_of!(PairBlock, d), runs, to) }
    }

    #[inline(always)]
    unsafe fn group_values(p: *const u8, i: usize, j: usize) -> V {
        // SAFETY: `p` is valid for the row group's block of run `i` (trait contract), and offsets of the
        // rewritten block are within it.
        unsafe { group_bit_pairs(p, offset_of!(PairBlock, digits) + i * 8, j) }
    }
}
