//! Conversions between all types (`cvt`).
//!
//! A register may be wider than the type of its value. Source registers are truncated to the type. Results
//! are sign-extended or zero-extended to the register.

use super::lanes::{AluFn, op};
use super::scalar::Scalar::{self, *};
use super::scalar::{Format, Rounding, bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16, narrow, round};

/// Parameters of a `cvt` instruction.
#[derive(Debug, Clone, Copy)]
pub struct Conversion {
    /// Result type.
    pub to: Scalar,
    /// Source type.
    pub from: Scalar,
    /// Rounding mode; `None` if the conversion is exact.
    pub rounding: Option<Rounding>,
    /// True if the result is rounded to an integer (`rni`, `rzi`, …).
    pub to_integer: bool,
    /// True to clamp integers to the range of the result type, and floats to 0..1 (`.sat`).
    pub saturate: bool,
    /// True to flush subnormal numbers to zero (`.ftz`).
    pub flush: bool,
    /// True to replace negative results by 0 (`.relu`).
    pub relu: bool,
}

/// Intermediate value of a conversion.
#[derive(Clone, Copy)]
enum Value {
    Int(i128),
    Float(f64),
}

/// Returns the lane loop of a conversion for the given register sizes in bytes. `Args::extra` must contain
/// the [`encode`]d conversion.
pub fn convert(c: &Conversion, to_bytes: u32, from_bytes: u32) -> Option<AluFn> {
    if let Some(fast) = specialized(c, to_bytes, from_bytes) {
        return Some(fast);
    }
    let is_scalar = |t: Scalar| !matches!(t, F16x2 | Bf16x2 | Pred);
    if !is_scalar(c.to) || !is_scalar(c.from) {
        return None;
    }
    Some(match (to_bytes, from_bytes) {
        (2, 2) => op!(|a: u16, _b: u16, _c: u16, how| -> u16 { any(a.into(), how) as u16 }),
        (2, 4) => op!(|a: u32, _b: u32, _c: u32, how| -> u16 { any(a.into(), how) as u16 }),
        (2, 8) => op!(|a: u64, _b: u64, _c: u64, how| -> u16 { any(a, how) as u16 }),
        (4, 2) => op!(|a: u16, _b: u16, _c: u16, how| -> u32 { any(a.into(), how) as u32 }),
        (4, 4) => op!(|a: u32, _b: u32, _c: u32, how| -> u32 { any(a.into(), how) as u32 }),
        (4, 8) => op!(|a: u64, _b: u64, _c: u64, how| -> u32 { any(a, how) as u32 }),
        (8, 2) => op!(|a: u16, _b: u16, _c: u16, how| -> u64 { any(a.into(), how) }),
        (8, 4) => op!(|a: u32, _b: u32, _c: u32, how| -> u64 { any(a.into(), how) }),
        (8, 8) => op!(|a: u64, _b: u64, _c: u64, how| -> u64 { any(a, how) }),
        _ => return None,
    })
}

/// Returns specialized lane loops for frequent conversions.
fn specialized(c: &Conversion, to_bytes: u32, from_bytes: u32) -> Option<AluFn> {
    if (c.to, c.from, to_bytes, from_bytes) == (F32, F32, 4, 4) && c.saturate && !c.to_integer && !c.flush && !c.relu {
        return Some(op!(|a: f32| -> f32 { if a > 0.0 { a.min(1.0) } else { 0.0 } }));
    }
    if c.saturate || c.flush || c.relu {
        return None;
    }
    let nearest = c.rounding == Some(Rounding::Nearest);
    Some(match (c.to, c.from, to_bytes, from_bytes) {
        (F32, F16, 4, 2) => op!(|a: u16| -> f32 { f16_to_f32(a) }),
        (F32, Bf16, 4, 2) => op!(|a: u16| -> f32 { bf16_to_f32(a) }),
        (F16, F32, 2, 4) if nearest => op!(|a: f32| -> u16 { f32_to_f16(a) }),
        (Bf16, F32, 2, 4) if nearest => op!(|a: f32| -> u16 { f32_to_bf16(a) }),
        (F32, S32, 4, 4) if nearest => op!(|a: i32| -> f32 { a as f32 }),
        (F32, U32, 4, 4) if nearest => op!(|a: u32| -> f32 { a as f32 }),
        (F32, S16, 4, 2) => op!(|a: i16| -> f32 { a.into() }),
        (S64, S32, 8, 4) => op!(|a: i32| -> i64 { a.into() }),
        (U64, U32, 8, 4) => op!(|a: u32| -> u64 { a.into() }),
        (U32 | S32, U64 | S64, 4, 8) => op!(|a: u64| -> u32 { a as u32 }),
        (U32 | S32, U16, 4, 2) => op!(|a: u16| -> u32 { a.into() }),
        (S32 | U32, S16, 4, 2) => op!(|a: i16| -> i32 { a.into() }),
        (U16 | S16, U32 | S32, 2, 4) => op!(|a: u32| -> u16 { a as u16 }),
        (U32 | S32, U8, 4, 4) => op!(|a: u32| -> u32 { a & 0xff }),
        (U32 | S32, U8, 4, 2) => op!(|a: u16| -> u32 { (a & 0xff).into() }),
        (U16 | S16, S8, 2, 2) => op!(|a: i16| -> i16 { a << 8 >> 8 }),
        (U16 | S16, U8, 2, 2) => op!(|a: u16| -> u16 { a & 0xff }),
        (S32 | U32, S8, 4, 4) => op!(|a: i32| -> i32 { a << 24 >> 24 }),
        (S32, F32, 4, 4) if c.rounding == Some(Rounding::Zero) => op!(|a: f32| -> i32 { a as i32 }),
        (S32, F32, 4, 4) if nearest => op!(|a: f32| -> i32 { a.round_ties_even() as i32 }),
        _ => return None,
    })
}

/// Returns the lane loop of `cvt.rn.f16x2.f32 d, a, b` and its variants. The upper half of the result is `a`.
pub fn pack(to: Scalar, rounding: Rounding, relu: bool) -> Option<AluFn> {
    Some(match (to, rounding, relu) {
        (F16x2, Rounding::Nearest, false) => {
            op!(|a: f32, b: f32| -> u32 { u32::from(f32_to_f16(a)) << 16 | u32::from(f32_to_f16(b)) })
        }
        (Bf16x2, Rounding::Nearest, false) => {
            op!(|a: f32, b: f32| -> u32 { u32::from(f32_to_bf16(a)) << 16 | u32::from(f32_to_bf16(b)) })
        }
        (F16x2, Rounding::Nearest, true) => {
            op!(|a: f32, b: f32| -> u32 { both(a, b, Format::F16, Rounding::Nearest, true) })
        }
        (Bf16x2, Rounding::Nearest, true) => {
            op!(|a: f32, b: f32| -> u32 { both(a, b, Format::BF16, Rounding::Nearest, true) })
        }
        (F16x2, Rounding::Zero, false) => {
            op!(|a: f32, b: f32| -> u32 { both(a, b, Format::F16, Rounding::Zero, false) })
        }
        (Bf16x2, Rounding::Zero, false) => {
            op!(|a: f32, b: f32| -> u32 { both(a, b, Format::BF16, Rounding::Zero, false) })
        }
        _ => return None,
    })
}

fn both(a: f32, b: f32, format: Format, rounding: Rounding, relu: bool) -> u32 {
    let half = |x: f32| narrow(if relu { at_least_zero(x.into()) } else { x.into() }, format, rounding);
    half(a) << 16 | half(b)
}

fn at_least_zero(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// Returns the lane loop of `cvt.pack.sat.TO.s32 d, a, b{, c}`. The clamped `a` is above the clamped `b`. For
/// 8-bit types, the low half of `c` becomes the upper half of the result.
pub fn pack_integers(to: Scalar, has_third: bool) -> Option<AluFn> {
    Some(match (to, has_third) {
        (S16, false) => op!(|a: i32, b: i32| -> u32 {
            (a.clamp(-0x8000, 0x7fff) as u32) << 16 | b.clamp(-0x8000, 0x7fff) as u32 & 0xffff
        }),
        (U16, false) => op!(|a: i32, b: i32| -> u32 { (a.clamp(0, 0xffff) as u32) << 16 | b.clamp(0, 0xffff) as u32 }),
        (S8, true) => {
            op!(|a: i32, b: i32, c: u32| -> u32 {
                c << 16 | (a.clamp(-128, 127) as u32 & 0xff) << 8 | b.clamp(-128, 127) as u32 & 0xff
            })
        }
        (U8, true) => {
            op!(|a: i32, b: i32, c: u32| -> u32 { c << 16 | (a.clamp(0, 255) as u32) << 8 | b.clamp(0, 255) as u32 })
        }
        _ => return None,
    })
}

/// Encodes a conversion for [`super::lanes::Args::extra`].
pub fn encode(c: &Conversion) -> u32 {
    let rounding = c
        .rounding
        .map_or(0, |r| ROUNDINGS.iter().position(|x| *x == r).unwrap_or(0) as u32 + 1);
    let flag = |b: bool, at: u32| u32::from(b) << at;
    let kinds = code(c.to) | code(c.from) << 5 | rounding << 10;
    kinds | flag(c.to_integer, 13) | flag(c.saturate, 14) | flag(c.flush, 15) | flag(c.relu, 16)
}

const ROUNDINGS: [Rounding; 5] = [
    Rounding::Nearest,
    Rounding::Away,
    Rounding::Zero,
    Rounding::Down,
    Rounding::Up,
];
const KINDS: [Scalar; 13] = [U8, S8, U16, S16, U32, S32, U64, S64, F16, Bf16, Tf32, F32, F64];

fn code(kind: Scalar) -> u32 {
    let same = match kind {
        B8 => U8,
        B16 => U16,
        B32 => U32,
        B64 => U64,
        other => other,
    };
    KINDS.iter().position(|k| *k == same).unwrap_or(0) as u32
}

fn decode(how: u32) -> Conversion {
    let flag = |at: u32| how >> at & 1 != 0;
    Conversion {
        to: KINDS[how as usize & 31],
        from: KINDS[(how >> 5) as usize & 31],
        rounding: (how >> 10 & 7).checked_sub(1).map(|i| ROUNDINGS[i as usize]),
        to_integer: flag(13),
        saturate: flag(14),
        flush: flag(15),
        relu: flag(16),
    }
}

/// Converts the value of one lane.
fn any(bits: u64, how: u32) -> u64 {
    let c = decode(how);
    let mut value = load(bits, c.from);
    if let Value::Float(x) = &mut value {
        if c.flush && c.from == F32 && x.abs() < f64::from(f32::MIN_POSITIVE) {
            *x = 0f64.copysign(*x);
        }
        if c.to_integer && c.to.is_float() {
            *x = round(*x, c.rounding.unwrap_or(Rounding::Zero));
        }
    }
    if c.to.is_float() {
        to_float(value, &c)
    } else {
        to_int(value, &c)
    }
}

fn load(bits: u64, kind: Scalar) -> Value {
    match kind {
        F16 => Value::Float(f16_to_f32(bits as u16).into()),
        Bf16 => Value::Float(bf16_to_f32(bits as u16).into()),
        F32 | Tf32 => Value::Float(f32::from_bits(bits as u32).into()),
        F64 => Value::Float(f64::from_bits(bits)),
        _ => {
            let unused = 64 - 8 * kind.bytes();
            let up = bits << unused;
            Value::Int(if kind.is_signed() {
                (up as i64 >> unused).into()
            } else {
                (up >> unused).into()
            })
        }
    }
}

/// Returns the minimum and maximum of an integer type.
fn range(kind: Scalar) -> (i128, i128) {
    let bits = 8 * kind.bytes();
    if kind.is_signed() {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

fn to_int(value: Value, c: &Conversion) -> u64 {
    let (least, greatest) = range(c.to);
    let converted = match value {
        Value::Int(i) if c.saturate => i.clamp(least, greatest),
        Value::Int(i) => i,
        // NaN converts to 0, or to the highest bit if one of the types has 64 bits (PTX ISA, `cvt`).
        Value::Float(x) if x.is_nan() && (c.from == F64 || c.to.bytes() == 8) => 1 << (8 * c.to.bytes() - 1),
        Value::Float(x) => (round(x, c.rounding.unwrap_or(Rounding::Zero)) as i128).clamp(least, greatest),
    };
    // Truncate to the type, then extend to the register width.
    let unused = 64 - 8 * c.to.bytes();
    let up = (converted as u64) << unused;
    if c.to.is_signed() {
        (up as i64 >> unused) as u64
    } else {
        up >> unused
    }
}

fn to_float(value: Value, c: &Conversion) -> u64 {
    let rounding = c.rounding.unwrap_or(Rounding::Nearest);
    let mut x = match value {
        Value::Int(i) if c.to == F64 => return to_f64(i, rounding).to_bits(),
        Value::Int(i) => to_f64_round_to_odd(i),
        Value::Float(x) => x,
    };
    if c.saturate {
        x = if x > 0.0 { x.min(1.0) } else { 0.0 };
    }
    if c.relu {
        x = at_least_zero(x);
    }
    // The first rounding already produced an integer.
    let rounding = if c.to_integer { Rounding::Nearest } else { rounding };
    match c.to {
        F16 => narrow(x, Format::F16, rounding).into(),
        Bf16 => narrow(x, Format::BF16, rounding).into(),
        Tf32 => u64::from(narrow(x, Format::TF32, rounding)) << 13,
        F64 => x.to_bits(),
        _ => single(x, rounding, c.flush).into(),
    }
}

fn single(x: f64, rounding: Rounding, flush: bool) -> u32 {
    let bits = narrow(x, Format::F32, rounding);
    if flush && bits & 0x7f80_0000 == 0 {
        bits & 0x8000_0000
    } else {
        bits
    }
}

/// Converts an integer to f64 with round-to-odd, so that a second rounding is correct.
fn to_f64_round_to_odd(i: i128) -> f64 {
    let magnitude = i.unsigned_abs() as u64;
    let excess = (64 - magnitude.leading_zeros()).saturating_sub(53);
    let lost = magnitude & ((1 << excess) - 1) != 0;
    let kept = (magnitude >> excess | u64::from(lost)) << excess;
    let x = kept as f64;
    if i < 0 { -x } else { x }
}

fn to_f64(i: i128, rounding: Rounding) -> f64 {
    let nearest = i as f64;
    let error = i - nearest as i128;
    let is_up = match rounding {
        Rounding::Up => true,
        Rounding::Zero => i < 0,
        _ => false,
    };
    let is_down = rounding == Rounding::Down || rounding == Rounding::Zero && i > 0;
    match error.signum() {
        1 if is_up => nearest.next_up(),
        -1 if is_down => nearest.next_down(),
        _ => nearest,
    }
}
