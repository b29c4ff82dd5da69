//! Blocks to registers of floats, and what is done with those: stored, multiplied with activations, or added up.

use crate::quants::{Block, Quantize};
use crate::simd::Simd;

/// Takes the decoded weights of a row, register by register. Because a decoder only knows its sink, one decoder per type serves
/// dequantization, dot products and weighted sums.
///
/// # Safety
/// `at` counts elements from the sink's current position; the sink must have been made for at least that many.
pub(crate) trait Sink<V: Simd> {
    /// Elements `at..at + LANES`. `at` is a constant once everything is inlined.
    unsafe fn put(&mut self, at: usize, weights: V);

    /// Elements `at..at + n`, `n < LANES`; further lanes are zero.
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V);
}

/// Decodes blocks with `V`'s instructions to the same bits as [`Block::dequantize`].
///
/// # Safety
/// The CPU has `V`'s instructions, `p` is valid for the bytes of what is decoded, and the sink for its elements.
pub(crate) trait Decode<V: Simd>: Block {
    /// Elements that one call of `decode` yields: a multiple of the block's.
    const STEP: usize = Self::TYPE.block_size();

    /// Decodes `STEP` elements at `p`. The default, for rare types, decodes with scalar code to memory and loads from there.
    #[inline(always)]
    unsafe fn decode<S: Sink<V>>(p: *const u8, sink: &mut S) {
        let mut weights = [0.0f32; 256];
        // SAFETY: the caller's promise; blocks have alignment 1, and every block size is a multiple of `LANES`.
        unsafe {
            (*p.cast::<Self>()).dequantize(&mut weights[..Self::STEP]);
            for at in (0..Self::STEP).step_by(V::LANES) {
                sink.put(at, V::load(weights.as_ptr().add(at)));
            }
        }
    }

    /// Decodes the last `n < STEP` elements of a row at `p`; only types whose step is more than a block have such.
    #[inline(always)]
    unsafe fn decode_rest<S: Sink<V>>(p: *const u8, n: usize, sink: &mut S) {
        let _ = (p, n, sink);
    }
}

/// Encodes floats as blocks with `V`'s instructions.
///
/// # Safety
/// The CPU has `V`'s instructions, `x` is valid for the elements and `out` for the bytes of what is encoded.
pub(crate) trait Encode<V: Simd>: Quantize {
    /// Encodes `n` elements, a multiple of the block's. The default is scalar.
    #[inline(always)]
    unsafe fn encode(x: *const f32, out: *mut u8, n: usize) {
        let size = Self::TYPE.block_size();
        for i in 0..n / size {
            // SAFETY: the caller's promise; blocks have alignment 1.
            unsafe {
                let x = std::slice::from_raw_parts(x.add(i * size), size);
                *out.cast::<Self>().add(i) = Self::quantize(x);
            }
        }
    }
}

/// Bytes of `n` elements, a multiple of the block size.
#[inline(always)]
pub(crate) const fn bytes_of<B: Block>(n: usize) -> usize {
    n / B::TYPE.block_size() * B::TYPE.block_bytes()
}

/// Encodes `n` elements (whole blocks) of `x`.
///
/// # Safety
/// As for [`Encode`].
#[inline(always)]
pub(crate) unsafe fn quantize<V: Simd, E: Encode<V>>(x: *const f32, out: *mut u8, n: usize) {
    // SAFETY: the caller's promise.
    unsafe { E::encode(x, out, n) }
}

/// Defines [`Decode`] for a type without blocks, given how a register of it is loaded.
macro_rules! decode_plain {
    ($block:ty, $load:expr) => {
        impl<V: $crate::simd::Simd> $crate::generic::blocks::Decode<V> for $block {
            const STEP: usize = 4 * V::LANES;

            #[inline(always)]
            unsafe fn decode<S: $crate::generic::blocks::Sink<V>>(p: *const u8, sink: &mut S) {
                // SAFETY: the caller's promise.
                unsafe {
                    for at in [0, V::LANES, 2 * V::LANES, 3 * V::LANES] {
                        sink.put(at, $load(p.add(at * size_of::<$block>())));
                    }
                }
            }

            #[inline(always)]
            unsafe fn decode_rest<S: $crate::generic::blocks::Sink<V>>(p: *const u8, n: usize, sink: &mut S) {
                // SAFETY: the caller's promise; the last, partial register is read by way of a copy.
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

/// Feeds a row of `n` elements to `sink`, which is moved along by `advance`.
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

/// Writes weights to memory.
struct Store(*mut f32);

impl Store {
    #[inline(always)]
    unsafe fn advance(&mut self, n: usize) {
        // SAFETY: the sink was made for at least that many elements.
        self.0 = unsafe { self.0.add(n) };
    }
}

impl<V: Simd> Sink<V> for Store {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, weights: V) {
        // SAFETY: the caller's promise.
        unsafe { weights.store(self.0.add(at)) }
    }

    #[inline(always)]
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V) {
        // SAFETY: the caller's promise.
        unsafe { weights.store_partial(self.0.add(at), n) }
    }
}

/// Decodes `n` elements (whole blocks) at `p` into `out`.
///
/// # Safety
/// As for [`Decode`]; `out` is valid for `n` floats.
#[inline(always)]
pub(crate) unsafe fn dequantize<V: Simd, D: Decode<V>>(p: *const u8, out: *mut f32, n: usize) {
    let mut sink = Store(out);
    // SAFETY: the caller's promise.
    unsafe { decode_row!(D, V, p, n, sink) }
}

/// Adds weights times a factor to memory.
struct AddTo<V> {
    y: *mut f32,
    factor: V,
}

impl<V> AddTo<V> {
    #[inline(always)]
    unsafe fn advance(&mut self, n: usize) {
        // SAFETY: the sink was made for at least that many elements.
        self.y = unsafe { self.y.add(n) };
    }
}

impl<V: Simd> Sink<V> for AddTo<V> {
    #[inline(always)]
    unsafe fn put(&mut self, at: usize, weights: V) {
        // SAFETY: the caller's promise.
        unsafe {
            weights
                .mul_add(self.factor, V::load(self.y.add(at)))
                .store(self.y.add(at))
        }
    }

    #[inline(always)]
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V) {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = weights.mul_add(self.factor, V::load_partial(self.y.add(at), n));
            sum.store_partial(self.y.add(at), n);
        }
    }
}

/// `y[i] += a w[i]` for the `n` elements (whole blocks) at `p`.
///
/// # Safety
/// As for [`Decode`]; `y` is valid for `n` floats.
#[inline(always)]
pub(crate) unsafe fn axpy<V: Simd, D: Decode<V>>(a: f32, p: *const u8, y: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sink = AddTo { y, factor: V::splat(a) };
        decode_row!(D, V, p, n, sink)
    }
}

/// Multiplies weights with activations and adds up. Two sums, so that additions overlap.
#[derive(Clone, Copy)]
pub(super) struct Dot<V> {
    x: *const f32,
    sums: [V; 2],
}

impl<V: Simd> Dot<V> {
    /// # Safety
    /// The CPU has `V`'s instructions; `x` is valid for as many floats as weights will be put.
    #[inline(always)]
    pub(super) unsafe fn new(x: *const f32) -> Self {
        // SAFETY: the caller's promise.
        let zero = unsafe { V::splat(0.0) };
        Dot { x, sums: [zero; 2] }
    }

    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, n: usize) {
        // SAFETY: the sink was made for at least that many elements.
        self.x = unsafe { self.x.add(n) };
    }

    /// The two sums alternate. They are not chosen by index, which would force them into memory wherever a loop stays rolled.
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
        // SAFETY: the caller's promise.
        self.add(weights, unsafe { V::load(self.x.add(at)) });
    }

    #[inline(always)]
    unsafe fn put_partial(&mut self, at: usize, n: usize, weights: V) {
        // SAFETY: the caller's promise.
        self.add(weights, unsafe { V::load_partial(self.x.add(at), n) });
    }
}

/// `sum_i w[i] x[i]` for the `n` elements (whole blocks) at `p`.
///
/// # Safety
/// As for [`Decode`]; `x` is valid for `n` floats.
#[inline(always)]
pub(crate) unsafe fn dot<V: Simd, D: Decode<V>>(p: *const u8, x: *const f32, n: usize) -> f32 {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sink = Dot::<V>::new(x);
        decode_row!(D, V, p, n, sink);
        sink.total().sum()
    }
}
