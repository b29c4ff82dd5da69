//! JPEG, baseline and progressive, with the pixels of libjpeg-turbo, which Pillow uses.
//!
//! A scan is decoded to coefficients, which [`idct`] transforms to samples at once, or after all scans if the image is
//! progressive. [`color`] upsamples the channels and converts their colors.

mod color;
mod frame;
mod huffman;
mod idct;
mod scan;

use color::ColorSpace;
use frame::{Component, Frame};
use huffman::HuffmanTable;
use scan::{Channel, Tables, ZIGZAG};

use super::RgbImage;
use super::decode::Header;
use super::exif::Orientation;
use crate::{Format, MediaError};

fn damaged(reason: impl ToString) -> MediaError {
    MediaError::damaged(Format::Jpeg, reason)
}

fn unsupported(feature: impl ToString) -> MediaError {
    MediaError::unsupported(Format::Jpeg, feature)
}

/// Maximum number of scans of a progressive image. Encoders write about ten; each costs a pass over the whole image.
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
    let mut decoder = Decoder::default();
    let mut at = 2;
    while let Some((marker, start)) = next_marker(bytes, at) {
        at = start;
        match marker {
            // Stuffing, restart markers, and the start have no data.
            0x00 | 0x01 | 0xd0..=0xd8 => continue,
            0xd9 => return decoder.finish(header),
            _ => {}
        }
        let data = segment(bytes, start).ok_or_else(|| damaged("a segment is cut off"))?;
        at += 2 + data.len();
        match marker {
            0xda => at = decoder.scan(data, bytes, at)?,
            _ => decoder.segment(marker, data, header)?,
        }
    }
    Err(damaged("the end is missing"))
}

/// Returns the next marker at or after position `at`, and the position after the marker.
fn next_marker(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let rest = bytes.get(at..)?;
    let start = rest.iter().position(|&byte| byte == 0xff)?;
    let marker_at = start + rest[start..].iter().position(|&byte| byte != 0xff)?;
    Some((rest[marker_at], at + marker_at + 1))
}

/// Returns the data of the segment at `at`, after its length.
fn segment(bytes: &[u8], at: usize) -> Option<&[u8]> {
    let (length, rest) = bytes.get(at..)?.split_first_chunk()?;
    rest.get(..usize::from(u16::from_be_bytes(*length)).checked_sub(2)?)
}

/// State between the segments of an image.
#[derive(Default)]
struct Decoder {
    frame: Option<Frame>,
    tables: Tables,
    channels: Vec<Channel>,
    n_scans: usize,
    has_jfif: bool,
    /// Color transform of Adobe's segment.
    transform: Option<u8>,
}

impl Decoder {
    /// Reads a segment that is not a scan.
    fn segment(&mut self, marker: u8, data: &[u8], header: &Header) -> Result<(), MediaError> {
        match marker {
            0xc4 => self.huffman_tables(data)?,
            0xdb => self.quantizers(data)?,
            0xc0..=0xcf if marker != 0xcc => {
                let frame = Frame::parse(marker, data)?;
                let size = [header.width as usize, header.height as usize];
                if self.frame.is_some() || [frame.width, frame.height] != size {
                    return Err(damaged("two frame headers contradict each other"));
                }
                self.channels = frame
                    .components
                    .iter()
                    .map(|c| Channel::of(c, frame.progressive))
                    .collect();
                self.frame = Some(frame);
            }
            0xcc => return Err(unsupported("arithmetic coding")),
            0xdd => {
                let Some(&interval) = data.first_chunk() else {
                    return Err(damaged("a restart interval is too short"));
                };
                self.tables.restart = u16::from_be_bytes(interval).into();
            }
            0xe0 if data.starts_with(b"JFIF\0") => self.has_jfif = true,
            0xee if data.starts_with(b"Adobe") => self.transform = data.get(11).copied(),
            _ => {}
        }
        Ok(())
    }

    fn quantizers(&mut self, mut data: &[u8]) -> Result<(), MediaError> {
        let invalid = || damaged("a quantization table is invalid");
        while let Some((&kind, rest)) = data.split_first() {
            let width = match kind >> 4 {
                0 => 1,
                1 => 2,
                _ => return Err(invalid()),
            };
            let (values, rest) = rest.split_at_checked(64 * width).ok_or_else(invalid)?;
            let mut table = Box::new([0; 64]);
            for (place, value) in ZIGZAG.iter().zip(values.chunks_exact(width)) {
                table[usize::from(*place)] = value.iter().fold(0, |sum, &byte| sum << 8 | u16::from(byte));
            }
            let slot = self.tables.quantizers.get_mut(usize::from(kind & 15));
            *slot.ok_or_else(invalid)? = Some(table);
            data = rest;
        }
        Ok(())
    }

    fn huffman_tables(&mut self, mut data: &[u8]) -> Result<(), MediaError> {
        let invalid = || damaged("a Huffman table is invalid");
        while let Some((&kind, rest)) = data.split_first() {
            let (counts, rest) = rest.split_first_chunk::<16>().ok_or_else(invalid)?;
            let n = counts.iter().map(|&count| usize::from(count)).sum();
            let (symbols, rest) = rest.split_at_checked(n).ok_or_else(invalid)?;
            let tables = match kind >> 4 {
                0 => &mut self.tables.dc,
                1 => &mut self.tables.ac,
                _ => return Err(invalid()),
            };
            let slot = tables.get_mut(usize::from(kind & 15)).ok_or_else(invalid)?;
            *slot = Some(HuffmanTable::new(*counts, symbols).ok_or_else(invalid)?);
            data = rest;
        }
        Ok(())
    }

    /// Decodes a scan, whose compressed data start at `at`. Returns the position after them.
    fn scan(&mut self, header: &[u8], bytes: &[u8], at: usize) -> Result<usize, MediaError> {
        let frame = self
            .frame
            .as_ref()
            .ok_or_else(|| damaged("a scan precedes the frame header"))?;
        self.n_scans += 1;
        if self.n_scans > MAX_SCANS {
            return Err(damaged(format_args!("more than {MAX_SCANS} scans")));
        }
        scan::decode(frame, &self.tables, &mut self.channels, header, bytes, at)
    }

    fn finish(mut self, header: &Header) -> Result<RgbImage, MediaError> {
        let frame = self.frame.ok_or_else(|| damaged("the frame header is missing"))?;
        for (component, channel) in frame.components.iter().zip(&mut self.channels) {
            if !channel.reconstruct(component) {
                return Err(damaged("a channel has no data"));
            }
        }
        let space = ColorSpace::of(&frame, self.has_jfif, self.transform);
        let planes: Vec<&[u8]> = self.channels.iter().map(|channel| &channel.samples[..]).collect();
        Ok(RgbImage {
            width: header.width,
            height: header.height,
            data: color::rgb(&frame, space, &planes),
        })
    }
}

impl Channel {
    fn of(component: &Component, progressive: bool) -> Channel {
        let n = component.n_blocks();
        Channel {
            coefficients: if progressive { vec![[0; 64]; n] } else { Vec::new() },
            samples: if progressive { Vec::new() } else { vec![0; 64 * n] },
            quantizers: None,
        }
    }

    /// Computes the samples of a progressive image. Returns false if there was no scan.
    fn reconstruct(&mut self, component: &Component) -> bool {
        let Some(quantizers) = &self.quantizers else {
            return false;
        };
        if !self.coefficients.is_empty() {
            let (stride, columns) = (component.stride(), component.blocks[0]);
            self.samples = vec![0; 64 * component.n_blocks()];
            for (i, block) in self.coefficients.iter().enumerate() {
                let at = 8 * (i / columns * stride + i % columns);
                idct::samples(block, quantizers, &mut self.samples[at..], stride);
            }
            self.coefficients = Vec::new();
        }
        true
    }
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
