//! Operand types of instructions, and conversions of 16-bit floats.

/// The operand type of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scalar {
    B8,
    U8,
    S8,
    B16,
    U16,
    S16,
    B32,
    U32,
    S32,
    B64,
    U64,
    S64,
    F16,
    F16x2,
    Bf16,
    Bf16x2,
    Tf32,
    F32,
    F64,
    Pred,
}

impl Scalar {
    /// Parses a type name without the dot.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "b8" => Self::B8,
            "u8" => Self::U8,
            "s8" => Self::S8,
            "b16" => Self::B16,
            "u16" => Self::U16,
            "s16" => Self::S16,
            "b32" => Self::B32,
            "u32" => Self::U32,
            "s32" => Self::S32,
            "b64" => Self::B64,
            "u64" => Self::U64,
            "s64" => Self::S64,
            "f16" => Self::F16,
            "f16x2" => Self::F16x2,
            "bf16" => Self::Bf16,
            "bf16x2" => Self::Bf16x2,
            "tf32" => Self::Tf32,
            "f32" => Self::F32,
            "f64" => Self::F64,
            "pred" => Self::Pred,
            _ => return None,
        })
    }

    /// Returns the size in bytes; 0 for a predicate.
    pub fn bytes(self) -> u32 {
        match self {
            Self::B8 | Self::U8 | Self::S8 => 1,
            Self::B16 | Self::U16 | Self::S16 | Self::F16 | Self::Bf16 => 2,
            Self::B32 | Self::U32 | Self::S32 | Self::F16x2 | Self::Bf16x2 | Self::Tf32 | Self::F32 => 4,
            Self::B64 | Self::U64 | Self::S64 | Self::F64 => 8,
            Self::Pred => 0,
        }
    }

    /// Returns true for signed integers.
    pub fn is_signed(self) -> bool {
        matches!(self, Self::S8 | Self::S16 | Self::S32 | Self::S64)
    }

    /// Returns true for floating-point types.
    pub fn is_float(self) -> bool {
        use Scalar::*;
        matches!(self, F16 | F16x2 | Bf16 | Bf16x2 | Tf32 | F32 | F64)
    }
}

/// Rounding mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Rounds to nearest, ties to even (`rn`, `rni`).
    Nearest,
    /// Rounds to nearest, ties away from zero (`rna`).
    Away,
    /// Toward zero (`rz`, `rzi`).
    Zero,
    /// Toward negative infinity (`rm`, `rmi`).
    Down,
    /// Toward positive infinity (`rp`, `rpi`).
    Up,
}

/// Converts an f16 value to f32.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let magnitude = u32::from(half & 0x7fff) << 13;
    let sign = u32::from(half & 0x8000) << 16;
    // The multiplication adjusts the exponent bias by 112, for subnormal numbers as well.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let bits = if half & 0x7c00 == 0x7c00 {
        magnitude | 0x7f80_0000
    } else {
        scaled.to_bits()
    };
    f32::from_bits(bits | sign)
}

/// Converts a bf16 value to f32.
#[inline(always)]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// Rounds to the nearest f16 value, ties to even. NaN becomes the canonical NaN.
#[inline(always)]
pub fn f32_to_f16(x: f32) -> u16 {
    let bits = x.to_bits();
    let magnitude = bits & 0x7fff_ffff;
    let sign = (bits >> 16 & 0x8000) as u16;
    // Below 2^-14, adding 0.5 rounds at the last bit of a subnormal f16.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
    let odd = magnitude >> 13 & 1;
    let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
    let finite = if magnitude < 113 << 23 { subnormal } else { normal };
    // Values from 65520 round to infinity.
    let half = if magnitude >= 0x477f_f000 {
        0x7c00
    } else {
        finite as u16
    };
    if magnitude > 0x7f80_0000 { 0x7fff } else { half | sign }
}

/// Rounds to the nearest bf16 value, ties to even. NaN becomes the canonical NaN.
#[inline(always)]
pub fn f32_to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    if bits & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff
    } else {
        rounded as u16
    }
}

/// A binary floating-point format, given by its exponent and fraction bits.
#[derive(Debug, Clone, Copy)]
pub struct Format {
    pub exponent: u32,
    pub fraction: u32,
}

impl Format {
    pub const F16: Self = Self {
        exponent: 5,
        fraction: 10,
    };
    pub const BF16: Self = Self {
        exponent: 8,
        fraction: 7,
    };
    pub const F32: Self = Self {
        exponent: 8,
        fraction: 23,
    };
    /// The `tf32` format without the 13 unused low bits.
    pub const TF32: Self = Self {
        exponent: 8,
        fraction: 10,
    };
}

/// Rounds a number to a narrower format and returns its bits. NaN becomes the canonical NaN, all ones below
/// the sign.
pub fn narrow(x: f64, to: Format, rounding: Rounding) -> u32 {
    let sign = u32::from(x.is_sign_negative()) << (to.exponent + to.fraction);
    let infinity = ((1u32 << to.exponent) - 1) << to.fraction;
    if x.is_nan() {
        return (1 << (to.exponent + to.fraction)) - 1;
    }
    let magnitude = x.abs();
    if magnitude.is_infinite() {
        return sign | infinity;
    }
    let bias = (1i32 << (to.exponent - 1)) - 1;
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(1 - bias);
    // The magnitude in units of the last place is below 2^(fraction + 1). The scaling is exact because the
    // factors are powers of two in the range of f64.
    let units = magnitude * power_of_two(to.fraction as i32 - exponent);
    let rounded = round_magnitude(units, x < 0.0, rounding) as u32;
    // A carry out of the fraction increments the exponent.
    let bits = u64::from(rounded) + (((exponent + bias - 1) as u64) << to.fraction);
    let away_from_zero = match rounding {
        Rounding::Nearest | Rounding::Away => true,
        Rounding::Zero => false,
        Rounding::Down => x < 0.0,
        Rounding::Up => x > 0.0,
    };
    let largest = if away_from_zero { infinity } else { infinity - 1 };
    sign | bits.min(largest.into()) as u32
}

fn power_of_two(exponent: i32) -> f64 {
    // The clamp excludes subnormal f64 numbers, which cannot occur because the widest target format is f32.
    f64::from_bits(((exponent.clamp(-1022, 1023) + 1023) as u64) << 52)
}

/// Rounds a magnitude to an integer. `is_negative` is the sign, which directed rounding depends on.
fn round_magnitude(units: f64, is_negative: bool, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => units.round_ties_even(),
        Rounding::Away => units.round(),
        Rounding::Zero => units.trunc(),
        Rounding::Down if is_negative => units.ceil(),
        Rounding::Up if !is_negative => units.ceil(),
        Rounding::Down | Rounding::Up => units.floor(),
    }
}

/// Rounds a number to an integer.
#[inline(always)]
pub fn round(x: f64, rounding: Rounding) -> f64 {
    match rounding {
        Rounding::Nearest => x.round_ties_even(),
        Rounding::Away => x.round(),
        Rounding::Zero => x.trunc(),
        Rounding::Down => x.floor(),
        Rounding::Up => x.ceil(),
    }
}
