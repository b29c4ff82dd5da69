//! Reductions and element-wise operations over rows of floats.
//!
//! Element-wise operations process one register at a time and the remainder with partial loads and stores.
//! Reductions use [`CHAINS`] independent accumulators:
//!
//! ```text
//! for i in 0..n, step CHAINS * LANES:          map:  for i in 0..n, step LANES:
//!     for c in 0..CHAINS:                                out[i..] = f(x[i..])
//!         sum[c] += term(a[i + c * LANES..])
//! result = sum over chains and lanes
//! ```
//!
//! # Safety
//! All functions require:
//! - The CPU supports `V`.
//! - Pointers are valid for `n` floats unless documented otherwise.
//! - An output either equals an input or does not overlap it. Every element is read before it is written.

use super::functions::{Exp, Function, Function2, Tanh};
use crate::simd::Simd;

/// Independent accumulators of a sum, which hide the latency of additions and reduce rounding errors.
const CHAINS: usize = 4;

/// A term of a sum over two rows.
trait Term {
    fn add<V: Simd>(sum: V, a: V, b: V) -> V;
}

struct Plain;
impl Term for Plain {
    #[inline(always)]
    fn add<V: Simd>(sum: V, a: V, _: V) -> V {
        sum.add(a)
    }
}

struct Product;
impl Term for Product {
    #[inline(always)]
    fn add<V: Simd>(sum: V, a: V, b: V) -> V {
        a.mul_add(b, sum)
    }
}

#[inline(always)]
unsafe fn accumulate<V: Simd, T: Term>(a: *const f32, b: *const f32, n: usize) -> f32 {
    // SAFETY: all reads end at `n` (module contract).
    unsafe {
        let mut sums = [V::splat(0.0); CHAINS];
        let mut i = 0;
        while i + CHAINS * V::LANES <= n {
            for (c, sum) in sums.iter_mut().enumerate() {
                let at = i + c * V::LANES;
                *sum = T::add(*sum, V::load(a.add(at)), V::load(b.add(at)));
            }
            i += CHAINS * V::LANES;
        }
        while i + V::LANES <= n {
            sums[0] = T::add(sums[0], V::load(a.add(i)), V::load(b.add(i)));
            i += V::LANES;
        }
        if i < n {
            sums[1] = T::add(
                sums[1],
                V::load_partial(a.add(i), n - i),
                V::load_partial(b.add(i), n - i),
            );
        }
        sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum()
    }
}

/// Returns `sum_i a[i] * b[i]`.
#[inline(always)]
pub(crate) unsafe fn dot<V: Simd>(a: *const f32, b: *const f32, n: usize) -> f32 {
    // SAFETY: the caller upholds the contract of `accumulate`.
    unsafe { accumulate::<V, Product>(a, b, n) }
}

/// Returns `sum_i x[i]`.
#[inline(always)]
pub(crate) unsafe fn sum<V: Simd>(x: *const f32, n: usize) -> f32 {
    // SAFETY: the caller upholds the contract of `accumulate`.
    unsafe { accumulate::<V, Plain>(x, x, n) }
}

/// Returns `sum_i x[i]^2`.
#[inline(always)]
pub(crate) unsafe fn sum_of_squares<V: Simd>(x: *const f32, n: usize) -> f32 {
    // SAFETY: the caller upholds the contract of `accumulate`.
    unsafe { accumulate::<V, Product>(x, x, n) }
}

/// Returns the largest element, or negative infinity for an empty row.
#[inline(always)]
unsafe fn max<V: Simd>(x: *const f32, n: usize) -> f32 {
    // SAFETY: all reads end at `n` (module contract).
    unsafe {
        let mut max = V::splat(f32::NEG_INFINITY);
        let mut i = 0;
        while i + V::LANES <= n {
            max = V::load(x.add(i)).max(max);
            i += V::LANES;
        }
        let mut largest = max.largest();
        while i < n {
            largest = largest.max(*x.add(i));
            i += 1;
        }
        largest
    }
}

#[inline(always)]
unsafe fn map2<V: Simd, F: Function2>(a: *const f32, b: *const f32, out: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let mut i = 0;
        while i + V::LANES <= n {
            F::apply(V::load(a.add(i)), V::load(b.add(i))).store(out.add(i));
            i += V::LANES;
        }
        if i < n {
            let rest = n - i;
            F::apply(V::load_partial(a.add(i), rest), V::load_partial(b.add(i), rest)).store_partial(out.add(i), rest);
        }
    }
}

/// Computes `out[i] = f(x[i])`.
#[inline(always)]
pub(crate) unsafe fn map<V: Simd, F: Function>(x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let mut i = 0;
        while i + V::LANES <= n {
            F::apply(V::load(x.add(i))).store(out.add(i));
            i += V::LANES;
        }
        if i < n {
            F::apply(V::load_partial(x.add(i), n - i)).store_partial(out.add(i), n - i);
        }
    }
}

macro_rules! element_wise {
    ($( $(#[$doc:meta])* $name:ident($($x:ident),+) = $map:ident $function:ty; )*) => { $(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) unsafe fn $name<V: Simd>($($x: *const f32,)+ out: *mut f32, n: usize) {
            // SAFETY: the caller upholds the contract of `map` and `map2`.
            unsafe { $map::<V, $function>($($x,)+ out, n) }
        }
    )* };
}

use super::functions::{Add, Gated, Gelu, GeluErf, Mul, Sigmoid, Silu, Softplus};

element_wise! {
    /// Computes `out[i] = e^x[i]`.
    exp(x) = map Exp;
    /// Computes `out[i] = 1 / (1 + e^-x[i])`.
    sigmoid(x) = map Sigmoid;
    /// Computes `out[i] = x[i] * sigmoid(x[i])`.
    silu(x) = map Silu;
    /// Computes `out[i] = ln(1 + e^x[i])`.
    softplus(x) = map Softplus;
    /// Computes `out[i] = gelu(x[i])` in the tanh approximation.
    gelu(x) = map Gelu;
    /// Computes `out[i] = x[i] * Phi(x[i])`, the exact GELU.
    gelu_erf(x) = map GeluErf;
    /// Computes `out[i] = a[i] + b[i]`.
    add(a, b) = map2 Add;
    /// Computes `out[i] = a[i] * b[i]`.
    mul(a, b) = map2 Mul;
    /// Computes `out[i] = silu(gate[i]) * up[i]`.
    silu_mul(gate, up) = map2 Gated<Silu>;
    /// Computes `out[i] = gelu(gate[i]) * up[i]`.
    gelu_mul(gate, up) = map2 Gated<Gelu>;
    /// Computes `out[i] = gelu_erf(gate[i]) * up[i]`.
    gelu_erf_mul(gate, up) = map2 Gated<GeluErf>;
}

/// Computes `y[i] += a * x[i]`.
#[inline(always)]
pub(crate) unsafe fn axpy<V: Simd>(a: f32, x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let a = V::splat(a);
        let mut i = 0;
        while i + V::LANES <= n {
            V::load(x.add(i)).mul_add(a, V::load(y.add(i))).store(y.add(i));
            i += V::LANES;
        }
        if i < n {
            let sum = V::load_partial(x.add(i), n - i).mul_add(a, V::load_partial(y.add(i), n - i));
            sum.store_partial(y.add(i), n - i);
        }
    }
}

/// Computes `y[i] += sum_j a[j] * x[j * stride + i]` over `m` rows. The sums stay in registers for all rows.
///
/// # Safety
/// - The module's contract holds, with `a` valid for `m` floats.
/// - Each of the `m` rows of `x`, `stride` floats apart, is valid for `n` floats.
#[inline(always)]
pub(crate) unsafe fn axpy_rows<V: Simd>(a: *const f32, m: usize, x: *const f32, stride: usize, y: *mut f32, n: usize) {
    // SAFETY: columns end at `n` and rows at `m` (function contract).
    unsafe {
        let mut i = 0;
        while i + 4 * V::LANES <= n {
            columns::<V, 4>(a, m, x.add(i), stride, y.add(i));
            i += 4 * V::LANES;
        }
        while i + V::LANES <= n {
            columns::<V, 1>(a, m, x.add(i), stride, y.add(i));
            i += V::LANES;
        }
        if i < n {
            let rest = n - i;
            let mut sum = V::load_partial(y.add(i), rest);
            for j in 0..m {
                sum = V::load_partial(x.add(j * stride + i), rest).mul_add(V::splat(*a.add(j)), sum);
            }
            sum.store_partial(y.add(i), rest);
        }
    }
}

/// Computes `C` registers of columns. Even and odd rows have separate sums, so that twice as many additions
/// overlap.
#[inline(always)]
unsafe fn columns<V: Simd, const C: usize>(a: *const f32, m: usize, x: *const f32, stride: usize, y: *mut f32) {
    // SAFETY: `C` registers of columns are within the rows, and rows end at `m` (contract of `axpy_rows`).
    unsafe {
        let mut even = [V::splat(0.0); C];
        let mut odd = [V::splat(0.0); C];
        for (c, sum) in even.iter_mut().enumerate() {
            *sum = V::load(y.add(c * V::LANES));
        }
        let mut j = 0;
        while j + 2 <= m {
            let (factor, row) = (V::splat(*a.add(j)), x.add(j * stride));
            for (c, sum) in even.iter_mut().enumerate() {
                *sum = V::load(row.add(c * V::LANES)).mul_add(factor, *sum);
            }
            let (factor, row) = (V::splat(*a.add(j + 1)), row.add(stride));
            for (c, sum) in odd.iter_mut().enumerate() {
                *sum = V::load(row.add(c * V::LANES)).mul_add(factor, *sum);
            }
            j += 2;
        }
        if j < m {
            let (factor, row) = (V::splat(*a.add(j)), x.add(j * stride));
            for (c, sum) in even.iter_mut().enumerate() {
                *sum = V::load(row.add(c * V::LANES)).mul_add(factor, *sum);
            }
        }
        for (c, (even, odd)) in even.into_iter().zip(odd).enumerate() {
            even.add(odd).store(y.add(c * V::LANES));
        }
    }
}

/// Computes `x[j * n + i] = c[j] * x[j * n + i] + a[j] * d[i]` for `m` rows.
///
/// # Safety
/// The module's contract holds, with `c` and `a` valid for `m` floats and `x` for `m * n`.
#[inline(always)]
pub(crate) unsafe fn scale_add_outer<V: Simd>(
    c: *const f32,
    a: *const f32,
    m: usize,
    d: *const f32,
    x: *mut f32,
    n: usize,
) {
    // SAFETY: columns end at `n` and rows at `m` (function contract).
    unsafe {
        for j in 0..m {
            let (c, a, row) = (V::splat(*c.add(j)), V::splat(*a.add(j)), x.add(j * n));
            let mut i = 0;
            while i + V::LANES <= n {
                let scaled = V::load(row.add(i)).mul(c);
                V::load(d.add(i)).mul_add(a, scaled).store(row.add(i));
                i += V::LANES;
            }
            if i < n {
                let scaled = V::load_partial(row.add(i), n - i).mul(c);
                let sum = V::load_partial(d.add(i), n - i).mul_add(a, scaled);
                sum.store_partial(row.add(i), n - i);
            }
        }
    }
}

/// Computes `out[i] = scale * x[i] + bias`.
#[inline(always)]
pub(crate) unsafe fn scale<V: Simd>(scale: f32, bias: f32, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let (scale, bias) = (V::splat(scale), V::splat(bias));
        let mut i = 0;
        while i + V::LANES <= n {
            V::load(x.add(i)).mul_add(scale, bias).store(out.add(i));
            i += V::LANES;
        }
        if i < n {
            V::load_partial(x.add(i), n - i)
                .mul_add(scale, bias)
                .store_partial(out.add(i), n - i);
        }
    }
}

/// Computes `out[i] = cap * tanh(x[i] / cap)`.
#[inline(always)]
pub(crate) unsafe fn softcap<V: Simd>(cap: f32, x: *const f32, out: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let (cap, inverse) = (V::splat(cap), V::splat(1.0 / cap));
        let mut i = 0;
        while i + V::LANES <= n {
            Tanh::apply(V::load(x.add(i)).mul(inverse)).mul(cap).store(out.add(i));
            i += V::LANES;
        }
        if i < n {
            Tanh::apply(V::load_partial(x.add(i), n - i).mul(inverse))
                .mul(cap)
                .store_partial(out.add(i), n - i);
        }
    }
}

/// Computes `out[i] = x[i] / sqrt(mean(x^2) + eps)`, multiplied by `weight[i]` unless `weight` is null.
#[inline(always)]
pub(crate) unsafe fn rms_norm<V: Simd>(x: *const f32, weight: *const f32, eps: f32, out: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let factor = 1.0 / (sum_of_squares::<V>(x, n) / n as f32 + eps).sqrt();
        if weight.is_null() {
            return scale::<V>(factor, 0.0, x, out, n);
        }
        let factor = V::splat(factor);
        let mut i = 0;
        while i + V::LANES <= n {
            V::load(x.add(i))
                .mul(factor)
                .mul(V::load(weight.add(i)))
                .store(out.add(i));
            i += V::LANES;
        }
        if i < n {
            let weights = V::load_partial(weight.add(i), n - i);
            V::load_partial(x.add(i), n - i)
                .mul(factor)
                .mul(weights)
                .store_partial(out.add(i), n - i);
        }
    }
}

/// Computes `out[i] = (x[i] - mean) / sqrt(variance + eps)`.
#[inline(always)]
pub(crate) unsafe fn norm<V: Simd>(x: *const f32, eps: f32, out: *mut f32, n: usize) {
    // SAFETY: all accesses end at `n`. `out` may equal `x`, because `x` is not read after the first write.
    unsafe {
        let mean = sum::<V>(x, n) / n as f32;
        scale::<V>(1.0, -mean, x, out, n);
        let variance = sum_of_squares::<V>(out, n) / n as f32;
        scale::<V>(1.0 / (variance + eps).sqrt(), 0.0, out, out, n);
    }
}

/// Replaces `x[i]` by `e^(x[i] - max)` and returns the sum of the results.
#[inline(always)]
unsafe fn exp_sum<V: Simd>(x: *mut f32, max: f32, n: usize) -> f32 {
    // SAFETY: all accesses end at `n` (module contract).
    unsafe {
        let max = V::splat(max);
        let mut total = V::splat(0.0);
        let mut i = 0;
        while i + V::LANES <= n {
            let e = Exp::apply(V::load(x.add(i)).sub(max));
            e.store(x.add(i));
            total = total.add(e);
            i += V::LANES;
        }
        let mut sum = total.sum();
        if i < n {
            Exp::apply(V::load_partial(x.add(i), n - i).sub(max)).store_partial(x.add(i), n - i);
        }
        while i < n {
            sum += *x.add(i);
            i += 1;
        }
        sum
    }
}

/// Replaces `x` by `softmax(factor * x)`.
#[inline(always)]
pub(crate) unsafe fn softmax<V: Simd>(x: *mut f32, factor: f32, n: usize) {
    // SAFETY: all callees access `x` up to `n` (module contract).
    unsafe {
        scale::<V>(factor, 0.0, x, x, n);
        let sum = exp_sum::<V>(x, max::<V>(x, n), n);
        scale::<V>(1.0 / sum, 0.0, x, x, n);
    }
}
