//! Operations on rows of floats.
//!
//! Functions panic if lengths disagree. Sums use many lanes, so their rounding errors resemble those of
//! pairwise summation.

use crate::dispatch::kernels;
use crate::lengths::same_length;

/// Returns `sum_i a[i] * b[i]`.
pub fn dot(a: &[f32], b: &[f32]) -> f32 {
    same_length(a.len(), b.len());
    // SAFETY: both rows have `a.len()` floats; `kernels()` matches this CPU.
    unsafe { (kernels().dot)(a.as_ptr(), b.as_ptr(), a.len()) }
}

/// Returns `sum_i x[i]`.
pub fn sum(x: &[f32]) -> f32 {
    // SAFETY: `x` has `x.len()` floats; `kernels()` matches this CPU.
    unsafe { (kernels().sum)(x.as_ptr(), x.len()) }
}

/// Returns `sum_i x[i]^2`.
pub fn sum_of_squares(x: &[f32]) -> f32 {
    // SAFETY: `x` has `x.len()` floats; `kernels()` matches this CPU.
    unsafe { (kernels().sum_of_squares)(x.as_ptr(), x.len()) }
}

/// Computes `y[i] += a * x[i]`.
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    same_length(x.len(), y.len());
    // SAFETY: both rows have `x.len()` floats; `kernels()` matches this CPU.
    unsafe { (kernels().axpy)(a, x.as_ptr(), y.as_mut_ptr(), x.len()) }
}

/// Computes `y[i] += sum_j a[j] * x[j * stride + i]`, a weighted sum of rows such as those of a recurrent
/// state.
///
/// # Panics
/// Panics if `x` is too short for `a.len()` rows.
pub fn axpy_rows(a: &[f32], x: &[f32], stride: usize, y: &mut [f32]) {
    if a.is_empty() {
        return;
    }
    let end = (a.len() - 1)
        .checked_mul(stride)
        .and_then(|start| start.checked_add(y.len()));
    assert!(
        end.is_some_and(|end| end <= x.len()),
        "{} floats are too few for {} rows",
        x.len(),
        a.len()
    );
    // SAFETY: the rows are within `x`, asserted above; `kernels()` matches this CPU.
    unsafe { (kernels().axpy_rows)(a.as_ptr(), a.len(), x.as_ptr(), stride, y.as_mut_ptr(), y.len()) }
}

/// Computes `x[j * n + i] = c[j] * x[j * n + i] + a[j] * d[i]`, where `n` is the length of `d`. This is a
/// step of a recurrent state: rows decay, and an outer product is added.
///
/// # Panics
/// Panics if `c`, `a`, and `x` differ in the number of rows.
pub fn scale_add_outer(c: &[f32], a: &[f32], d: &[f32], x: &mut [f32]) {
    same_length(c.len(), a.len());
    assert!(
        c.len().checked_mul(d.len()) == Some(x.len()),
        "expected whole rows, found {} floats for {} rows of {}",
        x.len(),
        c.len(),
        d.len()
    );
    // SAFETY: `x` has `c.len()` rows of `d.len()` floats, asserted above; `kernels()` matches this CPU.
    unsafe { (kernels().scale_add_outer)(c.as_ptr(), a.as_ptr(), c.len(), d.as_ptr(), x.as_mut_ptr(), d.len()) }
}

/// Replaces `x` by `softmax(scale * x)`. A row of only negative infinities becomes NaN.
pub fn softmax(x: &mut [f32], scale: f32) {
    // SAFETY: `x` has `x.len()` floats; `kernels()` matches this CPU.
    unsafe { (kernels().softmax)(x.as_mut_ptr(), scale, x.len()) }
}

/// Defines two variants of an operation: one writes to another row, the other overwrites its first operand.
macro_rules! element_wise {
    ($( $(#[$doc:meta])* $name:ident, $in_place:ident($x:ident $(, $y:ident)?) $(with $($p:ident: $ty:ty),+)?; )*) => { $(
        $(#[$doc])*
        pub fn $name($x: &[f32], $($y: &[f32],)? $($($p: $ty,)+)? out: &mut [f32]) {
            same_length($x.len(), out.len());
            $( same_length($x.len(), $y.len()); )?
            element_wise!(@ $name [$x.as_ptr()] [$($y)?] [$($($p)+)?] out.as_mut_ptr(), out.len())
        }

        #[doc = concat!("[`", stringify!($name), "`] with the result stored in `", stringify!($x), "`.")]
        pub fn $in_place($x: &mut [f32] $(, $y: &[f32])? $($(, $p: $ty)+)?) {
            $( same_length($x.len(), $y.len()); )?
            let out = $x.as_mut_ptr();
            element_wise!(@ $name [out] [$($y)?] [$($($p)+)?] out, $x.len())
        }
    )* };
    (@ $name:ident [$x:expr] [$($y:ident)?] [$($p:ident)*] $out:expr, $n:expr) => {
        // SAFETY: all rows have the same length, and `out` is a separate row or equals `x`; `kernels()`
        // matches this CPU.
        unsafe { (kernels().$name)($($p,)* $x, $($y.as_ptr(),)? $out, $n) }
    };
}

element_wise! {
    /// Computes `out[i] = a[i] + b[i]`.
    add, add_in_place(a, b);
    /// Computes `out[i] = a[i] * b[i]`.
    mul, mul_in_place(a, b);
    /// Computes `out[i] = scale * x[i] + bias`.
    scale, scale_in_place(x) with scale: f32, bias: f32;
    /// Computes `out[i] = cap * tanh(x[i] / cap)`.
    softcap, softcap_in_place(x) with cap: f32;
    /// Computes `out[i] = e^x[i]`, with an error of at most 2 ulp.
    exp, exp_in_place(x);
    /// Computes `out[i] = 1 / (1 + e^-x[i])`.
    sigmoid, sigmoid_in_place(x);
    /// Computes `out[i] = x[i] * sigmoid(x[i])`.
    silu, silu_in_place(x);
    /// Computes `out[i] = ln(1 + e^x[i])`.
    softplus, softplus_in_place(x);
    /// Computes `out[i] = x[i] / 2 * (1 + tanh(sqrt(2 / pi) * (x[i] + 0.044715 x[i]^3)))`.
    gelu, gelu_in_place(x);
    /// Computes `out[i] = x[i] / 2 * (1 + erf(x[i] / sqrt(2)))`.
    gelu_erf, gelu_erf_in_place(x);
    /// Computes `out[i] = silu(gate[i]) * up[i]`.
    silu_mul, silu_mul_in_place(gate, up);
    /// Computes `out[i] = gelu(gate[i]) * up[i]`.
    gelu_mul, gelu_mul_in_place(gate, up);
    /// Computes `out[i] = gelu_erf(gate[i]) * up[i]`.
    gelu_erf_mul, gelu_erf_mul_in_place(gate, up);
}

/// Computes `out[i] = x[i] / sqrt(mean(x^2) + eps)`, multiplied by `weight[i]` if given.
///
/// # Panics
/// Panics if `out` or `weight` differs in length from `x`.
pub fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    same_length(x.len(), out.len());
    let weight = weight_ptr(weight, x.len());
    // SAFETY: all rows have the same length; `kernels()` matches this CPU.
    unsafe { (kernels().rms_norm)(x.as_ptr(), weight, eps, out.as_mut_ptr(), x.len()) }
}

/// Computes [`rms_norm`] in place.
///
/// # Panics
/// Panics if `weight` differs in length from `x`.
pub fn rms_norm_in_place(x: &mut [f32], weight: Option<&[f32]>, eps: f32) {
    let (weight, x_ptr) = (weight_ptr(weight, x.len()), x.as_mut_ptr());
    // SAFETY: all rows have the same length, and `out` may equal `x`; `kernels()` matches this CPU.
    unsafe { (kernels().rms_norm)(x_ptr, weight, eps, x_ptr, x.len()) }
}

/// Computes `out[i] = (x[i] - mean(x)) / sqrt(variance(x) + eps)`.
///
/// # Panics
/// Panics if `out` differs in length from `x`.
pub fn norm(x: &[f32], eps: f32, out: &mut [f32]) {
    same_length(x.len(), out.len());
    // SAFETY: both rows have the same length; `kernels()` matches this CPU.
    unsafe { (kernels().norm)(x.as_ptr(), eps, out.as_mut_ptr(), x.len()) }
}

/// Computes [`norm`] in place.
pub fn norm_in_place(x: &mut [f32], eps: f32) {
    let x_ptr = x.as_mut_ptr();
    // SAFETY: `out` may equal `x`; `kernels()` matches this CPU.
    unsafe { (kernels().norm)(x_ptr, eps, x_ptr, x.len()) }
}

/// Returns the pointer that the kernel expects: null without weights.
fn weight_ptr(weight: Option<&[f32]>, n: usize) -> *const f32 {
    weight.map_or(std::ptr::null(), |weight| {
        same_length(n, weight.len());
        weight.as_ptr()
    })
}
