//! PNG of all color types and bit depths.

use std::io::Cursor;

use ::png::{BitDepth, ColorType, Decoder, Limits as PngLimits, Transformations};

use super::RgbImage;
use super::decode::Header;
use super::exif::Orientation;
use crate::{Format, MediaError};

/// Memory of the decoder in addition to the pixels: chunks, palettes, and the window of the decompressor.
const DECODER_MEMORY: usize = 64 << 20;

const SIGNATURE: usize = 8;

fn damaged(reason: impl ToString) -> MediaError {
    MediaError::damaged(Format::Png, reason)
}

pub(super) fn header(bytes: &[u8]) -> Result<Header, MediaError> {
    let mut chunks = Chunks {
        rest: &bytes[SIGNATURE..],
    };
    let Some((b"IHDR", ihdr)) = chunks.next() else {
        return Err(damaged("the header is missing"));
    };
    let side = |at: usize| {
        let bytes = ihdr.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(u32::from_be_bytes)
            .ok_or_else(|| damaged("the header is too short"))
    };
    let exif = chunks.find(|(kind, _)| *kind == b"eXIf");
    let orientation = exif.map_or(Orientation::Upright, |(_, data)| Orientation::from_exif(data));
    Ok(Header {
        width: side(0)?,
        height: side(4)?,
        orientation,
    })
}

pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<RgbImage, MediaError> {
    let memory = PngLimits { bytes: DECODER_MEMORY };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), memory);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    decoder.set_transformations(Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(damaged)?;
    let info = reader.info();
    if (info.width, info.height) != (header.width, header.height) {
        return Err(damaged("two headers contradict each other"));
    }
    let palette = info.palette.as_deref().unwrap_or_default().to_vec();
    let size = reader
        .output_buffer_size()
        .ok_or_else(|| damaged("the image is larger than memory"))?;
    let mut raw = vec![0; size];
    let frame = reader.next_frame(&mut raw).map_err(damaged)?;
    if frame.color_type == ColorType::Indexed && palette.is_empty() {
        return Err(damaged("the palette is missing"));
    }
    let width = header.width as usize;
    let mut data = Vec::with_capacity(width * header.height as usize * 3);
    for row in raw.chunks_exact(frame.line_size) {
        to_rgb(row, width, frame.color_type, frame.bit_depth, &palette, &mut data);
    }
    Ok(RgbImage {
        width: header.width,
        height: header.height,
        data,
    })
}

/// Appends a row of stored samples as RGB.
fn to_rgb(row: &[u8], width: usize, color: ColorType, depth: BitDepth, palette: &[u8], out: &mut Vec<u8>) {
    let bytes = if depth == BitDepth::Sixteen { 2 } else { 1 };
    let small = |x: usize| sample(row, x, depth);
    match color {
        ColorType::Indexed => {
            out.extend((0..width).flat_map(|x| palette_color(palette, small(x))));
        }
        ColorType::Grayscale if depth == BitDepth::Sixteen => {
            let clipped = |pair: &[u8]| if pair[0] == 0 { pair[1] } else { u8::MAX };
            out.extend(row.chunks_exact(2).flat_map(|pair| [clipped(pair); 3]));
        }
        ColorType::Grayscale => {
            let scale = u8::MAX / (u8::MAX >> (8 - depth as u8));
            out.extend((0..width).flat_map(|x| [small(x) * scale; 3]));
        }
        ColorType::GrayscaleAlpha => {
            out.extend(row.chunks_exact(2 * bytes).flat_map(|pixel| [pixel[0]; 3]));
        }
        ColorType::Rgb if bytes == 1 => out.extend_from_slice(row),
        ColorType::Rgb | ColorType::Rgba => {
            let channels = color.samples();
            let pixels = row.chunks_exact(channels * bytes);
            out.extend(pixels.flat_map(|pixel| [pixel[0], pixel[bytes], pixel[2 * bytes]]));
        }
    }
}

/// Returns a sample of at most 8 bits.
fn sample(row: &[u8], x: usize, depth: BitDepth) -> u8 {
    let bits = depth as usize;
    if bits >= 8 {
        return row[x];
    }
    let per_byte = 8 / bits;
    let shift = 8 - bits * (x % per_byte + 1);
    row[x / per_byte] >> shift & (u8::MAX >> (8 - bits))
}

/// Returns a color of a palette; indices beyond its end are black.
pub(super) fn palette_color(palette: &[u8], index: u8) -> [u8; 3] {
    let color = palette
        .get(usize::from(index) * 3..)
        .and_then(|rest| rest.first_chunk());
    color.copied().unwrap_or_default()
}

/// Types and data of chunks. Ends at damage, which the decoder reports.
struct Chunks<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Chunks<'a> {
    type Item = (&'a [u8; 4], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (length, rest) = self.rest.split_first_chunk()?;
        let (kind, rest) = rest.split_first_chunk()?;
        let (data, rest) = rest.split_at_checked(u32::from_be_bytes(*length) as usize)?;
        self.rest = rest.get(4..)?;
        Some((kind, data))
    }
}
