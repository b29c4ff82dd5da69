//! Image preprocessing: resizing, borders, and tiles.

use std::borrow::Cow;

use engine::builder::{Filter as Resize, ImageSize};
use engine::context::{ImageSizes, MediaError};
use media::image::{Filter, RgbImage, crop, resize, resize_corner, resize_square};

/// Returns the parts of an image that an encoder reads, resized and cut. `border` is the color of borders around an
/// image that is extended to a square. Other borders are black.
///
/// # Errors
/// Returns a [`MediaError`] if the encoder takes no images of this size.
pub fn image_parts(sizes: &ImageSizes, border: [u8; 3], image: &RgbImage) -> Result<Vec<RgbImage>, MediaError> {
    let rules = sizes.rules();
    let filter = match rules.resize {
        Resize::Bilinear => Filter::Bilinear,
        Resize::Bicubic => Filter::Bicubic,
        Resize::Lanczos => Filter::Lanczos,
    };
    let resized = |image: &RgbImage, size: [usize; 2]| {
        // The rules limit the area.
        let [width, height] = size.map(|side| side as u32);
        match rules.size {
            ImageSize::Padded(_) if rules.tiles.is_none() => resize_square(image, border, width, height, filter),
            _ => resize(image, width, height, filter),
        }
    };
    // The last resized image, with the sizes that led to it.
    let mut last: Option<(Vec<[usize; 2]>, RgbImage)> = None;
    let mut parts = Vec::new();
    for part in sizes.parts(image.width as usize, image.height as usize)? {
        let steps = [&part.via[..], &[part.resized]].concat();
        let (done, known) = match last.take() {
            Some((done, whole)) if steps.starts_with(&done) => (done.len(), Some(whole)),
            _ => (0, None),
        };
        let mut whole = Cow::Borrowed(image);
        if let Some(known) = known {
            whole = Cow::Owned(known);
        }
        for (i, &size) in steps.iter().enumerate().skip(done) {
            let [width, height] = size.map(|side| side as u32);
            whole = Cow::Owned(if part.is_squared && i == 0 {
                resize_corner(&whole, width, height, filter)
            } else {
                resized(&whole, size)
            });
        }
        let ([left, top], [width, height]) = (part.at.map(|at| at as i64), part.cut.map(|side| side as u32));
        let around = match rules.size {
            ImageSize::Contained { .. } => border,
            _ => [0; 3],
        };
        let cut = crop(&whole, left, top, width, height, around);
        parts.push(if part.size == part.cut {
            cut
        } else {
            resized(&cut, part.size)
        });
        last = Some((steps, whole.into_owned()));
    }
    Ok(parts)
}
