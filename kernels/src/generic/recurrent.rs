//! Steps of recurrent state for one token and some heads: Mamba, Mamba-2, RWKV-6, and RWKV-7.
//!
//! The state is a matrix. Four rows are computed at a time. Shared operands are then loaded once, and the sums of the
//! rows do not wait for each other. The bits of a row do not depend on the other rows.
//!
//! ```text
//! for 4 rows of the state:
//!     for register of columns:
//!         load the shared operands (decay, keys, ..)
//!         for row in 0..4:
//!             state = decay * state + update      # stored in place
//!             sum[row] += state * output operand
//!     y[rows] = sum over lanes
//! ```
//!
//! # Safety
//! All functions require:
//! - The CPU supports `V`.
//! - Pointers in the arguments are valid for the shapes given by the fields.
//! - `state` and `y` overlap no other argument.

use super::functions::{Exp, Function};
use crate::simd::Simd;

/// Number of rows computed together.
const ROWS: usize = 4;

/// Arguments of [`scan`]: a token of one head of a state space model (Mamba-2).
pub(crate) struct Scan {
    pub decay: *const f32,
    pub x: *const f32,
    pub scale: f32,
    pub b: *const f32,
    pub c: *const f32,
    /// State matrix `[m, n]`, row-major.
    pub state: *mut f32,
    pub y: *mut f32,
    pub m: usize,
    pub n: usize,
}

/// Arguments of [`scan_channels`]: a token of `m` channels of a state space model (Mamba), with a step size
/// and decays per channel.
pub(crate) struct ChannelScan {
    /// Shape `[m]`.
    pub dt: *const f32,
    /// Matrix A of the recurrence, `[m, n]`.
    pub a: *const f32,
    pub x: *const f32,
    /// Shape `[n]`.
    pub b: *const f32,
    pub c: *const f32,
    /// State matrix `[m, n]`.
    pub state: *mut f32,
    /// Shape `[m]`.
    pub y: *mut f32,
    pub m: usize,
    pub n: usize,
}

/// Arguments of [`wkv6`]: a token of one head of RWKV-6.
pub(crate) struct Wkv6 {
    /// Receptance, decays, and keys: `[n]` each.
    pub r: *const f32,
    pub w: *const f32,
    pub k: *const f32,
    /// Values: `[n]`.
    pub v: *const f32,
    /// Factor of the current token's value.
    pub bonus: f32,
    /// Shape `[n, n]`: a row of keys for each channel of the value.
    pub state: *mut f32,
    /// Shape `[n]`.
    pub y: *mut f32,
    pub n: usize,
}

/// Arguments of [`wkv7`]: a token of one head of RWKV-7.
pub(crate) struct Wkv7 {
    /// Receptance, decays, and keys: `[n]` each.
    pub r: *const f32,
    pub w: *const f32,
    pub k: *const f32,
    /// Values: `[n]`.
    pub v: *const f32,
    /// Direction that is removed from the state: `[n]`.
    pub a: *const f32,
    /// Replacement direction, `[n]`.
    pub b: *const f32,
    /// Shape `[n, n]`: a row of keys for each channel of the value.
    pub state: *mut f32,
    /// Shape `[n]`.
    pub y: *mut f32,
    pub n: usize,
}

/// Loads a register of columns, or with `TAIL` the last `n`.
#[inline(always)]
unsafe fn load_columns<V: Simd, const TAIL: bool>(p: *const f32, n: usize) -> V {
    // SAFETY: `p` is valid for a register, or for `n` floats with `TAIL` (module contract).
    unsafe { if TAIL { V::load_partial(p, n) } else { V::load(p) } }
}

/// Stores a register of columns, or with `TAIL` the last `n`.
#[inline(always)]
unsafe fn store_columns<V: Simd, const TAIL: bool>(x: V, p: *mut f32, n: usize) {
    // SAFETY: `p` is valid for a register, or for `n` floats with `TAIL` (module contract).
    unsafe {
        if TAIL {
            x.store_partial(p, n);
        } else {
            x.store(p);
        }
    }
}

/// Stores the sum of the lanes of each of `R` registers.
#[inline(always)]
unsafe fn store_sums<V: Simd, const R: usize>(sums: [V; R], y: *mut f32) {
    // SAFETY: `y` is valid for `R` floats (module contract).
    unsafe {
        if R == 4 {
            let sums = V::sum4([sums[0], sums[1 % R], sums[2 % R], sums[3 % R]]);
            std::ptr::copy_nonoverlapping(sums.as_ptr(), y, R);
        } else {
            for (r, sum) in sums.into_iter().enumerate() {
                *y.add(r) = sum.sum();
            }
        }
    }
}

/// Broadcasts each of `R` factors.
#[inline(always)]
unsafe fn splats<V: Simd, const R: usize>(factors: *const f32) -> [V; R] {
    // SAFETY: `factors` is valid for `R` floats (module contract).
    unsafe {
        let mut all = [V::splat(0.0); R];
        for (r, factor) in all.iter_mut().enumerate() {
            *factor = V::splat(*factors.add(r));
        }
        all
    }
}

/// Defines a kernel that calls `$some_rows` for all rows, [`ROWS`] at a time.
macro_rules! by_rows {
    ($( $(#[$doc:meta])* $name:ident = $some_rows:ident($args:ty) of $m:ident; )*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) unsafe fn $name<V: Simd>(args: &$args) {
            // SAFETY: rows end at the number of rows (module contract).
            unsafe {
                let mut j = 0;
                while j + ROWS <= args.$m {
                    $some_rows::<V, ROWS>(args, j);
                    j += ROWS;
                }
                while j < args.$m {
                    $some_rows::<V, 1>(args, j);
                    j += 1;
                }
            }
        }
    )* };
}

by_rows! {
    /// Computes a step of the Mamba-2 recurrence for state rows `j` and columns `i`:
    ///
    /// ```text
    /// state[j][i] = decay[i] * state[j][i] + scale * x[j] * b[i]
    /// y[j]        = sum_i state[j][i] * c[i]
    /// ```
    scan = scan_rows(Scan) of m;
    /// Computes a step of the Mamba recurrence for state rows `j` and columns `i`:
    ///
    /// ```text
    /// state[j][i] = e^(dt[j] * a[j][i]) * state[j][i] + dt[j] * x[j] * b[i]
    /// y[j]        = sum_i state[j][i] * c[i]
    /// ```
    scan_channels = channel_rows(ChannelScan) of m;
    /// Computes a step of the RWKV-6 recurrence for state rows `j` and columns `i`:
    ///
    /// ```text
    /// y[j]        = sum_i state[j][i] * r[i] + bonus * v[j]
    /// state[j][i] = w[i] * state[j][i] + v[j] * k[i]
    /// ```
    wkv6 = wkv6_rows(Wkv6) of n;
    /// Computes a step of the RWKV-7 recurrence for state rows `j` and columns `i`:
    ///
    /// ```text
    /// held[j]     = sum_i state[j][i] * a[i]
    /// state[j][i] = w[i] * state[j][i] + v[j] * k[i] + held[j] * b[i]
    /// y[j]        = sum_i state[j][i] * r[i]
    /// ```
    wkv7 = wkv7_rows(Wkv7) of n;
}

/// Calls `$columns::<V, R, false>(.., i)` for whole registers of columns, then `$columns::<V, R, true>(..,
/// i)` for the remaining columns.
macro_rules! by_columns {
    ($n:expr, $columns:ident($($arg:expr),*)) => {
        let mut i = 0;
        while i + V::LANES <= $n {
            $columns::<V, R, false>($($arg,)* i);
            i += V::LANES;
        }
        if i < $n {
            $columns::<V, R, true>($($arg,)* i);
        }
    };
}

#[inline(always)]
unsafe fn scan_rows<V: Simd, const R: usize>(args: &Scan, j: usize) {
    // SAFETY: rows `j..j + R` and columns up to `n` exist (module contract).
    unsafe {
        let scale = V::splat(args.scale);
        let factors = splats::<V, R>(args.x.add(j)).map(|x| x.mul(scale));
        let mut sums = [V::splat(0.0); R];
        by_columns!(args.n, scan_columns(args, j, &factors, &mut sums));
        store_sums(sums, args.y.add(j));
    }
}

#[inline(always)]
unsafe fn scan_columns<V: Simd, const R: usize, const TAIL: bool>(
    args: &Scan,
    j: usize,
    factors: &[V; R],
    sums: &mut [V; R],
    i: usize,
) {
    let (n, rest) = (args.n, args.n - i);
    // SAFETY: rows `j..j + R` and the columns starting at `i` exist (module contract).
    unsafe {
        let [decay, b, c] = [args.decay, args.b, args.c].map(|p| load_columns::<V, TAIL>(p.add(i), rest));
        for (r, (factor, sum)) in factors.iter().zip(sums).enumerate() {
            let at = args.state.add((j + r) * n + i);
            let s = b.mul_add(*factor, load_columns::<V, TAIL>(at, rest).mul(decay));
            store_columns::<V, TAIL>(s, at, rest);
            *sum = s.mul_add(c, *sum);
        }
    }
}

#[inline(always)]
unsafe fn channel_rows<V: Simd, const R: usize>(args: &ChannelScan, j: usize) {
    // SAFETY: rows `j..j + R` and columns up to `n` exist (module contract).
    unsafe {
        let dt = splats::<V, R>(args.dt.add(j));
        let mut factors = splats::<V, R>(args.x.add(j));
        for (factor, dt) in factors.iter_mut().zip(dt) {
            *factor = factor.mul(dt);
        }
        let mut sums = [V::splat(0.0); R];
        by_columns!(args.n, channel_columns(args, j, &dt, &factors, &mut sums));
        store_sums(sums, args.y.add(j));
    }
}

#[inline(always)]
unsafe fn channel_columns<V: Simd, const R: usize, const TAIL: bool>(
    args: &ChannelScan,
    j: usize,
    dt: &[V; R],
    factors: &[V; R],
    sums: &mut [V; R],
    i: usize,
) {
    let (n, rest) = (args.n, args.n - i);
    // SAFETY: rows `j..j + R` and the columns starting at `i` exist (module contract).
    unsafe {
        let [b, c] = [args.b, args.c].map(|p| load_columns::<V, TAIL>(p.add(i), rest));
        for (r, sum) in sums.iter_mut().enumerate() {
            let at = (j + r) * n + i;
            let decay = Exp::apply(load_columns::<V, TAIL>(args.a.add(at), rest).mul(dt[r]));
            let s = b.mul_add(factors[r], load_columns::<V, TAIL>(args.state.add(at), rest).mul(decay));
            store_columns::<V, TAIL>(s, args.state.add(at), rest);
            *sum = s.mul_add(c, *sum);
        }
    }
}

#[inline(always)]
unsafe fn wkv6_rows<V: Simd, const R: usize>(args: &Wkv6, j: usize) {
    // SAFETY: rows `j..j + R` and columns up to `n` exist (module contract).
    unsafe {
        let v = splats::<V, R>(args.v.add(j));
        let mut sums = [V::splat(0.0); R];
        by_columns!(args.n, wkv6_columns(args, j, &v, &mut sums));
        store_sums(sums, args.y.add(j));
        for r in j..j + R {
            *args.y.add(r) += args.bonus * *args.v.add(r);
        }
    }
}

#[inline(always)]
unsafe fn wkv6_columns<V: Simd, const R: usize, const TAIL: bool>(
    args: &Wkv6,
    j: usize,
    v: &[V; R],
    sums: &mut [V; R],
    i: usize,
) {
    let (n, rest) = (args.n, args.n - i);
    // SAFETY: rows `j..j + R` and the columns starting at `i` exist (module contract).
    unsafe {
        let [r, w, k] = [args.r, args.w, args.k].map(|p| load_columns::<V, TAIL>(p.add(i), rest));
        for (row, (v, sum)) in v.iter().zip(sums).enumerate() {
            let at = args.state.add((j + row) * n + i);
            let s = load_columns::<V, TAIL>(at, rest);
            *sum = s.mul_add(r, *sum);
            store_columns::<V, TAIL>(k.mul_add(*v, s.mul(w)), at, rest);
        }
    }
}

#[inline(always)]
unsafe fn wkv7_rows<V: Simd, const R: usize>(args: &Wkv7, j: usize) {
    // SAFETY: rows `j..j + R` and columns up to `n` exist (module contract).
    unsafe {
        let v = splats::<V, R>(args.v.add(j));
        let mut sums = [V::splat(0.0); R];
        by_columns!(args.n, held_columns(args, j, &mut sums));
        // `y` temporarily stores `held`, until the results overwrite it.
        store_sums(sums, args.y.add(j));
        let held = splats::<V, R>(args.y.add(j));
        let mut sums = [V::splat(0.0); R];
        by_columns!(args.n, wkv7_columns(args, j, &v, &held, &mut sums));
        store_sums(sums, args.y.add(j));
    }
}

#[inline(always)]
unsafe fn held_columns<V: Simd, const R: usize, const TAIL: bool>(args: &Wkv7, j: usize, sums: &mut [V; R], i: usize) {
    let (n, rest) = (args.n, args.n - i);
    // SAFETY: rows `j..j + R` and the columns starting at `i` exist (module contract).
    unsafe {
        let a = load_columns::<V, TAIL>(args.a.add(i), rest);
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = load_columns::<V, TAIL>(args.state.add((j + row) * n + i), rest).mul_add(a, *sum);
        }
    }
}

#[inline(always)]
unsafe fn wkv7_columns<V: Simd, const R: usize, const TAIL: bool>(
    args: &Wkv7,
    j: usize,
    v: &[V; R],
    held: &[V; R],
    sums: &mut [V; R],
    i: usize,
) {
    let (n, rest) = (args.n, args.n - i);
    // SAFETY: rows `j..j + R` and the columns starting at `i` exist (module contract).
    unsafe {
        let [r, w, k, b] = [args.r, args.w, args.k, args.b].map(|p| load_columns::<V, TAIL>(p.add(i), rest));
        for (row, sum) in sums.iter_mut().enumerate() {
            let at = args.state.add((j + row) * n + i);
            let s = k.mul_add(v[row], load_columns::<V, TAIL>(at, rest).mul(w));
            let s = b.mul_add(held[row], s);
            store_columns::<V, TAIL>(s, at, rest);
            *sum = s.mul_add(r, *sum);
        }
    }
}
