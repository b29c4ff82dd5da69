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

use crate::layout::block::bytes_of;
use crate::layout::decode::{Decode, Encode, Sink};
use crate::simd::Simd;

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
