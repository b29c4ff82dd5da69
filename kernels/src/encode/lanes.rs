//! Eight floats with elementwise operations. These are plain loops, which compilers vectorize. Results do not depend on
//! the instruction set.

use std::ops::{Add, Div, Mul, Sub};

use crate::layout::block::Half;

/// Number of lanes.
pub(super) const N: usize = 8;

/// Floats, one per lane. A lane usually belongs to a group of weights with a scale of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(align(32))]
pub(super) struct Lanes(pub [f32; N]);

macro_rules! lanewise {
    ($( $trait:ident $name:ident $op:tt; )*) => { $(
        impl $trait for Lanes {
            type Output = Lanes;

            #[inline(always)]
            fn $name(mut self, other: Lanes) -> Lanes {
                for i in 0..N {
                    self.0[i] $op other.0[i];
                }
                self
            }
        }
    )* };
}

lanewise! { Add add +=; Sub sub -=; Mul mul *=; Div div /=; }

impl Lanes {
    pub(super) const ZERO: Lanes = Lanes([0.0; N]);

    /// Returns `x` in all lanes.
    #[inline(always)]
    pub(super) fn splat(x: f32) -> Lanes {
        Lanes([x; N])
    }

    /// Returns the larger values; those of `other` where `self` is NaN.
    #[inline(always)]
    pub(super) fn max(mut self, other: Lanes) -> Lanes {
        for i in 0..N {
            self.0[i] = if self.0[i] > other.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    /// Returns the smaller values; those of `other` where `self` is NaN.
    #[inline(always)]
    pub(super) fn min(mut self, other: Lanes) -> Lanes {
        for i in 0..N {
            self.0[i] = if self.0[i] < other.0[i] { self.0[i] } else { other.0[i] };
        }
        self
    }

    /// Limits the values to `low..=high`. NaN becomes `low`.
    #[inline(always)]
    pub(super) fn clamp(self, low: f32, high: f32) -> Lanes {
        self.max(Lanes::splat(low)).min(Lanes::splat(high))
    }

    /// Rounds to the nearest integers, ties to even. Magnitudes must be below 2^22.
    #[inline(always)]
    pub(super) fn round(self) -> Lanes {
        // The x86-64 baseline has no rounding instruction.
        let magic = Lanes::splat(MAGIC);
        (self + magic) - magic
    }

    /// Returns the magnitudes.
    #[inline(always)]
    pub(super) fn abs(mut self) -> Lanes {
        for i in 0..N {
            self.0[i] = self.0[i].abs();
        }
        self
    }

    /// Rounds positive numbers down to powers of two; subnormal numbers become 0.
    #[inline(always)]
    pub(super) fn power_of_two(mut self) -> Lanes {
        for i in 0..N {
            self.0[i] = f32::from_bits(self.0[i].to_bits() & 0x7f80_0000);
        }
        self
    }

    /// Rounds to the precision of F16, but not to its range.
    #[inline(always)]
    pub(super) fn half_precision(self) -> Lanes {
        // Splits off the low 13 of 24 bits of the significand (Veltkamp).
        let scaled = self * Lanes::splat(8193.0);
        scaled - (scaled - self)
    }

    /// Returns `1 / x`, or 0 where that is not finite.
    #[inline(always)]
    pub(super) fn inverse(mut self) -> Lanes {
        for i in 0..N {
            let inverse = 1.0 / self.0[i];
            self.0[i] = if inverse.abs() < f32::INFINITY { inverse } else { 0.0 };
        }
        self
    }

    /// Returns `self / other`, or 0 where `other` is not positive.
    #[inline(always)]
    pub(super) fn over(mut self, other: Lanes) -> Lanes {
        for i in 0..N {
            let quotient = self.0[i] / other.0[i];
            self.0[i] = if other.0[i] > 0.0 { quotient } else { 0.0 };
        }
        self
    }

    /// Divides importance by the largest of a block.
    #[inline(always)]
    pub(super) fn relative_to(self, largest: f32) -> Lanes {
        (self / Lanes::splat(largest)).clamp(MIN_IMPORTANCE, 1.0)
    }

    /// Returns the lanes of `a` where `self < limit`, and those of `b` elsewhere.
    #[inline(always)]
    pub(super) fn select_less(self, limit: Lanes, a: Lanes, b: Lanes) -> Lanes {
        let mut out = b;
        for i in 0..N {
            out.0[i] = if self.0[i] < limit.0[i] { a.0[i] } else { b.0[i] };
        }
        out
    }

    /// Returns the magnitudes with the signs of `other`.
    #[inline(always)]
    pub(super) fn with_sign_of(mut self, other: Lanes) -> Lanes {
        for i in 0..N {
            self.0[i] = self.0[i].copysign(other.0[i]);
        }
        self
    }

    /// Converts one finite F16 per lane.
    #[inline(always)]
    pub(super) fn from_halves(halves: &[Half; N]) -> Lanes {
        let mut lanes = Lanes::ZERO;
        for (lane, half) in lanes.0.iter_mut().zip(halves) {
            let bits = u32::from(u16::from_le_bytes(half.0));
            let magnitude = bits & 0x7fff;
            let normal = (magnitude << 13).wrapping_add(EXPONENTS << 23);
            let subnormal = magnitude as f32 * SMALLEST;
            let magnitude = if magnitude < 0x400 { subnormal.to_bits() } else { normal };
            *lane = f32::from_bits((bits & 0x8000) << 16 | magnitude);
        }
        lanes
    }

    /// Rounds to F16. Magnitudes must be at most [`LARGEST`].
    #[inline(always)]
    pub(super) fn to_halves(self) -> [Half; N] {
        let mut halves = [Half::default(); N];
        for (half, lane) in halves.iter_mut().zip(self.0) {
            let bits = lane.to_bits();
            let magnitude = bits & 0x7fff_ffff;
            // Ties to even.
            let normal = magnitude.wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
            let normal = normal.wrapping_sub(EXPONENTS << 10);
            // The last bit of floats just above 0.5 has the value of the smallest F16.
            let subnormal = (f32::from_bits(magnitude) + 0.5)
                .to_bits()
                .wrapping_sub(0.5f32.to_bits());
            let magnitude = if magnitude < FIRST_NORMAL { subnormal } else { normal };
            *half = Half(((bits >> 16 & 0x8000 | magnitude) as u16).to_le_bytes());
        }
        halves
    }

    /// Returns the sum of all lanes.
    #[inline(always)]
    pub(super) fn sum(self) -> f32 {
        let [a, b, c, d, e, f, g, h] = self.0;
        ((a + b) + (c + d)) + ((e + f) + (g + h))
    }

    /// Returns the largest lane.
    #[inline(always)]
    pub(super) fn largest(self) -> f32 {
        self.0
            .into_iter()
            .fold(f32::NEG_INFINITY, |max, x| if x > max { x } else { max })
    }
}

/// Returns the largest of positive numbers, or 0.
#[inline(always)]
pub(super) fn largest(x: &[f32]) -> f32 {
    let (chunks, rest) = x.as_chunks();
    let mut max = Lanes::ZERO;
    for x in chunks {
        max = max.max(Lanes(*x));
    }
    rest.iter().fold(max.largest(), |max, &x| if x > max { x } else { max })
}

/// Returns the largest importance, or a positive number if all are 0.
#[inline(always)]
pub(super) fn largest_importance(importance: &[f32]) -> f32 {
    largest(importance).max(f32::MIN_POSITIVE)
}

/// Rounds to the nearest integer, ties to even. Conversions of floats to bytes are not vectorized.
#[inline(always)]
pub(super) fn round_to_byte(x: f32) -> u8 {
    (x + MAGIC).to_bits() as u8
}

/// Difference of the exponent biases of F32 and F16.
pub(super) const EXPONENTS: u32 = 127 - 15;

/// Smallest positive F16.
pub(super) const SMALLEST: f32 = 5.960_464_5e-8;

/// Largest finite F16.
pub(super) const LARGEST: f32 = 65504.0;

/// Bits of the smallest normal F16 as F32.
pub(super) const FIRST_NORMAL: u32 = (EXPONENTS + 1) << 23;

/// Adding 1.5 * 2^23 moves the fraction out of the significand, whose low bits become the integer.
pub(super) const MAGIC: f32 = 12_582_912.0;

/// Weights of 8 groups of `L` elements, with their importance. Element `i` of all groups is at index `i`.
pub(super) struct Groups<const L: usize> {
    pub x: [Lanes; L],
    pub w: [Lanes; L],
}

impl<const L: usize> Groups<L> {
    /// Transposes 8 groups. Missing groups are zero.
    #[inline(always)]
    pub(super) fn new(x: &[f32], importance: Option<&[f32]>) -> Groups<L> {
        let [groups] = Self::sets(x, importance);
        groups
    }

    /// Transposes `S` times 8 groups.
    ///
    /// Importance is scaled to at most 1. It is never 0, because the search divides by sums of importance.
    #[inline(always)]
    pub(super) fn sets<const S: usize>(x: &[f32], importance: Option<&[f32]>) -> [Groups<L>; S] {
        let mut sets = [const {
            Groups {
                x: [Lanes::ZERO; L],
                w: [Lanes([1.0; N]); L],
            }
        }; S];
        for (groups, x) in sets.iter_mut().zip(x.chunks(N * L)) {
            transpose(x, &mut groups.x);
            for x in &mut groups.x {
                // Larger magnitudes do not fit a type with scales in F16, and their squares would overflow.
                *x = x.clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE);
            }
        }
        if let Some(importance) = importance {
            let largest = largest_importance(importance);
            for (groups, w) in sets.iter_mut().zip(importance.chunks(N * L)) {
                transpose(w, &mut groups.w);
                for w in &mut groups.w {
                    *w = w.relative_to(largest);
                }
            }
        }
        sets
    }

    /// Returns the element of largest magnitude of each group, with its sign.
    #[inline(always)]
    pub(super) fn largest(&self) -> Lanes {
        let (low, high) = self.range();
        high.select_less(Lanes::ZERO - low, low, high)
    }

    /// Returns the smallest and the largest element of each group.
    #[inline(always)]
    pub(super) fn range(&self) -> (Lanes, Lanes) {
        let (mut low, mut high) = (self.x[0], self.x[0]);
        for &x in &self.x {
            (low, high) = (x.min(low), x.max(high));
        }
        (low, high)
    }

    /// Returns the error of each group if all elements become 0.
    #[inline(always)]
    pub(super) fn squares(&self) -> Lanes {
        let mut sum = Lanes::ZERO;
        for (&x, &w) in self.x.iter().zip(&self.w) {
            sum = sum + w * x * x;
        }
        sum
    }
}

/// Copies groups of `L` elements to one lane each.
#[inline(always)]
fn transpose<const L: usize>(from: &[f32], to: &mut [Lanes; L]) {
    for (lane, group) in from.chunks_exact(L).take(N).enumerate() {
        for (to, &x) in to.iter_mut().zip(group) {
            to.0[lane] = x;
        }
    }
}

/// Largest magnitude that the search handles.
pub(super) const MAX_MAGNITUDE: f32 = 1e15;

/// Smallest importance relative to the largest of the block.
const MIN_IMPORTANCE: f32 = 1e-7;
