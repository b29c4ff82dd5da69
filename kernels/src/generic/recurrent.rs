//! Steps of recurrent states: one token of some heads.
//!
//! A state is a matrix. Its rows are taken four at a time: what they share is read once, and their sums need not wait for each other. A row's
//! bits are the same whatever rows are computed with it.
//!
//! # Safety
//! All functions: the pointers are valid for as many floats as the fields say, `state` and `y` overlap nothing else, and the CPU has `V`'s
//! instructions.

use super::functions::{Exp, Function};
use crate::simd::Simd;

/// Rows that are computed together.
const ROWS: usize = 4;

/// A token of one head of a state space model.
pub(crate) struct Scan {
    /// `[n]`
    pub decay: *const f32,
    /// `[m]`
    pub x: *const f32,
    pub scale: f32,
    /// `[n]`
    pub b: *const f32,
    /// `[n]`
    pub c: *const f32,
    /// `[m, n]`, `n` floats of each row side by side.
    pub state: *mut f32,
    /// `[m]`
    pub y: *mut f32,
    pub m: usize,
    pub n: usize,
}

/// A token of `m` channels of a state space model, each with steps and decays of its own.
pub(crate) struct ChannelScan {
    /// `[m]`
    pub dt: *const f32,
    /// `[m, n]`
    pub a: *const f32,
    /// `[m]`
    pub x: *const f32,
    /// `[n]`
    pub b: *const f32,
    /// `[n]`
    pub c: *const f32,
    /// `[m, n]`
    pub state: *mut f32,
    /// `[m]`
    pub y: *mut f32,
    pub m: usize,
    pub n: usize,
}

/// A token of one head of RWKV-6.
pub(crate) struct Wkv6 {
    /// Receptance, decays and keys: `[n]`.
    pub r: *const f32,
    pub w: *const f32,
    pub k: *const f32,
    /// Values: `[n]`.
    pub v: *const f32,
    /// What the current token's value counts.
    pub bonus: f32,
    /// `[n, n]`: a row of keys for each channel of the value.
    pub state: *mut f32,
    /// `[n]`
    pub y: *mut f32,
    pub n: usize,
}

/// A token of one head of RWKV-7.
pub(crate) struct Wkv7 {
    /// Receptance, decays and keys: `[n]`.
    pub r: *const f32,
    pub w: *const f32,
    pub k: *const f32,
    /// Values: `[n]`.
    pub v: *const f32,
    /// What is removed from the state: `[n]`.
    pub a: *const f32,
    /// What replaces it: `[n]`.
    pub b: *const f32,
    /// `[n, n]`: a row of keys for each channel of the value.
    pub state: *mut f32,
    /// `[n]`
    pub y: *mut f32,
    pub n: usize,
}

/// Columns of a row: all lanes of a register, or with `TAIL` the last few.
#[inline(always)]
unsafe fn get<V: Simd, const TAIL: bool>(p: *const f32, n: usize) -> V {
    // SAFETY: the caller's promise.
    unsafe {
        match TAIL {
            true => V::load_partial(p, n),
            false => V::load(p),
        }
    }
}

/// Writes what [`get`] read.
#[inline(always)]
unsafe fn put<V: Simd, const TAIL: bool>(x: V, p: *mut f32, n: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match TAIL {
            true => x.store_partial(p, n),
            false => x.store(p),
        }
    }
}

/// The sums of the lanes of `R` registers.
#[inline(always)]
unsafe fn store_sums<V: Simd, const R: usize>(sums: [V; R], y: *mut f32) {
    // SAFETY: the caller's promise.
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

/// `factor[r]` in all lanes, for `R` rows.
#[inline(always)]
unsafe fn splats<V: Simd, const R: usize>(factors: *const f32) -> [V; R] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut all = [V::splat(0.0); R];
        for (r, factor) in all.iter_mut().enumerate() {
            *factor = V::splat(*factors.add(r));
        }
        all
    }
}

/// Calls a kernel of some rows for all rows, and within it a kernel of some columns for all columns.
macro_rules! by_rows {
    ($( $(#[$doc:meta])* $name:ident = $some_rows:ident($args:ty) of $m:ident; )*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) unsafe fn $name<V: Simd>(args: &$args) {
            // SAFETY: rows lie below their number; the rest is the caller's promise.
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
    /// state[j][i] = decay[i] state[j][i] + scale x[j] b[i], y[j] = sum_i state[j][i] c[i]
    scan = scan_rows(Scan) of m;
    /// state[j][i] = e^(dt[j] a[j][i]) state[j][i] + dt[j] x[j] b[i], y[j] = sum_i state[j][i] c[i]
    scan_channels = channel_rows(ChannelScan) of m;
    /// y[j] = sum_i state[j][i] r[i] + bonus v[j], state[j][i] = w[i] state[j][i] + v[j] k[i]
    wkv6 = wkv6_rows(Wkv6) of n;
    /// held = sum_i state[j][i] a[i], state[j][i] = w[i] state[j][i] + v[j] k[i] + held b[i], y[j] = sum_i state[j][i] r[i]
    wkv7 = wkv7_rows(Wkv7) of n;
}

/// Calls `$columns::<V, R, false>(.., i)` for whole registers of columns, then `$columns::<V, R, true>(.., i)` for the rest.
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
    // SAFETY: columns lie below `n`; the rest is the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        let [decay, b, c] = [args.decay, args.b, args.c].map(|p| get::<V, TAIL>(p.add(i), rest));
        for (r, (factor, sum)) in factors.iter().zip(sums).enumerate() {
            let at = args.state.add((j + r) * n + i);
            let s = b.mul_add(*factor, get::<V, TAIL>(at, rest).mul(decay));
            put::<V, TAIL>(s, at, rest);
            *sum = s.mul_add(c, *sum);
        }
    }
}

#[inline(always)]
unsafe fn channel_rows<V: Simd, const R: usize>(args: &ChannelScan, j: usize) {
    // SAFETY: columns lie below `n`; the rest is the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        let [b, c] = [args.b, args.c].map(|p| get::<V, TAIL>(p.add(i), rest));
        for (r, sum) in sums.iter_mut().enumerate() {
            let at = (j + r) * n + i;
            let decay = Exp::apply(get::<V, TAIL>(args.a.add(at), rest).mul(dt[r]));
            let s = b.mul_add(factors[r], get::<V, TAIL>(args.state.add(at), rest).mul(decay));
            put::<V, TAIL>(s, args.state.add(at), rest);
            *sum = s.mul_add(c, *sum);
        }
    }
}

#[inline(always)]
unsafe fn wkv6_rows<V: Simd, const R: usize>(args: &Wkv6, j: usize) {
    // SAFETY: columns lie below `n`; the rest is the caller's promise.
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
    // SAFETY: the caller's promise.
    unsafe {
        let [r, w, k] = [args.r, args.w, args.k].map(|p| get::<V, TAIL>(p.add(i), rest));
        for (row, (v, sum)) in v.iter().zip(sums).enumerate() {
            let at = args.state.add((j + row) * n + i);
            let s = get::<V, TAIL>(at, rest);
            *sum = s.mul_add(r, *sum);
            put::<V, TAIL>(k.mul_add(*v, s.mul(w)), at, rest);
        }
    }
}

#[inline(always)]
unsafe fn wkv7_rows<V: Simd, const R: usize>(args: &Wkv7, j: usize) {
    // SAFETY: columns lie below `n`; the rest is the caller's promise.
    unsafe {
        let v = splats::<V, R>(args.v.add(j));
        let mut sums = [V::splat(0.0); R];
        by_columns!(args.n, held_columns(args, j, &mut sums));
        // The place of the results holds what the rows held, until it is known what they hold now.
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
    // SAFETY: the caller's promise.
    unsafe {
        let a = get::<V, TAIL>(args.a.add(i), rest);
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = get::<V, TAIL>(args.state.add((j + row) * n + i), rest).mul_add(a, *sum);
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
    // SAFETY: the caller's promise.
    unsafe {
        let [r, w, k, b] = [args.r, args.w, args.k, args.b].map(|p| get::<V, TAIL>(p.add(i), rest));
        for (row, sum) in sums.iter_mut().enumerate() {
            let at = args.state.add((j + row) * n + i);
            let s = k.mul_add(v[row], get::<V, TAIL>(at, rest).mul(w));
            let s = b.mul_add(held[row], s);
            put::<V, TAIL>(s, at, rest);
            *sum = s.mul_add(r, *sum);
        }
    }
}
