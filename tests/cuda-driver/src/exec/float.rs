//! Arithmetic on f32 and f64. Approximate instructions are computed exactly and rounded once.

use super::lanes::{AluFn, op};
use super::scalar::Rounding;
use super::scalar::Scalar::{self, *};

/// Modifiers of an arithmetic instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Modes {
    /// Rounding mode of the result.
    pub rounding: Rounding,
    /// True to flush subnormal operands and results to signed zeros (`.ftz`).
    pub flush: bool,
    /// True to clamp the result to 0..1, and NaN to 0 (`.sat`).
    pub saturate: bool,
}

/// Replaces a subnormal number by a signed zero if `flush` is set.
#[inline(always)]
pub fn flush_subnormal(x: f32, flush: bool) -> f32 {
    if flush && x.to_bits() & 0x7f80_0000 == 0 {
        f32::from_bits(x.to_bits() & 0x8000_0000)
    } else {
        x
    }
}

#[inline(always)]
fn flush_and_saturate(x: f32, flush: bool, saturate: bool) -> f32 {
    let x = flush_subnormal(x, flush);
    if !saturate {
        return x;
    }
    // The comparison is false for NaN, which becomes 0.
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// Instantiates an f32 expression for every combination of `flush` and `saturate`.
macro_rules! singles {
    ($modes:expr, |$a:ident| $body:expr) => {
        singles!($modes, |$a, _b, _c| $body)
    };
    ($modes:expr, |$a:ident, $b:ident| $body:expr) => {
        singles!($modes, |$a, $b, _c| $body)
    };
    ($modes:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match ($modes.flush, $modes.saturate) {
            (false, false) => singles!(@ false, false, $a, $b, $c, $body),
            (false, true) => singles!(@ false, true, $a, $b, $c, $body),
            (true, false) => singles!(@ true, false, $a, $b, $c, $body),
            (true, true) => singles!(@ true, true, $a, $b, $c, $body),
        }
    };
    (@ $flush:expr, $saturate:expr, $a:ident, $b:ident, $c:ident, $body:expr) => {
        op!(|$a: f32, $b: f32, $c: f32| -> f32 {
            let ($a, $b, $c) = (flush_subnormal($a, $flush), flush_subnormal($b, $flush), flush_subnormal($c, $flush));
            flush_and_saturate($body, $flush, $saturate)
        })
    };
}

/// Instantiates an expression for every rounding mode, which is the last parameter of the expression.
macro_rules! rounded {
    ($modes:expr, $function:ident, |$($p:ident),*|) => {
        Some(match $modes.rounding {
            Rounding::Zero => singles!($modes, |$($p),*| $function($($p),*, Rounding::Zero)),
            Rounding::Down => singles!($modes, |$($p),*| $function($($p),*, Rounding::Down)),
            Rounding::Up => singles!($modes, |$($p),*| $function($($p),*, Rounding::Up)),
            Rounding::Nearest | Rounding::Away => return None,
        })
    };
}

/// Returns the result for a directed rounding mode. `error` is the exact result minus the rounded result.
#[inline(always)]
fn directed(rounded: f32, error: f64, rounding: Rounding) -> f32 {
    if error == 0.0 || error.is_nan() {
        return rounded;
    }
    if rounded.is_infinite() {
        // The exact result is finite but exceeds the largest number.
        let down = rounded > 0.0 && error < 0.0 && rounding != Rounding::Up;
        let up = rounded < 0.0 && error > 0.0 && rounding != Rounding::Down;
        return if down {
            f32::MAX
        } else if up {
            f32::MIN
        } else {
            rounded
        };
    }
    let is_positive = rounded > 0.0 || rounded == 0.0 && error > 0.0;
    match rounding {
        Rounding::Up if error > 0.0 => rounded.next_up(),
        Rounding::Down if error < 0.0 => rounded.next_down(),
        Rounding::Zero if error < 0.0 && is_positive => rounded.next_down(),
        Rounding::Zero if error > 0.0 && !is_positive => rounded.next_up(),
        _ => rounded,
    }
}

/// Returns the rounding error `product + c - rounded` with its correct sign. `product` must be exact in f64.
#[inline(always)]
fn error_of_sum(product: f64, c: f32, rounded: f32) -> f64 {
    let (a, b) = (product, f64::from(c));
    let sum = a + b;
    let of_b = sum - a;
    let lost = (a - (sum - of_b)) + (b - of_b);
    (sum - f64::from(rounded)) + lost
}

#[inline(always)]
fn add_directed(a: f32, b: f32, rounding: Rounding) -> f32 {
    fma_directed(a, 1.0, b, rounding)
}

#[inline(always)]
fn sub_directed(a: f32, b: f32, rounding: Rounding) -> f32 {
    fma_directed(a, 1.0, -b, rounding)
}

#[inline(always)]
fn mul_directed(a: f32, b: f32, rounding: Rounding) -> f32 {
    directed(a * b, f64::from(a) * f64::from(b) - f64::from(a * b), rounding)
}

#[inline(always)]
fn fma_directed(a: f32, b: f32, c: f32, rounding: Rounding) -> f32 {
    let rounded = a.mul_add(b, c);
    let product = f64::from(a) * f64::from(b);
    // A zero sum is -0 when rounding down, unless both operands are positive.
    if rounded == 0.0 && product + f64::from(c) == 0.0 && rounding == Rounding::Down {
        let both_positive = product.is_sign_positive() && c.is_sign_positive();
        return if both_positive { 0.0 } else { -0.0 };
    }
    directed(rounded, error_of_sum(product, c, rounded), rounding)
}

#[inline(always)]
fn div_directed(a: f32, b: f32, rounding: Rounding) -> f32 {
    let rounded = a / b;
    // `a - rounded * b` is exact in f64. Multiplied by the sign of `b`, it has the sign of the rounding
    // error.
    let rest = f64::from(a) - f64::from(rounded) * f64::from(b);
    let infinite = rounded.is_infinite() && a.is_finite() && b != 0.0;
    let error = if infinite {
        -f64::from(rounded.signum())
    } else {
        rest * f64::from(b).signum()
    };
    directed(rounded, error, rounding)
}

#[inline(always)]
fn sqrt_directed(a: f32, rounding: Rounding) -> f32 {
    let rounded = a.sqrt();
    directed(
        rounded,
        f64::from(a) - f64::from(rounded) * f64::from(rounded),
        rounding,
    )
}

/// Returns the lane loop of `add`.
pub fn add(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64, b: f64| -> f64 { a + b })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a, b| a + b)),
        (F32, _) => rounded!(modes, add_directed, |a, b|),
        _ => None,
    }
}

/// Returns the lane loop of `sub`.
pub fn sub(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64, b: f64| -> f64 { a - b })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a, b| a - b)),
        (F32, _) => rounded!(modes, sub_directed, |a, b|),
        _ => None,
    }
}

/// Returns the lane loop of `mul`.
pub fn mul(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64, b: f64| -> f64 { a * b })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a, b| a * b)),
        (F32, _) => rounded!(modes, mul_directed, |a, b|),
        _ => None,
    }
}

/// Returns the lane loop of `fma` and `mad`, which round once.
pub fn fma(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64, b: f64, c: f64| -> f64 { a.mul_add(b, c) })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a, b, c| a.mul_add(b, c))),
        (F32, _) => rounded!(modes, fma_directed, |a, b, c|),
        _ => None,
    }
}

/// Returns the lane loop of `div`.
pub fn div(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64, b: f64| -> f64 { a / b })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a, b| a / b)),
        (F32, _) => rounded!(modes, div_directed, |a, b|),
        _ => None,
    }
}

#[inline(always)]
fn rcp_directed(a: f32, rounding: Rounding) -> f32 {
    div_directed(1.0, a, rounding)
}

/// Returns the lane loop of `rcp`.
pub fn rcp(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64| -> f64 { 1.0 / a })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a| 1.0 / a)),
        (F32, _) => rounded!(modes, rcp_directed, |a|),
        _ => None,
    }
}

/// Returns the lane loop of `sqrt`.
pub fn sqrt(kind: Scalar, modes: Modes) -> Option<AluFn> {
    match (kind, modes.rounding) {
        (F64, Rounding::Nearest) => Some(op!(|a: f64| -> f64 { a.sqrt() })),
        (F32, Rounding::Nearest) => Some(singles!(modes, |a| a.sqrt())),
        (F32, _) => rounded!(modes, sqrt_directed, |a|),
        _ => None,
    }
}

/// Returns the lane loop of `rsqrt`, `sin`, `cos`, `lg2`, `ex2`, and `tanh`.
pub fn function(name: &str, kind: Scalar, modes: Modes) -> Option<AluFn> {
    Some(match (name, kind) {
        ("rsqrt", F64) => op!(|a: f64| -> f64 { 1.0 / a.sqrt() }),
        ("rsqrt", F32) => singles!(modes, |a| (1.0 / f64::from(a).sqrt()) as f32),
        ("sin", F32) => singles!(modes, |a| f64::from(a).sin() as f32),
        ("cos", F32) => singles!(modes, |a| f64::from(a).cos() as f32),
        ("lg2", F32) => singles!(modes, |a| f64::from(a).log2() as f32),
        ("ex2", F32) => singles!(modes, |a| f64::from(a).exp2() as f32),
        ("tanh", F32) => singles!(modes, |a| f64::from(a).tanh() as f32),
        _ => return None,
    })
}

/// Returns the lane loop of `neg`.
pub fn neg(kind: Scalar, modes: Modes) -> Option<AluFn> {
    Some(match kind {
        F64 => op!(|a: f64| -> f64 { -a }),
        F32 => singles!(modes, |a| -a),
        _ => return None,
    })
}

/// Returns the lane loop of `abs`.
pub fn abs(kind: Scalar, modes: Modes) -> Option<AluFn> {
    Some(match kind {
        F64 => op!(|a: f64| -> f64 { a.abs() }),
        F32 => singles!(modes, |a| a.abs()),
        _ => return None,
    })
}

/// Returns the lane loop of `copysign`: the magnitude of `b` with the sign of `a`.
pub fn copysign(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        F64 => op!(|a: f64, b: f64| -> f64 { b.copysign(a) }),
        F32 => op!(|a: f32, b: f32| -> f32 { b.copysign(a) }),
        _ => return None,
    })
}

/// Returns the minimum, with -0 < +0. If one operand is NaN, returns the other one, or NaN if `NAN` is set.
#[inline(always)]
pub fn minimum<const NAN: bool>(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        let number = if a.is_nan() { b } else { a };
        return if NAN || number.is_nan() {
            f32::from_bits(0x7fff_ffff)
        } else {
            number
        };
    }
    if a < b || a == b && a.is_sign_negative() { a } else { b }
}

/// Returns the maximum, with -0 < +0. If one operand is NaN, returns the other one, or NaN if `NAN` is set.
#[inline(always)]
pub fn maximum<const NAN: bool>(a: f32, b: f32) -> f32 {
    if a.is_nan() || b.is_nan() {
        return minimum::<NAN>(a, b);
    }
    if a > b || a == b && a.is_sign_positive() { a } else { b }
}

/// Returns the lane loop of `min` or `max`. With `keeps_nan`, the result is NaN if any operand is NaN.
pub fn extreme(kind: Scalar, modes: Modes, is_max: bool, keeps_nan: bool) -> Option<AluFn> {
    Some(match (kind, is_max, keeps_nan) {
        (F64, false, false) => op!(|a: f64, b: f64| -> f64 { if a.is_nan() || b < a { b } else { a } }),
        (F64, true, false) => op!(|a: f64, b: f64| -> f64 { if a.is_nan() || b > a { b } else { a } }),
        (F32, false, false) => singles!(modes, |a, b| minimum::<false>(a, b)),
        (F32, false, true) => singles!(modes, |a, b| minimum::<true>(a, b)),
        (F32, true, false) => singles!(modes, |a, b| maximum::<false>(a, b)),
        (F32, true, true) => singles!(modes, |a, b| maximum::<true>(a, b)),
        _ => return None,
    })
}
