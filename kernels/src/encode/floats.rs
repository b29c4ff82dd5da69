//! Types whose elements are 4-bit floats (E2M1) with a scale that is a float of 8 bits.

use super::lanes::{Groups, Lanes, N};
use super::scales::{self, Levels};

/// Doubled values of E2M1.
pub(super) struct E2M1;

impl Levels for E2M1 {
    const ENDS: &'static [f32] = &[12.0];
    const LOWEST: f32 = -12.0;

    #[inline(always)]
    fn nearest(x: Lanes) -> Lanes {
        let a = x.abs().min(Lanes::splat(12.0));
        let [half, double] = [Lanes::splat(0.5), Lanes::splat(2.0)];
        let [quarter, four] = [Lanes::splat(0.25), Lanes::splat(4.0)];
        let (ones, twos) = (a.round(), (a * half).round() * double);
        let fours = (a * quarter).round() * four;
        let upper = a.select_less(Lanes::splat(8.0), twos, fours);
        a.select_less(four, ones, upper).with_sign_of(x)
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
}

/// Returns the code of the scale with the least squared error in each lane. Candidates are at `offsets` from
/// the code that `usual` returns for the largest magnitude of a group. `scale` returns half the value of a
/// code.
pub(super) fn best_codes<const L: usize>(
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
