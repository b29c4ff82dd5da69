//! Search for points of grids: the IQ1, IQ2, and IQ3 types.
//!
//! Each cell of 8 (IQ3: 4) elements is a point of the grid, each unit of 16 or 32 elements has an integer scale.
//! The search compares the points near the levels that are best for each element alone.

use std::ops::Range;

use super::cells::{self, Bits, CELLS, Chosen, NEAR, Near, Points, Unit, first_least};
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
    /// Zero point, which is subtracted from elements.
    zero: f32,
    /// Distinct elements of all points, in ascending order.
    elements: Vec<u8>,
    /// Levels of elements, less `zero`.
    levels: Vec<f32>,
    points: Vec<[u8; E]>,
    /// The nearest points of each combination of levels, in ascending distance, if points have 4 elements.
    near: Vec<[u16; NEAR]>,
    /// The elements of the points in `near`.
    near_elements: Vec<NearElements>,
    /// Whether each combination of levels is a point.
    is_point: Vec<bool>,
    /// The points near each combination of levels, if points have 8 elements.
    eights: Points,
}

/// Elements of the points near a combination of levels, in one cache line. Element `d` of all points is at index `d`.
#[repr(align(64))]
struct NearElements([[u8; NEAR]; FOUR]);

/// Elements of the shorter points.
const FOUR: usize = 4;

impl<const E: usize> Grid<E> {
    /// Creates a grid. `zero` is subtracted from all elements.
    pub(super) fn new(points: impl Iterator<Item = [u8; E]>, zero: f32) -> Grid<E> {
        let points: Vec<[u8; E]> = points.collect();
        let mut elements: Vec<u8> = points.iter().flatten().copied().collect();
        elements.sort_unstable();
        elements.dedup();
        let levels: Vec<f32> = elements.iter().map(|element| f32::from(*element) - zero).collect();
        let mut grid = Grid {
            zero,
            eights: Points {
                levels: std::array::from_fn(|i| levels.get(i).copied().unwrap_or(0.0)),
                near: Vec::new(),
            },
            near: Vec::new(),
            near_elements: Vec::new(),
            is_point: Vec::new(),
            elements,
            levels,
            points,
        };
        let near = nearest_points(&grid.points, &grid.elements);
        if E == FOUR {
            grid.near = near;
            grid.near_elements = grid.near.iter().map(|near| grid.elements_of(near)).collect();
            let near = grid.near.iter().enumerate();
            grid.is_point = near.map(|(code, near)| grid.code_of(near[0]) == code).collect();
        } else {
            let packed: Vec<u16> = (0..grid.points.len()).map(|point| grid.packed(point as u16)).collect();
            let near = near
                .iter()
                .map(|near| Near::new(near.map(|point| packed[usize::from(point)])));
            grid.eights.near = near.collect();
        }
        grid
    }

    /// Returns the index of the level of each element of a point.
    fn ranks(&self, point: u16) -> [usize; E] {
        self.points[usize::from(point)].map(|element| self.elements.partition_point(|other| *other < element))
    }

    /// Returns the combination of the levels of a point.
    fn code_of(&self, point: u16) -> usize {
        let ranks = self.ranks(point).into_iter().rev();
        ranks.fold(0, |code, rank| code * self.elements.len() + rank)
    }

    /// Returns the levels of a point with 2 bits each.
    fn packed(&self, point: u16) -> u16 {
        self.ranks(point)
            .into_iter()
            .rev()
            .fold(0, |packed, rank| packed << 2 | rank as u16)
    }

    fn elements_of(&self, near: &[u16; NEAR]) -> NearElements {
        NearElements(std::array::from_fn(|d| {
            near.map(|point| self.points[usize::from(point)].get(d).copied().unwrap_or(0))
        }))
    }

    /// Returns a point with a small `sum(a p^2 - b p)`, and this sum: the best point near the combination of best
    /// levels.
    #[inline(always)]
    fn nearest(&self, a: &[f32; E], b: &[f32; E]) -> (u16, f32) {
        let (mut best, mut digits) = ([f32::INFINITY; E], [0u8; E]);
        for (value, &level) in self.levels.iter().enumerate() {
            for d in 0..E {
                let cost = level * (level * a[d] - b[d]);
                let is_less = cost < best[d];
                digits[d] = if is_less { value as u8 } else { digits[d] };
                best[d] = if is_less { cost } else { best[d] };
            }
        }
        let n_levels = self.levels.len();
        let digits = digits.iter().rev();
        let code = digits.fold(0, |code, digit| code * n_levels + usize::from(*digit));
        if self.is_point[code] {
            return (self.near[code][0], (best[0] + best[1]) + (best[2] + best[3]));
        }
        self.best_near(code, a, b)
    }

    /// Returns the best of the points near a combination of levels, and its cost.
    #[inline(always)]
    fn best_near(&self, code: usize, a: &[f32; E], b: &[f32; E]) -> (u16, f32) {
        let near = &self.near_elements[code];
        let mut costs = [[0f32; NEAR]; FOUR];
        for d in 0..FOUR {
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

    /// Returns element `i` of a point.
    #[inline(always)]
    fn element(&self, point: u16, i: usize) -> u8 {
        if E == FOUR {
            self.points[usize::from(point)][i]
        } else {
            self.elements[usize::from(point >> (2 * i) & 3)]
        }
    }

    /// Returns element `i` of a point, less the zero.
    #[inline(always)]
    fn value(&self, point: u16, i: usize) -> f32 {
        f32::from(self.element(point, i)) - self.zero
    }
}

/// Returns the nearest points of each combination of levels, in ascending distance, then in ascending order.
/// Combination `i` has the digits of `i` in the base of the number of levels, lowest first. The number of points is a
/// multiple of 32.
fn nearest_points<const E: usize>(points: &[[u8; E]], levels: &[u8]) -> Vec<[u16; NEAR]> {
    let [low, high] = [0, E / 2].map(|first| distances(points, levels, first..first + E / 2));
    let pairs = high.iter().flat_map(|high| low.iter().map(move |low| (low, high)));
    let similar = std::array::from_fn(|i| i as u16);
    let near = pairs.scan(similar, |similar, (low, high)| {
        *similar = least_sums(low, high, similar);
        Some(*similar)
    });
    near.collect()
}

/// Returns the squared distance of each point from each combination of levels for some elements.
fn distances<const E: usize>(points: &[[u8; E]], levels: &[u8], of: Range<usize>) -> Vec<Vec<i16>> {
    let codes = 0..levels.len().pow(of.len() as u32);
    let to_code = |code: usize| {
        let digits = of.clone().scan(code, |rest, d| {
            let digit = *rest % levels.len();
            *rest /= levels.len();
            Some((d, i16::from(levels[digit])))
        });
        let target: Vec<(usize, i16)> = digits.collect();
        let distance = |point: &[u8; E]| {
            let differences = target.iter().map(|&(d, level)| i16::from(point[d]) - level);
            differences.map(|difference| difference * difference).sum()
        };
        points.iter().map(distance).collect()
    };
    codes.map(to_code).collect()
}

/// Returns the indices of the smallest sums, in ascending order of sum, then of index. The sums at `near`, the result
/// for similar values, bound the smallest sums, so that most chunks are skipped.
fn least_sums(a: &[i16], b: &[i16], near: &[u16; NEAR]) -> [u16; NEAR] {
    const CHUNK: usize = 32;
    let at_near = near.iter().map(|&i| a[usize::from(i)] + b[usize::from(i)]);
    let mut found = [(at_near.fold(0, i16::max) + 1, 0u16); NEAR];
    let chunks = a.as_chunks::<CHUNK>().0.iter().zip(b.as_chunks::<CHUNK>().0);
    for (chunk, (a, b)) in chunks.enumerate() {
        let sums: [i16; CHUNK] = std::array::from_fn(|i| a[i] + b[i]);
        if sums.iter().fold(i16::MAX, |least, &sum| least.min(sum)) >= found[NEAR - 1].0 {
            continue;
        }
        for (i, &sum) in sums.iter().enumerate() {
            if sum < found[NEAR - 1].0 {
                let mut at = NEAR - 1;
                while at > 0 && found[at - 1].0 > sum {
                    found[at] = found[at - 1];
                    at -= 1;
                }
                found[at] = (sum, (chunk * CHUNK + i) as u16);
            }
        }
    }
    found.map(|(_, point)| point)
}

/// Elements of a block to approximate; magnitudes if the type stores signs separately.
struct Targets {
    t: [f32; 256],
    w: [f32; 256],
    /// Sums of `w t` of 8 elements.
    wt: [f32; 32],
    signs: [u32; 8],
}

/// Returns the sum of `w t`.
#[inline(always)]
fn dot(t: &[f32; 8], w: &[f32; 8]) -> f32 {
    (Lanes(*t) * Lanes(*w)).sum()
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
    for d in (0..N).filter(|d| d % FOUR > 0) {
        place.0[d] = place.0[d - 1] * levels.len() as f32;
    }
    let cells = codes.as_chunks_mut::<{ N / FOUR }>().0;
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
        for (code, digits) in codes.iter_mut().zip(digits.0.as_chunks::<FOUR>().0) {
            // Exact, because codes are small.
            *code = (digits.iter().sum::<f32>()) as usize;
        }
    }
}

for_this_cpu! {
    /// Returns the best block found.
    fn best_block[const E: usize][E](search: &Search<'_, E>, x: &[f32], importance: Option<&[f32]>) -> BlockParts = block_of;
    /// Returns the points of a unit's cells of 4 elements that minimize the error for a scale.
    fn choose_of_four[const E: usize][E](grid: &Grid<E>, t: &[f32], w: &[f32], scale: f32) -> Chosen = points_of_four;
}

#[inline(always)]
fn block_of<const E: usize>(search: &Search<'_, E>, x: &[f32], importance: Option<&[f32]>) -> BlockParts {
    search.find_block(x, importance)
}

/// See [`choose_of_four`].
#[inline(always)]
fn points_of_four<const E: usize>(grid: &Grid<E>, t: &[f32], w: &[f32], scale: f32) -> Chosen {
    let mut codes = [0; CELLS];
    best_levels(&grid.levels, t, w, scale, &mut codes);
    let codes = &codes[..t.len() / E];
    for &code in codes {
        // The tables of all codes exceed the L1 cache.
        prefetch((&raw const grid.near_elements[code]).cast(), CacheLevel::First);
        prefetch((&raw const grid.near[code]).cast(), CacheLevel::First);
    }
    let mut chosen = Chosen::default();
    for (cell, &code) in codes.iter().enumerate() {
        let mut point = grid.near[code][0];
        if !grid.is_point[code] {
            let (mut a, mut b) = ([0.0; E], [0.0; E]);
            for i in 0..E {
                let (t, w) = (t[cell * E + i], w[cell * E + i]);
                a[i] = scale * scale * w;
                b[i] = 2.0 * scale * w * t;
            }
            point = grid.best_near(code, &a, &b).0;
        }
        chosen.points[cell] = point;
    }
    for (cell, point) in chosen.points[..codes.len()].iter().enumerate() {
        for i in 0..E {
            let (at, q) = (cell * E + i, grid.value(*point, i));
            chosen.tq += w[at] * t[at] * q;
            chosen.qq += w[at] * q * q;
        }
    }
    chosen
}

/// Maximum number of positions of the largest magnitude.
const POSITIONS: usize = 9;

/// Rounds of choosing points and fitting the common factor.
const ROUNDS: usize = 3;

impl<const E: usize> Search<'_, E> {
    /// Returns the best block found.
    pub(super) fn block(&self, x: &[f32], importance: Option<&[f32]>) -> BlockParts {
        best_block(self, x, importance)
    }

    #[inline(always)]
    fn find_block(&self, x: &[f32], importance: Option<&[f32]>) -> BlockParts {
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

    /// Returns the codes near `code` with the smallest error, and their points.
    #[inline(always)]
    fn around(&self, targets: &Targets, unit: usize, code: f32, real: f32) -> (f32, Chosen) {
        let mut best = (code, self.choose(targets, unit, (code + 0.5) * real));
        // The relative rounding error of a small code is large, so a neighbor may be better with other points.
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

    #[inline(always)]
    fn code(&self, ideal: f32, real: f32) -> f32 {
        let code = if real > 0.0 {
            (ideal / real - 0.5).round_ties_even()
        } else {
            0.0
        };
        code.clamp(0.0, self.n_scales - 1.0)
    }

    /// Returns factors of the block to start from.
    #[inline(always)]
    fn starts(&self, ideal: &[(f32, Chosen)]) -> [Half; 2] {
        let largest = ideal.iter().fold(0f32, |max, (scale, _)| max.max(*scale));
        let mut found = [(f32::INFINITY, Half::default()); 2];
        for i in (0..32).step_by(N) {
            let mut halves = [Half::default(); N];
            for (d, i) in halves.iter_mut().zip(i..) {
                let position = self.n_scales - 0.5 - 0.02 * i as f32 * self.n_scales;
                *d = half_of(largest / (position * self.factor));
            }
            let real = Lanes::from_halves(&halves) * Lanes::splat(self.factor);
            let (half, limit) = (Lanes::splat(0.5), self.n_scales - 1.0);
            let mut errors = Lanes::ZERO;
            for (scale, chosen) in ideal {
                let code = (Lanes::splat(*scale) / real - half).clamp(0.0, limit).round();
                let scale = (Lanes::ZERO.select_less(real, code, Lanes::ZERO) + half) * real;
                errors = errors + scale * (scale * Lanes::splat(chosen.qq) - Lanes::splat(2.0 * chosen.tq));
            }
            for (d, error) in halves.into_iter().zip(errors.0) {
                if error < found[0].0 {
                    found = [(error, d), found[0]];
                } else if error < found[1].0 {
                    found[1] = (error, d);
                }
            }
        }
        found.map(|(_, d)| d)
    }

    /// Returns the best scale of a unit, without regard to the codes of scales.
    #[inline(always)]
    fn fit(&self, targets: &Targets, unit: usize) -> (f32, Chosen) {
        let t = &targets.t[unit * self.unit..][..self.unit];
        let largest = t.iter().fold(0f32, |max, t| max.max(t.abs()));
        let mut best = (0.0, Chosen::default());
        if largest <= 0.0 {
            return best;
        }
        // A branch on each error would often be mispredicted, and prevent the CPU from overlapping the choices.
        let mut tried = [Chosen::default(); POSITIONS];
        for (chosen, position) in tried.iter_mut().zip(self.positions) {
            *chosen = self.choose(targets, unit, largest / position);
        }
        let mut best_error = 0.0;
        let mut consider = |chosen: &Chosen| {
            let scale = chosen.best_scale();
            let error = chosen.error(scale);
            if error < best_error {
                (best, best_error) = ((scale, *chosen), error);
            }
            best.0
        };
        let mut last = 0.0;
        for chosen in &tried[..self.positions.len().min(POSITIONS)] {
            last = consider(chosen);
        }
        let refitted = consider(&self.choose(targets, unit, last));
        if refitted != last {
            consider(&self.choose(targets, unit, refitted));
        }
        best
    }

    #[inline(always)]
    fn choose(&self, targets: &Targets, unit: usize, scale: f32) -> Chosen {
        let unit = unit * self.unit..(unit + 1) * self.unit;
        let wt = &targets.wt[unit.start / 8..unit.end / 8];
        let (t, w) = (&targets.t[unit.clone()], &targets.w[unit]);
        if E == FOUR {
            return choose_of_four(self.grid, t, w, scale);
        }
        let mut chosen = Chosen::default();
        cells::choose(&self.grid.eights, self.bits, &Unit { t, w, wt }, scale, &mut chosen);
        chosen
    }

    /// Returns points for 8 elements with a small error for a scale and a shift, and this error minus a constant.
    #[inline(always)]
    fn nearest_points(&self, t: &[f32; 8], w: &[f32; 8], scale: f32, shift: f32) -> ([u16; 2], f32) {
        if E != FOUR {
            let (point, cost) = cells::nearest(&self.grid.eights, t, w, scale, shift);
            return ([point; 2], cost + cells::constant(dot(t, w), scale, shift));
        }
        let (mut points, mut cost) = ([0; 2], 0.0);
        for (cell, point) in points.iter_mut().enumerate() {
            let (mut a, mut b) = ([0.0; E], [0.0; E]);
            for i in 0..E {
                let (t, w) = (t[cell * E + i], w[cell * E + i]);
                a[i] = scale * scale * w;
                b[i] = 2.0 * scale * w * t;
            }
            let found = self.grid.nearest(&a, &b);
            (*point, cost) = (found.0, cost + found.1);
        }
        (points, cost)
    }

    /// Replaces 8 elements of a block, starting at index `at`, by those nearest to `x`, without changing scales.
    /// Returns their values.
    #[inline(always)]
    pub(super) fn round(&self, parts: &mut BlockParts, at: usize, x: &[f32], w: &[f32], values: &mut [f32]) {
        let (g, l) = (at / 32, at % 32 / 8);
        let scale = parts.d.get() * ((f32::from(parts.scales[at / 16]) + 0.5) * self.factor);
        let mut t: [f32; 8] = std::array::from_fn(|i| x[i].clamp(-MAX_MAGNITUDE, MAX_MAGNITUDE));
        let w: &[f32; 8] = &std::array::from_fn(|i| w[i]);
        let mut bits = parts.bits[g] >> (8 * l) & 0xff;
        let mut shifts = self.bits.shifts();
        match self.bits {
            Bits::Signs | Bits::EvenSigns => bits = u32::from(self.signs(&mut t, w)),
            Bits::UnitShift if bits != 0 => shifts = &shifts[1..],
            Bits::UnitShift => shifts = &shifts[..1],
            Bits::CellShift => {}
        }
        let mut least = f32::INFINITY;
        for &shift in shifts {
            let (points, cost) = self.nearest_points(&t, w, scale, shift);
            if cost < least || shift == shifts[0] {
                least = cost;
                if self.bits == Bits::CellShift {
                    bits = if shift < 0.0 { 0xff } else { 0 };
                }
                let elements = std::array::from_fn(|i| self.grid.element(points[i / E], i % E));
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
    #[inline(always)]
    fn targets(&self, x: &[f32], importance: Option<&[f32]>) -> Targets {
        let mut targets = Targets {
            t: [0.0; 256],
            w: [1.0; 256],
            wt: [0.0; 32],
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
        let eights = targets.t.as_chunks().0.iter().zip(targets.w.as_chunks().0);
        for (wt, (t, w)) in targets.wt.iter_mut().zip(eights) {
            *wt = dot(t, w);
        }
        targets
    }

    /// Replaces 8 targets by magnitudes, and returns their signs. If the number of negative elements must be even, the
    /// sign of the least important element may change.
    #[inline(always)]
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
    #[inline(always)]
    fn parts(&self, targets: &Targets, (d, scales, chosen): &(Half, [u8; 16], [Chosen; 16])) -> BlockParts {
        let n_units = 256 / self.unit;
        let (mut elements, mut shifts) = ([0; 256], [0; 8]);
        for (u, chosen) in chosen[..n_units].iter().enumerate() {
            for cell in 0..self.unit / E {
                let at = u * self.unit + cell * E;
                for i in 0..E {
                    elements[at + i] = self.grid.element(chosen.points[cell], i);
                    shifts[at / 32] |= u32::from(chosen.negative[cell]) << (at % 32 + i);
                }
            }
        }
        let has_signs = matches!(self.bits, Bits::Signs | Bits::EvenSigns);
        let mut parts = BlockParts {
            d: *d,
            scales: [0; 16],
            elements: [[0; 4]; 8],
            bits: if has_signs { targets.signs } else { shifts },
        };
        for (i, scale) in parts.scales.iter_mut().enumerate() {
            *scale = scales[i * n_units / 16];
        }
        for (to, elements) in parts.elements.as_flattened_mut().iter_mut().zip(elements.as_chunks().0) {
            *to = u64::from_le_bytes(*elements);
        }
        parts
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

/// Rounds a nonnegative number to F16. Finite numbers stay finite, and nonzero numbers stay nonzero.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests the last combinations, which have the largest digits, with levels at unequal distances.
    #[test]
    fn nearest_points_are_first_of_sorted_points() {
        let points: Vec<[u8; 4]> = (0..96u32)
            .map(|i| (i * i * 37 + i).to_le_bytes().map(|b| b % 3 * (b % 3 + 4)))
            .collect();
        let levels = [0, 5, 12];
        let found = nearest_points(&points, &levels);
        assert_eq!(found.len(), 81);
        for (code, found) in found.into_iter().enumerate() {
            let target = [0, 1, 2, 3].map(|i| levels[code / 3usize.pow(i) % 3]);
            let distance =
                |point: [u8; 4]| -> u32 { (0..4).map(|i| u32::from(point[i].abs_diff(target[i])).pow(2)).sum() };
            let mut sorted: Vec<(u32, u16)> = (0..96).map(|i| (distance(points[i]), i as u16)).collect();
            sorted.sort_unstable();
            assert_eq!(found[..], sorted[..NEAR].iter().map(|(_, i)| *i).collect::<Vec<_>>());
        }
    }
}
