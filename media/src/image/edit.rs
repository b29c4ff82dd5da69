use super::RgbImage;

/// Cuts out a rectangle. Pixels outside the image have the color `outside`.
pub fn crop(image: &RgbImage, left: i64, top: i64, width: u32, height: u32, outside: [u8; 3]) -> RgbImage {
    paste(image, -left, -top, RgbImage::filled(width, height, outside))
}

/// Extends an image by borders of one color.
pub fn pad(image: &RgbImage, left: u32, top: u32, right: u32, bottom: u32, color: [u8; 3]) -> RgbImage {
    let canvas = RgbImage::filled(image.width + left + right, image.height + top + bottom, color);
    paste(image, i64::from(left), i64::from(top), canvas)
}

/// Copies an image onto a canvas, its corner at `left`, `top`. Parts outside the canvas are dropped.
fn paste(image: &RgbImage, left: i64, top: i64, mut canvas: RgbImage) -> RgbImage {
    let stride = canvas.stride();
    let start = left.clamp(0, i64::from(canvas.width));
    let end = (left + i64::from(image.width)).clamp(start, i64::from(canvas.width));
    let length = (end - start) as usize * 3;
    let source = (start - left).max(0) as usize * 3;
    for y in 0..i64::from(image.height) {
        let at = top + y;
        if (0..i64::from(canvas.height)).contains(&at) && length > 0 {
            let target = at as usize * stride + start as usize * 3;
            canvas.data[target..][..length].copy_from_slice(&image.row(y as usize)[source..][..length]);
        }
    }
    canvas
}

/// Returns `(value / 255 - mean) / std` of each channel as three planes of rows.
pub fn normalize_planes(image: &RgbImage, mean: [f32; 3], std: [f32; 3]) -> Vec<f32> {
    let tables = tables(mean, std);
    let planes = (0..3).flat_map(|c| image.data.iter().skip(c).step_by(3).map(move |&value| (c, value)));
    planes.map(|(c, value)| tables[c][usize::from(value)]).collect()
}

/// Returns `(value / 255 - mean) / std` of each channel in the order of the pixels' bytes.
pub fn normalize_rows(image: &RgbImage, mean: [f32; 3], std: [f32; 3]) -> Vec<f32> {
    let tables = tables(mean, std);
    let pixels = image.data.chunks_exact(3);
    pixels
        .flat_map(|pixel| [0, 1, 2].map(|c| tables[c][usize::from(pixel[c])]))
        .collect()
}

/// Results for each channel and byte, rounded once.
fn tables(mean: [f32; 3], std: [f32; 3]) -> [[f32; 256]; 3] {
    std::array::from_fn(|c| {
        let (mean, std) = (f64::from(mean[c]), f64::from(std[c]));
        std::array::from_fn(|value| ((value as f64 / 255.0 - mean) / std) as f32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(width: u32, height: u32) -> RgbImage {
        RgbImage {
            width,
            height,
            data: (0..width * height * 3).map(|i| i as u8).collect(),
        }
    }

    #[test]
    fn crop_partly_outside_has_color_there() {
        let image = numbered(3, 2);
        let all = crop(&image, -1, -1, 5, 4, [7; 3]);
        assert_eq!(all.row(0), [7; 15]);
        assert_eq!(all.row(1)[..3], [7; 3]);
        assert_eq!(all.row(1)[3..12], *image.row(0));
        assert_eq!(crop(&all, 1, 1, 3, 2, [0; 3]), image);
        assert_eq!(crop(&image, 100, 0, 1, 1, [0; 3]).data, [0; 3]);
    }

    #[test]
    fn pad_surrounds_with_the_color() {
        let image = numbered(2, 1);
        let padded = pad(&image, 1, 0, 0, 1, [7, 8, 9]);
        assert_eq!(padded.data, [7, 8, 9, 0, 1, 2, 3, 4, 5, 7, 8, 9, 7, 8, 9, 7, 8, 9]);
    }

    #[test]
    fn normalization_has_equal_values_in_both_layouts() {
        let image = numbered(3, 2);
        let (mean, std) = ([0.5, 0.25, 0.0], [0.5, 0.125, 2.0]);
        let (planes, rows) = (normalize_planes(&image, mean, std), normalize_rows(&image, mean, std));
        for i in 0..18 {
            assert_eq!(planes[i % 3 * 6 + i / 3], rows[i]);
        }
        assert_eq!(rows[1], ((1.0 / 255.0 - 0.25) / 0.125) as f32);
    }
}
