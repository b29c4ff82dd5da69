//! Elementary functions on registers of floats.
//!
//! `e^x` is computed by range reduction, and most other functions are expressed through it:
//!
//! ```text
//! n = round(x / ln 2)
//! r = x - n * ln 2                  # |r| <= ln 2 / 2, with ln 2 in two parts
//! p = polynomial of degree 7 in r   # e^r - 1
//! e^x = (1 + p) * 2^n
//! ```

use crate::simd::Simd;

/// A function of one float.
pub(crate) trait Function {
    /// Applies the function to every lane of `x`.
    fn apply<V: Simd>(x: V) -> V;
}

/// `e^x`, with an error of at most 2 ulp.
pub(crate) struct Exp;

impl Function for Exp {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // Outside this range the result is infinite or zero anyway. NaN is preserved, because `min` and `max`
        // return the second operand for it.
        let (p, n) = exp_parts(x.constant(-110.0).max(x.constant(100.0).min(x)));
        p.add(x.constant(1.0)).mul_pow2(n)
    }
}

/// `e^x` for `x <= 0`, equal to [`Exp`] for normal results. Smaller results become the smallest normal
/// number.
pub(crate) struct ExpNonPositive;

impl Function for ExpNonPositive {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // The lower bound is the logarithm of 2^-126. NaN is preserved, because `max` returns the second
        // operand for it.
        let (p, n) = exp_parts(x.constant(-87.336_54).max(x));
        p.add(x.constant(1.0)).mul(n.pow2())
    }
}

/// `e^x` for `x <= 0` with a relative error of at most 2^-16, for weights that are rounded to fewer bits.
/// Results below the smallest normal number become that number.
pub(crate) struct ExpApprox16;

impl Function for ExpApprox16 {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // Like `ExpNonPositive`, with a polynomial of degree 5.
        let x = x.constant(-87.336_54).max(x);
        let n = x.mul(x.constant(std::f32::consts::LOG2_E)).round();
        let r = n.mul_add(x.constant(-std::f32::consts::LN_2), x);
        let one = x.constant(1.0);
        let a = r.mul_add(x.constant(1.0 / 120.0), x.constant(1.0 / 24.0));
        let b = r.mul_add(x.constant(1.0 / 6.0), x.constant(0.5));
        let r2 = r.mul(r);
        a.mul_add(r2, b).mul_add(r2, r.add(one)).mul(n.pow2())
    }
}

/// Hyperbolic tangent.
pub(crate) struct Tanh;

impl Function for Tanh {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // Outside this range the result is 1 or -1. NaN is preserved, because `min` and `max` return the
        // second operand for it.
        let x = x.constant(-10.0).max(x.constant(10.0).min(x));
        let (p, n) = exp_parts(x.add(x));
        // `e^(2x) - 1`, without cancellation near 0, where `n` is 0.
        let power = n.pow2();
        let e = p.mul_add(power, power.sub(x.constant(1.0)));
        e.div(e.add(x.constant(2.0)))
    }
}

/// Returns a small `p` and an integer `n` with `e^x = (1 + p) * 2^n`.
#[inline(always)]
fn exp_parts<V: Simd>(x: V) -> (V, V) {
    // `x = n * ln 2 + r` with `|r| <= ln 2 / 2`. The first part of `ln 2` has 15 bits, so its product with
    // `n` is exact.
    let n = x.mul(x.constant(std::f32::consts::LOG2_E)).round();
    let r = n.mul_add(x.constant(-0.693_145_75), x);
    let r = n.mul_add(x.constant(-1.428_606_8e-6), r);
    // Taylor series up to `r^7`; the next term is below 2^-27. Evaluating pairs of terms shortens the
    // dependency chain.
    let r2 = r.mul(r);
    let a = r.mul_add(x.constant(1.0 / 5040.0), x.constant(1.0 / 720.0));
    let b = r.mul_add(x.constant(1.0 / 120.0), x.constant(1.0 / 24.0));
    let c = r.mul_add(x.constant(1.0 / 6.0), x.constant(0.5));
    let p = a.mul_add(r2, b).mul_add(r2, c);
    (p.mul_add(r2, r), n)
}

/// Sigmoid, `1 / (1 + e^-x)`.
pub(crate) struct Sigmoid;

impl Function for Sigmoid {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        let one = x.constant(1.0);
        one.div(one.add(Exp::apply(x.constant(0.0).sub(x))))
    }
}

/// SiLU, `x * sigmoid(x)`.
pub(crate) struct Silu;

impl Function for Silu {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        x.div(x.constant(1.0).add(Exp::apply(x.constant(0.0).sub(x))))
    }
}

/// Softplus, `ln(1 + e^x)`.
pub(crate) struct Softplus;

impl Function for Softplus {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // `max(x, 0) + ln(1 + t)` with `t = e^-|x|`, which neither overflows nor cancels. NaN is preserved,
        // because `max` returns the second operand for it.
        let t = Exp::apply(x.constant(0.0).sub(x.abs()));
        x.constant(0.0).max(x).add(ln_1p(t))
    }
}

/// Returns `ln(1 + t)` for `t` from 0 to 1, computed as `2 artanh(z)` with `z = t / (2 + t) <= 1/3`. The
/// series ends where terms fall below 2^-26 of the first.
#[inline(always)]
fn ln_1p<V: Simd>(t: V) -> V {
    let z = t.div(t.add(t.constant(2.0)));
    let z2 = z.mul(z);
    let z4 = z2.mul(z2);
    // Even and odd terms form independent dependency chains.
    let a = z4.mul_add(z.constant(2.0 / 13.0), z.constant(2.0 / 9.0));
    let b = z4.mul_add(z.constant(2.0 / 15.0), z.constant(2.0 / 11.0));
    let (a, b) = (
        a.mul_add(z4, z.constant(2.0 / 5.0)),
        b.mul_add(z4, z.constant(2.0 / 7.0)),
    );
    let (a, b) = (a.mul_add(z4, z.constant(2.0)), b.mul_add(z4, z.constant(2.0 / 3.0)));
    b.mul_add(z2, a).mul(z)
}

/// GELU in the tanh approximation, `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
pub(crate) struct Gelu;

impl Function for Gelu {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // `(1 + tanh u) / 2 = 1 / (1 + e^(-2u))`, which does not cancel for negative `u`.
        const TWO_SQRT_2_OVER_PI: f32 = 1.595_769;
        let cubic = x.mul(x).mul_add(x.constant(0.044_715), x.constant(1.0)).mul(x);
        let exp = Exp::apply(cubic.mul(x.constant(-TWO_SQRT_2_OVER_PI)));
        x.div(x.constant(1.0).add(exp))
    }
}

/// Exact GELU, `x * Phi(x)` with the distribution function `Phi` of the standard normal distribution.
pub(crate) struct GeluErf;

impl Function for GeluErf {
    #[inline(always)]
    fn apply<V: Simd>(x: V) -> V {
        // `max(x, 0) - |x| * Phi(-|x|)`, and `Phi(-a) = e^(-a^2 / 2) * p(t)` with `t = 1 / (1 + 0.3 a / sqrt(2))`.
        // The polynomial is a minimax fit of `p` for `a` up to 13, with a relative error of 3e-8. The result does
        // not cancel for negative `x`. NaN is preserved, because `max` returns the second operand for it.
        let (a, one) = (x.abs(), x.constant(1.0));
        let t = one.div(a.mul_add(x.constant(0.212_132_03), one));
        let t2 = t.mul(t);
        // Even and odd terms form independent dependency chains.
        let even = t2.mul_add(x.constant(-0.064_717_56), x.constant(-0.255_618_84));
        let odd = t2.mul_add(x.constant(0.242_550_85), x.constant(0.273_204_18));
        let (even, odd) = (
            even.mul_add(t2, x.constant(-0.046_820_395)),
            odd.mul_add(t2, x.constant(0.107_220_255)),
        );
        let (even, odd) = (
            even.mul_add(t2, x.constant(0.074_240_65)),
            odd.mul_add(t2, x.constant(0.085_346_05)),
        );
        let p = odd.mul_add(t, even.mul_add(t2, x.constant(0.084_594_8))).mul(t);
        let exp = Exp::apply(x.mul(x).mul(x.constant(-0.5)));
        x.constant(0.0).max(x).sub(p.mul(exp).mul(a))
    }
}

/// A function of two floats.
pub(crate) trait Function2 {
    /// Applies the function to the lanes of `a` and `b`.
    fn apply<V: Simd>(a: V, b: V) -> V;
}

/// Sum `a + b`.
pub(crate) struct Add;

impl Function2 for Add {
    #[inline(always)]
    fn apply<V: Simd>(a: V, b: V) -> V {
        a.add(b)
    }
}

/// Product `a * b`.
pub(crate) struct Mul;

impl Function2 for Mul {
    #[inline(always)]
    fn apply<V: Simd>(a: V, b: V) -> V {
        a.mul(b)
    }
}

/// Gated product `f(a) * b`.
pub(crate) struct Gated<F>(std::marker::PhantomData<F>);

impl<F: Function> Function2 for Gated<F> {
    #[inline(always)]
    fn apply<V: Simd>(a: V, b: V) -> V {
        F::apply(a).mul(b)
    }
}
