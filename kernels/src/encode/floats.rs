//! Types whose elements are 4-bit floats (E2M1) with a scale that is a float of 8 bits.

use super::lanes::{Groups, Lanes, N, round_to_byte};
use super::scales::{self, Levels};
use crate::quants::{BlockMXFP4, BlockNVFP4};

/// Doubled values of E2M1.
pub(super) struct E2M1;

impl Levels for E2M1 {
    const ENDS: &'static [f32] = &[12.0];
    const LOWEST: f32 = -12.0;

    #[inline(always)]
    fn nearest(x: Lanes) -> Lanes {
        let a = x.abs().min(Lanes::splat(12.0));
        // Steps are 1 below 4, then half the power of two. The sum with this number has no smaller digits.
        let magic = a.power_of_two().max(Lanes::splat(2.0)) * Lanes::splat(6_291_456.0);
        ((a + magic) - magic).with_sign_of(x)
    }

    #[inline(always)]
    fn index(x: f32) -> u8 {
        let magnitude = match x.abs() {
            a if a < 4.0 => a.round_ties_even() as u8,
            a if a < 8.0 => (a / 2.0).round_ties_even() as u8 + 2,
            a => (a.min(12.0) / 4.0).round_ties_even() as u8 + 4,
        };
        // Zero has one code only.
        if x < 0.0 && magnitude > 0 {
            magnitude | 8
        } else {
            magnitude
        }
    }

    #[inline(always)]
    fn indices(x: Lanes) -> [u8; N] {
        let level = Self::nearest(x).abs();
        // Codes of levels increase by 1 for 1 up to 4, for 2 up to 8, and for 4 up to 12.
        let twos = level * Lanes::splat(0.5) + Lanes::splat(2.0);
        let fours = level * Lanes::splat(0.25) + Lanes::splat(4.0);
        let code = level.min(twos).min(fours);
        let negative = x.select_less(Lanes::ZERO, Lanes::splat(8.0), Lanes::ZERO);
        let sign = Lanes::ZERO.select_less(level, negative, Lanes::ZERO);
        let mut indices = [0; N];
        for (index, code) in indices.iter_mut().zip((code + sign).0) {
            *index = round_to_byte(code);
        }
        indices
    }

    #[inline(always)]
    fn value(index: u8) -> f32 {
        let magnitude = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0][usize::from(index & 7)];
        if index & 8 == 0 { magnitude } else { -magnitude }
    }
}

/// Returns the codes of the scales of MXFP4 blocks.
pub(super) fn mxfp4_codes(groups: &Groups<32>) -> [u8; N] {
    // The usual scale makes the largest magnitude at least 4 and less than 8; 6 is the largest value.
    let usual = |max: f32| (max.to_bits() >> 23) as i32 - 2;
    best_codes(groups, &[0, 1, -1], 254, usual, BlockMXFP4::half_scale_of)
}

/// Returns the codes of the scales of groups of NVFP4 blocks.
pub(super) fn nvfp4_codes(groups: &Groups<16>) -> [u8; N] {
    /// Codes around that of a sixth of the largest magnitude: there are 8 per power of two.
    const OFFSETS: &[i32] = &[0, 1, -1, 2, -2, 3, 4, 5, 6, 7, -3];
    let usual = BlockNVFP4::code_of_largest;
    best_codes(groups, OFFSETS, 126, usual, BlockNVFP4::half_scale_of)
}

/// Returns the code of the scale with the least squared error in each lane. Candidates are at `offsets` from
/// the code that `usual` returns for the largest magnitude of a group. `scale` returns half the value of a
/// code.
fn best_codes<const L: usize>(
    groups: &Groups<L>,
    offsets: &[i32],
    limit: i32,
    usual: impl Fn(f32) -> i32,
    scale: impl Fn(u8) -> f32,
) -> [u8; N] {
    let (low, high) = groups.range();
    let usual = high.max(Lanes::ZERO - low).0.map(usual);
    let (mut best, mut best_error) = ([0; N], Lanes::splat(f32::MAX));
    for offset in offsets {
        let codes = usual.map(|usual| (usual + offset).clamp(0, limit) as u8);
        let (_, error) = scales::round::<E2M1, L>(groups, Lanes(codes.map(&scale)));
        for lane in 0..N {
            if error.0[lane] < best_error.0[lane] {
                (best[lane], best_error.0[lane]) = (codes[lane], error.0[lane]);
            }
        }
    }
    best
}
