//! Scans: compressed coefficients of one or more components.

use super::frame::{Component, Frame};
use super::huffman::{Bits, HuffmanTable};
use super::idct;
use crate::MediaError;

/// Maximum number of blocks in a minimum coded unit.
const MAX_BLOCKS: usize = 10;

/// Zigzag order: position of each coefficient in the order of the data.
#[rustfmt::skip]
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Tables that precede scans.
#[derive(Default)]
pub(super) struct Tables {
    pub quantizers: [Option<Box<[u16; 64]>>; 4],
    pub dc: [Option<HuffmanTable>; 4],
    pub ac: [Option<HuffmanTable>; 4],
    /// Number of minimum coded units between restart markers; 0 without these.
    pub restart: usize,
}

/// Decoded data of a component.
#[derive(Default)]
pub(super) struct Channel {
    /// Coefficients of the blocks; empty if the image is not progressive.
    pub coefficients: Vec<[i16; 64]>,
    /// Samples by row, up to whole minimum coded units.
    pub samples: Vec<u8>,
    /// Quantizers at the first scan of the component.
    pub quantizers: Option<Box<[u16; 64]>>,
}

/// Header of a scan.
struct Scan {
    /// Index of each component, and its tables.
    parts: Vec<Part>,
    /// First and last coefficient in the order of the data.
    first: usize,
    last: usize,
    /// Whether bits are added to known coefficients.
    refines: bool,
    /// Position of the lowest bit of the scan.
    low: u32,
}

struct Part {
    component: usize,
    dc: usize,
    ac: usize,
}

impl Scan {
    fn parse(data: &[u8], frame: &Frame) -> Result<Scan, MediaError> {
        let invalid = || super::damaged("a scan header is invalid");
        let (&n, rest) = data.split_first().ok_or_else(invalid)?;
        let (entries, rest) = rest.split_at_checked(2 * usize::from(n)).ok_or_else(invalid)?;
        let &[first, last, bits, ..] = rest else {
            return Err(invalid());
        };
        let (entries, _) = entries.as_chunks::<2>();
        let mut parts: Vec<Part> = Vec::new();
        for &[id, tables] in entries {
            let component = frame.components.iter().position(|c| c.id == id).ok_or_else(invalid)?;
            let (dc, ac) = (usize::from(tables >> 4), usize::from(tables & 15));
            if dc > 3 || ac > 3 || parts.iter().any(|part| part.component == component) {
                return Err(invalid());
            }
            parts.push(Part { component, dc, ac });
        }
        let n_blocks = |part: &Part| frame.components[part.component].sampling.iter().product::<usize>();
        let n_blocks: usize = parts.iter().map(n_blocks).sum();
        let (high, low) = (bits >> 4, bits & 15);
        let is_valid = if !frame.progressive {
            // Other decoders also ignore these fields.
            true
        } else if first == 0 {
            last == 0
        } else {
            first <= last && last < 64 && parts.len() == 1
        };
        let is_refined = !frame.progressive || high == 0 || high == low + 1;
        if parts.is_empty() || (parts.len() > 1 && n_blocks > MAX_BLOCKS) || !is_valid || low > 13 || !is_refined {
            return Err(invalid());
        }
        Ok(Scan {
            parts,
            first: usize::from(first),
            last: usize::from(last),
            refines: high > 0,
            low: low.into(),
        })
    }
}

/// State of the blocks of a scan.
struct Decoder<'a> {
    scan: Scan,
    frame: &'a Frame,
    tables: &'a Tables,
    bits: Bits<'a>,
    /// The last first coefficient of each part.
    predictions: [i32; 4],
    /// Blocks without further coefficients.
    n_empty: u32,
}

/// Decodes a scan with the header `header` and the compressed data at `at`. Returns the position of the marker after
/// the data.
pub(super) fn decode(
    frame: &Frame,
    tables: &Tables,
    channels: &mut [Channel],
    header: &[u8],
    data: &[u8],
    at: usize,
) -> Result<usize, MediaError> {
    let scan = Scan::parse(header, frame)?;
    for part in &scan.parts {
        let (component, channel) = (&frame.components[part.component], &mut channels[part.component]);
        let quantizers = &tables.quantizers[component.quantizer];
        if channel.quantizers.is_none() {
            channel.quantizers.clone_from(quantizers);
        }
        if channel.quantizers.is_none() {
            return Err(super::damaged("a quantization table is missing"));
        }
    }
    let mut decoder = Decoder {
        scan,
        frame,
        tables,
        bits: Bits::new(data, at),
        predictions: [0; 4],
        n_empty: 0,
    };
    decoder.units(channels)?;
    Ok(decoder.bits.marker())
}

impl Decoder<'_> {
    fn units(&mut self, channels: &mut [Channel]) -> Result<(), MediaError> {
        let [columns, rows] = match self.scan.parts[..] {
            [Part { component, .. }] => self.frame.components[component].size.map(|side| side.div_ceil(8)),
            _ => self.frame.units,
        };
        let mut n_left = self.tables.restart;
        for y in 0..rows {
            for x in 0..columns {
                if self.tables.restart > 0 && n_left == 0 {
                    self.bits.restart();
                    (self.predictions, self.n_empty) = ([0; 4], 0);
                    n_left = self.tables.restart;
                }
                n_left = n_left.saturating_sub(1);
                self.unit(channels, [x, y])?;
            }
        }
        Ok(())
    }

    /// Decodes the blocks of a minimum coded unit.
    fn unit(&mut self, channels: &mut [Channel], [x, y]: [usize; 2]) -> Result<(), MediaError> {
        let n = self.scan.parts.len();
        for i in 0..n {
            let index = self.scan.parts[i].component;
            let component = &self.frame.components[index];
            let [h, v] = if n == 1 { [1; 2] } else { component.sampling };
            for block in 0..h * v {
                let place = [x * h + block % h, y * v + block / h];
                self.block(i, component, &mut channels[index], place)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn block(
        &mut self,
        part: usize,
        component: &Component,
        channel: &mut Channel,
        [x, y]: [usize; 2],
    ) -> Result<(), MediaError> {
        if self.frame.progressive {
            let block = &mut channel.coefficients[y * component.blocks[0] + x];
            return match (self.scan.first, self.scan.refines) {
                // Coefficients beyond the end of the data keep their values.
                _ if self.bits.is_over() => Ok(()),
                (0, false) => self.first_dc(part, block),
                (0, true) => self.more_dc(block),
                (_, false) => self.first_ac(part, block),
                (_, true) => self.more_ac(part, block),
            };
        }
        let stride = component.stride();
        let out = &mut channel.samples[8 * (y * stride + x)..];
        if self.bits.is_over() {
            // Blocks beyond the end of the data are gray.
            idct::fill(out, stride, 128);
            return Ok(());
        }
        let mut block = [0; 64];
        self.sequential(part, &mut block)?;
        if let Some(quantizers) = &channel.quantizers {
            idct::samples(&block, quantizers, out, stride);
        }
        Ok(())
    }

    fn first_coefficient(&mut self, part: usize) -> Result<i32, MediaError> {
        let table = table(&self.tables.dc, self.scan.parts[part].dc)?;
        let difference = self.bits.value(table)?;
        let prediction = &mut self.predictions[part];
        *prediction = prediction.wrapping_add(difference);
        Ok(*prediction)
    }

    #[inline]
    fn sequential(&mut self, part: usize, block: &mut [i16; 64]) -> Result<(), MediaError> {
        block[0] = self.first_coefficient(part)? as i16;
        let table = table(&self.tables.ac, self.scan.parts[part].ac)?;
        let mut at = 1;
        while at < 64 {
            let (run, value) = self.bits.coefficient(table)?;
            if value == 0 {
                if run < 15 {
                    break;
                }
                at += 16;
                continue;
            }
            at += run;
            let place = ZIGZAG.get(at).ok_or_else(beyond_block)?;
            block[usize::from(*place)] = value as i16;
            at += 1;
        }
        Ok(())
    }

    fn first_dc(&mut self, part: usize, block: &mut [i16; 64]) -> Result<(), MediaError> {
        block[0] = self.first_coefficient(part)?.wrapping_shl(self.scan.low) as i16;
        Ok(())
    }

    fn more_dc(&mut self, block: &mut [i16; 64]) -> Result<(), MediaError> {
        block[0] |= (self.bits.take(1) << self.scan.low) as i16;
        Ok(())
    }

    fn first_ac(&mut self, part: usize, block: &mut [i16; 64]) -> Result<(), MediaError> {
        if self.n_empty > 0 {
            self.n_empty -= 1;
            return Ok(());
        }
        let table = table(&self.tables.ac, self.scan.parts[part].ac)?;
        let mut at = self.scan.first;
        while at <= self.scan.last {
            let (run, value) = self.bits.coefficient(table)?;
            if value == 0 {
                if run < 15 {
                    self.n_empty = (1 << run) - 1 + self.bits.take(run as u32) as u32;
                    break;
                }
                at += 16;
                continue;
            }
            at += run;
            let place = ZIGZAG.get(at).ok_or_else(beyond_block)?;
            block[usize::from(*place)] = value.wrapping_shl(self.scan.low) as i16;
            at += 1;
        }
        Ok(())
    }

    fn more_ac(&mut self, part: usize, block: &mut [i16; 64]) -> Result<(), MediaError> {
        let table = table(&self.tables.ac, self.scan.parts[part].ac)?;
        let mut at = self.scan.first;
        while self.n_empty == 0 && at <= self.scan.last {
            let symbol = self.bits.symbol(table)?;
            let run = usize::from(symbol >> 4);
            let value = match symbol & 15 {
                0 if run < 15 => {
                    self.n_empty = (1 << run) + self.bits.take(run as u32) as u32;
                    break;
                }
                0 => 0,
                // The sign of a new coefficient.
                _ => (2 * self.bits.take(1) - 1) << self.scan.low,
            };
            at = self.refined(block, at, Some(run));
            if value != 0 {
                match ZIGZAG.get(at) {
                    Some(&place) if at <= self.scan.last => block[usize::from(place)] = value as i16,
                    _ => return Err(beyond_block()),
                }
            }
            at += 1;
        }
        if self.n_empty > 0 {
            self.refined(block, at, None);
            self.n_empty -= 1;
        }
        Ok(())
    }

    /// Adds bits to the nonzero coefficients, starting at `at`. Returns the position after `run` coefficients of 0.
    fn refined(&mut self, block: &mut [i16; 64], mut at: usize, run: Option<usize>) -> usize {
        let mut n_zeros = 0;
        let bit = 1_i16 << self.scan.low;
        while at <= self.scan.last {
            let value = &mut block[usize::from(ZIGZAG[at])];
            if *value == 0 {
                if run == Some(n_zeros) {
                    break;
                }
                n_zeros += 1;
            } else if self.bits.take(1) == 1 && *value & bit == 0 {
                *value = value.wrapping_add(if *value > 0 { bit } else { -bit });
            }
            at += 1;
        }
        at
    }
}

fn table(tables: &[Option<HuffmanTable>; 4], index: usize) -> Result<&HuffmanTable, MediaError> {
    tables[index]
        .as_ref()
        .ok_or_else(|| super::damaged("a Huffman table is missing"))
}

fn beyond_block() -> MediaError {
    super::damaged("a block has more than 64 coefficients")
}
