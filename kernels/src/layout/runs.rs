//! Runs: 32 adjacent weights of a row, unpacked to 8-bit integers.
//!
//! All integer matmuls see weights of every type in the same form:
//!
//! ```text
//! chunk = 256 weights = 8 runs of 32
//!
//!            run 0                 run 1               run 7
//! integers | q[0..32]            | q[32..64]   |  ..  | q[224..256] |     8 bits each
//! scales   | 1 or 2 (per half)   | ..          |      |             |     weight = scale * q + min
//! minimums | 0, 1, or 2          | ..          |      |             |
//! ```

use super::block::Block;
use crate::simd::{IntSimd, Simd};

/// Number of adjacent weights that are unpacked together.
pub(crate) const RUN: usize = 32;

/// Number of runs per chunk.
pub(crate) const RUNS: usize = 8;

/// Elements whose scales are computed together; a multiple of every block size.
pub(crate) const CHUNK: usize = RUN * RUNS;

/// Half runs in a chunk, in the order of the weights. Each may have its own scale.
pub(crate) const HALVES: usize = 2 * RUNS;

/// Scales and minimums of a chunk: `[half][run]`, where half 0 covers the first 16 weights of a run. Types
/// with one scale per run set only half 0.
#[derive(Default)]
#[repr(C, align(32))]
pub(crate) struct Scales {
    pub scales: [[f32; RUNS]; 2],
    pub mins: [[f32; RUNS]; 2],
}

/// A block type that unpacks to `scale * q + min` with 8-bit integers `q`. The same implementation serves dot
/// products and panels.
///
/// # Safety
/// Callers of the unsafe functions guarantee:
/// - The CPU supports `V`.
/// - `p` points to the start of a chunk and is valid for reads of all blocks that hold the requested runs.
///   The last chunk of a row may consist of only its first blocks.
pub(crate) trait Unpack<V: IntSimd>: Block {
    /// Whether each half of a run has its own scale and minimum.
    const BY_16: bool = false;

    /// Whether integers are signed (-128 to 127) rather than unsigned (0 to 255).
    const SIGNED: bool = false;

    /// Bits per integer: 8, at most 6 if signed, or at most 5 if unsigned. Unsigned integers around a zero
    /// point of 32 may have 6.
    const BITS: u32 = 8;

    /// Whether the type has minimums; if not, they are 0 and never stored. Unsigned integers around a zero
    /// point have minimums of `-ZERO * scale`.
    const HAS_MINS: bool = !Self::SIGNED;

    /// Unsigned integer that represents 0, a power of two, if it is the only source of minimums; otherwise 0.
    /// Integer sums minus `ZERO` times the sum of the activations then need no minimums.
    const ZERO: u8 = 0;

    /// Stores the scales and minimums of the first `runs` runs of a chunk. Further scales and minimums become
    /// arbitrary finite numbers. The default is for blocks that start with their only scale, an f16.
    #[inline(always)]
    unsafe fn scales(p: *const u8, runs: usize, to: &mut Scales) {
        // SAFETY: `p` is valid for the blocks of `runs` runs (trait contract), and blocks start with an f16.
        unsafe { set_scales(load_block_f16::<V, Self>(p, 0, runs), f32::from(Self::ZERO), to) }
    }

    /// Returns the integers of run `i` of a chunk in the order of the weights. `i` is usually a constant after
    /// inlining, so data shared by adjacent runs is loaded once.
    unsafe fn values(p: *const u8, i: usize) -> V;
}

/// Loads the f16 at byte `at` of each run's block. Runs beyond `runs` yield 0.
///
/// # Safety
/// - The CPU supports `V`.
/// - `p` is valid for reads of the blocks of `runs` runs, each of at least `at + 2` bytes.
#[inline(always)]
pub(crate) unsafe fn load_block_f16<V: IntSimd, B: Block>(p: *const u8, at: usize, runs: usize) -> V::Float {
    // SAFETY: the blocks of the first `runs` runs are readable at `p` (function contract).
    unsafe {
        if runs == RUNS && B::TYPE.block_size() == RUN {
            return V::gather_f16(p.add(at), size_of::<B>());
        }
        let mut halves = [[0u8; 2]; RUNS];
        for (i, half) in halves.iter_mut().enumerate().take(runs) {
            let block = p.cast::<B>().add(i * RUN / B::TYPE.block_size());
            *half = block.cast::<u8>().add(at).cast::<[u8; 2]>().read();
        }
        V::Float::load_f16(halves.as_ptr().cast())
    }
}

/// Stores the scales of all runs, and minimums of `-zero * scale` if `zero` is not 0.
///
/// # Safety
/// The CPU supports `V`.
#[inline(always)]
pub(crate) unsafe fn set_scales<V: Simd>(scales: V, zero: f32, to: &mut Scales) {
    // SAFETY: `scales[0]` and `mins[0]` have 8 floats each, one per lane.
    unsafe {
        scales.store(to.scales[0].as_mut_ptr());
        if zero != 0.0 {
            scales.mul(V::splat(-zero)).store(to.mins[0].as_mut_ptr());
        }
    }
}

/// Stores the scales or minimums of half runs: 16 signed bytes times `factor`.
///
/// # Safety
/// - The CPU supports `V`.
/// - `bytes` is valid for reads of 16 bytes.
#[inline(always)]
pub(crate) unsafe fn set_halves<V: IntSimd>(bytes: *const u8, factor: V::Float, to: &mut [[f32; RUNS]; 2]) {
    // SAFETY: `bytes` has 16 bytes (function contract), and `to[0]` and `to[1]` have 8 floats each.
    unsafe {
        let [first, second] = V::load_even_odd_i8(bytes);
        first.mul(factor).store(to[0].as_mut_ptr());
        second.mul(factor).store(to[1].as_mut_ptr());
    }
}

/// Shifts bits of each byte from position `from` to position `to`. Callers mask the bits that cross into
/// other bytes.
#[inline(always)]
pub(crate) fn move_bits<V: IntSimd>(values: V, from: usize, to: usize) -> V {
    if from < to {
        values.shl((to - from) as u32)
    } else {
        values.shr((from - to) as u32)
    }
}

/// Prevents the compiler from optimizing `values`, which are references to scales, out of memory. Scales are
/// computed a register at a time and then used individually, each broadcast by one load.
///
/// With AVX2, a matrix-vector product of Q2_K becomes 6 % faster; other types do not change. The function
/// also keeps compilation of the tests fast: without it, rustc takes minutes longer.
#[inline(always)]
pub(crate) fn in_memory<T>(values: T) -> T {
    std::hint::black_box(values)
}
