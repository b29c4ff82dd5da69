//! Pillow's resampling on bytes: separable filters in fixed point.

use super::RgbImage;

/// Filter of [`resize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Filter {
    /// Triangle: linear interpolation when upsampling.
    Bilinear,
    /// Cubic convolution with a = -0.5.
    Bicubic,
    /// Windowed sinc of three lobes.
    Lanczos,
}

/// Fractional bits of weights. A sum of products with bytes fits 32 bits.
const PRECISION_BITS: u32 = 32 - 8 - 2;

impl Filter {
    /// Returns the distance beyond which the filter is zero.
    fn support(self) -> f64 {
        match self {
            Filter::Bilinear => 1.0,
            Filter::Bicubic => 2.0,
            Filter::Lanczos => 3.0,
        }
    }

    fn weight(self, x: f64) -> f64 {
        match self {
            Filter::Bilinear => (1.0 - x.abs()).max(0.0),
            Filter::Bicubic => {
                const A: f64 = -0.5;
                let x = x.abs();
                if x < 1.0 {
                    ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    (((x - 5.0) * x + 8.0) * x - 4.0) * A
                } else {
                    0.0
                }
            }
            Filter::Lanczos if (-3.0..3.0).contains(&x) => sinc(x) * sinc(x / 3.0),
            Filter::Lanczos => 0.0,
        }
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * std::f64::consts::PI;
    x.sin() / x
}

/// Weights of the source positions of one target position, in pairs. A last position without neighbor is paired with
/// weight 0.
struct Taps {
    start: usize,
    weights: Vec<WeightPair>,
}

/// Weights of two positions in fixed point, each split into its lower 16 bits as a signed number, and the rest.
///
/// Compilers turn sums of two products of 16-bit numbers into single instructions.
struct WeightPair {
    low: [i16; 2],
    high: [i16; 2],
}

impl WeightPair {
    fn of(weights: &[i32]) -> WeightPair {
        let weights = [0, 1].map(|i| weights.get(i).copied().unwrap_or(0));
        let low = weights.map(|weight| weight as i16);
        let high = [0, 1].map(|i| (weights[i].wrapping_sub(low[i].into()) >> 16) as i16);
        WeightPair { low, high }
    }
}

/// Computes weights from `from` to `to` positions.
fn taps(from: usize, to: usize, filter: Filter) -> Vec<Taps> {
    let scale = from as f64 / to as f64;
    let filter_scale = scale.max(1.0);
    let support = filter.support() * filter_scale;
    let inverse = 1.0 / filter_scale;
    let position = |x: usize| {
        let center = (x as f64 + 0.5) * scale;
        let start = ((center - support + 0.5) as i64).max(0) as usize;
        let end = ((center + support + 0.5) as usize).min(from);
        let weight = |i: usize| filter.weight((i as f64 - center + 0.5) * inverse);
        let weights: Vec<f64> = (start..end).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        let normalized = |&weight: &f64| if sum == 0.0 { weight } else { weight / sum };
        let weights: Vec<i32> = weights.iter().map(normalized).map(fixed_point).collect();
        Taps {
            start,
            weights: weights.chunks(2).map(WeightPair::of).collect(),
        }
    };
    (0..to).map(position).collect()
}

/// Rounds half away from zero.
fn fixed_point(weight: f64) -> i32 {
    let scaled = weight * f64::from(1 << PRECISION_BITS);
    (scaled + if weight < 0.0 { -0.5 } else { 0.5 }) as i32
}

fn clip(sum: i32) -> u8 {
    (sum >> PRECISION_BITS).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (PRECISION_BITS - 1);

/// Resizes an image to `width` x `height` pixels, byte for byte as Pillow's `Image.resize`. A side of 0 counts as 1.
pub fn resize(image: &RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    let (width, height) = (width.max(1), height.max(1));
    if reduces_height_first(image, height) {
        let reduced = resize_height(image, height, filter);
        return if width == image.width {
            reduced
        } else {
            resize_width(&reduced, width, filter)
        };
    }
    let mut resized = None;
    if width != image.width {
        resized = Some(resize_width(image, width, filter));
    }
    if height != image.height {
        resized = Some(resize_height(resized.as_ref().unwrap_or(image), height, filter));
    }
    resized.unwrap_or_else(|| image.clone())
}

/// Returns true if Pillow resizes the columns of an image before its rows. The order affects the rounding.
fn reduces_height_first(image: &RgbImage, height: u32) -> bool {
    u64::from(image.height) > 100 * u64::from(image.width) && height < image.height
}

/// Extends the shorter side of an image by borders of one color, and resizes the square. The border after the image is
/// larger by the odd pixel. The result equals the result of [`resize`]; the square itself is never in memory.
pub fn resize_square(image: &RgbImage, color: [u8; 3], width: u32, height: u32, filter: Filter) -> RgbImage {
    let side = image.width.max(image.height);
    let at = [image.width, image.height].map(|n| (side - n) as usize / 2);
    resize_within_square(image, at, color, [width, height], filter)
}

/// Extends the shorter side of an image by black borders at the right or at the bottom, and resizes the square like
/// [`resize_square`].
pub fn resize_corner(image: &RgbImage, width: u32, height: u32, filter: Filter) -> RgbImage {
    resize_within_square(image, [0; 2], [0; 3], [width, height], filter)
}

/// Resizes a square of one color with an image `at` its left and top edge.
fn resize_within_square(
    image: &RgbImage,
    [left, top]: [usize; 2],
    color: [u8; 3],
    size: [u32; 2],
    filter: Filter,
) -> RgbImage {
    let [width, height] = size.map(|n| n.max(1));
    let side = image.width.max(image.height);
    // A resized row of one color keeps its color, because the weights of a position add up to 1.
    let mut columns = RgbImage::filled(width, side, color);
    let mut block = color.repeat(ROWS * side as usize);
    let stride = columns.stride();
    let target = &mut columns.data[top * stride..][..image.height as usize * stride];
    let taps = taps(side as usize, width as usize, filter);
    resize_rows(image, left, &mut block, &taps, target);
    if height == side {
        columns
    } else {
        resize_height(&columns, height, filter)
    }
}

/// Rows that are resized at a time.
const ROWS: usize = 8;

/// Bytes of a column of `ROWS` pixels.
const COLUMN: usize = 3 * ROWS;

fn resize_width(image: &RgbImage, width: u32, filter: Filter) -> RgbImage {
    let taps = taps(image.width as usize, width as usize, filter);
    let mut block = vec![0; COLUMN * image.width as usize];
    let mut data = vec![0; 3 * width as usize * image.height as usize];
    resize_rows(image, 0, &mut block, &taps, &mut data);
    RgbImage {
        width,
        height: image.height,
        data,
    }
}

/// Resizes all rows of an image. Columns of `ROWS` pixels are copied to `block`, starting at column `left`, so that the
/// rows are resized like columns. Columns of the block before and after the image keep their pixels.
fn resize_rows(image: &RgbImage, left: usize, block: &mut [u8], taps: &[Taps], target: &mut [u8]) {
    let (length, stride) = (image.stride(), 3 * taps.len());
    let parts = image.data.chunks(ROWS * length);
    for (rows, targets) in parts.zip(target.chunks_mut(ROWS * stride)) {
        for (place, row) in rows.chunks_exact(length).enumerate() {
            let (columns, _) = block[COLUMN * left..].as_chunks_mut::<COLUMN>();
            for (column, pixel) in columns.iter_mut().zip(row.as_chunks::<3>().0) {
                column[3 * place..][..3].copy_from_slice(pixel);
            }
        }
        for (x, Taps { start, weights }) in taps.iter().enumerate() {
            let column = mixed_column(&block[COLUMN * start..], weights);
            for (row, pixel) in targets.chunks_exact_mut(stride).zip(column.as_chunks::<3>().0) {
                row[3 * x..][..3].copy_from_slice(pixel);
            }
        }
    }
}

/// Returns the weighted sums of consecutive columns. As a separate function, the loop can use all vector registers.
#[inline(never)]
fn mixed_column(source: &[u8], weights: &[WeightPair]) -> [u8; COLUMN] {
    mixed(source, COLUMN, weights)
}

fn resize_height(image: &RgbImage, height: u32, filter: Filter) -> RgbImage {
    let taps = taps(image.height as usize, height as usize, filter);
    let stride = image.stride();
    let mut data = vec![0; stride * height as usize];
    for (row, Taps { start, weights }) in data.chunks_exact_mut(stride).zip(&taps) {
        let source = &image.data[start * stride..];
        let (parts, rest) = row.as_chunks_mut::<COLUMN>();
        let at = COLUMN * parts.len();
        for (i, part) in parts.iter_mut().enumerate() {
            *part = mixed(&source[COLUMN * i..], stride, weights);
        }
        for (i, value) in rest.iter_mut().enumerate() {
            [*value] = mixed(&source[at + i..], stride, weights);
        }
    }
    RgbImage {
        width: image.width,
        height,
        data,
    }
}

/// Returns the weighted sums of the first `N` bytes of consecutive rows.
#[inline(always)]
fn mixed<const N: usize>(source: &[u8], stride: usize, weights: &[WeightPair]) -> [u8; N] {
    let row = |at: usize| source.get(at..).and_then(|row| row.first_chunk()).unwrap_or(&[0; N]);
    let (mut low, mut high) = ([0_i32; N], [0_i32; N]);
    for (i, weight) in weights.iter().enumerate() {
        let (upper, lower) = (row(2 * i * stride), row((2 * i + 1) * stride));
        for k in 0..N {
            let [upper, lower] = [upper[k], lower[k]].map(|value| i32::from(i16::from(value)));
            let product = |weight: [i16; 2]| upper * i32::from(weight[0]) + lower * i32::from(weight[1]);
            low[k] = low[k].wrapping_add(product(weight.low));
            high[k] = high[k].wrapping_add(product(weight.high));
        }
    }
    let mut bytes = [0; N];
    for k in 0..N {
        bytes[k] = clip((high[k] << 16).wrapping_add(low[k]).wrapping_add(HALF));
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::pad;

    #[test]
    fn resized_squares_equal_resized_padded_images() {
        let color = [122, 116, 104];
        for (width, height) in [(1, 1), (7, 3), (3, 8), (40, 1), (1, 41), (24, 24), (30, 24), (24, 31)] {
            let image = RgbImage {
                width,
                height,
                data: (0..width * height * 3).map(|i| (i * 37 % 256) as u8).collect(),
            };
            let side = width.max(height);
            let (across, down) = (side - width, side - height);
            let square = pad(
                &image,
                across / 2,
                down / 2,
                across.div_ceil(2),
                down.div_ceil(2),
                color,
            );
            for filter in [Filter::Bilinear, Filter::Bicubic, Filter::Lanczos] {
                let expected = resize(&square, 24, 16, filter);
                let found = resize_square(&image, color, 24, 16, filter);
                assert_eq!(found, expected, "{width} x {height}, {filter:?}");
                let square = pad(&image, 0, 0, across, down, [0; 3]);
                let expected = resize(&square, 24, 16, filter);
                assert_eq!(
                    resize_corner(&image, 24, 16, filter),
                    expected,
                    "{width} x {height}, {filter:?}"
                );
            }
        }
    }

    #[test]
    fn narrow_images_of_the_maximum_side_stay_small() {
        for (width, height) in [(16_384, 1), (1, 16_384)] {
            let image = RgbImage::filled(width, height, [255; 3]);
            let square = resize_square(&image, [0; 3], 336, 336, Filter::Bicubic);
            assert_eq!((square.width, square.height), (336, 336));
        }
    }
}
