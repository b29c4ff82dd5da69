//! Rows of weights as in a file times one column, in registers twice as long as those that weights are unpacked in: two neighbouring runs of a row at a time. The same bits as
//! those of [`int_products`](super::int_products), whose two sums of a row, which take turns, are the halves of one register here.

use super::blocks::bytes_of;
use super::int_products::{IntProduct, STREAMS, chunk, each_of_8, finish, mins_of, prefetch, times_mins};
use super::integers::{CHUNK, I16Chunk, RUN, RUNS, Scales, Unpack};
use super::pack::SIGN;
use super::streams::Streams;
use crate::simd::dots::DoubleWidth;
use crate::simd::{IntSimd, Simd};

/// Bytes by which each stream is prefetched.
const AHEAD: usize = 2048;

/// Pairs of runs in a chunk.
const PAIRS: usize = RUNS / 2;

/// Lanes of a pair: one for each 4 weights.
const LANES: usize = 2 * RUN / 4;

/// For each lane of a pair, which of [`Scales::scales`] it takes: those of whole runs, those of halves.
const PLACES: [[[i32; LANES]; PAIRS]; 2] = {
    let mut places = [[[0; LANES]; PAIRS]; 2];
    let mut at = 0;
    while at < PAIRS * LANES {
        let (pair, lane) = (at / LANES, at % LANES);
        let (run, half) = (2 * pair + lane / (LANES / 2), lane / (LANES / 4) % 2);
        places[0][pair][lane] = run as i32;
        places[1][pair][lane] = (half * RUNS + run) as i32;
        at += 1;
    }
    places
};

/// Multiplies: weights are unpacked in registers and never stored.
///
/// # Safety
/// The CPU has the instructions of `V` and `W`, and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn matvec<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>(p: &IntProduct) {
    let streams = Streams::<STREAMS>::new(p.m);
    let whole = p.k / CHUNK * CHUNK;
    let mut scales: [Scales; STREAMS] = Default::default();
    for i in 0..streams.turns() {
        // SAFETY: the caller's promise; rows lie below `m`, chunks below `k`.
        unsafe {
            let mut w = streams.rows(p.w, p.row_stride, i);
            let mut sums = [V::Float::splat(0.0); STREAMS];
            for c in (0..whole).step_by(CHUNK) {
                let x = Columns::<W>::new::<V, D>(chunk(p.x, c));
                // All scales first: they take long to compute, which the work on other rows hides.
                for s in 0..STREAMS {
                    prefetch::<V, D, AHEAD>(w[s]);
                    D::scales(w[s], RUNS, &mut scales[s]);
                }
                // They are to be read from memory where they are used.
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

/// Adds the product of a whole chunk of a row to the row's sums.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_chunk<V: IntSimd, W: DoubleWidth<V>, D: Unpack<V>>(
    w: *const u8,
    scales: &Scales,
    x: &Columns<W>,
    sum: V::Float,
) -> V::Float {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = W::join_floats(sum, times_mins::<V>(D::HAS_MINS, mins_of::<V, D>(scales), x.chunk));
        let scales = W::Float::load(scales.scales.as_flattened().as_ptr());
        each_of_8!(V, i => {
            if i % 2 == 0 {
                let values = W::join(D::values(w, i), D::values(w, i + 1));
                let unsigned = if D::SIGNED { values.xor(W::broadcast([SIGN; 4].as_ptr())) } else { values };
                let total = add_products(x.starts[i / 2], unsigned, x.parts[i / 2]);
                let scales = W::permute(scales, &PLACES[usize::from(D::BY_16)][i / 2]);
                sums = total.floats().mul_add(scales, sums);
            }
        });
        let [first, second] = W::split_floats(sums);
        first.add(second)
    }
}

/// Adds the products of unsigned weights with both parts of a pair's activations: exact sums.
///
/// # Safety
/// The CPU has `W`'s instructions.
#[inline(always)]
unsafe fn add_products<V: IntSimd, W: DoubleWidth<V>>(start: W, w: W, [low, high]: [W; 2]) -> W {
    // SAFETY: the caller's promise.
    unsafe { start.add_dots(w, low).add32(W::zero().add_dots(w, high).shl32(8)) }
}

/// A chunk of activations as all rows want it.
struct Columns<W> {
    chunk: *const I16Chunk,
    /// The low and the high parts of each pair.
    parts: [[W; 2]; PAIRS],
    /// What the sums of pairs start at: where signed weights are multiplied as unsigned ones so much less as [`SIGN`] adds to them, else 0.
    starts: [W; PAIRS],
}

impl<W> Columns<W> {
    /// # Safety
    /// The CPU has the instructions of `V` and `W`, and there is a chunk at `x`.
    #[inline(always)]
    unsafe fn new<V: IntSimd, D: Unpack<V>>(x: *const I16Chunk) -> Columns<W>
    where
        W: DoubleWidth<V>,
    {
        // SAFETY: the caller's promise.
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
