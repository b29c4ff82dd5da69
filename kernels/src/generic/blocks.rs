//! Decoding of blocks to registers of floats, with sinks that store or multiply them.
//!
//! A single decoder per type serves all operations, because decoders only pass registers to a [`Sink`]:
//!
//! ```text
//! for block in row:
//!     w = decode(block)            # register by register
//!     sink.put(at, w)              # Store: out[at] = w
//!                                  # Dot:   sum += w * x[at]
//!     sink.advance(block size)
//! ```

use crate::quants::{Block, Quantize};
use crate::simd::Simd;

/// Receiver of the decoded weights of a row, register by register.
///
/// # Safety
/// Callers of the unsafe functions guarantee that `at` (relative to the current position) plus the number of
/// elements does not exceed the elements for which the sink was created.
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

/// Returns the size in bytes of `n` elements, a multiple of the block size.
#[inline(always)]
pub(crate) const fn bytes_of<B: Block>(n: usize) -> usize {
    n / B::TYPE.block_size() * B::TYPE.block_bytes()
}

/// Encodes `n` elements of `x`, whole blocks.
///
/// # Safety
/// - The CPU supports `V`.
/// - `x` is valid for reads of `n` floats, and `out` for writes of their blocks.
#[inline(always)]
pub(crate) unsafe fn quantize<V: Simd, E: Encode<V>>(x: *const f32, out: *mut u8, n: usize) {
    // SAFETY: the caller upholds the contract of `Encode::encode`.
    unsafe { E::encode(x, out, n) }
}

/// Implements [`Decode`] for a type without blocks, given the expression that loads a register.
macro_rules! decode_plain {
    ($block:ty, $load:expr) => {
        impl<V: $crate::simd::Simd> $crate::generic::blocks::Decode<V> for $block {
            const STEP: usize = 4 * V::LANES;

            #[inline(always)]
            unsafe fn decode<S: $crate::generic::blocks::Sink<V>>(p: *const u8, sink: &mut S) {
                // SAFETY: `p` is valid for `STEP` elements, and the sink accepts them (function contract).
                unsafe {
                    for at in [0, V::LANES, 2 * V::LANES, 3 * V::LANES] {
                        sink.put(at, $load(p.add(at * size_of::<$block>())));
                    }
                }
            }

            #[inline(always)]
            unsafe fn decode_rest<S: $crate::generic::blocks::Sink<V>>(p: *const u8, n: usize, sink: &mut S) {
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

/// Passes a row of `n` elements to `sink` and advances it.
macro_rules! decode_row {
    ($D:ty, $V:ty, $p:expr, $n:expr, $sink:ident) => {{
        let (step, n) = (<$D as Decode<$V>>::STEP, $n);
        let mut p: *const u8 = $p;
        for _ in 0..n / step {
            <$D as Decode<$V>>::decode(p, &mut $sink);
            $sink.advance(step);
            p = p.add(bytes_of::<$D>(step));
        }
        if n % step != 0 {
            <$D as Decode<$V>>::decode_rest(p, n % step, &mut $sink);
        }
    }};
}

/// Sink that writes dequantized weights to memory.
struct Store(*mut f32);

impl Store {
    #[inline(always)]
    unsafe fn advance(&mut self, n: usize) {
        // SAFETY: the sink was created for at least `n` more elements.
        self.0 = unsafe { self.0.add(n) };
    }
}

impl<V: Simd> Sink<V> for Store {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, weights: V) {
        // SAFETY: `at + LANES` elements fit the sink (function contract).
        unsafe { weights.store(self.0.add(at)) }
    }

    #[inline(always)]
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V) {
        // SAFETY: `at + n` elements fit the sink (function contract).
        unsafe { weights.store_partial(self.0.add(at), n) }
    }
}

/// Decodes `n` elements, whole blocks, at `p` into `out`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` is valid for reads of the blocks of `n` elements, and `out` for writes of `n` floats.
#[inline(always)]
pub(crate) unsafe fn dequantize<V: Simd, D: Decode<V>>(p: *const u8, out: *mut f32, n: usize) {
    let mut sink = Store(out);
    // SAFETY: `p` holds `n` elements, and `out` has `n` floats (function contract).
    unsafe { decode_row!(D, V, p, n, sink) }
}

/// Sink that computes the dot product of weights and activations. Two alternating sums hide the latency of
/// additions.
#[derive(Clone, Copy)]
pub(super) struct Dot<V> {
    x: *const f32,
    sums: [V; 2],
}

impl<V: Simd> Dot<V> {
    /// # Safety
    /// - The CPU supports `V`.
    /// - `x` is valid for reads of as many floats as the sink will receive.
    #[inline(always)]
    pub(super) unsafe fn new(x: *const f32) -> Self {
        // SAFETY: the CPU supports `V` (function contract).
        let zero = unsafe { V::splat(0.0) };
        Dot { x, sums: [zero; 2] }
    }

    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, n: usize) {
        // SAFETY: the sink was created for at least `n` more elements.
        self.x = unsafe { self.x.add(n) };
    }

    /// Swaps the two sums instead of indexing them, which would force them into memory in loops that are not
    /// unrolled.
    #[inline(always)]
    fn add(&mut self, weights: V, x: V) {
        let [next, last] = self.sums;
        self.sums = [last, weights.mul_add(x, next)];
    }

    #[inline(always)]
    pub(super) fn total(self) -> V {
        self.sums[0].add(self.sums[1])
    }
}

impl<V: Simd> Sink<V> for Dot<V> {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, weights: V) {
        // SAFETY: `x` has at least `at + LANES` more floats (contract of the sink).
        self.add(weights, unsafe { V::load(self.x.add(at)) });
    }

    #[inline(always)]
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V) {
        // SAFETY: `x` has at least `at + n` more floats (contract of the sink).
        self.add(weights, unsafe { V::load_partial(self.x.add(at), n) });
    }
}
