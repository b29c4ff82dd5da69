//! Windows bitmaps: palettes of 1, 4, and 8 bits with or without run lengths, and 16, 24, or 32 bits with or without
//! masks.

use super::RgbImage;
use super::decode::Header;
use super::exif::Orientation;
use crate::{Format, MediaError};

/// Size of the file header before the information header.
const FILE_HEADER: usize = 14;

fn damaged(reason: impl ToString) -> MediaError {
    MediaError::damaged(Format::Bmp, reason)
}

fn short(bytes: &[u8], at: usize) -> Result<u16, MediaError> {
    let value = bytes.get(at..).and_then(|rest| rest.first_chunk()).copied();
    value
        .map(u16::from_le_bytes)
        .ok_or_else(|| damaged("the header is too short"))
}

fn long(bytes: &[u8], at: usize) -> Result<u32, MediaError> {
    let value = bytes.get(at..).and_then(|rest| rest.first_chunk()).copied();
    value
        .map(u32::from_le_bytes)
        .ok_or_else(|| damaged("the header is too short"))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Compression {
    None,
    Rle8,
    Rle4,
    Masks,
}

/// The information header.
struct Info {
    width: u32,
    height: u32,
    top_down: bool,
    bits: usize,
    compression: Compression,
    /// Masks of red, green, and blue.
    masks: [u32; 3],
    /// Start of the palette and the number of its colors.
    palette_at: usize,
    n_colors: usize,
    /// Bytes of a color in the palette.
    color_size: usize,
    pixels_at: usize,
}

pub(super) fn header(bytes: &[u8]) -> Result<Header, MediaError> {
    let info = read_info(bytes)?;
    Ok(Header {
        width: info.width,
        height: info.height,
        orientation: Orientation::Upright,
    })
}

fn read_info(bytes: &[u8]) -> Result<Info, MediaError> {
    let size = long(bytes, FILE_HEADER)? as usize;
    let core = size == 12;
    if !core && ![40, 52, 56, 64, 108, 124].contains(&size) {
        return Err(MediaError::unsupported(
            Format::Bmp,
            format!("a header of {size} bytes"),
        ));
    }
    let field = |at: usize| FILE_HEADER + at;
    let (width, height, bits) = if core {
        let side = |at| short(bytes, field(at)).map(i32::from);
        (side(4)?, side(6)?, short(bytes, field(10))?)
    } else {
        let side = |at| long(bytes, field(at)).map(u32::cast_signed);
        (side(4)?, side(8)?, short(bytes, field(14))?)
    };
    let compression = if core { 0 } else { long(bytes, field(16))? };
    let compression = match (compression, bits) {
        (0, 1 | 4 | 8 | 16 | 24 | 32) => Compression::None,
        (1, 8) => Compression::Rle8,
        (2, 4) => Compression::Rle4,
        (3, 16 | 32) => Compression::Masks,
        (kind, bits) => {
            return Err(MediaError::unsupported(
                Format::Bmp,
                format!("compression {kind} with {bits} bits per pixel"),
            ));
        }
    };
    let masks_at = field(40);
    let masks = match compression {
        Compression::Masks => [
            long(bytes, masks_at)?,
            long(bytes, masks_at + 4)?,
            long(bytes, masks_at + 8)?,
        ],
        _ if bits == 16 => [0x7c00, 0x3e0, 0x1f],
        _ => [0xff_0000, 0xff00, 0xff],
    };
    let declared = if core { 0 } else { long(bytes, field(32))? as usize };
    let most = 1 << bits.min(8);
    let n_colors = if declared == 0 { most } else { declared };
    let palette_at = field(size);
    let color_size = if core { 3 } else { 4 };
    let pixels_at = match long(bytes, 10)? as usize {
        at if bits <= 8 && (at == palette_at || at == 0) => {
            n_colors.saturating_mul(color_size).saturating_add(palette_at)
        }
        0 => palette_at,
        at => at,
    };
    Ok(Info {
        width: u32::try_from(width).map_err(|_| damaged("the width is negative"))?,
        height: height.unsigned_abs(),
        top_down: height < 0,
        bits: usize::from(bits),
        compression,
        masks: if masks == [0; 3] {
            [0xff_0000, 0xff00, 0xff]
        } else {
            masks
        },
        palette_at,
        n_colors: n_colors.min(most),
        color_size,
        pixels_at,
    })
}

pub(super) fn decode(bytes: &[u8], header: &Header) -> Result<RgbImage, MediaError> {
    let info = read_info(bytes)?;
    let pixels = bytes
        .get(info.pixels_at..)
        .ok_or_else(|| damaged("the pixels are missing"))?;
    let width = info.width as usize;
    let stored = info.height as usize;
    let indices;
    let (rows, stride, bits) = match info.compression {
        Compression::Rle8 | Compression::Rle4 => {
            let wide = info.compression == Compression::Rle8;
            indices = RunLengths {
                bytes,
                at: info.pixels_at,
                wide,
            }
            .indices(width, stored)?;
            (indices.as_slice(), width, 8)
        }
        _ => (pixels, (width * info.bits).div_ceil(32) * 4, info.bits),
    };
    if rows.len() < stride * (stored - 1) + (width * bits).div_ceil(8) {
        return Err(damaged("the pixels end early"));
    }
    let colors = Colors::new(bytes, &info, bits);
    let mut data = Vec::with_capacity(width * stored * 3);
    for y in 0..stored {
        let y = if info.top_down { y } else { stored - 1 - y };
        let row = &rows[y * stride..];
        data.extend((0..width).flat_map(|x| colors.color(row, x)));
    }
    Ok(RgbImage {
        width: header.width,
        height: header.height,
        data,
    })
}

/// Maps stored pixels to colors.
enum Colors {
    Palette {
        bits: usize,
        colors: Vec<[u8; 3]>,
    },
    /// Position, maximum, and bytes per pixel.
    Masked {
        bytes: usize,
        channels: [(u32, u32); 3],
    },
}

impl Colors {
    fn new(bytes: &[u8], info: &Info, bits: usize) -> Colors {
        if bits <= 8 {
            let stored = bytes.get(info.palette_at..).unwrap_or_default();
            let colors = stored.chunks_exact(info.color_size).take(info.n_colors);
            return Colors::Palette {
                bits,
                colors: colors.map(|color| [color[2], color[1], color[0]]).collect(),
            };
        }
        let channels = info.masks.map(|mask| {
            let shift = mask.trailing_zeros().min(31);
            (shift, mask >> shift)
        });
        Colors::Masked {
            bytes: bits / 8,
            channels,
        }
    }

    fn color(&self, row: &[u8], x: usize) -> [u8; 3] {
        match self {
            Colors::Palette { bits, colors } => {
                let per_byte = 8 / bits;
                let shift = 8 - bits * (x % per_byte + 1);
                let index = row[x / per_byte] >> shift & (u8::MAX >> (8 - bits));
                colors.get(usize::from(index)).copied().unwrap_or_default()
            }
            Colors::Masked { bytes, channels } => {
                let stored = &row[x * bytes..][..*bytes];
                let value = stored
                    .iter()
                    .rev()
                    .fold(0, |value: u32, &byte| value << 8 | u32::from(byte));
                channels.map(|(shift, max)| {
                    let part = u64::from(value >> shift & max);
                    (part * 255 / u64::from(max.max(1))) as u8
                })
            }
        }
    }
}

/// Pixels in run lengths: bytes (`wide`) or half bytes.
struct RunLengths<'a> {
    bytes: &'a [u8],
    at: usize,
    wide: bool,
}

impl RunLengths<'_> {
    fn next(&mut self) -> Result<u8, MediaError> {
        let byte = *self
            .bytes
            .get(self.at)
            .ok_or_else(|| damaged("the run lengths end early"))?;
        self.at += 1;
        Ok(byte)
    }

    fn indices(mut self, width: usize, height: usize) -> Result<Vec<u8>, MediaError> {
        let total = width * height;
        let mut out = Vec::with_capacity(total);
        while out.len() < total {
            match (self.next()?, self.next()?) {
                (0, 0) => out.resize(out.len().next_multiple_of(width), 0),
                (0, 1) => break,
                (0, 2) => {
                    let (right, rows) = (usize::from(self.next()?), usize::from(self.next()?));
                    out.resize((out.len() + right + rows * width).min(total), 0);
                }
                (0, n) => {
                    let n = usize::from(n).min(total - out.len());
                    let stored = if self.wide { n } else { n.div_ceil(2) };
                    for i in 0..stored {
                        let byte = self.next()?;
                        self.push(byte, (n - if self.wide { i } else { 2 * i }).min(2), &mut out);
                    }
                    self.at += self.at % 2;
                }
                (n, byte) => {
                    let n = usize::from(n).min(width - out.len() % width);
                    for i in (0..n).step_by(if self.wide { 1 } else { 2 }) {
                        self.push(byte, (n - i).min(2), &mut out);
                    }
                }
            }
        }
        // Behind an early end mark, pixels have the first color.
        out.resize(total, 0);
        Ok(out)
    }

    /// Appends the pixel of a byte, or the first `n` of its two halves.
    fn push(&self, byte: u8, n: usize, out: &mut Vec<u8>) {
        if self.wide {
            out.push(byte);
        } else {
            out.extend_from_slice(&[byte >> 4, byte & 15][..n]);
        }
    }
}
