//! Images: decoding to RGB, resampling, and normalization.

mod bmp;
mod decode;
mod edit;
mod exif;
mod gif;
mod jpeg;
mod png;
mod resize;
mod webp;

pub use decode::{decode, size};
pub use edit::{crop, normalize_planes, normalize_rows, pad};
pub use resize::{Filter, resize, resize_corner, resize_square};

/// An image of three bytes per pixel: red, green, blue. Rows go from top to bottom, without gaps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RgbImage {
    /// Width in pixels.
    pub width: u32,
    /// Height in pixels.
    pub height: u32,
    /// The pixels: `width * height * 3` bytes.
    pub data: Vec<u8>,
}

impl RgbImage {
    /// Returns an image of one color.
    pub fn filled(width: u32, height: u32, color: [u8; 3]) -> RgbImage {
        let pixels = width as usize * height as usize;
        RgbImage {
            width,
            height,
            data: color.repeat(pixels),
        }
    }

    /// Returns the number of bytes of a row.
    fn stride(&self) -> usize {
        self.width as usize * 3
    }

    /// Returns row `y`.
    fn row(&self, y: usize) -> &[u8] {
        &self.data[y * self.stride()..][..self.stride()]
    }
}
