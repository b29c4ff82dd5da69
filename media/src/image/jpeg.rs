//! JPEG, baseline and progressive.

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::RgbImage;
use super::decode::Header;
use super::exif::Orientation;
use crate::{Format, MediaError};

fn damaged(reason: impl ToString) -> MediaError {
    MediaError::damaged(Format::Jpeg, reason)
}

/// Most scans of a progressive image. Encoders write about ten; each costs a pass over the whole image.
const MAX_SCANS: usize = 64;

pub(super) fn header(bytes: &[u8]) -> Result<Header, MediaError> {
    let mut size = None;
    let mut orientation = None;
    for (marker, data) in (Segments { rest: &bytes[2..] }) {
        match marker {
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                let [_, h1, h0, w1, w0, ..] = *data else {
                    return Err(damaged("the frame header is too short"));
                };
                let side = |bytes| u32::from(u16::from_be_bytes(bytes));
                size.get_or_insert((side([w1, w0]), side([h1, h0])));
            }
            0xe1 if data.starts_with(b"Exif\0\0") => {
                orientation.get_or_insert_with(|| Orientation::from_exif(data));
            }
            _ => (),
        }
    }
    let (width, height) = size.ok_or_else(|| damaged("the frame header is missing"))?;
    Ok(Header {
        width,
        height,
        orientation: orientation.unwrap_or_default(),
    })
}

pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<RgbImage, MediaError> {
    // The decoder fills missing rows with grey. As markers cannot occur within compressed data, the end marker tells.
    let mut segments = Segments { rest: &bytes[2..] };
    segments.by_ref().for_each(drop);
    if !segments.rest.windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Err(damaged("the end is missing"));
    }
    let (width, height) = (header.width as usize, header.height as usize);
    let options = DecoderOptions::default()
        .set_strict_mode(false)
        .set_max_width(width)
        .set_max_height(height)
        .jpeg_set_max_scans(MAX_SCANS)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(damaged)?;
    if decoder.dimensions() != Some((width, height)) {
        return Err(damaged("two frame headers contradict each other"));
    }
    let mut data = vec![0; width * height * 3];
    decoder.decode_into(&mut data).map_err(damaged)?;
    Ok(RgbImage {
        width: header.width,
        height: header.height,
        data,
    })
}

/// Markers and data of the segments before the compressed data.
struct Segments<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Segments<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let start = self.rest.iter().position(|&byte| byte == 0xff)?;
            let marker_at = start + self.rest[start..].iter().position(|&byte| byte != 0xff)?;
            let marker = self.rest[marker_at];
            let rest = &self.rest[marker_at + 1..];
            match marker {
                // Stuffing, restart markers, and the start have no data.
                0x00 | 0x01 | 0xd0..=0xd8 => self.rest = rest,
                // The compressed data, or the end.
                0xd9 | 0xda => return None,
                _ => {
                    let (length, _) = rest.split_first_chunk()?;
                    let (segment, after) = rest.split_at_checked(usize::from(u16::from_be_bytes(*length)))?;
                    self.rest = after;
                    return Some((marker, segment.get(2..)?));
                }
            }
        }
    }
}
