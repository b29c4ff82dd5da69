//! Arithmetic on 16-bit floats and pairs of 16-bit floats, computed in f32 or f64 and rounded once.

use super::float::{maximum, minimum};
use super::lanes::{AluFn, op};
use super::scalar::Scalar::{self, *};
use super::scalar::{Format, Rounding, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, narrow};

/// Instantiates an expression for single and paired 16-bit floats.
macro_rules! halves {
    ($kind:expr, |$a:ident| $body:expr) => {
        halves!($kind, |$a, _b, _c| $body)
    };
    ($kind:expr, |$a:ident, $b:ident| $body:expr) => {
        halves!($kind, |$a, $b, _c| $body)
    };
    ($kind:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {
        match $kind {
            F16 => halves!(@ one, f16_to_f32, f32_to_f16, $a, $b, $c, $body),
            Bf16 => halves!(@ one, bf16_to_f32, f32_to_bf16, $a, $b, $c, $body),
            F16x2 => halves!(@ two, f16_to_f32, f32_to_f16, $a, $b, $c, $body),
            Bf16x2 => halves!(@ two, bf16_to_f32, f32_to_bf16, $a, $b, $c, $body),
            _ => return None,
        }
    };
    (@ one, $load:ident, $store:ident, $a:ident, $b:ident, $c:ident, $body:expr) => {
        op!(|$a: u16, $b: u16, $c: u16| -> u16 {
            let ($a, $b, $c) = ($load($a), $load($b), $load($c));
            $store($body)
        })
    };
    (@ two, $load:ident, $store:ident, $a:ident, $b:ident, $c:ident, $body:expr) => {
        op!(|$a: u32, $b: u32, $c: u32| -> u32 {
            let low = {
                let ($a, $b, $c) = ($load($a as u16), $load($b as u16), $load($c as u16));
                u32::from($store($body))
            };
            let ($a, $b, $c) = ($load(($a >> 16) as u16), $load(($b >> 16) as u16), $load(($c >> 16) as u16));
            low | u32::from($store($body)) << 16
        })
    };
}

fn saturate_if(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

/// Returns the lane loop of `add`. Rounding to f32 first is harmless: f32 has at least twice the precision of
/// a half plus two bits.
pub fn add(kind: Scalar, saturate: bool) -> Option<AluFn> {
    Some(if saturate {
        halves!(kind, |a, b| saturate_if(a + b))
    } else {
        halves!(kind, |a, b| a + b)
    })
}

/// Returns the lane loop of `sub`.
pub fn sub(kind: Scalar, saturate: bool) -> Option<AluFn> {
    Some(if saturate {
        halves!(kind, |a, b| saturate_if(a - b))
    } else {
        halves!(kind, |a, b| a - b)
    })
}

/// Returns the lane loop of `mul`.
pub fn mul(kind: Scalar, saturate: bool) -> Option<AluFn> {
    Some(if saturate {
        halves!(kind, |a, b| saturate_if(a * b))
    } else {
        halves!(kind, |a, b| a * b)
    })
}

/// Returns the lane loop of `fma`. The product is exact in f32. For bfloat16, f64 cannot represent every sum,
/// so the sum is rounded to odd first.
pub fn fma(kind: Scalar, saturate: bool, relu: bool) -> Option<AluFn> {
    Some(match (kind, saturate, relu) {
        (F16, false, false) => op!(|a: u16, b: u16, c: u16| -> u16 { fma_f16(a, b, c) }),
        (F16x2, false, false) => op!(|a: u32, b: u32, c: u32| -> u32 { pairs(a, b, c, fma_f16) }),
        (Bf16, false, false) => op!(|a: u16, b: u16, c: u16| -> u16 { fma_bf16(a, b, c) }),
        (Bf16x2, false, false) => op!(|a: u32, b: u32, c: u32| -> u32 { pairs(a, b, c, fma_bf16) }),
        (F16, true, false) => {
            op!(|a: u16, b: u16, c: u16| -> u16 { f32_to_f16(saturate_if(f16_to_f32(fma_f16(a, b, c)))) })
        }
        (F16, false, true) => op!(|a: u16, b: u16, c: u16| -> u16 { relu_of(fma_f16(a, b, c)) }),
        (F16x2, false, true) => {
            op!(|a: u32, b: u32, c: u32| -> u32 { pairs(a, b, c, |a, b, c| relu_of(fma_f16(a, b, c))) })
        }
        (Bf16, false, true) => op!(|a: u16, b: u16, c: u16| -> u16 { relu_of(fma_bf16(a, b, c)) }),
        (Bf16x2, false, true) => {
            op!(|a: u32, b: u32, c: u32| -> u32 { pairs(a, b, c, |a, b, c| relu_of(fma_bf16(a, b, c))) })
        }
        _ => return None,
    })
}

#[inline(always)]
fn pairs(a: u32, b: u32, c: u32, f: impl Fn(u16, u16, u16) -> u16) -> u32 {
    let low = f(a as u16, b as u16, c as u16);
    let high = f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16);
    u32::from(high) << 16 | u32::from(low)
}

/// Replaces negative numbers by 0; NaN is unchanged.
fn relu_of(half: u16) -> u16 {
    if half & 0x8000 != 0 && half != 0xffff { 0 } else { half }
}

/// Computes an f16 `fma` in f64. Products have 22 bits and exponents of at least -48, so the sum is exact or
/// its error is negligible.
#[inline(always)]
fn fma_f16(a: u16, b: u16, c: u16) -> u16 {
    let sum = f64::from(f16_to_f32(a)) * f64::from(f16_to_f32(b)) + f64::from(f16_to_f32(c));
    narrow(sum, Format::F16, Rounding::Nearest) as u16
}

#[inline(always)]
fn fma_bf16(a: u16, b: u16, c: u16) -> u16 {
    let (product, c) = (
        f64::from(bf16_to_f32(a)) * f64::from(bf16_to_f32(b)),
        f64::from(bf16_to_f32(c)),
    );
    narrow(sum_to_odd(product, c), Format::BF16, Rounding::Nearest) as u16
}

/// Returns a sum rounded to odd, so that the final rounding is correct.
pub fn sum_to_odd(a: f64, b: f64) -> f64 {
    let sum = a + b;
    let of_b = sum - a;
    let lost = (a - (sum - of_b)) + (b - of_b);
    if lost == 0.0 || !lost.is_finite() || sum.to_bits() & 1 == 1 {
        return sum;
    }
    if (lost > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() | 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// Returns the lane loop of `neg`.
pub fn neg(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        F16 | Bf16 => op!(|a: u16| -> u16 { a ^ 0x8000 }),
        F16x2 | Bf16x2 => op!(|a: u32| -> u32 { a ^ 0x8000_8000 }),
        _ => return None,
    })
}

/// Returns the lane loop of `abs`.
pub fn abs(kind: Scalar) -> Option<AluFn> {
    Some(match kind {
        F16 | Bf16 => op!(|a: u16| -> u16 { a & 0x7fff }),
        F16x2 | Bf16x2 => op!(|a: u32| -> u32 { a & 0x7fff_7fff }),
        _ => return None,
    })
}

/// Returns the lane loop of `min` or `max`.
pub fn extreme(kind: Scalar, is_max: bool, keeps_nan: bool) -> Option<AluFn> {
    Some(match (is_max, keeps_nan) {
        (false, false) => halves!(kind, |a, b| minimum::<false>(a, b)),
        (false, true) => halves!(kind, |a, b| minimum::<true>(a, b)),
        (true, false) => halves!(kind, |a, b| maximum::<false>(a, b)),
        (true, true) => halves!(kind, |a, b| maximum::<true>(a, b)),
    })
}

/// Returns the lane loop of `ex2` or `tanh`.
pub fn function(name: &str, kind: Scalar) -> Option<AluFn> {
    Some(match name {
        "ex2" => halves!(kind, |a| f64::from(a).exp2() as f32),
        "tanh" => halves!(kind, |a| f64::from(a).tanh() as f32),
        _ => return None,
    })
}

/// Adds two 16-bit floats.
pub fn sum_of(kind: Scalar, a: u16, b: u16) -> u16 {
    if matches!(kind, Bf16 | Bf16x2) {
        f32_to_bf16(bf16_to_f32(a) + bf16_to_f32(b))
    } else {
        f32_to_f16(f16_to_f32(a) + f16_to_f32(b))
    }
}

/// Adds two pairs of 16-bit floats.
pub fn pair_of_sums(kind: Scalar, a: u32, b: u32) -> u32 {
    pairs(a, b, 0, |a, b, _| sum_of(kind, a, b))
}
