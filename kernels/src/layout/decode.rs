//! Decoding of blocks to registers of floats.
//!
//! A decoder passes each register to a [`Sink`], which stores it, multiplies it, or adds it to something. One
//! decoder per type therefore serves dequantization, dot products, and matmuls.

use super::block::{Block, Quantize};
use crate::simd::Simd;

/// Receiver of the decoded weights of a row, register by register.
///
/// # Safety
/// Callers of the unsafe functions guarantee that `at` plus the number of elements does not exceed the number of
/// elements of the sink. `at` is relative to the current position.
pub(crate) trait Sink<V: Simd> {
    /// Receives elements `at..at + LANES`. `at` is a constant after inlining.
    unsafe fn put(&mut self, at: usize, weights: V);

    /// Receives elements `at..at + n` with `n < LANES`. The other lanes are zero.
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V);
}

/// A block type that decodes with `V`'s instructions to the same bits as [`Block::dequantize`].
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports `V`.
/// - `p` is valid for reads of the decoded blocks.
/// - The sink accepts as many elements.
pub(crate) trait Decode<V: Simd>: Block {
    /// Elements per call of `decode`, a multiple of the block size.
    const STEP: usize = Self::TYPE.block_size();

    /// Decodes `STEP` elements at `p`. The default implementation, for rare types, decodes to memory with
    /// scalar code.
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        let mut weights = [0.0f32; 256];
        // SAFETY: `p` is valid for a block, which has alignment 1 (function contract). Every block size is a
        // multiple of `LANES`.
        unsafe {
            (*p.cast::<Self>()).dequantize(&mut weights[..Self::STEP]);
            for at in (0..Self::STEP).step_by(V::LANES) {
                sink.put(at, V::load(weights.as_ptr().add(at)));
            }
        }
    }

    /// Decodes the last `n < STEP` elements of a row. Only types with several blocks per step need this.
    #[inline(always)]
    unsafe fn decode_rest<S: Sink<V>>(p: *const u8, n: usize, sink: &mut S) {
        let _ = (p, n, sink);
    }
}

/// A block type that encodes floats with `V`'s instructions.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports `V`.
/// - `x` is valid for reads of the elements, and `out` for writes of their blocks.
pub(crate) trait Encode<V: Simd>: Quantize {
    /// Encodes `n` elements, a multiple of the block size. The default implementation is scalar.
    #[inline(always)]
    unsafe fn encode(x: *const f32, out: *mut u8, n: usize) {
        let size = Self::TYPE.block_size();
        for i in 0..n / size {
            // SAFETY: `x` has `n` elements and `out` their blocks, which have alignment 1 (function
            // contract).
            unsafe {
                let x = std::slice::from_raw_parts(x.add(i * size), size);
                *out.cast::<Self>().add(i) = Self::quantize(x);
            }
        }
    }
}

/// Implements [`Decode`] for a type without blocks, given the expression that loads a register.
macro_rules! decode_plain {
    ($block:ty, $load:expr) => {
        impl<V: $crate::simd::Simd> $crate::layout::decode::Decode<V> for $block {
            const STEP: usize = 4 * V::LANES;

            #[inline(always)]
            unsafe fn decode<S: $crate::layout::decode::Sink<V>>(p: *const u8, sink: &mut S) {
                // SAFETY: `p` is valid for `STEP` elements, and the sink accepts them (function contract).
                unsafe {
                    for at in [0, V::LANES, 2 * V::LANES, 3 * V::LANES] {
                        sink.put(at, $load(p.add(at * size_of::<$block>())));
                    }
                }
            }

            #[inline(always)]
            unsafe fn decode_rest<S: $crate::layout::decode::Sink<V>>(p: *const u8, n: usize, sink: &mut S) {
                // SAFETY: `p` is valid for `n` elements (function contract); a partial register is read
                // through a copy.
                unsafe {
                    for at in [0, V::LANES, 2 * V::LANES, 3 * V::LANES] {
                        let p = p.add(at * size_of::<$block>());
                        if at + V::LANES <= n {
                            sink.put(at, $load(p));
                        } else if at < n {
                            let mut copy = [0u8; 64];
                            p.copy_to_nonoverlapping(copy.as_mut_ptr(), (n - at) * size_of::<$block>());
                            sink.put_partial(at, n - at, $load(copy.as_ptr()));
                        }
                    }
                }
            }
        }
    };
}
pub(crate) use decode_plain;
