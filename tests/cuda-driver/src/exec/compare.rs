//! Comparisons whose result is a predicate.

use super::float::flush_subnormal;
use super::lanes::{AluFn, Combine, Test, compare};
use super::scalar::Scalar::{self, *};
use super::scalar::{bf16_to_f32, f16_to_f32};

macro_rules! test {
    ($combine:expr, $type:ty, |$a:ident, $b:ident| $body:expr) => {{
        struct Expression;
        impl Test for Expression {
            type A = $type;
            #[inline(always)]
            // The negation of an ordered comparison is true for NaN.
            #[allow(clippy::neg_cmp_op_on_partial_ord)]
            fn test($a: $type, $b: $type) -> bool {
                $body
            }
        }
        compare::<Expression>($combine)
    }};
}

macro_rules! integer_test {
    ($comparison:expr, $combine:expr, $type:ty) => {
        Some(match $comparison {
            "eq" => test!($combine, $type, |a, b| a == b),
            "ne" => test!($combine, $type, |a, b| a != b),
            "lt" | "lo" => test!($combine, $type, |a, b| a < b),
            "le" | "ls" => test!($combine, $type, |a, b| a <= b),
            "gt" | "hi" => test!($combine, $type, |a, b| a > b),
            "ge" | "hs" => test!($combine, $type, |a, b| a >= b),
            _ => return None,
        })
    };
}

/// Implements comparisons of floats. The variants with suffix `u` are true if an operand is NaN.
macro_rules! float_test {
    ($comparison:expr, $combine:expr, $type:ty, |$x:ident| $value:expr) => {{
        #[inline(always)]
        fn v($x: $type) -> impl PartialOrd + Copy {
            $value
        }
        Some(match $comparison {
            "eq" => test!($combine, $type, |a, b| v(a) == v(b)),
            "ne" => test!($combine, $type, |a, b| v(a) < v(b) || v(a) > v(b)),
            "lt" => test!($combine, $type, |a, b| v(a) < v(b)),
            "le" => test!($combine, $type, |a, b| v(a) <= v(b)),
            "gt" => test!($combine, $type, |a, b| v(a) > v(b)),
            "ge" => test!($combine, $type, |a, b| v(a) >= v(b)),
            "equ" => test!($combine, $type, |a, b| !(v(a) < v(b) || v(a) > v(b))),
            "neu" => test!($combine, $type, |a, b| v(a) != v(b)),
            "ltu" => test!($combine, $type, |a, b| !(v(a) >= v(b))),
            "leu" => test!($combine, $type, |a, b| !(v(a) > v(b))),
            "gtu" => test!($combine, $type, |a, b| !(v(a) <= v(b))),
            "geu" => test!($combine, $type, |a, b| !(v(a) < v(b))),
            "num" => test!($combine, $type, |a, b| v(a).partial_cmp(&v(b)).is_some()),
            "nan" => test!($combine, $type, |a, b| v(a).partial_cmp(&v(b)).is_none()),
            _ => return None,
        })
    }};
}

/// Returns the lane loop of `setp`, or `None` if it does not support the type.
pub fn setp(comparison: &str, kind: Scalar, combine: Combine, flush: bool) -> Option<AluFn> {
    match kind {
        F64 => float_test!(comparison, combine, f64, |x| x),
        F32 if flush => float_test!(comparison, combine, f32, |x| flush_subnormal(x, true)),
        F32 => float_test!(comparison, combine, f32, |x| x),
        F16 => float_test!(comparison, combine, u16, |x| f16_to_f32(x)),
        Bf16 => float_test!(comparison, combine, u16, |x| bf16_to_f32(x)),
        U16 | B16 => integer_test!(comparison, combine, u16),
        S16 => integer_test!(comparison, combine, i16),
        U32 | B32 => integer_test!(comparison, combine, u32),
        S32 => integer_test!(comparison, combine, i32),
        U64 | B64 => integer_test!(comparison, combine, u64),
        S64 => integer_test!(comparison, combine, i64),
        _ => None,
    }
}

/// Returns the lane loop of `testp`, or `None` if it does not support the type.
pub fn testp(property: &str, kind: Scalar) -> Option<AluFn> {
    Some(match (property, kind) {
        ("finite", F32) => test!(Combine::And, f32, |a, _b| a.is_finite()),
        ("infinite", F32) => test!(Combine::And, f32, |a, _b| a.is_infinite()),
        ("number", F32) => test!(Combine::And, f32, |a, _b| !a.is_nan()),
        ("notanumber", F32) => test!(Combine::And, f32, |a, _b| a.is_nan()),
        ("normal", F32) => test!(Combine::And, f32, |a, _b| a.is_normal()),
        ("subnormal", F32) => test!(Combine::And, f32, |a, _b| a.is_subnormal()),
        ("finite", F64) => test!(Combine::And, f64, |a, _b| a.is_finite()),
        ("infinite", F64) => test!(Combine::And, f64, |a, _b| a.is_infinite()),
        ("number", F64) => test!(Combine::And, f64, |a, _b| !a.is_nan()),
        ("notanumber", F64) => test!(Combine::And, f64, |a, _b| a.is_nan()),
        _ => return None,
    })
}
