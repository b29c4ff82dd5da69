//! Matrix-vector product of weights in file layout in 512-bit registers, with the same bits as
//! [`int_products`](super::int_products).
//!
//! A register holds two adjacent runs of a row. Its halves are the two alternating sums that `int_products`
//! keeps in separate registers:
//!
//! ```text
//! zmm =  | run 2p: w[0..4] w[4..8] .. w[28..32] | run 2p+1: w[0..4] .. w[28..32] |
//!
//! for step in streams:                      # 4 rows, each from its own stream
//!     for chunk in row:
//!         x = columns(chunk)                # low and high bytes of each pair, shared by the 4 rows
//!         for row in 0..4:
//!             for pair p in 0..4:
//!                 total = dot4(zmm, x.low[p]) + 256 * dot4(zmm, x.high[p]) + start[p]
//!                 sums += f32(total) * permute(scales, p)
//! ```

use super::int_products::{IntProduct, STREAMS, chunk, each_of_8, finish, mins_of, prefetch, times_mins};
use super::integers::I16Chunk;
use super::pack::SIGN;
use super::streams::Streams;
use crate::layout::block::bytes_of;
use crate::layout::runs::{CHUNK, RUN, RUNS, Scales, Unpack};
use crate::simd::dots::DoubleWidth;
use crate::simd::{IntSimd, Simd};

/// Prefetch distance of each stream in bytes.
const PREFETCH_DISTANCE: usize = 2048;

/// Pairs of runs in a chunk.
const PAIRS: usize = RUNS / 2;

/// Lanes of a pair, one for each 4 weights.
const LANES: usize = 2 * RUN / 4;

/// Index into [`Scales::scales`] for each lane of each pair: first for types with one scale per run, then for
/// types with one per half run.
const SCALE_INDICES: [[[i32; LANES]; PAIRS]; 2] = {
    let mut indices = [[[0; LANES]; PAIRS]; 2];
    let mut at = 0;
    while at < PAIRS * LANES {
        let (pair, lane) = (at / LANES, at % LANES);
        let (run, half) = (2 * pair + lane / (LANES / 2), lane / (LANES / 4) % 2);
        indices[0][pair][lane] = run as i32;
        indices[1][pair][lane] = (half * RUNS + run) as i32;
        at += 1;
    }
    indices
};

/// Multiplies by one column. Weights are unpacked in registers and never stored.
///
/// # Safety
/// - The CPU supports `V` and `W`.
/// - `p` satisfies the invariants of [`IntProduct`].
#[inline(always)]
pub(crate) unsafe fn matvec<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>(p: &IntProduct) {
    let streams = Streams::<STREAMS>::new(p.m);
    let whole = p.k / CHUNK * CHUNK;
    let mut scales: [Scales; STREAMS] = Default::default();
    for i in 0..streams.n_steps() {
        // SAFETY: `streams.rows` yields rows below `m`, and `c + CHUNK <= k`.
        unsafe {
            let mut w = streams.rows(p.w, p.row_stride, i);
            let mut sums = [V::Float::splat(0.0); STREAMS];
            for c in (0..whole).step_by(CHUNK) {
                let x = Columns::<W>::new::<V, D>(chunk(p.x, c));
                // Compute all scales first. Their latency is hidden by the work on other rows.
                for s in 0..STREAMS {
                    prefetch::<V, PREFETCH_DISTANCE>(w[s], bytes_of::<D>(CHUNK));
                    D::scales(w[s], RUNS, &mut scales[s]);
                }
                // Force each scale to be read from memory at its use.
                let scales = std::hint::black_box(&scales);
                for s in 0..STREAMS {
                    sums[s] = add_chunk::<V, W, D>(w[s], &scales[s], &x, sums[s]);
                    w[s] = w[s].wrapping_add(bytes_of::<D>(CHUNK));
                }
            }
            finish::<V, D>(p, &streams, i, w, sums);
        }
    }
}

/// Adds the product of a whole chunk of a row to `sum`.
///
/// # Safety
/// - The CPU supports `V` and `W`.
/// - `w` is valid for reads of a whole chunk.
#[inline(always)]
unsafe fn add_chunk<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>(
    w: *const u8,
    scales: &Scales,
    x: &Columns<W>,
    sum: V::Float,
) -> V::Float {
    // SAFETY: runs `i` and `i + 1` are readable at `w` (function contract).
    unsafe {
        let mut sums = W::join_floats(sum, times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(scales), x.chunk));
        let scales = W::Float::load(scales.scales.as_flattened().as_ptr());
        each_of_8!(V, i => {
            if i % 2 == 0 {
                let values = W::join(D::values(w, i), D::values(w, i + 1));
                let unsigned = if D::SIGNED { values.xor(W::broadcast([SIGN; 4].as_ptr())) } else { values };
                let total = add_products(x.starts[i / 2], unsigned, x.parts[i / 2]);
                let scales = W::permute(scales, &SCALE_INDICES[usize::from(D::BY_16)][i / 2]);
                sums = total.floats().mul_add(scales, sums);
            }
        });
        let [first, second] = W::split_floats(sums);
        first.add(second)
    }
}

/// Adds the exact products of unsigned weights with the low and high bytes of a pair of runs.
///
/// # Safety
/// The CPU supports `W`.
#[inline(always)]
unsafe fn add_products<V: IntSimd, W: DoubleWidth<V>>(start: W, w: W, [low, high]: [W; 2]) -> W {
    // SAFETY: the CPU supports `W` (function contract).
    unsafe { start.add_dots(w, low).add32(W::zero().add_dots(w, high).shl32(8)) }
}

/// A chunk of activations, prepared for all rows.
struct Columns<W> {
    chunk: *const I16Chunk,
    /// Low and high bytes of each pair of runs.
    parts: [[W; 2]; PAIRS],
    /// Initial values of the sums of each pair. For signed weights, which are multiplied as unsigned bytes,
    /// this subtracts the contribution of [`SIGN`]; otherwise it is 0.
    starts: [W; PAIRS],
}

impl<W> Columns<W> {
    /// # Safety
    /// - The CPU supports `V` and `W`.
    /// - `x` is valid for reads.
    #[inline(always)]
    unsafe fn new<V: IntSimd, D: Unpack<V>>(x: *const I16Chunk) -> Columns<W>
    where
        W: DoubleWidth<V>,
    {
        // SAFETY: `x` is valid for reads, and each part of a run has 32 bytes.
        unsafe {
            let mut parts = [[W::zero(); 2]; PAIRS];
            let mut starts = [W::zero(); PAIRS];
            for pair in 0..PAIRS {
                for part in 0..2 {
                    let [first, second] = [2 * pair, 2 * pair + 1].map(|run| (&raw const (*x).parts[run][part]).cast());
                    parts[pair][part] = W::join(V::load(first), V::load(second));
                }
                if D::SIGNED {
                    let sign = W::broadcast([SIGN; 4].as_ptr());
                    starts[pair] = W::zero().sub32(add_products(W::zero(), sign, parts[pair]));
                }
            }
            Columns {
                chunk: x,
                parts,
                starts,
            }
        }
    }
}
