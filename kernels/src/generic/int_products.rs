//! Products of weights as integers with activations as integers: see [`Unpack`] and [`I16Chunk`].
//!
//! Sums within a run are exact. Those of runs are added up in f32, in an order that only depends on the length of a row: an element of
//! the result has the same bits whatever other rows and columns are computed with it.

use super::blocks::bytes_of;
use super::integers::{CHUNK, I16Chunk, I16Header, RUN, RUNS, Scales, Unpack};
use crate::simd::{IntSimd, Simd};

/// A chunk of a product with all it needs. See [`matmul`](crate::matmul()) for the meaning.
#[derive(Clone, Copy)]
pub(crate) struct IntProduct {
    pub w: *const u8,
    pub row_stride: usize,
    pub m: usize,
    pub k: usize,
    /// Rows as [`quantize_i16`](super::integers::quantize_i16) writes them, `x_stride` bytes apart.
    pub x: *const u8,
    pub x_stride: usize,
    pub n: usize,
    pub out: *mut f32,
    pub out_stride: usize,
}

/// Rows that are multiplied at a time: as many streams from memory, each of which goes through neighbouring rows.
const STREAMS: usize = 4;

/// Columns for which weights are unpacked once.
const COLUMNS: usize = 8;

/// Bytes by which each stream is prefetched.
const AHEAD: usize = 1024;

const LINE: usize = 64;

/// The rows of a product in the order in which they are computed, up to [`STREAMS`] at a time.
struct Streams {
    m: usize,
    rows: usize,
}

impl Streams {
    fn new(m: usize) -> Streams {
        Streams {
            m,
            rows: m.div_ceil(STREAMS),
        }
    }

    /// The row that stream `s` is at in turn `i`.
    #[inline(always)]
    fn row(&self, s: usize, i: usize) -> usize {
        s * self.rows + i
    }

    /// The number of streams that have a row in turn `i`.
    #[inline(always)]
    fn len(&self, i: usize) -> usize {
        (0..STREAMS).filter(|&s| self.row(s, i) < self.m).count()
    }
}

/// Does the body for each run of a whole chunk, whose number is then a constant.
macro_rules! each_run {
    ($i:ident => $body:block) => {
        each_run!(@ $i $body 0 1 2 3 4 5 6 7)
    };
    (@ $i:ident $body:block $($n:literal)*) => { $( { let $i = $n; $body } )* };
}

/// One column: weights are unpacked in registers and never stored.
///
/// # Safety
/// The CPU has `V`'s instructions and `p` keeps the contract of [`matmul`](crate::matmul()).
#[inline(always)]
pub(crate) unsafe fn matvec<V: IntSimd, D: Unpack<V>>(p: &IntProduct) {
    let streams = Streams::new(p.m);
    for i in 0..streams.rows {
        // SAFETY: the caller's promise; rows lie below `m`, chunks below `k`.
        unsafe {
            let n_streams = streams.len(i);
            let mut sums = [V::Float::splat(0.0); STREAMS];
            for c in (0..p.k).step_by(CHUNK) {
                let x = chunk(p.x, c);
                for (s, sum) in sums.iter_mut().enumerate().take(n_streams) {
                    let w = p.w.add(streams.row(s, i) * p.row_stride + bytes_of::<D>(c));
                    *sum = add_chunk::<V, D>(w, RUNS.min((p.k - c) / RUN), x, *sum);
                }
            }
            let totals = V::Float::sum4(sums);
            let scale = scale_of_row(p.x);
            for (s, total) in totals.into_iter().enumerate().take(n_streams) {
                *p.out.add(streams.row(s, i)) = scale * total;
            }
        }
    }
}

/// The scale of a row of activations.
///
/// # Safety
/// There is one at `x`.
#[inline(always)]
unsafe fn scale_of_row(x: *const u8) -> f32 {
    // SAFETY: the caller's promise.
    unsafe { x.cast::<I16Header>().read_unaligned().scale }
}

/// The chunk at element `c` of a row of activations.
///
/// # Safety
/// The row has that chunk.
#[inline(always)]
unsafe fn chunk(x: *const u8, c: usize) -> *const I16Chunk {
    // SAFETY: the caller's promise.
    unsafe { x.add(size_of::<I16Header>()).cast::<I16Chunk>().add(c / CHUNK) }
}

/// Adds the product of the first `runs` runs of a chunk to `sum`.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_chunk<V: IntSimd, D: Unpack<V>>(
    w: *const u8,
    runs: usize,
    x: *const I16Chunk,
    sum: V::Float,
) -> V::Float {
    let mut sum = sum;
    // SAFETY: the caller's promise.
    unsafe {
        prefetch::<V, D>(w);
        let mut scales = Scales::default();
        if runs == RUNS {
            D::scales(w, RUNS, &mut scales);
            let scales = std::hint::black_box(&scales);
            each_run!(i => {
                sum = add_run::<V>(widened::<V, D>(w, i), x, i, scale_of::<V, D>(scales, i), sum);
            });
            return add_mins::<V, D>(scales, x, sum);
        }
        D::scales(w, runs, &mut scales);
        for i in 0..runs {
            sum = add_run::<V>(widened::<V, D>(w, i), x, i, scale_of::<V, D>(&scales, i), sum);
        }
        add_mins::<V, D>(&scales, x, sum)
    }
}

/// Prefetches what follows a chunk.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn prefetch<V: IntSimd, D: Unpack<V>>(w: *const u8) {
    for line in 0..bytes_of::<D>(CHUNK).div_ceil(LINE) {
        // SAFETY: any address may be prefetched.
        unsafe { V::prefetch(w.wrapping_add(AHEAD + line * LINE)) };
    }
}

/// The integers of a run, of 16 bits.
///
/// # Safety
/// As for [`Unpack`].
#[inline(always)]
unsafe fn widened<V: IntSimd, D: Unpack<V>>(w: *const u8, i: usize) -> [V; 2] {
    // SAFETY: the caller's promise.
    let values = unsafe { D::values(w, i) };
    if D::SIGNED {
        values.widen_signed()
    } else {
        values.widen()
    }
}

/// The scale of a run in the lanes of the sums that it applies to.
///
/// # Safety
/// The CPU has `V`'s instructions.
#[inline(always)]
unsafe fn scale_of<V: IntSimd, D: Unpack<V>>(scales: &Scales, i: usize) -> V::Float {
    // SAFETY: the caller's promise.
    unsafe {
        if D::BY_16 {
            V::halves(scales.scales[0][i], scales.scales[1][i])
        } else {
            V::Float::splat(scales.scales[0][i])
        }
    }
}

/// Adds the product of run `i`: the sums in the low half of the lanes are those of the run's first 16 elements.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_run<V: IntSimd>(w: [V; 2], x: *const I16Chunk, i: usize, scale: V::Float, sum: V::Float) -> V::Float {
    // SAFETY: the caller's promise.
    unsafe {
        let x = (&raw const (*x).values[i]).cast::<u8>();
        let even = w[0].multiply_pairs(V::load(x));
        let odd = w[1].multiply_pairs(V::load(x.add(RUN)));
        even.add32(odd).to_floats().mul_add(scale, sum)
    }
}

/// Adds the minimums times the sums of activations.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn add_mins<V: IntSimd, D: Unpack<V>>(scales: &Scales, x: *const I16Chunk, sum: V::Float) -> V::Float {
    if !D::HAS_MINS {
        return sum;
    }
    // SAFETY: the caller's promise; 8 lanes each.
    unsafe {
        let sums = (&raw const (*x).sums).cast::<f32>();
        let first = V::Float::load(scales.mins[0].as_ptr());
        let second = if D::BY_16 {
            V::Float::load(scales.mins[1].as_ptr())
        } else {
            first
        };
        let sum = V::Float::load(sums).mul_add(first, sum);
        V::Float::load(sums.add(RUNS)).mul_add(second, sum)
    }
}

/// A chunk of a row of weights, unpacked for several columns.
#[repr(C, align(32))]
pub(crate) struct Unpacked {
    /// Integers of 16 bits as [`I16Chunk::values`].
    values: [[[i16; RUN / 2]; 2]; RUNS],
    /// The scale of each lane of a run's sums.
    scales: [[f32; 8]; RUNS],
    mins: [[f32; RUNS]; 2],
}

/// Adds the product of an unpacked chunk with `N` columns `x_stride` bytes apart.
pub(crate) type AddColumns = unsafe fn(&ColumnsOfChunk);

/// Operands of [`add_columns`].
pub(crate) struct ColumnsOfChunk {
    w: *const Unpacked,
    runs: usize,
    has_mins: bool,
    x: *const u8,
    x_stride: usize,
    /// A register for each column.
    sums: *mut [f32; 8],
}

/// The instantiations of [`add_columns`]: the one at `n - 1` is for `n` columns.
pub(crate) type AllColumns = [AddColumns];

/// Several columns: each chunk of a row is unpacked to memory once, for up to [`COLUMNS`] columns.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
pub(crate) unsafe fn matmul<V: IntSimd, D: Unpack<V>>(p: &IntProduct, columns: &AllColumns) {
    let streams = Streams::new(p.m);
    for j in (0..p.n).step_by(COLUMNS) {
        let n = COLUMNS.min(p.n - j);
        // SAFETY: the caller's promise; columns `j..j + n` lie below `p.n`.
        unsafe {
            let part = IntProduct {
                x: p.x.add(j * p.x_stride),
                n,
                out: p.out.add(j * p.out_stride),
                ..*p
            };
            for i in 0..streams.rows {
                rows_times_columns::<V, D>(&part, &streams, i, columns);
            }
        }
    }
}

/// One turn of the streams with up to [`COLUMNS`] columns.
///
/// # Safety
/// As for [`matvec`].
#[inline(always)]
unsafe fn rows_times_columns<V: IntSimd, D: Unpack<V>>(
    p: &IntProduct,
    streams: &Streams,
    i: usize,
    columns: &AllColumns,
) {
    let n_streams = streams.len(i);
    let mut sums = [[[0.0f32; 8]; COLUMNS]; STREAMS];
    let mut unpacked = std::mem::MaybeUninit::<Unpacked>::uninit();
    // SAFETY: the caller's promise; rows lie below `m`, chunks below `k`.
    unsafe {
        for c in (0..p.k).step_by(CHUNK) {
            let runs = RUNS.min((p.k - c) / RUN);
            for (s, sums) in sums.iter_mut().enumerate().take(n_streams) {
                let w = p.w.add(streams.row(s, i) * p.row_stride + bytes_of::<D>(c));
                prefetch::<V, D>(w);
                unpack::<V, D>(w, runs, unpacked.as_mut_ptr());
                let mut j = 0;
                while j < p.n {
                    let n = columns.len().min(p.n - j);
                    columns[n - 1](&ColumnsOfChunk {
                        w: unpacked.as_ptr(),
                        runs,
                        has_mins: D::HAS_MINS,
                        x: chunk(p.x.add(j * p.x_stride), c).cast(),
                        x_stride: p.x_stride,
                        sums: sums.as_mut_ptr().add(j),
                    });
                    j += n;
                }
            }
        }
        for j in 0..p.n {
            let scale = scale_of_row(p.x.add(j * p.x_stride));
            let mut of_streams = [V::Float::splat(0.0); STREAMS];
            for s in 0..STREAMS {
                of_streams[s] = V::Float::load(sums[s][j].as_ptr());
            }
            let totals = V::Float::sum4(of_streams);
            for (s, total) in totals.into_iter().enumerate().take(n_streams) {
                *p.out.add(j * p.out_stride + streams.row(s, i)) = scale * total;
            }
        }
    }
}

/// Unpacks the first `runs` runs of a chunk.
///
/// # Safety
/// As for [`Unpack`]; `to` is valid for writes.
#[inline(always)]
unsafe fn unpack<V: IntSimd, D: Unpack<V>>(w: *const u8, runs: usize, to: *mut Unpacked) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut scales = Scales::default();
        if runs == RUNS {
            D::scales(w, RUNS, &mut scales);
            let scales = std::hint::black_box(&scales);
            each_run!(i => { unpack_run::<V, D>(w, i, scales, to) });
        } else {
            D::scales(w, runs, &mut scales);
            for i in 0..runs {
                unpack_run::<V, D>(w, i, &scales, to);
            }
        }
        if D::HAS_MINS {
            let [first, second] = scales.mins;
            (*to).mins = [first, if D::BY_16 { second } else { first }];
        }
    }
}

/// Unpacks one run.
///
/// # Safety
/// As for [`unpack`].
#[inline(always)]
unsafe fn unpack_run<V: IntSimd, D: Unpack<V>>(w: *const u8, i: usize, scales: &Scales, to: *mut Unpacked) {
    // SAFETY: the caller's promise.
    unsafe {
        let values = widened::<V, D>(w, i);
        values[0].store((&raw mut (*to).values[i][0]).cast());
        values[1].store((&raw mut (*to).values[i][1]).cast());
        scale_of::<V, D>(scales, i).store((&raw mut (*to).scales[i]).cast());
    }
}

/// Adds the product of an unpacked chunk with `N` columns, by the operations of [`add_chunk`].
///
/// # Safety
/// The CPU has `V`'s instructions and the operands are as large as they say.
#[inline(always)]
pub(crate) unsafe fn add_columns<V: IntSimd, const N: usize>(p: &ColumnsOfChunk) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut x = [p.x.cast::<I16Chunk>(); N];
        let mut sums = [V::Float::splat(0.0); N];
        for j in 0..N {
            x[j] = p.x.add(j * p.x_stride).cast();
            sums[j] = V::Float::load(p.sums.add(j).cast());
        }
        for i in 0..p.runs {
            let values = (&raw const (*p.w).values[i]).cast::<u8>();
            let w = [V::load(values), V::load(values.add(RUN))];
            let scale = V::Float::load((&raw const (*p.w).scales[i]).cast());
            for j in 0..N {
                sums[j] = add_run::<V>(w, x[j], i, scale, sums[j]);
            }
        }
        for j in 0..N {
            if p.has_mins {
                let of_x = (&raw const (*x[j]).sums).cast::<f32>();
                let mins = (&raw const (*p.w).mins).cast::<f32>();
                sums[j] = V::Float::load(of_x).mul_add(V::Float::load(mins), sums[j]);
                sums[j] = V::Float::load(of_x.add(RUNS)).mul_add(V::Float::load(mins.add(RUNS)), sums[j]);
            }
            sums[j].store(p.sums.add(j).cast());
        }
    }
}
