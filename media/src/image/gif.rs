//! The first frame of a GIF.

use ::gif::{ColorOutput, DecodeOptions, Decoder, Frame, MemoryLimit};

use super::RgbImage;
use super::decode::Header;
use super::exif::Orientation;
use super::png::palette_color;
use crate::{Format, MediaError};

/// Memory of the decoder in addition to the pixels.
const DECODER_MEMORY: u64 = 64 << 20;

fn damaged(reason: impl ToString) -> MediaError {
    MediaError::damaged(Format::Gif, reason)
}

/// Opens the file at its first frame.
fn open(bytes: &[u8]) -> Result<(Decoder<&[u8]>, Frame<'static>), MediaError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    options.set_memory_limit(MemoryLimit::Bytes(
        DECODER_MEMORY.try_into().expect("a constant above 0"),
    ));
    let mut decoder = options.read_info(bytes).map_err(damaged)?;
    let frame = decoder.next_frame_info().map_err(damaged)?;
    let frame = frame.ok_or_else(|| damaged("no frame"))?.clone();
    Ok((decoder, frame))
}

pub(super) fn header(bytes: &[u8]) -> Result<Header, MediaError> {
    let (decoder, frame) = open(bytes)?;
    let end = |start: u16, length: u16| u32::from(start) + u32::from(length);
    Ok(Header {
        width: u32::from(decoder.width()).max(end(frame.left, frame.width)),
        height: u32::from(decoder.height()).max(end(frame.top, frame.height)),
        orientation: Orientation::Upright,
    })
}

pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<RgbImage, MediaError> {
    let (mut decoder, frame) = open(bytes)?;
    let (frame_width, frame_height) = (usize::from(frame.width), usize::from(frame.height));
    let mut indices = vec![0; frame_width * frame_height];
    if !indices.is_empty() {
        decoder.read_into_buffer(&mut indices).map_err(damaged)?;
    }
    let palette = frame
        .palette
        .as_deref()
        .or(decoder.global_palette())
        .unwrap_or_default();
    // Pixels outside the frame have the transparent index, or the first one.
    let background = palette_color(palette, frame.transparent.unwrap_or(0));
    let mut image = RgbImage::filled(header.width, header.height, background);
    let stride = image.stride();
    for (y, row) in indices.chunks_exact(frame_width.max(1)).enumerate() {
        let start = (usize::from(frame.top) + y) * stride + usize::from(frame.left) * 3;
        for (pixel, &index) in image.data[start..].chunks_exact_mut(3).zip(row) {
            pixel.copy_from_slice(&palette_color(palette, index));
        }
    }
    Ok(image)
}
