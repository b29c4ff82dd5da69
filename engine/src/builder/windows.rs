//! [`Windows`]: squares of an image that are resized to tiles, as in the published preprocessing of Step3-VL.

/// Smallest shorter side in pixels of an image that is more than [`WIDE`] times as long.
const THIN: usize = 32;
/// Ratio of sides above which windows are as wide as the shorter side.
const WIDE: f64 = 4.0;
/// Ratio of sides above which a small image is split.
const LONG: f64 = 1.5;
/// Remainder, in windows, above which a side is rounded up.
const REST: f64 = 0.2;

/// Windows of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Windows {
    /// Side of a window in pixels.
    pub side: usize,
    /// Width and height that the image is resized to. A side below the side of a window is padded with black.
    pub resized: [usize; 2],
}

/// Returns the sides of an image that is extended to a square if it is thin.
pub(super) fn squared(sides: [usize; 2]) -> [usize; 2] {
    let [short, long] = [sides[0].min(sides[1]), sides[0].max(sides[1])];
    if short < THIN && long as f64 / short as f64 > WIDE {
        [long; 2]
    } else {
        sides
    }
}

impl Windows {
    /// Returns the windows of an image for tiles of `tile` pixels; `None` if the whole image of `whole` pixels
    /// suffices. Sides above `longest` are scaled down first.
    pub fn of(sides: [usize; 2], [tile, whole, longest]: [usize; 3]) -> Option<Windows> {
        let sides = Windows::scaled(squared(sides), longest);
        let [short, long] = [sides[0].min(sides[1]), sides[0].max(sides[1])];
        let ratio = long as f64 / short as f64;
        let side = if long <= whole {
            (ratio > LONG).then_some(short)?
        } else if ratio > WIDE {
            short.min(tile)
        } else {
            tile
        };
        let resized = sides.map(|n| match n / side {
            0 => n,
            whole => side * (whole + usize::from((n % side) as f64 > REST * side as f64)),
        });
        Some(Windows { side, resized })
    }

    /// Scales sides down to at most `longest` pixels.
    pub fn scaled(sides: [usize; 2], longest: usize) -> [usize; 2] {
        let long = sides[0].max(sides[1]);
        let scale = longest as f64 / long as f64;
        if long > longest {
            sides.map(|side| ((side as f64 * scale) as usize).max(1))
        } else {
            sides
        }
    }

    /// Returns the columns and rows of windows.
    pub fn grid(self) -> [usize; 2] {
        self.resized.map(|side| (side / self.side).max(1))
    }
}
