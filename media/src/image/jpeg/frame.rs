//! Frames and their components.

use crate::MediaError;

/// Geometry and coding of an image.
pub(super) struct Frame {
    pub width: usize,
    pub height: usize,
    pub progressive: bool,
    /// Largest sampling factors, horizontal and vertical.
    pub max: [usize; 2],
    /// Number of minimum coded units in a row, and number of their rows.
    pub units: [usize; 2],
    pub components: Vec<Component>,
}

/// A color channel.
pub(super) struct Component {
    pub id: u8,
    /// Sampling factors, horizontal and vertical.
    pub sampling: [usize; 2],
    /// Index of the quantization table.
    pub quantizer: usize,
    /// Width and height in samples.
    pub size: [usize; 2],
    /// Blocks in a row and rows of blocks, up to whole minimum coded units.
    pub blocks: [usize; 2],
}

impl Component {
    /// Returns the number of samples in a row, up to whole minimum coded units.
    pub fn stride(&self) -> usize {
        8 * self.blocks[0]
    }

    /// Returns the number of blocks.
    pub fn n_blocks(&self) -> usize {
        self.blocks[0] * self.blocks[1]
    }
}

impl Frame {
    /// Parses a frame header.
    pub fn parse(marker: u8, data: &[u8]) -> Result<Frame, MediaError> {
        let progressive = match marker {
            0xc0 | 0xc1 => false,
            0xc2 => true,
            _ => return Err(super::unsupported("lossless or arithmetic coding")),
        };
        let Some((&[precision, h1, h0, w1, w0, n], rest)) = data.split_first_chunk() else {
            return Err(super::damaged("the frame header is too short"));
        };
        if precision != 8 {
            return Err(super::unsupported(format_args!("{precision} bits per channel")));
        }
        let side = |bytes| usize::from(u16::from_be_bytes(bytes));
        let (width, height) = (side([w1, w0]), side([h1, h0]));
        if !matches!(n, 1 | 3 | 4) {
            return Err(super::unsupported(format_args!("{n} channels")));
        }
        let (entries, _) = rest.as_chunks::<3>();
        let entries = entries.get(..usize::from(n));
        let entries = entries.ok_or_else(|| super::damaged("the frame header is too short"))?;
        let sampling = |factors: u8| [usize::from(factors >> 4), usize::from(factors & 15)];
        let mut max = [1; 2];
        for &[_, factors, quantizer] in entries {
            for (max, factor) in max.iter_mut().zip(sampling(factors)) {
                if !(1..=4).contains(&factor) || quantizer > 3 {
                    return Err(super::damaged("the frame header has an invalid channel"));
                }
                *max = factor.max(*max);
            }
        }
        let sides = [width, height];
        let units = [0, 1].map(|axis| sides[axis].div_ceil(8 * max[axis]));
        let component = |&[id, factors, quantizer]: &[u8; 3]| {
            let sampling = sampling(factors);
            Component {
                id,
                sampling,
                quantizer: usize::from(quantizer),
                size: [0, 1].map(|axis| (sides[axis] * sampling[axis]).div_ceil(max[axis])),
                blocks: [0, 1].map(|axis| units[axis] * sampling[axis]),
            }
        };
        let components: Vec<Component> = entries.iter().map(component).collect();
        let is_whole = |c: &Component| [0, 1].iter().all(|&axis| max[axis].is_multiple_of(c.sampling[axis]));
        if !components.iter().all(is_whole) {
            return Err(super::unsupported("sampling factors with a fractional ratio"));
        }
        Ok(Frame {
            width,
            height,
            progressive,
            max,
            units,
            components,
        })
    }
}
