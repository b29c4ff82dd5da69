//! WebP: lossy, lossless, and the first frame of animations.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::RgbImage;
use super::decode::Header;
use super::exif::Orientation;
use crate::{Format, MediaError};

fn damaged(reason: impl ToString) -> MediaError {
    MediaError::damaged(Format::WebP, reason)
}

/// Memory of the decoder for metadata.
const METADATA_MEMORY: usize = 1 << 20;

pub(super) fn header(bytes: &[u8]) -> Result<Header, MediaError> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    let (width, height) = decoder.dimensions();
    decoder.set_memory_limit(METADATA_MEMORY);
    let exif = decoder.exif_metadata().ok().flatten();
    let orientation = exif.map_or(Orientation::Upright, |exif| Orientation::from_exif(&exif));
    Ok(Header {
        width,
        height,
        orientation,
    })
}

pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<RgbImage, MediaError> {
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(damaged)?;
    let size = decoder
        .output_buffer_size()
        .ok_or_else(|| damaged("the image is larger than memory"))?;
    let mut data = vec![0; size];
    decoder.read_image(&mut data).map_err(damaged)?;
    if decoder.has_alpha() {
        data = data
            .chunks_exact(4)
            .flat_map(|pixel| [pixel[0], pixel[1], pixel[2]])
            .collect();
    }
    Ok(RgbImage {
        width: header.width,
        height: header.height,
        data,
    })
}
