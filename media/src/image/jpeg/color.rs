//! Upsampling of channels and conversion of colors, bit for bit as in libjpeg-turbo.

use super::frame::{Component, Frame};

/// Meaning of the channels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ColorSpace {
    Gray,
    Rgb,
    YCbCr,
    Cmyk,
    /// CMYK whose first three channels are converted like RGB to YCbCr.
    Ycck,
}

impl ColorSpace {
    /// Returns the meaning of the channels, which follows from the segments and the names of the channels.
    pub fn of(frame: &Frame, has_jfif: bool, transform: Option<u8>) -> ColorSpace {
        let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
        match (ids.len(), transform) {
            (1, _) => ColorSpace::Gray,
            (3, _) if has_jfif => ColorSpace::YCbCr,
            (3, Some(0)) => ColorSpace::Rgb,
            (3, None) if ids == *b"RGB" => ColorSpace::Rgb,
            (3, _) => ColorSpace::YCbCr,
            (_, Some(2)) => ColorSpace::Ycck,
            _ => ColorSpace::Cmyk,
        }
    }
}

/// Returns the pixels of the samples of all channels.
pub(super) fn rgb(frame: &Frame, space: ColorSpace, planes: &[&[u8]]) -> Vec<u8> {
    let (width, height) = (frame.width, frame.height);
    let mut data = vec![0; 3 * width * height];
    // Upsampled rows of half-width channels may be up to 3 samples wider than the image.
    let room = width.next_multiple_of(32);
    let mut rows: Vec<Upsampled> = frame.components.iter().map(|_| Upsampled::new(room)).collect();
    for (y, out) in data.chunks_exact_mut(3 * width).enumerate() {
        for ((row, component), plane) in rows.iter_mut().zip(&frame.components).zip(planes) {
            row.fill(component, frame.max, plane, y);
        }
        let channels: Vec<&[u8]> = rows.iter().map(|row| &row.samples[..width]).collect();
        match (space, &channels[..]) {
            (ColorSpace::YCbCr, [y, cb, cr]) => convert(y, cb, cr, out),
            (ColorSpace::Rgb, [r, g, b]) => interleave(r, g, b, out),
            (ColorSpace::Gray, [gray, ..]) => interleave(gray, gray, gray, out),
            (ColorSpace::Ycck, [y, cb, cr, k]) => {
                convert(y, cb, cr, out);
                // The conversion of YCbCr yields the complements of cyan, magenta, and yellow.
                out.iter_mut().for_each(|value| *value = 255 - *value);
                with_black(out, k);
            }
            (ColorSpace::Cmyk, [c, m, y, k]) => {
                interleave(c, m, y, out);
                with_black(out, k);
            }
            // The number of channels determines the color space.
            _ => {}
        }
    }
    data
}

/// Row of a channel in the width of the image.
struct Upsampled {
    samples: Vec<u8>,
    /// Sums of two rows.
    sums: Vec<u16>,
}

impl Upsampled {
    fn new(room: usize) -> Upsampled {
        Upsampled {
            samples: vec![0; room],
            sums: Vec::new(),
        }
    }

    /// Computes row `y` of the image. Channels of half the width or height are interpolated between the centers of
    /// samples, others are repeated.
    fn fill(&mut self, component: &Component, max: [usize; 2], plane: &[u8], y: usize) {
        let [across, down] = [0, 1].map(|axis| max[axis] / component.sampling[axis]);
        let [width, height] = component.size;
        let (at, is_upper) = (y / down, y.is_multiple_of(down));
        let row = |at: usize| &plane[at * component.stride()..][..width];
        let near = row(at);
        let far = || {
            row(if is_upper {
                at.saturating_sub(1)
            } else {
                (at + 1).min(height - 1)
            })
        };
        match [across, down] {
            [1, 1] => self.samples[..width].copy_from_slice(near),
            [2, 1] if width > 2 => upsample(near, &mut self.samples),
            [1, 2] => {
                let bias = if is_upper { 1 } else { 2 };
                for ((sample, &near), &far) in self.samples.iter_mut().zip(near).zip(far()) {
                    *sample = ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
                }
            }
            [2, 2] if width > 2 => {
                let sums = near.iter().zip(far());
                self.sums.clear();
                self.sums
                    .extend(sums.map(|(&near, &far)| 3 * u16::from(near) + u16::from(far)));
                upsample_sums(&self.sums, &mut self.samples);
            }
            _ => {
                let targets = self.samples.chunks_mut(across).zip(near);
                targets.for_each(|(target, &sample)| target.fill(sample));
            }
        }
    }
}

/// Doubles the width of a row. Each result is three quarters of the nearest sample plus a quarter of the next nearest
/// one.
fn upsample(row: &[u8], out: &mut [u8]) {
    let n = row.len();
    let (pairs, _) = out.as_chunks_mut::<2>();
    let mix = |near: u8, far: u8, bias: u16| ((3 * u16::from(near) + u16::from(far) + bias) >> 2) as u8;
    pairs[0] = [row[0], mix(row[0], row[1], 2)];
    for (pair, part) in pairs[1..].iter_mut().zip(row.windows(3)) {
        *pair = [mix(part[1], part[0], 1), mix(part[1], part[2], 2)];
    }
    pairs[n - 1] = [mix(row[n - 1], row[n - 2], 1), row[n - 1]];
}

/// Doubles the width of a row of sums of 4 samples.
fn upsample_sums(row: &[u16], out: &mut [u8]) {
    let n = row.len();
    let (pairs, _) = out.as_chunks_mut::<2>();
    let mix = |near: u16, far: u16, bias: u16| ((3 * near + far + bias) >> 4) as u8;
    pairs[0] = [mix(row[0], row[0], 8), mix(row[0], row[1], 7)];
    for (pair, part) in pairs[1..].iter_mut().zip(row.windows(3)) {
        *pair = [mix(part[1], part[0], 8), mix(part[1], part[2], 7)];
    }
    pairs[n - 1] = [mix(row[n - 1], row[n - 2], 8), mix(row[n - 1], row[n - 1], 7)];
}

/// Pixels that are converted at a time.
const STEP: usize = 32;

/// Converts a row of YCbCr.
fn convert(y: &[u8], cb: &[u8], cr: &[u8], out: &mut [u8]) {
    let [(ys, y), (cbs, cb), (crs, cr)] = [y, cb, cr].map(<[u8]>::as_chunks::<STEP>);
    let (whole, rest) = out.split_at_mut(3 * STEP * ys.len());
    for (((y, cb), cr), out) in ys.iter().zip(cbs).zip(crs).zip(whole.as_chunks_mut::<{ 3 * STEP }>().0) {
        convert_step(y, cb, cr, out);
    }
    let mut last = [[0; STEP]; 3];
    for (padded, row) in last.iter_mut().zip([y, cb, cr]) {
        padded[..row.len()].copy_from_slice(row);
    }
    let mut pixels = [0; 3 * STEP];
    convert_step(&last[0], &last[1], &last[2], &mut pixels);
    rest.copy_from_slice(&pixels[..rest.len()]);
}

/// Converts pixels in an order that the compiler turns into vectors.
fn convert_step(y: &[u8; STEP], cb: &[u8; STEP], cr: &[u8; STEP], out: &mut [u8; 3 * STEP]) {
    let mut planes = [[0; STEP]; 3];
    let [red, green, blue] = &mut planes;
    for i in 0..STEP {
        [red[i], green[i], blue[i]] = rgb_of(y[i], cb[i], cr[i]);
    }
    let mut words = [0_u32; STEP];
    for i in 0..STEP {
        words[i] = u32::from(red[i]) | u32::from(green[i]) << 8 | u32::from(blue[i]) << 16;
    }
    // The fourth byte of a pixel is overwritten by the next one.
    for i in 0..STEP - 1 {
        out[3 * i..][..4].copy_from_slice(&words[i].to_le_bytes());
    }
    out[3 * STEP - 3..].copy_from_slice(&words[STEP - 1].to_le_bytes()[..3]);
}

/// Converts a pixel. The weights 1.402, -0.34414, -0.71414, and 1.772 have 16 fractional bits; integer parts are split
/// off, so that the remainders fit 16 bits.
#[inline(always)]
fn rgb_of(y: u8, cb: u8, cr: u8) -> [u8; 3] {
    // The product with a fraction, rounded.
    let part = |value: i16, weight: i16| (((i32::from(2 * value) * i32::from(weight)) >> 16) as i16 + 1) >> 1;
    let [y, cb, cr] = [i16::from(y), i16::from(cb) - 128, i16::from(cr) - 128];
    let both = 18_734 * i32::from(cr) - 22_554 * i32::from(cb) + (1 << 15);
    let red = y + cr + part(cr, 26_345);
    let green = y - cr + (both >> 16) as i16;
    let blue = y + 2 * cb + part(cb, -14_942);
    [red, green, blue].map(|value| value.clamp(0, 255) as u8)
}

fn interleave(r: &[u8], g: &[u8], b: &[u8], out: &mut [u8]) {
    let (pixels, _) = out.as_chunks_mut::<3>();
    for (((pixel, &r), &g), &b) in pixels.iter_mut().zip(r).zip(g).zip(b) {
        *pixel = [r, g, b];
    }
}

/// Converts cyan, magenta, and yellow with black as Pillow's `convert("RGB")`. Files store the complements of all four.
fn with_black(pixels: &mut [u8], black: &[u8]) {
    for (pixel, &light) in pixels.chunks_exact_mut(3).zip(black) {
        let light = u32::from(light);
        for value in pixel {
            let ink = u32::from(255 - *value) * light + 128;
            *value = (light - ((ink + (ink >> 8)) >> 8)) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn converted_colors_equal_the_rounded_definition() {
        for y in [0, 1, 77, 128, 254, 255] {
            for cb in 0..=255 {
                for cr in 0..=255 {
                    let (b, r) = (f64::from(cb) - 128.0, f64::from(cr) - 128.0);
                    let exact = [1.402 * r, -0.34414 * b - 0.71414 * r, 1.772 * b];
                    for (found, exact) in rgb_of(y, cb, cr).iter().zip(exact) {
                        let exact = (f64::from(y) + exact).clamp(0.0, 255.0);
                        assert!(
                            (f64::from(*found) - exact).abs() < 0.51,
                            "{y} {cb} {cr}: {found} {exact}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn upsampled_rows_keep_constants_and_slopes() {
        let mut out = [0; 8];
        upsample(&[9; 4], &mut out);
        assert_eq!(out, [9; 8]);
        upsample(&[0, 40, 80, 120], &mut out);
        assert_eq!(out, [0, 10, 30, 50, 70, 90, 110, 120]);
        upsample_sums(&[0, 160, 320, 480], &mut out);
        assert_eq!(out, [0, 10, 30, 50, 70, 90, 110, 120]);
    }
}
