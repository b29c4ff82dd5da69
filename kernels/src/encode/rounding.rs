//! Rounding of single elements, and of points of grids, for the encoding with error feedback.

use std::marker::PhantomData;

use super::feedback::Rounding;
use super::floats::{self, E2M1};
use super::grid::Search;
use super::lanes::{self, Groups, Lanes};
use super::lines::{self, Limits};
use super::scales::{self, Iq4, Levels, Range};
use super::shifted::{self, ShiftedLevels};
use super::shifted_rows;
use super::ternary;
use crate::layout::assemble::{
    FromLine, FromLines, FromScale, FromScales, FromShifted, IntScales, Lines, RowScales, ShiftedScales,
};
use crate::layout::block::Half;
use crate::quants::grids::{BlockParts, GridBlock};
use crate::quants::{BlockIQ4KS, BlockMXFP4, BlockNVFP4, BlockQ1_0};

/// Scales of a block, and the indices of its elements.
#[derive(Clone)]
pub(super) struct Scalars<S, const LEN: usize> {
    scales: S,
    q: [u8; LEN],
}

impl<S, const LEN: usize> Scalars<S, LEN> {
    fn new(scales: S) -> Scalars<S, LEN> {
        Scalars { scales, q: [0; LEN] }
    }
}

/// Rounds an element to the nearest level of a scale. Returns the index and the value.
#[inline(always)]
fn nearest<T: Levels>(x: f32, scale: f32) -> (u8, f32) {
    let q = T::index(x * Lanes::splat(scale).inverse().0[0]);
    (q, scale * T::value(q))
}

/// Rounds an element to the nearest step of a range. Returns the index and the value.
#[inline(always)]
fn nearest_step(x: f32, scale: f32, min: f32, max_q: f32) -> (u8, f32) {
    let mut q = [0];
    lines::indices_of(&[x], scale, min, max_q, &mut q);
    (q[0], scale * f32::from(q[0]) - min)
}

/// Returns the scales of rows whose blocks have one scale.
pub(super) type FitScales = fn(&[f32], &[f32]) -> Vec<Half>;

/// Types with one scale per `L` elements.
pub(super) struct Scaled<B, T, const L: usize> {
    fit: FitScales,
    types: PhantomData<(B, T)>,
}

impl<B: FromScale, T: Levels, const L: usize> Scaled<B, T, L> {
    /// Creates a rounding that searches for the best scales.
    pub(super) fn new() -> Self {
        Self::with(|x, w| scales::fit_half::<T, L>(&Groups::new(x, Some(w))).to_vec())
    }

    /// Uses the scales that `fit` returns.
    pub(super) fn with(fit: FitScales) -> Self {
        Scaled {
            fit,
            types: PhantomData,
        }
    }
}

impl<B: FromScale, T: Levels, const L: usize> Rounding for Scaled<B, T, L> {
    const LEN: usize = L;
    const STEP: usize = 1;
    type State = Scalars<Half, L>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        (self.fit)(x, w).into_iter().map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        (state.q[at], values[0]) = nearest::<T>(x[0], state.scales.get());
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = B::from_scale(state.scales, &state.q);
    }
}

/// The two magnitudes of Q1_0.
pub(super) struct Signs;

impl Levels for Signs {
    const ENDS: &'static [f32] = &[1.0];
    const LOWEST: f32 = -1.0;

    fn nearest(x: super::lanes::Lanes) -> super::lanes::Lanes {
        super::lanes::Lanes::splat(1.0).with_sign_of(x)
    }

    #[inline(always)]
    fn index(x: f32) -> u8 {
        u8::from(x >= 0.0)
    }

    #[inline(always)]
    fn value(index: u8) -> f32 {
        2.0 * f32::from(index) - 1.0
    }
}

/// Returns the rounding of Q1_0.
pub(super) fn binary() -> Scaled<BlockQ1_0, Signs, 128> {
    Scaled::with(|x, w| {
        let rows = x.chunks_exact(128).zip(w.chunks_exact(128));
        rows.map(|(x, w)| ternary::magnitude(x, Some(w))).collect()
    })
}

/// Returns the rounding of a ternary type.
pub(super) fn digits<B: FromScale>() -> Scaled<B, scales::Integers<-1, 1>, 256> {
    Scaled::with(|x, w| {
        let rows = x.chunks_exact(256).zip(w.chunks_exact(256));
        rows.map(|(x, w)| ternary::best_digits(x, Some(w)).0).collect()
    })
}

/// Types with one scale and minimum per 32 elements.
pub(super) struct Line<B>(pub Limits, pub PhantomData<B>);

impl<B: FromLine> Rounding for Line<B> {
    const LEN: usize = 32;
    const STEP: usize = 1;
    type State = Scalars<(Half, Half), 32>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let fitted = lines::fit_halves::<32>(&Groups::new(x, Some(w)), self.0);
        let pairs = fitted.scales.into_iter().zip(fitted.mins);
        pairs.map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        let (d, min) = state.scales;
        (state.q[at], values[0]) = nearest_step(x[0], d.get(), min.get(), self.0.q);
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        let (d, min) = state.scales;
        bytemuck::cast_slice_mut(out)[0] = B::from_line(d, min.negated(), &state.q);
    }
}

/// Types with `G` integer scales and minimums, for groups of `L` elements in `S` sets of lanes.
pub(super) struct IntLines<B, const S: usize, const L: usize, const G: usize>(pub Limits, pub PhantomData<B>);

impl<B: FromLines<G>, const S: usize, const L: usize, const G: usize> Rounding for IntLines<B, S, L, G> {
    const LEN: usize = 256;
    const STEP: usize = 1;
    type State = Scalars<Lines<G>, 256>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let rows = x.chunks_exact(256).zip(w.chunks_exact(256));
        let search = |(x, w)| lines::search::<S, L, G>(&Groups::sets(x, Some(w)), self.0);
        rows.map(search).map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        let found = &state.scales;
        let scale = found.d.get() * f32::from(found.scales[at / L]);
        let min = found.dmin.get() * f32::from(found.mins[at / L]);
        (state.q[at], values[0]) = nearest_step(x[0], scale, min, self.0.q);
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = B::from_lines(&state.scales, &state.q);
    }
}

/// Types with `G` integer scales, for groups of `L` elements in `S` sets of lanes.
pub(super) struct IntScaled<B, T, const S: usize, const L: usize, const G: usize>(pub Range, pub PhantomData<(B, T)>);

impl<B: FromScales<G>, T: Levels, const S: usize, const L: usize, const G: usize> Rounding
    for IntScaled<B, T, S, L, G>
{
    const LEN: usize = 256;
    const STEP: usize = 1;
    type State = Scalars<IntScales<G>, 256>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let rows = x.chunks_exact(256).zip(w.chunks_exact(256));
        let search = |(x, w)| scales::search::<T, S, L, G>(&Groups::sets(x, Some(w)), self.0, false);
        rows.map(search).map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        let scale = state.scales.d.get() * f32::from(state.scales.scales[at / L]);
        (state.q[at], values[0]) = nearest::<T>(x[0], scale);
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = B::from_scales(&state.scales, &state.q);
    }
}

/// Types with integer scales, for groups of 16 elements with a choice of two tables.
pub(super) struct Shifted<B, T>(pub Range, pub PhantomData<(B, T)>);

impl<B: FromShifted, T: ShiftedLevels> Rounding for Shifted<B, T> {
    const LEN: usize = 256;
    const STEP: usize = 1;
    type State = Scalars<ShiftedScales, 256>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let rows = x.chunks_exact(256).zip(w.chunks_exact(256));
        let search = |(x, w)| shifted::search::<T>(&Groups::sets(x, Some(w)), self.0);
        rows.map(search).map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        let (scale, shift) = shifted::scale_and_shift::<T>(&state.scales, at / 16);
        let q = T::index(x[0] * Lanes::splat(scale).inverse().0[0] - shift);
        (state.q[at], values[0]) = (q, scale * (T::value(q) + shift));
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = B::from_shifted(&state.scales, &state.q);
    }
}

/// IQ4_KS in memory, with the factors of up to [`N`](lanes::N) rows.
pub(super) struct ShiftedRows(pub Vec<f32>);

impl Rounding for ShiftedRows {
    const LEN: usize = 256;
    const STEP: usize = 1;
    type State = Scalars<RowScales, 256>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let rows = x.chunks_exact(256).zip(w.chunks_exact(256)).zip(&self.0);
        let search = |((x, w), d): (_, &f32)| shifted_rows::fit_block::<Iq4>(&Groups::new(x, Some(w)), *d);
        rows.map(search).map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        let (scale, shift) = shifted_rows::scale_and_shift::<Iq4>(&state.scales, at / 32);
        let q = Iq4::index(x[0] * Lanes::splat(scale).inverse().0[0] - shift);
        (state.q[at], values[0]) = (q, scale * (Iq4::value(q) + shift));
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = BlockIQ4KS::from_row_scales(&state.scales, &state.q);
    }
}

/// MXFP4.
pub(super) struct Mxfp4;

impl Rounding for Mxfp4 {
    const LEN: usize = 32;
    const STEP: usize = 1;
    type State = Scalars<u8, 32>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let largest = lanes::largest_importance(w);
        let blocks = x.as_chunks().0.iter().zip(w.as_chunks().0);
        blocks
            .map(|(x, w)| Scalars::new(floats::mxfp4_code(x, Some(w), largest)))
            .collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        (state.q[at], values[0]) = nearest::<E2M1>(x[0], BlockMXFP4::half_scale_of(state.scales));
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = BlockMXFP4::from_code(state.scales, &state.q);
    }
}

/// NVFP4.
pub(super) struct Nvfp4;

impl Rounding for Nvfp4 {
    const LEN: usize = 64;
    const STEP: usize = 1;
    type State = Scalars<[u8; 4], 64>;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let rows = x.chunks_exact(64).zip(w.chunks_exact(64));
        let first = |(x, w)| {
            let codes = floats::nvfp4_codes(&Groups::new(x, Some(w)));
            std::array::from_fn(|g| codes[g])
        };
        rows.map(first).map(Scalars::new).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], _: &[f32], values: &mut [f32]) {
        (state.q[at], values[0]) = nearest::<E2M1>(x[0], BlockNVFP4::half_scale_of(state.scales[at / 16]));
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = BlockNVFP4::from_codes(state.scales, &state.q);
    }
}

/// Types whose elements are points of a grid. The 8 elements that share signs or a shift are rounded together.
pub(super) struct GridPoints<B, const E: usize>(pub Search<'static, E>, pub PhantomData<B>);

impl<B: GridBlock, const E: usize> Rounding for GridPoints<B, E> {
    const LEN: usize = 256;
    const STEP: usize = 8;
    type State = BlockParts;

    fn start(&self, x: &[f32], w: &[f32]) -> Vec<Self::State> {
        let rows = x.chunks_exact(256).zip(w.chunks_exact(256));
        rows.map(|(x, w)| self.0.block(x, Some(w))).collect()
    }

    #[inline(always)]
    fn round(&self, state: &mut Self::State, at: usize, x: &[f32], w: &[f32], values: &mut [f32]) {
        self.0.round(state, at, x, w, values);
    }

    fn finish(&self, state: &Self::State, out: &mut [u8]) {
        bytemuck::cast_slice_mut(out)[0] = B::from_parts(state);
    }
}
