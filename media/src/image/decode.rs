use super::exif::Orientation;
use super::{RgbImage, bmp, gif, jpeg, png, webp};
use crate::{Format, Limits, MediaError};

/// Properties from the header of an image.
#[derive(Clone, Copy)]
pub(super) struct Header {
    pub(super) width: u32,
    pub(super) height: u32,
    pub(super) orientation: Orientation,
}

/// Decodes an image to RGB and applies its EXIF orientation.
///
/// Colors are converted like Pillow's `convert("RGB")`. Alpha is dropped. 16-bit color channels
/// keep their high byte, and 16-bit gray values are clipped at 255. Color profiles are ignored. The result of an
/// animation is its first frame.
pub fn decode(bytes: &[u8], limits: &Limits) -> Result<RgbImage, MediaError> {
    let (format, header) = header(bytes, limits)?;
    let image = match format {
        Format::Png => png::decode(bytes, &header)?,
        Format::Jpeg => jpeg::decode(bytes, &header)?,
        Format::WebP => webp::decode(bytes, &header)?,
        Format::Gif => gif::decode(bytes, &header)?,
        _ => bmp::decode(bytes, &header)?,
    };
    Ok(header.orientation.apply(image))
}

/// Returns the width and the height that [`decode`] would return, from the header alone.
pub fn size(bytes: &[u8], limits: &Limits) -> Result<(u32, u32), MediaError> {
    let (_, header) = header(bytes, limits)?;
    Ok(header.orientation.size(header.width, header.height))
}

fn header(bytes: &[u8], limits: &Limits) -> Result<(Format, Header), MediaError> {
    let format = limits.image_format(bytes)?;
    let header = match format {
        Format::Png => png::header(bytes)?,
        Format::Jpeg => jpeg::header(bytes)?,
        Format::WebP => webp::header(bytes)?,
        Format::Gif => gif::header(bytes)?,
        _ => bmp::header(bytes)?,
    };
    limits.check_size(format, header.width, header.height)?;
    Ok((format, header))
}
