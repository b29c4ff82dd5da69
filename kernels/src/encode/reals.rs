//! Floats of 8 groups, one per group. The compiler turns loops over [`Lanes`] into scalar code with branches where
//! results are used individually, so AVX2 has its own instructions. Results do not depend on the instruction set.

use std::ops::{Add, Mul, Range, Sub};

use super::lanes::{LARGEST, Lanes, N, SMALLEST};
use crate::layout::block::Half;

/// Floats, one per group, with the operations of [`Lanes`].
pub(super) trait Reals: Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> {
    /// Returns `x` for all groups.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn splat(x: f32) -> Self;

    /// Converts lanes.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn from_lanes(lanes: &Lanes) -> Self;

    /// Converts finite F16.
    ///
    /// # Safety
    /// The CPU supports the instruction set.
    unsafe fn from_halves(halves: &[Half; N]) -> Self;

    /// Rounds to F16. Magnitudes must be at most [`LARGEST`].
    fn to_halves(self) -> [Half; N];

    /// Returns the floats as lanes.
    fn to_lanes(self) -> Lanes;

    /// Returns the larger floats.
    fn larger(self, other: Self) -> Self;

    /// Returns the smaller floats.
    fn smaller(self, other: Self) -> Self;

    /// Returns the magnitudes.
    fn magnitude(self) -> Self;

    /// Rounds positive numbers down to powers of two; subnormal numbers become 0.
    fn power_of_two(self) -> Self;

    /// Rounds to the nearest integers, ties to even. Magnitudes must be below 2^22.
    fn rounded(self) -> Self;

    /// Returns `1 / self`, or 0 where that is not finite.
    fn reciprocal(self) -> Self;

    /// Returns `self / other`, or 0 where `other` is not positive.
    fn divided_by(self, other: Self) -> Self;

    /// Returns `a` where `self < limit`, and `b` elsewhere.
    fn choose_less(self, limit: Self, a: Self, b: Self) -> Self;

    /// Returns `self` where `x >= limit`, and 0 elsewhere.
    fn where_at_least(self, x: Self, limit: Self) -> Self;

    /// Returns the magnitudes with the signs of `other`.
    fn signed_as(self, other: Self) -> Self;

    /// Returns true if any float is less than that of `limit`.
    fn any_less(self, limit: Self) -> bool;

    /// Returns true if all floats are less than those of `limit`.
    fn all_less(self, limit: Self) -> bool;

    /// Returns true if all floats that are not 0 are in a range.
    fn all_in(self, range: &Range<f32>) -> bool;

    /// Returns a bit per float: 1 if the float is in a range.
    fn lanes_in(self, range: &Range<f32>) -> u32;
}

/// Limits floats to the range of F16.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
pub(super) unsafe fn limited<R: Reals>(x: R) -> R {
    // SAFETY: function contract.
    unsafe { x.larger(R::splat(-LARGEST)).smaller(R::splat(LARGEST)) }
}

/// Limits floats to the range of F16, and raises nonzero floats to at least the smallest F16.
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
pub(super) unsafe fn raised<R: Reals>(x: R) -> R {
    // SAFETY: function contract.
    unsafe {
        let (magnitude, zero) = (x.magnitude(), R::splat(0.0));
        let limited = magnitude.larger(R::splat(SMALLEST)).smaller(R::splat(LARGEST));
        zero.choose_less(magnitude, limited.signed_as(x), zero)
    }
}

impl Reals for Lanes {
    #[inline(always)]
    unsafe fn splat(x: f32) -> Lanes {
        Lanes::splat(x)
    }

    #[inline(always)]
    unsafe fn from_lanes(lanes: &Lanes) -> Lanes {
        *lanes
    }

    #[inline(always)]
    unsafe fn from_halves(halves: &[Half; N]) -> Lanes {
        Lanes::from_halves(halves)
    }

    #[inline(always)]
    fn to_halves(self) -> [Half; N] {
        self.to_halves()
    }

    #[inline(always)]
    fn to_lanes(self) -> Lanes {
        self
    }

    #[inline(always)]
    fn larger(self, other: Lanes) -> Lanes {
        self.max(other)
    }

    #[inline(always)]
    fn smaller(self, other: Lanes) -> Lanes {
        self.min(other)
    }

    #[inline(always)]
    fn magnitude(self) -> Lanes {
        self.abs()
    }

    #[inline(always)]
    fn power_of_two(self) -> Lanes {
        Lanes::power_of_two(self)
    }

    #[inline(always)]
    fn rounded(self) -> Lanes {
        self.round()
    }

    #[inline(always)]
    fn reciprocal(self) -> Lanes {
        self.inverse()
    }

    #[inline(always)]
    fn divided_by(self, other: Lanes) -> Lanes {
        self.over(other)
    }

    #[inline(always)]
    fn choose_less(self, limit: Lanes, a: Lanes, b: Lanes) -> Lanes {
        self.select_less(limit, a, b)
    }

    #[inline(always)]
    fn where_at_least(self, x: Lanes, limit: Lanes) -> Lanes {
        let mut chosen = Lanes::ZERO;
        for i in 0..N {
            chosen.0[i] = if x.0[i] >= limit.0[i] { self.0[i] } else { 0.0 };
        }
        chosen
    }

    #[inline(always)]
    fn signed_as(self, other: Lanes) -> Lanes {
        self.with_sign_of(other)
    }

    #[inline(always)]
    fn any_less(self, limit: Lanes) -> bool {
        (0..N).any(|i| self.0[i] < limit.0[i])
    }

    #[inline(always)]
    fn all_less(self, limit: Lanes) -> bool {
        (0..N).all(|i| self.0[i] < limit.0[i])
    }

    #[inline(always)]
    fn all_in(self, range: &Range<f32>) -> bool {
        self.0.iter().all(|x| *x == 0.0 || range.contains(x))
    }

    #[inline(always)]
    fn lanes_in(self, range: &Range<f32>) -> u32 {
        let lanes = self.0.iter().enumerate();
        lanes.map(|(i, x)| u32::from(range.contains(x)) << i).sum()
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx2 {
    //! Floats in an AVX2 register.

    use std::arch::x86_64::*;
    use std::ops::{Add, Mul, Range, Sub};

    use super::{Half, Lanes, N, Reals};
    use crate::encode::lanes::{EXPONENTS, FIRST_NORMAL, SMALLEST};

    /// A register. Its existence proves that the CPU supports AVX2.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2Reals(pub(in super::super) __m256);

    macro_rules! operators {
        ($( $trait:ident $name:ident $intrinsic:ident; )*) => { $(
            impl $trait for Avx2Reals {
                type Output = Avx2Reals;

                #[inline(always)]
                fn $name(self, other: Avx2Reals) -> Avx2Reals {
                    // SAFETY: `self` proves that the CPU supports AVX2.
                    Avx2Reals(unsafe { $intrinsic(self.0, other.0) })
                }
            }
        )* };
    }

    operators! { Add add _mm256_add_ps; Sub sub _mm256_sub_ps; Mul mul _mm256_mul_ps; }

    impl Reals for Avx2Reals {
        #[inline(always)]
        unsafe fn splat(x: f32) -> Avx2Reals {
            // SAFETY: the CPU supports AVX2 (function contract).
            Avx2Reals(unsafe { _mm256_set1_ps(x) })
        }

        #[inline(always)]
        unsafe fn from_lanes(lanes: &Lanes) -> Avx2Reals {
            // SAFETY: the load is within `lanes`, and the CPU supports AVX2 (function contract).
            Avx2Reals(unsafe { _mm256_loadu_ps(lanes.0.as_ptr()) })
        }

        #[inline(always)]
        unsafe fn from_halves(halves: &[Half; N]) -> Avx2Reals {
            // SAFETY: the load is within `halves`, and the CPU supports AVX2 (function contract).
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(halves.as_ptr().cast()));
                let magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fff));
                let bias = _mm256_set1_epi32((EXPONENTS << 23) as i32);
                let normal = _mm256_castsi256_ps(_mm256_add_epi32(_mm256_slli_epi32::<13>(magnitude), bias));
                let subnormal = _mm256_mul_ps(_mm256_cvtepi32_ps(magnitude), _mm256_set1_ps(SMALLEST));
                let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x400), magnitude);
                let magnitude = _mm256_blendv_ps(normal, subnormal, _mm256_castsi256_ps(is_small));
                let sign = _mm256_slli_epi32::<16>(_mm256_and_si256(bits, _mm256_set1_epi32(0x8000)));
                Avx2Reals(_mm256_or_ps(magnitude, _mm256_castsi256_ps(sign)))
            }
        }

        #[inline(always)]
        fn to_halves(self) -> [Half; N] {
            let mut halves = [Half::default(); N];
            // SAFETY: the store is within `halves`, and `self` proves that the CPU supports AVX2.
            unsafe {
                let bits = _mm256_castps_si256(self.0);
                let magnitude = _mm256_castps_si256(self.magnitude().0);
                // Ties to even.
                let odd = _mm256_and_si256(_mm256_srli_epi32::<13>(magnitude), _mm256_set1_epi32(1));
                let rounded = _mm256_add_epi32(magnitude, _mm256_add_epi32(odd, _mm256_set1_epi32(0xfff)));
                let bias = _mm256_set1_epi32((EXPONENTS << 10) as i32);
                let normal = _mm256_sub_epi32(_mm256_srli_epi32::<13>(rounded), bias);
                // The last bit of floats just above 0.5 has the value of the smallest F16.
                let half = _mm256_set1_ps(0.5);
                let moved = _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), half));
                let subnormal = _mm256_sub_epi32(moved, _mm256_castps_si256(half));
                let is_small = _mm256_cmpgt_epi32(_mm256_set1_epi32(FIRST_NORMAL as i32), magnitude);
                let magnitude = _mm256_blendv_epi8(normal, subnormal, is_small);
                let sign = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(0x8000));
                let words = _mm256_or_si256(magnitude, sign);
                let packed = _mm256_permute4x64_epi64::<0b1000>(_mm256_packus_epi32(words, words));
                _mm_storeu_si128(halves.as_mut_ptr().cast(), _mm256_castsi256_si128(packed));
            }
            halves
        }

        #[inline(always)]
        fn to_lanes(self) -> Lanes {
            let mut lanes = Lanes::ZERO;
            // SAFETY: the store is within `lanes`, and `self` proves that the CPU supports AVX2.
            unsafe { _mm256_storeu_ps(lanes.0.as_mut_ptr(), self.0) };
            lanes
        }

        #[inline(always)]
        fn larger(self, other: Avx2Reals) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Reals(unsafe { _mm256_max_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn smaller(self, other: Avx2Reals) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Reals(unsafe { _mm256_min_ps(self.0, other.0) })
        }

        #[inline(always)]
        fn magnitude(self) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Reals(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
        }

        #[inline(always)]
        fn power_of_two(self) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe {
                let exponent = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f80_0000));
                Avx2Reals(_mm256_and_ps(self.0, exponent))
            }
        }

        #[inline(always)]
        fn rounded(self) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Reals(unsafe { _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(self.0) })
        }

        #[inline(always)]
        fn reciprocal(self) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe {
                let inverse = Avx2Reals(_mm256_div_ps(_mm256_set1_ps(1.0), self.0));
                let is_finite = _mm256_cmp_ps::<_CMP_LT_OQ>(inverse.magnitude().0, _mm256_set1_ps(f32::INFINITY));
                Avx2Reals(_mm256_and_ps(inverse.0, is_finite))
            }
        }

        #[inline(always)]
        fn divided_by(self, other: Avx2Reals) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe {
                let is_positive = _mm256_cmp_ps::<_CMP_GT_OQ>(other.0, _mm256_setzero_ps());
                Avx2Reals(_mm256_and_ps(_mm256_div_ps(self.0, other.0), is_positive))
            }
        }

        #[inline(always)]
        fn choose_less(self, limit: Avx2Reals, a: Avx2Reals, b: Avx2Reals) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe {
                let is_less = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0);
                Avx2Reals(_mm256_blendv_ps(b.0, a.0, is_less))
            }
        }

        #[inline(always)]
        fn where_at_least(self, x: Avx2Reals, limit: Avx2Reals) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            Avx2Reals(unsafe { _mm256_and_ps(self.0, _mm256_cmp_ps::<_CMP_GE_OQ>(x.0, limit.0)) })
        }

        #[inline(always)]
        fn signed_as(self, other: Avx2Reals) -> Avx2Reals {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe {
                let sign = _mm256_and_ps(_mm256_set1_ps(-0.0), other.0);
                Avx2Reals(_mm256_or_ps(self.magnitude().0, sign))
            }
        }

        #[inline(always)]
        fn any_less(self, limit: Avx2Reals) -> bool {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0)) != 0 }
        }

        #[inline(always)]
        fn all_less(self, limit: Avx2Reals) -> bool {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_LT_OQ>(self.0, limit.0)) == 0xff }
        }

        #[inline(always)]
        fn all_in(self, range: &Range<f32>) -> bool {
            // SAFETY: `self` proves that the CPU supports AVX2.
            let zeros = unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, _mm256_setzero_ps())) };
            self.lanes_in(range) | zeros as u32 == 0xff
        }

        #[inline(always)]
        fn lanes_in(self, range: &Range<f32>) -> u32 {
            // SAFETY: `self` proves that the CPU supports AVX2.
            unsafe {
                let above = _mm256_cmp_ps::<_CMP_GE_OQ>(self.0, _mm256_set1_ps(range.start));
                let below = _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, _mm256_set1_ps(range.end));
                _mm256_movemask_ps(_mm256_and_ps(above, below)) as u32
            }
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::avx2::Avx2Reals;
    use super::*;

    const A: Lanes = Lanes([1.5, -2.5, 0.0, 65504.0, 6.1e-5, -3.1e-8, 7e-9, 1e-40]);
    const B: Lanes = Lanes([-2.0, -2.5, 3.0, 0.0, 1e-30, 0.4999, -8.25, 1e-3]);

    fn results<R: Reals>(a: R, b: R) -> Vec<[u32; N]> {
        // SAFETY: callers check the instruction set.
        let (zero, halves) = unsafe { (R::splat(0.0), R::from_halves(&limited(b).to_halves())) };
        let lanes = [
            a + b,
            a - b,
            a * b,
            a.larger(b),
            a.smaller(b),
            b.magnitude(),
            a.reciprocal(),
            a.divided_by(b),
            a.choose_less(b, a, zero),
            a.signed_as(b),
            a.where_at_least(a, b),
            // Adding zero removes the signs of zeros.
            b.rounded() + zero,
            halves,
            // SAFETY: callers check the instruction set.
            unsafe { R::from_halves(&raised(a).to_halves()) },
        ];
        let checks = [
            u32::from(a.any_less(b)),
            u32::from(a.all_less(b)),
            u32::from(a.all_in(&(-3.0..7e4))),
            u32::from(b.all_in(&(-3.0..7e4))),
            a.lanes_in(&(-2.5..1.5)),
            b.lanes_in(&(-2.5..1.5)),
            0,
            0,
        ];
        let bits = lanes.iter().map(|x| x.to_lanes().0.map(f32::to_bits));
        bits.chain([checks]).collect()
    }

    #[test]
    fn avx2_reals_equal_lanes() {
        if !is_x86_feature_detected!("avx2") {
            return;
        }
        let expected = results(A, B);
        assert_eq!(expected[14][..6], [1, 0, 1, 0, 0b1111_0110, 0b1011_1011]);
        // SAFETY: the CPU supports AVX2.
        let [a, b] = unsafe { [Avx2Reals::from_lanes(&A), Avx2Reals::from_lanes(&B)] };
        assert_eq!(results(a, b), expected);
    }
}
