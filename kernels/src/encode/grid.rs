//! Search for points of grids: the IQ1, IQ2, and IQ3 types.
//!
//! Each cell of 8 (IQ3: 4) elements is a point of the grid, each unit of 16 or 32 elements has an integer scale.
//! The search compares the points near the levels that are best for each element alone.

use super::cpu::for_this_cpu;
use super::equal::{splat, with_words};
use super::lanes::{self, Lanes, N};
use super::reals::Reals;
use super::words::Words;
use crate::layout::block::Half;
use crate::prefetch::{CacheLevel, prefetch};
use crate::quants::grids::{BlockParts, GridBlock};

/// Points of a grid, with the points near each combination of levels.
pub(super) struct Grid<const E: usize> {
    /// Levels of elements, less `zero`.
    levels: Vec<f32>,
    /// Amount that is subtracted from elements.
    zero: f32,
    points: Vec<[u8; E]>,
    /// Digits of each point: the levels of its elements, or those of two elements for points with 8 elements.
    digits: Vec<[u8; DIGITS]>,
    /// The nearest points of each combination of levels, in ascending distance.
    near: Vec<[u16; NEAR]>,
    /// The elements of these points, if elements are digits.
    near_elements: Vec<NearElements>,
    /// Whether each combination of levels is a point.
    is_point: Vec<bool>,
}

/// Elements of the points near a combination of levels, in one cache line. Element `d` of all points is at index `d`.
#[repr(align(64))]
struct NearElements([[u8; NEAR]; DIGITS]);

/// Number of digits of a point.
const DIGITS: usize = 4;

/// Number of points that a search compares.
const NEAR: usize = 16;

/// Maximum number of values of a digit.
const VALUES: usize = 16;

/// Cost of each value of each digit.
type Costs = [[f32; DIGITS]; VALUES];

impl<const E: usize> Grid<E> {
    /// Creates a grid. `zero` is subtracted from all elements.
    pub(super) fn new(points: impl Iterator<Item = [u8; E]>, zero: f32) -> Grid<E> {
        let points: Vec<[u8; E]> = points.collect();
        let mut levels: Vec<u8> = points.iter().flatten().copied().collect();
        levels.sort_unstable();
        levels.dedup();
        let n_levels = levels.len();
        let rank = |element: &u8| levels.iter().position(|level| level == element).unwrap_or(0);
        let digits = points.iter().map(|point| {
            std::array::from_fn(|d| {
                let elements = point[d * E / DIGITS..(d + 1) * E / DIGITS].iter().rev();
                elements.fold(0, |digit, element| digit * n_levels + rank(element)) as u8
            })
        });
        let codes = 0..n_levels.pow(E as u32);
        let near: Vec<[u16; NEAR]> = codes.map(|code| nearest_points(&points, &levels, code)).collect();
        let elements_of = |near: &[u16; NEAR]| {
            NearElements(std::array::from_fn(|d| {
                near.map(|point| points[usize::from(point)].get(d).copied().unwrap_or(0))
            }))
        };
        let is_point = |(code, near): (usize, &[u16; NEAR])| {
            let ranks = points[usize::from(near[0])].iter().rev().map(rank);
            ranks.fold(0, |code, rank| code * n_levels + rank) == code
        };
        let with_elements = if E == DIGITS { &near[..] } else { &[] };
        Grid {
            digits: digits.collect(),
            near_elements: with_elements.iter().map(elements_of).collect(),
            is_point: near.iter().enumerate().map(is_point).collect(),
            near,
            levels: levels.iter().map(|level| f32::from(*level) - zero).collect(),
            zero,
            points,
        }
    }

    /// Returns a point with a small `sum(a p^2 - b p)`, and this sum. The point is the best of those near the best
    /// levels.
    #[inline(always)]
    fn nearest(&self, a: &[f32; E], b: &[f32; E]) -> (u16, f32) {
        let mut costs: Costs = [[0.0; DIGITS]; VALUES];
        let n_values = self.costs(a, b, &mut costs);
        let (mut best, mut digits) = (costs[0], [0u8; DIGITS]);
        for (value, costs) in costs.iter().enumerate().take(n_values).skip(1) {
            for d in 0..DIGITS {
                let is_less = costs[d] < best[d];
                digits[d] = if is_less { value as u8 } else { digits[d] };
                best[d] = if is_less { costs[d] } else { best[d] };
            }
        }
        let code = digits
            .iter()
            .rev()
            .fold(0, |code, digit| code * n_values + usize::from(*digit));
        if E == DIGITS {
            if self.is_point[code] {
                return (self.near[code][0], (best[0] + best[1]) + (best[2] + best[3]));
            }
            return self.best_near(code, a, b);
        }
        let near = &self.near[code];
        let cost = |point: u16| {
            let digits = self.digits[usize::from(point)];
            let of_digit = |d: usize| costs[usize::from(digits[d]) % VALUES][d];
            (of_digit(0) + of_digit(1)) + (of_digit(2) + of_digit(3))
        };
        let mut found = (near[0], cost(near[0]));
        if !self.is_point[code] {
            for &point in &near[1..] {
                let cost = cost(point);
                if cost < found.1 {
                    found = (point, cost);
                }
            }
        }
        found
    }

    /// Returns the best of the points near a combination of levels, and its cost. Elements are digits.
    #[inline(always)]
    fn best_near(&self, code: usize, a: &[f32; E], b: &[f32; E]) -> (u16, f32) {
        let near = &self.near_elements[code];
        let mut costs = [[0f32; NEAR]; DIGITS];
        for d in 0..DIGITS {
            for i in 0..NEAR {
                let level = f32::from(near.0[d][i]) - self.zero;
                costs[d][i] = level * (level * a[d] - b[d]);
            }
        }
        let mut sums = [0f32; NEAR];
        for i in 0..NEAR {
            sums[i] = (costs[0][i] + costs[1][i]) + (costs[2][i] + costs[3][i]);
        }
        let (index, least) = first_least(&sums);
        (self.near[code][index], least)
    }

    /// Computes the costs of all values of the digits. Returns the number of values.
    #[inline(always)]
    fn costs(&self, a: &[f32; E], b: &[f32; E], costs: &mut Costs) -> usize {
        let n_levels = self.levels.len();
        if E == DIGITS {
            for (costs, &level) in costs.iter_mut().zip(&self.levels) {
                for d in 0..DIGITS {
                    costs[d] = level * (level * a[d] - b[d]);
                }
            }
            return n_levels;
        }
        let mut high = [[0f32; DIGITS]; VALUES];
        for (i, &level) in self.levels.iter().enumerate().take(3) {
            for d in 0..DIGITS {
                costs[i][d] = level * (level * a[2 * d] - b[2 * d]);
                high[i][d] = level * (level * a[2 * d + 1] - b[2 * d + 1]);
            }
        }
        for value in (0..9).rev() {
            for d in 0..DIGITS {
                costs[value][d] = costs[value % 3][d] + high[value / 3][d];
            }
        }
        9
    }

    /// Returns element `i` of a point, less the zero.
    #[inline(always)]
    fn value(&self, point: u16, i: usize) -> f32 {
        f32::from(self.points[usize::from(point)][i]) - self.zero
    }
}

/// Returns the points nearest to a combination of levels, whose digits in the base of the number of levels are `code`.
fn nearest_points<const E: usize>(points: &[[u8; E]], levels: &[u8], mut code: usize) -> [u16; NEAR] {
    let target: [u8; E] = std::array::from_fn(|_| {
        let level = levels[code % levels.len()];
        code /= levels.len();
        level
    });
    let distance = |point: &[u8; E]| -> u32 {
        let differences = point.iter().zip(&target).map(|(a, b)| u32::from(a.abs_diff(*b)));
        differences.map(|difference| difference * difference).sum()
    };
    let mut ranked: Vec<(u32, u16)> = points
        .iter()
        .enumerate()
        .map(|(i, p)| (distance(p), i as u16))
        .collect();
    ranked.select_nth_unstable(NEAR - 1);
    ranked.truncate(NEAR);
    ranked.sort_unstable();
    std::array::from_fn(|i| ranked[i].1)
}

/// Meaning of the bits of a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bits {
    /// Signs of elements.
    Signs,
    /// Signs of elements, with an even number of negative ones in each 8.
    EvenSigns,
    /// Common shift of all elements in a unit.
    UnitShift,
    /// Common shift of all elements in a cell.
    CellShift,
}

/// Amount of a shift.
const SHIFT: f32 = 0.125;

/// Largest number of cells in a unit.
const CELLS: usize = 8;

/// Points of a unit for one scale, with the sums that determine the error of other scales.
#[derive(Clone, Copy, Debug, Default)]
struct Chosen {
    points: [u16; CELLS],
    /// Cells with a negative shift.
    negative: [bool; CELLS],
    /// Sum of `w t q`, for targets `t` and values `q` before they are scaled.
    tq: f32,
    /// Sum of `w q^2`.
    qq: f32,
}

impl Chosen {
    /// Returns the squared error less the constant `sum(w t^2)`.
    #[inline(always)]
    fn error(&self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.tq)
    }

    #[inline(always)]
    fn best_scale(&self) -> f32 {
        if self.qq > 0.0 {
            (self.tq / self.qq).max(0.0)
        } else {
            0.0
        }
    }
}

/// Targets of a block: magnitudes if the type has signs.
struct Targets {
    t: [f32; 256],
    w: [f32; 256],
    signs: [u32; 8],
}

/// Encoder of a type with cells of `E` elements.
pub(super) struct Search<'a, const E: usize> {
    pub grid: &'a Grid<E>,
    pub bits: Bits,
    /// Elements of a unit: 16 or 32.
    pub unit: usize,
    /// Number of integer scales.
    pub n_scales: f32,
    /// Factor of `scale + 1/2`.
    pub factor: f32,
    /// Positions of the largest magnitude of a unit among its scaled levels.
    pub positions: &'static [f32],
}

for_this_cpu! {
    /// Returns the points of a unit with the least error for a scale.
    fn choose[const E: usize][E](search: &Search<'_, E>, targets: &Targets, unit: usize, scale: f32) -> Chosen = points_of;
}

/// Returns the index of the first of the least sums, and that sum.
#[inline(always)]
fn first_least(sums: &[f32; NEAR]) -> (usize, f32) {
    // Vector instructions compare the two halves.
    let mut least = *sums;
    for half in [NEAR / 2, NEAR / 4, NEAR / 8, NEAR / 16] {
        for i in 0..half {
            let [low, high] = [least[i], least[i + half]];
            least[i] = if high < low { high } else { low };
        }
    }
    let mut is_least = 1u32 << (NEAR - 1);
    for (i, sum) in sums.iter().enumerate() {
        is_least |= u32::from(*sum == least[0]) << i;
    }
    (is_least.trailing_zeros() as usize % NEAR, least[0])
}

with_words! {
    /// Writes the code of the best levels of each cell of 4 elements. Numbers of elements are multiples of 8.
    fn best_levels(levels: &[f32], t: &[f32], w: &[f32], scale: f32, codes: &mut [usize; CELLS]) -> () = all_levels;
}

/// See [`best_levels`].
///
/// # Safety
/// The CPU supports the instruction set.
#[inline(always)]
unsafe fn all_levels<W: Words>(levels: &[f32], t: &[f32], w: &[f32], scale: f32, codes: &mut [usize; CELLS]) {
    let mut place = Lanes([1.0; N]);
    for d in (0..N).filter(|d| d % DIGITS > 0) {
        place.0[d] = place.0[d - 1] * levels.len() as f32;
    }
    let cells = codes.as_chunks_mut::<{ N / DIGITS }>().0;
    for ((t, w), codes) in t.as_chunks().0.iter().zip(w.as_chunks().0).zip(cells) {
        // SAFETY: function contract.
        let digits = unsafe {
            let (t, w) = (W::Floats::from_lanes(&Lanes(*t)), W::Floats::from_lanes(&Lanes(*w)));
            let place = W::Floats::from_lanes(&place);
            let (a, b) = (splat::<W>(scale * scale) * w, splat::<W>(2.0 * scale) * w * t);
            let (mut value, mut digits) = (splat::<W>(0.0), splat::<W>(0.0));
            let mut best = splat::<W>(f32::INFINITY);
            for &level in levels {
                let level = splat::<W>(level);
                let cost = level * (level * a - b);
                digits = cost.choose_less(best, value, digits);
                best = cost.smaller(best);
                value = value + place;
            }
            digits.to_lanes()
        };
        for (code, digits) in codes.iter_mut().zip(digits.0.as_chunks::<DIGITS>().0) {
            // Exact, because codes are small.
            *code = (digits.iter().sum::<f32>()) as usize;
        }
    }
}

#[inline(always)]
fn points_of<const E: usize>(search: &Search<'_, E>, targets: &Targets, unit: usize, scale: f32) -> Chosen {
    search.choose_points(targets, unit, scale)
}

/// Rounds of choosing points and fitting the common factor.
const ROUNDS: usize = 3;

impl<const E: usize> Search<'_, E> {
    /// Returns the best block found.
    pub(super) fn block(&self, x: &[f32], importance: Option<&[f32]>) -> BlockParts {
        let targets = self.targets(x, importance);
        let n_units = 256 / self.unit;
        let mut ideal = [(0f32, Chosen::default()); 16];
        for (u, ideal) in ideal[..n_units].iter_mut().enumerate() {
            *ideal = self.fit(&targets, u);
        }
        let mut best = (Half::default(), [0u8; 16], [Chosen::default(); 16]);
        let mut best_error = 0.0;
        for mut d in self.starts(&ideal[..n_units]) {
            let (mut fitted, mut last_error) = (ideal, f32::INFINITY);
            for _ in 0..ROUNDS {
                let real = d.get() * self.factor;
                let (mut scales, mut chosen) = ([0u8; 16], [Chosen::default(); 16]);
                let (mut error, mut tq, mut qq) = (0.0, 0.0, 0.0);
                for u in 0..n_units {
                    let code = self.code(fitted[u].0, real);
                    let (code, points) = self.around(&targets, u, code, real);
                    let scale = (code + 0.5) * self.factor;
                    error += points.error(scale * d.get());
                    tq += f64::from(scale * points.tq);
                    qq += f64::from(scale * scale * points.qq);
                    (scales[u], chosen[u]) = (code as u8, points);
                    fitted[u].0 = points.best_scale();
                }
                if error < best_error {
                    (best, best_error) = ((d, scales, chosen), error);
                }
                let refitted = half_of(if qq > 0.0 { (tq / qq) as f32 } else { 0.0 });
                if refitted == d || error >= last_error {
                    break;
                }
                (d, last_error) = (refitted, error);
            }
        }
        self.parts(&targets, &best)
    }

    /// Returns the codes near `code` with the least error, and their points.
    fn around(&self, targets: &Targets, unit: usize, code: f32, real: f32) -> (f32, Chosen) {
        let mut best = (code, self.choose(targets, unit, (code + 0.5) * real));
        // The rounding of small codes changes points.
        if code < 4.0 {
            for other in [code - 1.0, code + 1.0] {
                if (0.0..self.n_scales).contains(&other) {
                    let chosen = self.choose(targets, unit, (other + 0.5) * real);
                    if chosen.error((other + 0.5) * real) < best.1.error((best.0 + 0.5) * real) {
                        best = (other, chosen);
                    }
                }
            }
        }
        best
    }

    fn code(&self, ideal: f32, real: f32) -> f32 {
        let code = if real > 0.0 {
            (ideal / real - 0.5).round_ties_even()
        } else {
            0.0
        };
        code.clamp(0.0, self.n_scales - 1.0)
    }

    /// Returns factors of the block to start from.
    fn starts(&self, ideal: &[(f32, Chosen)]) -> [Half; 2] {
        let largest = ideal.iter().fold(0f32, |max, (scale, _)| max.max(*scale));
        let mut found = [(f32::INFINITY, Half::default()); 2];
        for i in 0..32 {
            let position = self.n_scales - 0.5 - 0.02 * i as f32 * self.n_scales;
            let d = half_of(largest / (position * self.factor));
            let real = d.get() * self.factor;
            let error: f32 = ideal
                .iter()
                .map(|(scale, chosen)| chosen.error((self.code(*scale, real) + 0.5) * real))
                .sum();
            if error < found[0].0 {
                found = [(error, d), found[0]];
            } else if error < found[1].0 {
                found[1] = (error, d);
            }
        }
        found.map(|(_, d)| d)
    }

    /// Returns the best scale of a unit, without regard to the codes of scales.
    fn fit(&self, targets: &Targets, unit: usize) -> (f32, Chosen) {
        let t = &targets.t[unit * self.unit..][..self.unit];
        let largest = t.iter().fold(0f32, |max, t| max.max(t.abs()));
        let mut best = (0.0, Chosen::default());
        let mut best_error = 0.0;
        let mut consider = |scale: f32| {
            let chosen = self.choose(targets, unit, scale);
            let scale = chosen.best_scale();
            let error = chosen.error(scale);
            if error < best_error {
                (best, best_error) = ((scale, chosen), error);
            }
            best.0
        };
        let mut last = 0.0;
        if largest > 0.0 {
            for position in self.positions {
                last = consider(largest / position);
            }
            let refitted = consider(last);
            if refitted != last {
                consider(refitted);
            }
        }
        best
    }

    fn choose(&self, targets: &Targets, unit: usize, scale: f32) -> Chosen {
        choose(self, targets, unit, scale)
    }

    #[inline(always)]
    fn choose_points(&self, targets: &Targets, unit: usize, scale: f32) -> Chosen {
        let start = unit * self.unit;
        let shifts: &[f32] = match self.bits {
            Bits::Signs | Bits::EvenSigns => &[0.0],
            Bits::UnitShift | Bits::CellShift => &[SHIFT, -SHIFT],
        };
        let n_cells = self.unit / E;
        let mut found = [[(0u16, 0f32); CELLS]; 2];
        if E == DIGITS {
            let unit = start..start + self.unit;
            self.nearest_of_four(&targets.t[unit.clone()], &targets.w[unit], scale, &mut found[0]);
        }
        for (found, shift) in found.iter_mut().zip(shifts).filter(|_| E != DIGITS) {
            for (cell, found) in found[..n_cells].iter_mut().enumerate() {
                let cell = start + cell * E..start + (cell + 1) * E;
                *found = self.nearest(&targets.t[cell.clone()], &targets.w[cell], scale, *shift);
            }
        }
        let total = |found: &[(u16, f32); CELLS]| found[..n_cells].iter().map(|found| found.1).sum::<f32>();
        let unit_is_negative = self.bits == Bits::UnitShift && total(&found[1]) < total(&found[0]);
        let mut chosen = Chosen::default();
        for cell in 0..n_cells {
            let is_better = found[1][cell].1 < found[0][cell].1;
            let negative = unit_is_negative || self.bits == Bits::CellShift && is_better;
            let (point, _) = found[usize::from(negative)][cell];
            (chosen.points[cell], chosen.negative[cell]) = (point, negative);
            let shift = shifts[usize::from(negative)];
            for i in 0..E {
                let (at, q) = (start + cell * E + i, self.grid.value(point, i) + shift);
                chosen.tq += targets.w[at] * targets.t[at] * q;
                chosen.qq += targets.w[at] * q * q;
            }
        }
        chosen
    }

    /// Chooses the points of a unit with cells of 4 elements, without errors. Such types have no shifts.
    #[inline(always)]
    fn nearest_of_four(&self, t: &[f32], w: &[f32], scale: f32, found: &mut [(u16, f32); CELLS]) {
        let mut codes = [0; CELLS];
        best_levels(&self.grid.levels, t, w, scale, &mut codes);
        let codes = &codes[..t.len() / E];
        for &code in codes {
            // The tables of all codes exceed the L1 cache.
            prefetch((&raw const self.grid.near_elements[code]).cast(), CacheLevel::First);
            prefetch((&raw const self.grid.near[code]).cast(), CacheLevel::First);
        }
        for (cell, (&code, found)) in codes.iter().zip(found).enumerate() {
            found.0 = self.grid.near[code][0];
            if !self.grid.is_point[code] {
                let (mut a, mut b) = ([0.0; E], [0.0; E]);
                for i in 0..E {
                    let (t, w) = (t[cell * E + i], w[cell * E + i]);
                    a[i] = scale * scale * w;
                    b[i] = 2.0 * scale * w * t;
                }
                found.0 = self.grid.best_near(code, &a, &b).0;
            }
        }
    }

    /// Returns the point of a cell with the least error, and the error.
    #[inline(always)]
    fn nearest(&self, t: &[f32], w: &[f32], scale: f32, shift: f32) -> (u16, f32) {
        let (mut a, mut b, mut constant) = ([0.0; E], [0.0; E], 0.0);
        for i in 0..E {
            let (t, w) = (t[i] - scale * shift, w[i]);
            a[i] = scale * scale * w;
            b[i] = 2.0 * scale * w * t;
            constant += w * t * t;
        }
        let (point, cost) = self.grid.nearest(&a, &b);
        (point, cost + constant)
    }

    /// Replaces 8 elements of a block, from index `at` on, by those nearest to `x`, without changing scales. Returns
    /// their values.
    #[inline(always)]
    pub(super) fn round(&self, parts: &mut BlockParts, at: usize, x: &[f32], w: &[f32], values: &mut [f32]) {
        let (g, l) = (at / 32, at % 32 / 8);
        let scale = parts.d.get() * ((f32::from(parts.scales[at / 16]) + 0.5) * self.factor);
        let mut t: [f32; 8] = std::array::from_fn(|i| x[i].clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE));
        let mut bits = parts.bits[g] >> (8 * l) & 0xff;
        let shifts: &[f32] = match self.bits {
            Bits::Signs | Bits::EvenSigns => {
                bits = u32::from(self.signs(&mut t, w));
                &[0.0]
            }
            Bits::UnitShift if bits != 0 => &[-SHIFT],
            Bits::UnitShift => &[SHIFT],
            Bits::CellShift => &[SHIFT, -SHIFT],
        };
        let mut least = f32::INFINITY;
        for &shift in shifts {
            let mut points = [0; 2];
            let mut cost = 0.0;
            for (i, point) in points[..8 / E].iter_mut().enumerate() {
                let cell = i * E..(i + 1) * E;
                let found = self.nearest(&t[cell.clone()], &w[cell], scale, shift);
                (*point, cost) = (found.0, cost + found.1);
            }
            if cost < least || shift == shifts[0] {
                least = cost;
                if self.bits == Bits::CellShift {
                    bits = if shift < 0.0 { 0xff } else { 0 };
                }
                let elements = std::array::from_fn(|i| self.grid.points[usize::from(points[i / E])][i % E]);
                parts.elements[g][l] = u64::from_le_bytes(elements);
                for (i, value) in values.iter_mut().enumerate() {
                    let magnitude = scale * (self.grid.value(points[i / E], i % E) + shift);
                    let is_negative = shift == 0.0 && bits >> i & 1 != 0;
                    *value = if is_negative { -magnitude } else { magnitude };
                }
            }
        }
        parts.bits[g] = parts.bits[g] & !(0xff << (8 * l)) | bits << (8 * l);
    }

    /// Separates signs from magnitudes, and scales importance.
    fn targets(&self, x: &[f32], importance: Option<&[f32]>) -> Targets {
        let mut targets = Targets {
            t: [0.0; 256],
            w: [1.0; 256],
            signs: [0; 8],
        };
        for (t, &x) in targets.t.iter_mut().zip(x) {
            *t = if x > -MAX_MAGNITUDE {
                x.min(MAX_MAGNITUDE)
            } else {
                -MAX_MAGNITUDE
            };
        }
        if let Some(importance) = importance {
            let largest = lanes::largest(importance).max(f32::MIN_POSITIVE);
            for (w, &importance) in targets.w.iter_mut().zip(importance) {
                *w = (importance / largest).clamp(MIN_IMPORTANCE, 1.0);
            }
        }
        if matches!(self.bits, Bits::Signs | Bits::EvenSigns) {
            for i in 0..32 {
                let eight = 8 * i..8 * i + 8;
                let signs = self.signs(&mut targets.t[eight.clone()], &targets.w[eight]);
                targets.signs[i / 4] |= u32::from(signs) << (8 * (i % 4));
            }
        }
        targets
    }

    /// Replaces 8 targets by magnitudes, and returns their signs. If the number of negative ones must be even,
    /// the least important target may become negative instead.
    fn signs(&self, t: &mut [f32], w: &[f32]) -> u8 {
        let mut signs = 0u8;
        for (i, t) in t.iter_mut().enumerate() {
            signs |= u8::from(*t < 0.0) << i;
            *t = t.abs();
        }
        if self.bits == Bits::EvenSigns && signs.count_ones() % 2 == 1 {
            let square = |i: usize| w[i] * t[i] * t[i];
            let mut least = 0;
            for i in 1..8 {
                if square(i) < square(least) {
                    least = i;
                }
            }
            signs ^= 1 << least;
            t[least] = -t[least];
        }
        signs
    }

    /// Assembles a block.
    fn parts(&self, targets: &Targets, (d, scales, chosen): &(Half, [u8; 16], [Chosen; 16])) -> BlockParts {
        let unit_of = |i: usize| i / self.unit;
        let cell_of = |i: usize| (i % self.unit) / E;
        let element = |i: usize| {
            let point = chosen[unit_of(i)].points[cell_of(i)];
            u64::from(self.grid.points[usize::from(point)][i % E])
        };
        let shifts = |g: usize| {
            let is_set = |i: &usize| chosen[unit_of(g * 32 + i)].negative[cell_of(g * 32 + i)];
            (0..32).filter(is_set).map(|i| 1u32 << i).sum()
        };
        let has_signs = matches!(self.bits, Bits::Signs | Bits::EvenSigns);
        BlockParts {
            d: *d,
            scales: std::array::from_fn(|i| scales[unit_of(i * 16)]),
            elements: std::array::from_fn(|g| {
                std::array::from_fn(|l| (0..8).map(|i| element(g * 32 + l * 8 + i) << (8 * i)).sum())
            }),
            bits: std::array::from_fn(|g| if has_signs { targets.signs[g] } else { shifts(g) }),
        }
    }
}

/// Encodes a row.
#[inline(always)]
pub(super) fn encode<B: GridBlock, const E: usize>(
    search: &Search<'_, E>,
    x: &[f32],
    w: Option<&[f32]>,
    blocks: &mut [B],
) {
    for ((x, w), block) in super::chunks(x, w, 256).zip(blocks) {
        *block = B::from_parts(&search.block(x, w));
    }
}

/// Rounds a positive number to F16, but not to an infinity, and numbers other than 0 not to 0.
#[inline(always)]
fn half_of(x: f32) -> Half {
    let half = Half::new(x.clamp(0.0, 65504.0));
    if half.get() != 0.0 || x <= 0.0 {
        half
    } else {
        Half::new(5.960_464_5e-8)
    }
}

/// Largest magnitude that the search handles.
const MAX_MAGNITUDE: f32 = 1e7;

/// Smallest importance relative to the largest of the block.
const MIN_IMPORTANCE: f32 = 1e-7;
