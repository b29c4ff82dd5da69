//! Search for scales of types whose rows have one factor. Each group uses a table of levels, or the same table plus a
//! constant. Scales are odd multiples of the factor.

use super::cpu::for_this_cpu;
use super::lanes::{self, Groups, Lanes};
use super::shifted::{self, Fit, ShiftedLevels};
use crate::layout::assemble::RowScales;

/// Elements of a group.
const LEN: usize = 32;

/// Elements of a block.
const BLOCK: usize = 256;

/// Largest magnitude of a scale.
const LARGEST: f32 = 127.0;

for_this_cpu! {
    /// Returns the scales and shifts of the blocks of a row with the smallest error found.
    pub(super) fn search[T: ShiftedLevels][T](x: &[f32], importance: Option<&[f32]>) -> Vec<RowScales> = best_scales;
    /// Returns the scales and shifts of a block of a row with factor `d`.
    pub(super) fn fit_block[T: ShiftedLevels][T](groups: &Groups<LEN>, d: f32) -> RowScales = best_block;
    /// Alternates between choosing scales and shifts, and fitting the factor. Improves on `best`.
    fn refine[T: ShiftedLevels][T](blocks: &mut [RowBlock], d: f32, best: &mut Candidate) -> () = refine_with;
    /// Chooses the scale and the shift of each group for a factor. Returns the errors.
    fn choose[T: ShiftedLevels][T](groups: &Groups<LEN>, ideal: Lanes, d: f32, to: &mut Fit) -> Lanes = choose_scales;
    /// Returns the factor with the smallest error for the levels of the fitted scales.
    fn start[][](blocks: &[RowBlock], largest: f32) -> f32 = start_for;
}

/// Block of a row.
struct RowBlock {
    groups: Groups<LEN>,
    /// Largest importance, relative to the row. Importance in `groups` is relative to the block.
    weight: f32,
    /// Best scales without the restriction to multiples of a factor.
    fitted: Fit,
    chosen: Fit,
}

/// Scales of a row, with their error.
struct Candidate {
    scales: Vec<RowScales>,
    error: f64,
}

/// See [`search`].
#[inline(always)]
fn best_scales<T: ShiftedLevels>(x: &[f32], importance: Option<&[f32]>) -> Vec<RowScales> {
    let row = importance.map_or(1.0, lanes::largest_importance);
    let blocks = super::chunks(x, importance, BLOCK).map(|(x, w)| {
        let groups = Groups::new(x, w);
        RowBlock {
            fitted: shifted::fit::<T, LEN>(&groups),
            groups,
            weight: w.map_or(1.0, lanes::largest_importance) / row,
            chosen: Fit::default(),
        }
    });
    let mut blocks: Vec<RowBlock> = blocks.collect();
    let total: f64 = blocks
        .iter()
        .map(|block| f64::from(block.weight) * f64::from(block.groups.squares().sum()))
        .sum();
    let mut best = Candidate {
        scales: vec![to_scales(&Fit::default(), 0.0); blocks.len()],
        error: f64::INFINITY,
    };
    let d = start(&blocks, largest_scale(&blocks));
    refine::<T>(&mut blocks, d, &mut best);
    if best.error > 0.0 && best.error < total * NEARLY_EXACT {
        // The sums are too inexact to compare fits, so each end of the levels may be best.
        for end in T::ENDS.iter().flat_map(|end| [*end, *end + T::SHIFT]) {
            for block in &mut blocks {
                block.fitted.scale = block.groups.largest() * Lanes::splat(1.0 / end);
            }
            let d = largest_scale(&blocks) / LARGEST;
            refine::<T>(&mut blocks, d, &mut best);
        }
    }
    best.scales
}

/// Error, relative to the sum of squares, below which the sums cannot distinguish the fits of a row.
const NEARLY_EXACT: f64 = 1e-4;

/// Returns the largest magnitude of the fitted scales.
#[inline(always)]
fn largest_scale(blocks: &[RowBlock]) -> f32 {
    let scales = blocks.iter().flat_map(|block| block.fitted.scale.0);
    scales.fold(0f32, |max, scale| max.max(scale.abs()))
}

/// Rounds of choosing scales and fitting the factor.
const ROUNDS: usize = 3;

/// See [`refine`].
#[inline(always)]
fn refine_with<T: ShiftedLevels>(blocks: &mut [RowBlock], mut d: f32, best: &mut Candidate) {
    for _ in 0..ROUNDS {
        let (mut error, mut xv, mut vv) = (0.0, 0.0, 0.0);
        for block in &mut *blocks {
            let errors = choose::<T>(&block.groups, block.fitted.scale, d, &mut block.chosen);
            let Fit { scale, sums, .. } = block.chosen;
            let weight = f64::from(block.weight);
            error += weight * f64::from(errors.sum());
            xv += weight * f64::from((scale * sums.xv).sum());
            vv += weight * f64::from((scale * scale * sums.vv).sum());
            block.fitted.scale = sums.best();
        }
        if error < best.error {
            best.error = error;
            for (to, block) in best.scales.iter_mut().zip(&*blocks) {
                *to = to_scales(&block.chosen, d);
            }
        }
        let refitted = if vv > 0.0 { (xv / vv) as f32 } else { d };
        if refitted == d {
            break;
        }
        d = refitted;
    }
}

/// See [`start`].
#[inline(always)]
fn start_for(blocks: &[RowBlock], largest: f32) -> f32 {
    let (mut best, mut best_error) = (0.0, f32::INFINITY);
    for step in 0..STARTS {
        let d = largest / (LARGEST - 2.0 * step as f32);
        let mut errors = Lanes::ZERO;
        for block in blocks {
            let scale = nearest(block.fitted.scale, d) * Lanes::splat(d);
            errors = errors + block.fitted.sums.error(scale) * Lanes::splat(block.weight);
        }
        let error = errors.sum();
        if error < best_error {
            (best, best_error) = (d, error);
        }
    }
    best
}

/// Number of integers that are tried for the largest scale, each of which determines a factor.
const STARTS: usize = 32;

/// Returns the nearest odd multiples of `d`.
#[inline(always)]
fn nearest(ideal: Lanes, d: f32) -> Lanes {
    let multiple = (ideal * Lanes::splat(d).inverse()).clamp(-LARGEST, LARGEST);
    let half = Lanes::splat(0.5);
    ((multiple - Lanes::splat(1.0)) * half).round() * Lanes::splat(2.0) + Lanes::splat(1.0)
}

/// Multiple below which rounding a scale changes the levels.
const COARSE: f32 = 8.0;

/// See [`choose`].
#[inline(always)]
fn choose_scales<T: ShiftedLevels>(groups: &Groups<LEN>, ideal: Lanes, d: f32, to: &mut Fit) -> Lanes {
    let nearest = nearest(ideal, d);
    let is_coarse = nearest.0.iter().any(|scale| scale.abs() < COARSE);
    let n_offsets = if is_coarse { 3 } else { 1 };
    let mut errors = Lanes::splat(f32::INFINITY);
    for offset in &[0.0, -2.0, 2.0][..n_offsets] {
        let scale = (nearest + Lanes::splat(*offset)).clamp(-LARGEST, LARGEST);
        shifted::choose_shift::<T, LEN>(groups, scale, d, to, &mut errors);
    }
    errors
}

/// See [`fit_block`].
#[inline(always)]
fn best_block<T: ShiftedLevels>(groups: &Groups<LEN>, d: f32) -> RowScales {
    let ideal = shifted::fit::<T, LEN>(groups).scale;
    let mut chosen = Fit::default();
    choose::<T>(groups, ideal, d, &mut chosen);
    to_scales(&chosen, d)
}

/// Converts the scales and shifts of a block.
#[inline(always)]
fn to_scales(chosen: &Fit, d: f32) -> RowScales {
    RowScales {
        d,
        scales: chosen.scale.0.map(|scale| scale as i8),
        shifted: chosen.shift.0.map(|shift| shift > 0.0),
    }
}

/// Returns the scale of group `g` and the shift of its levels.
#[inline(always)]
pub(super) fn scale_and_shift<T: ShiftedLevels>(found: &RowScales, g: usize) -> (f32, f32) {
    let shift = if found.shifted[g] { T::SHIFT } else { 0.0 };
    (found.d * f32::from(found.scales[g]), shift)
}
