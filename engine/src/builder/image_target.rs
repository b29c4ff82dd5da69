//! Sizes that images are resized to.

/// Maximum ratio of the sides of an image that is resized to multiples of a unit.
pub(super) const MAX_RATIO: usize = 200;
/// Maximum side of an image with borders in patches.
const MAX_BORDERED: usize = 512;

/// Returns true if the sides differ too much, or one of them is 0.
pub(super) fn is_too_narrow([width, height]: [usize; 2]) -> bool {
    let (short, long) = (width.min(height), width.max(height));
    short == 0 || long > short.saturating_mul(MAX_RATIO)
}

/// Rounds sides to multiples of `unit`. An area outside of the limits, in `unit` x `unit` squares, is scaled to the
/// nearest limit. The arithmetic in 64-bit floats matches the published preprocessing of Qwen2-VL.
pub(super) fn multiple(sides: [usize; 2], unit: usize, [min, max]: [usize; 2]) -> [usize; 2] {
    let (unit_f, area_of_unit) = (unit as f64, (unit * unit) as f64);
    let rounded = sides.map(|side| (side as f64 / unit_f).round_ties_even() as usize);
    let area = sides[0] as f64 * sides[1] as f64;
    let blocks = if rounded[0] * rounded[1] > max {
        shrunk(sides, unit, max)
    } else if rounded[0] * rounded[1] < min {
        let grow = (min as f64 * area_of_unit / area).sqrt();
        sides.map(|side| (side as f64 * grow / unit_f).ceil() as usize)
    } else {
        rounded
    };
    cut(blocks, max).map(|n| n * unit)
}

/// Returns the numbers of units in sides that are scaled down to an area of `max` squares of a unit.
fn shrunk(sides: [usize; 2], unit: usize, max: usize) -> [usize; 2] {
    let (area, unit) = (sides[0] as f64 * sides[1] as f64, unit as f64);
    let shrink = (area / (max as f64 * unit * unit)).sqrt();
    sides.map(|side| ((side as f64 / shrink / unit).floor() as usize).max(1))
}

/// Cuts the longer side to an area of `max`. The published preprocessing of Qwen2-VL exceeds the maximum for close
/// limits and for narrow images.
fn cut([columns, rows]: [usize; 2], max: usize) -> [usize; 2] {
    if columns >= rows {
        [columns.min(max / rows.max(1)), rows]
    } else {
        [columns, rows.min(max / columns.max(1))]
    }
}

/// Scales sides to the area of a square of `side` pixels, and rounds them to multiples of `unit`, as the published
/// preprocessing of MiniCPM-V does. An area above `max` squares of a unit is scaled down to it.
pub(super) fn area(sides: [usize; 2], side: usize, unit: usize, max: usize) -> [usize; 2] {
    let ratio = sides[0] as f64 / sides[1] as f64;
    let height = (side as f64 / ratio.sqrt()).trunc();
    let width = (height * ratio).trunc();
    let blocks = [width, height].map(|pixels| ((pixels / unit as f64).round_ties_even() as usize).max(1));
    let blocks = if blocks[0].saturating_mul(blocks[1]) > max {
        cut(shrunk(sides, unit, max), max)
    } else {
        blocks
    };
    blocks.map(|n| n.saturating_mul(unit))
}

/// Scales sides to at most `side` pixels, as `ImageOps.contain` in Pillow does.
pub(super) fn contained([width, height]: [usize; 2], side: usize) -> [usize; 2] {
    let shorter = |short: usize, long: usize| {
        let pixels = short as f64 / long.max(1) as f64 * side as f64;
        (pixels.round_ties_even() as usize).clamp(1, side.max(1))
    };
    if width > height {
        [side, shorter(height, width)]
    } else {
        [shorter(width, height), side]
    }
}

/// Scales sides to at most `side` and at least `least` pixels, as the published preprocessing of Janus does.
pub(super) fn contained_from(sides: [usize; 2], side: usize, least: usize) -> [usize; 2] {
    let factor = side as f64 / sides[0].max(sides[1]).max(1) as f64;
    let least = least.clamp(1, side.max(1));
    sides.map(|n| ((n as f64 * factor).round_ties_even() as usize).clamp(least, side.max(1)))
}

/// Returns the maximum area of an image with about the area of a square of `side` pixels, in `unit` x `unit` squares.
pub(super) fn max_area(side: usize, unit: usize) -> usize {
    let (n, longest) = (side.div_ceil(unit.max(1)), MAX_RATIO.isqrt() + 1);
    // The area of `[n * r, n / r]`, with both sides rounded, for `r` up to the root of the largest ratio.
    let of_rounded = n
        .saturating_mul(n)
        .saturating_add(n.saturating_mul(longest.div_ceil(2)) + 1);
    of_rounded.max(n.saturating_mul(longest) + 1)
}

/// Scales sides down to at most `side` pixels, and rounds them up to multiples of `unit`, as the published
/// preprocessing of Pixtral does. An area above `max` squares of a unit is scaled down to it.
pub(super) fn longest(sides: [usize; 2], side: usize, unit: usize, max: usize) -> [usize; 2] {
    let ratio = sides.map(|n| n as f64 / side as f64);
    let ratio = ratio[0].max(ratio[1]);
    let scaled = |n: usize| {
        if ratio > 1.0 {
            (n as f64 / ratio).floor() as usize
        } else {
            n
        }
    };
    let blocks = sides.map(|n| scaled(n).div_ceil(unit).max(1));
    let blocks = if blocks[0].saturating_mul(blocks[1]) > max {
        cut(shrunk(sides, unit, max), max)
    } else {
        blocks
    };
    blocks.map(|n| n * unit)
}

/// Scales sides to an area of up to `max` squares of a unit, and rounds them down to multiples of `unit`. The
/// published preprocessing of Gemma 4 does the same. A side has at least one unit.
pub(super) fn within(sides: [usize; 2], unit: usize, max: usize) -> [usize; 2] {
    let [width, height] = sides;
    let area = (max * unit * unit) as f64;
    let factor = (area / (width as f64 * height as f64)).sqrt();
    let [columns, rows] = sides.map(|side| (factor * side as f64 / unit as f64).floor() as usize);
    let blocks = match (columns, rows) {
        (_, 0) => [(width / height).clamp(1, max), 1],
        (0, _) => [1, (height / width).clamp(1, max)],
        (columns, rows) => [columns, rows],
    };
    cut(blocks, max).map(|n| n * unit)
}

/// Scales sides to the number of whole `unit` x `unit` squares in the image, clamped to `min..=max`. Sides are rounded
/// up to multiples of `unit`. The search for the largest scale matches the published preprocessing of SigLIP 2.
pub(super) fn fitting(sides: [usize; 2], unit: usize, [min, max]: [usize; 2]) -> [usize; 2] {
    let n_whole = (sides[0] / unit).saturating_mul(sides[1] / unit).max(1);
    let limit = n_whole.max(min).min(max);
    let scaled = |scale: f64| sides.map(|side| ((side as f64 * scale / unit as f64).ceil() as usize).max(1));
    let (mut low, mut high) = (1e-6, 100.0);
    while high - low >= 1e-5 {
        let scale = f64::midpoint(low, high);
        let [columns, rows] = scaled(scale);
        if columns.saturating_mul(rows) <= limit {
            low = scale;
        } else {
            high = scale;
        }
    }
    cut(scaled(low), max).map(|n| n * unit)
}

/// Returns the multiples of `unit` whose ratio is closest to that of the sides. The sides are scaled down to an
/// area of `max` units and rounded up or down, as in the published preprocessing of Muse Glimmer.
pub(super) fn closest(sides: [usize; 2], unit: usize, max: usize) -> [usize; 2] {
    let [mut across, mut down] = sides.map(|side| side as f64 / unit as f64);
    let ratio = across / down;
    if across * down > max as f64 {
        down = (max as f64 / ratio).sqrt();
        across = down * ratio;
    }
    let around = |n: f64| [n.floor() as usize, n.ceil() as usize];
    let of_sides = sides[1] as f64 / sides[0] as f64;
    let mut best: Option<([usize; 2], f64)> = None;
    for rows in around(down) {
        for columns in around(across) {
            let difference = (rows as f64 / columns as f64 - of_sides).abs();
            let fits = rows > 0 && columns > 0 && rows.saturating_mul(columns) <= max;
            // Among equal ratios, the larger size is used.
            if fits && best.is_none_or(|(_, least)| difference <= least) {
                best = Some(([columns, rows], difference));
            }
        }
    }
    let rounded = || cut([across, down].map(|n| (n.round_ties_even() as usize).max(1)), max);
    best.map_or_else(rounded, |(blocks, _)| blocks).map(|n| n * unit)
}

/// Rounds sides up to multiples of `unit`. While the area is above `max` `unit` x `unit` squares, the sides are reduced
/// by another 2 %, as llama.cpp does for Youtu-VL.
pub(super) fn stepped(sides: [usize; 2], unit: usize, max: usize) -> [usize; 2] {
    let mut scale = 1.0;
    loop {
        let blocks = sides.map(|side| ((side as f64 * scale / unit as f64).ceil() as usize).max(1));
        if scale <= 0.0 || blocks[0].saturating_mul(blocks[1]) <= max {
            return cut(blocks, max).map(|n| n * unit);
        }
        scale -= 0.02;
    }
}

/// Returns the sides that an image is scaled to, and these sides padded to multiples of `unit`, as in the published
/// preprocessing of GLM 5. An area beyond the limits, in `unit` x `unit` squares, is scaled to the nearest limit.
pub(super) fn extended(sides: [usize; 2], unit: usize, [min, max]: [usize; 2]) -> [[usize; 2]; 2] {
    let area = sides[0] as f64 * sides[1] as f64;
    let least = min as f64 * (unit as f64).powi(2);
    let mut blocks = sides.map(|side| side.div_ceil(unit));
    if blocks[0].saturating_mul(blocks[1]) < min {
        let grow = (least / area).sqrt();
        blocks = sides.map(|side| ((side as f64 * grow).ceil() as usize).div_ceil(unit).max(1));
    }
    if blocks[0].saturating_mul(blocks[1]) > max {
        blocks = largest_within(sides, unit, max);
    }
    let whole = cut(blocks, max).map(|n| n * unit);
    let scale = (whole[1] as f64 / sides[1] as f64).min(whole[0] as f64 / sides[0] as f64);
    let scale = if area >= least { scale.min(1.0) } else { scale };
    let scaled = [0, 1].map(|i| ((sides[i] as f64 * scale).floor() as usize).clamp(1, whole[i]));
    [scaled, whole]
}

/// Returns the sides, in units and rounded up, of the largest image with the same aspect ratio and an area of at most
/// `max`. The published search halves an interval of heights.
fn largest_within([width, height]: [usize; 2], unit: usize, max: usize) -> [usize; 2] {
    let (mut low, mut high, mut best) = (1, height, [1; 2]);
    while low <= high {
        let middle = usize::midpoint(low, high);
        let across = (width.saturating_mul(middle) / height).max(1);
        let blocks = [across, middle].map(|side| side.div_ceil(unit));
        if blocks[0].saturating_mul(blocks[1]) <= max {
            best = blocks;
            low = middle + 1;
        } else {
            high = middle - 1;
        }
    }
    best
}

/// Scales sides down to an area of `area` squares of a unit, counted in whole patches, and to a maximum side. Returns
/// the scaled sides, and these sides rounded up to multiples of `unit`, as the published preprocessing of Kimi does.
/// An area above `max` squares of a unit is scaled down to it.
pub(super) fn bordered(sides: [usize; 2], patch: usize, unit: usize, [area, max]: [usize; 2]) -> [[usize; 2]; 2] {
    let (patch, longest) = (patch.max(1), MAX_BORDERED * patch.max(1));
    let n_patches = sides.map(|side| (side / patch).max(1) as f64);
    let limit = area as f64 * (unit as f64 / patch as f64).powi(2);
    let of_sides = sides.map(|side| longest as f64 / side as f64);
    let scale = (limit / (n_patches[0] * n_patches[1]))
        .sqrt()
        .min(of_sides[0])
        .min(of_sides[1])
        .min(1.0);
    let scaled = sides.map(|side| ((side as f64 * scale) as usize).clamp(1, longest));
    let blocks = scaled.map(|side| side.div_ceil(unit));
    if blocks[0] * blocks[1] > max {
        let whole = cut(shrunk(sides, unit, max), max).map(|n| n * unit);
        return [whole; 2];
    }
    [scaled, blocks.map(|n| n * unit)]
}

/// Returns the maximum area of an image with borders in `unit` x `unit` squares. The area that images are scaled down
/// to counts whole patches; borders pad the image to whole squares.
pub(super) fn max_bordered(block: usize, area: usize) -> usize {
    let side = MAX_BORDERED.div_ceil(block.max(1));
    let limit = area as f64 * (block as f64).powi(2);
    // A side of n squares has more than `(n - 1) * block` patches. Before scaling, a side of n whole patches is less
    // than n + 1 patches long.
    let fits = |columns: usize, rows: usize| {
        let [width, height] = [columns, rows].map(|n| (n - 1) as f64 * block as f64);
        width * height <= limit * (1.0 + 1.0 / width.max(1.0)) * (1.0 + 1.0 / height.max(1.0))
    };
    let (mut rows, mut most) = (side, 1);
    for columns in 1..=side {
        while rows > 1 && !fits(columns, rows) {
            rows -= 1;
        }
        most = most.max(columns * rows);
    }
    most
}
