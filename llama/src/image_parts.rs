//! Preprocessing of images: resizing, borders, and tiles.

use engine::builder::{Filter as Resize, ImageSize};
use engine::context::{ImageSizes, MediaError};
use media::image::{Filter, RgbImage, crop, resize, resize_square};

/// Returns the parts of an image that an encoder reads, resized and cut. `border` is the color of borders around an
/// image that is extended to a square.
///
/// # Errors
/// [`MediaError`] if the encoder takes no images of this size.
pub fn image_parts(sizes: &ImageSizes, border: [u8; 3], image: &RgbImage) -> Result<Vec<RgbImage>, MediaError> {
    let rules = sizes.rules();
    let filter = match rules.resize {
        Resize::Bilinear => Filter::Bilinear,
        Resize::Bicubic => Filter::Bicubic,
        Resize::Lanczos => Filter::Lanczos,
    };
    let mut last: Option<RgbImage> = None;
    let mut parts = Vec::new();
    for part in sizes.parts(image.width as usize, image.height as usize)? {
        // The rules limit the area.
        let [width, height] = part.resized.map(|side| side as u32);
        let whole = match last.take() {
            Some(whole) if [whole.width, whole.height] == [width, height] => whole,
            _ if matches!(rules.size, ImageSize::Padded(_)) => resize_square(image, border, width, height, filter),
            _ => resize(image, width, height, filter),
        };
        let ([left, top], [width, height]) = (part.at.map(|at| at as i64), part.size.map(|side| side as u32));
        parts.push(crop(&whole, left, top, width, height));
        last = Some(whole);
    }
    Ok(parts)
}
