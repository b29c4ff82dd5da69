//! Data of converted tensors: reads source elements through a view, changes them, and writes GGUF types.

use std::io::{self, Write};

use kernels::GgmlType;

use super::safetensors::SourceType;
use super::view::View;

/// Elements converted per step.
const CHUNK: usize = 1 << 16;
/// Elements of a block of MXFP4.
pub const MXFP4_BLOCK: usize = 32;

/// Change of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum DataChange {
    Plus(f64),
    Times(f64),
    Exp,
    Neg,
}

/// Source matrix with its data.
pub struct Piece<'a> {
    /// Name in the checkpoint, for messages.
    pub name: String,
    pub ty: SourceType,
    pub bytes: &'a [u8],
    pub view: View,
    /// Scales of 8-bit floats.
    pub scales: Option<Scales<'a>>,
}

/// Scales of a matrix of 8-bit floats: one value for each block of rows and columns.
pub struct Scales<'a> {
    pub ty: SourceType,
    pub bytes: &'a [u8],
    /// Rows and columns of a block.
    pub block: [usize; 2],
    /// Columns of the matrix, and blocks in a row.
    pub columns: usize,
    pub per_row: usize,
}

/// Data of one tensor of the output.
pub struct TensorData<'a> {
    /// Matrices of a stack, or one tensor.
    pub pieces: Vec<Piece<'a>>,
    pub changes: Vec<DataChange>,
    /// Elements of a row, for messages.
    pub row: usize,
}

/// An error of writing a tensor.
#[derive(Debug)]
pub enum DataError {
    /// A value is NaN or infinite.
    NotFinite {
        name: String,
        value: f64,
        row: usize,
        column: usize,
    },
    Io(io::Error),
}

impl From<io::Error> for DataError {
    fn from(error: io::Error) -> DataError {
        DataError::Io(error)
    }
}

impl TensorData<'_> {
    /// Writes all elements as `ty`, which is F32, F16, BF16, or I32.
    pub fn write(&self, ty: GgmlType, out: &mut dyn Write) -> Result<(), DataError> {
        let mut values: Vec<f32> = Vec::with_capacity(CHUNK);
        let mut encoded = Vec::new();
        let mut done = 0;
        for piece in &self.pieces {
            if self.changes.is_empty() && piece.is_stored_as(ty) {
                done += self.copy(piece, done, out)?;
                continue;
            }
            let mut flush = |values: &mut Vec<f32>, done: &mut usize| {
                self.check(&piece.name, values, *done)?;
                *done += values.len();
                encoded.clear();
                encode(ty, values, &mut encoded);
                values.clear();
                out.write_all(&encoded).map_err(DataError::Io)
            };
            piece.view.runs(|run| {
                let mut at = run.start;
                while at < run.end {
                    let n = (run.end - at).min(CHUNK - values.len());
                    piece.decode(at, n, &self.changes, &mut values);
                    at += n;
                    if values.len() == CHUNK {
                        flush(&mut values, &mut done)?;
                    }
                }
                Ok::<(), DataError>(())
            })?;
            flush(&mut values, &mut done)?;
        }
        Ok(())
    }

    /// Copies elements that need no conversion, and returns their number.
    fn copy(&self, piece: &Piece<'_>, done: usize, out: &mut dyn Write) -> Result<usize, DataError> {
        let size = piece.ty.bytes();
        let mut buffer: Vec<u8> = Vec::with_capacity(CHUNK * size);
        let mut copied = 0;
        let mut flush = |bytes: &[u8], copied: &mut usize| {
            if let Some(i) = first_not_finite(piece.ty, bytes) {
                let value = number(piece.ty, &bytes[i * size..(i + 1) * size]) as f32;
                self.check(&piece.name, &[value], done + *copied + i)?;
            }
            *copied += bytes.len() / size;
            out.write_all(bytes).map_err(DataError::Io)
        };
        piece.view.runs(|run| {
            let bytes = &piece.bytes[run.start * size..run.end * size];
            for bytes in bytes.chunks(CHUNK * size) {
                if buffer.len() + bytes.len() > CHUNK * size {
                    flush(&buffer, &mut copied)?;
                    buffer.clear();
                }
                buffer.extend_from_slice(bytes);
            }
            Ok::<(), DataError>(())
        })?;
        flush(&buffer, &mut copied)?;
        Ok(copied)
    }

    fn check(&self, name: &str, values: &[f32], done: usize) -> Result<(), DataError> {
        match values.iter().position(|x| !x.is_finite()) {
            None => Ok(()),
            Some(i) => Err(DataError::NotFinite {
                name: name.to_owned(),
                value: values[i].into(),
                row: (done + i) / self.row.max(1),
                column: (done + i) % self.row.max(1),
            }),
        }
    }

    /// Writes blocks of MXFP4. Each element of the view of `pieces` is a block of 16 bytes, whose exponent is the
    /// element of the same index in `exponents`.
    pub fn write_mxfp4(&self, exponents: &[&[u8]], out: &mut dyn Write) -> Result<(), DataError> {
        let mut encoded = Vec::new();
        for (piece, exponents) in self.pieces.iter().zip(exponents) {
            piece.view.runs(|run| {
                for block in run {
                    let quants = &piece.bytes[block * 16..block * 16 + 16];
                    encoded.push(exponents[block]);
                    // Neighbors share a byte in the checkpoint; elements `i` and `i + 16` do in GGUF.
                    let nibble = |i: usize| (quants[i / 2] >> (4 * (i % 2))) & 15;
                    encoded.extend((0..16).map(|i| nibble(i) | nibble(i + 16) << 4));
                    if encoded.len() > CHUNK {
                        out.write_all(&encoded)?;
                        encoded.clear();
                    }
                }
                Ok::<(), DataError>(())
            })?;
        }
        Ok(out.write_all(&encoded)?)
    }
}

/// Returns the index of the first value that is NaN or infinite, whose exponent is all ones.
fn first_not_finite(ty: SourceType, bytes: &[u8]) -> Option<usize> {
    let all_ones = |mask: u16| {
        let has = |b: &[u8; 2]| u16::from_le_bytes(*b) & mask == mask;
        let halves = bytes.as_chunks::<2>().0;
        // Without an early exit, the loop is vectorized.
        let any = halves.iter().fold(false, |any, b| any | has(b));
        if any { halves.iter().position(has) } else { None }
    };
    match ty {
        SourceType::Bf16 => all_ones(0x7f80),
        SourceType::F16 => all_ones(0x7c00),
        _ => {
            let has = |b: &[u8; 4]| u32::from_le_bytes(*b) & 0x7f80_0000 == 0x7f80_0000;
            let words = bytes.as_chunks::<4>().0;
            let any = words.iter().fold(false, |any, b| any | has(b));
            if any { words.iter().position(has) } else { None }
        }
    }
}

impl Piece<'_> {
    /// Returns true if the elements have the same bytes in a GGUF type.
    fn is_stored_as(&self, ty: GgmlType) -> bool {
        let same = matches!(
            (self.ty, ty),
            (SourceType::F32, GgmlType::F32) | (SourceType::Bf16, GgmlType::BF16) | (SourceType::F16, GgmlType::F16)
        );
        same && self.scales.is_none()
    }

    /// Appends `n` source elements from element `at`, changed.
    fn decode(&self, at: usize, n: usize, changes: &[DataChange], values: &mut Vec<f32>) {
        let size = self.ty.bytes();
        let bytes = &self.bytes[at * size..(at + n) * size];
        let start = values.len();
        match self.ty {
            SourceType::F32 => values.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
            SourceType::Bf16 => values.extend(
                bytes
                    .as_chunks::<2>()
                    .0
                    .iter()
                    .map(|b| f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16)),
            ),
            SourceType::F16 => {
                values.resize(start + n, 0.0);
                kernels::dequantize_row(GgmlType::F16, bytes, &mut values[start..]);
            }
            _ => values.extend(bytes.chunks_exact(size).map(|b| number(self.ty, b) as f32)),
        }
        if let Some(scales) = &self.scales {
            for (i, value) in values[start..].iter_mut().enumerate() {
                *value *= scales.at(at + i);
            }
        }
        for change in changes {
            for value in &mut values[start..] {
                *value = change.apply(*value);
            }
        }
    }
}

impl DataChange {
    fn apply(self, x: f32) -> f32 {
        match self {
            DataChange::Plus(n) => (f64::from(x) + n) as f32,
            DataChange::Times(n) => (f64::from(x) * n) as f32,
            DataChange::Exp => f64::from(x).exp() as f32,
            DataChange::Neg => -x,
        }
    }
}

impl Scales<'_> {
    /// Returns the scale of an element of the matrix.
    fn at(&self, element: usize) -> f32 {
        let (row, column) = (element / self.columns, element % self.columns);
        let i = row / self.block[0] * self.per_row + column / self.block[1];
        let size = self.ty.bytes();
        number(self.ty, &self.bytes[i * size..(i + 1) * size]) as f32
    }
}

/// Returns the value of a little-endian element.
fn number(ty: SourceType, b: &[u8]) -> f64 {
    let mut wide = [0u8; 8];
    wide[..b.len()].copy_from_slice(b);
    let bits = u64::from_le_bytes(wide);
    match ty {
        SourceType::Bool | SourceType::U8 => f64::from(b[0]),
        SourceType::I8 => f64::from(b[0].cast_signed()),
        SourceType::F8E4m3 => small_float(b[0], 3, 7),
        SourceType::F8E5m2 => small_float(b[0], 2, 15),
        SourceType::F8E8m0 if b[0] == 255 => f64::NAN,
        SourceType::F8E8m0 => 2f64.powi(i32::from(b[0]) - 127),
        SourceType::I16 => f64::from((bits as u16).cast_signed()),
        SourceType::U16 => f64::from(bits as u16),
        SourceType::F16 => {
            let mut x = [0.0];
            kernels::dequantize_row(GgmlType::F16, b, &mut x);
            x[0].into()
        }
        SourceType::Bf16 => f32::from_bits((bits as u32) << 16).into(),
        SourceType::I32 => f64::from((bits as u32).cast_signed()),
        SourceType::U32 => f64::from(bits as u32),
        SourceType::F32 => f32::from_bits(bits as u32).into(),
        SourceType::I64 => bits.cast_signed() as f64,
        SourceType::U64 => bits as f64,
        SourceType::F64 => f64::from_bits(bits),
    }
}

/// Returns the value of an 8-bit float. E4M3 has one NaN per sign and no infinity; E5M2 follows IEEE 754.
fn small_float(byte: u8, mantissa_bits: u32, bias: i32) -> f64 {
    let sign = if byte & 0x80 == 0 { 1.0 } else { -1.0 };
    let mantissa = f64::from(byte & ((1 << mantissa_bits) - 1));
    let (exponent, ones) = (i32::from((byte & 0x7f) >> mantissa_bits), 1 << mantissa_bits);
    let fraction = mantissa / f64::from(ones);
    match (mantissa_bits, exponent) {
        (3, 15) if byte & 7 == 7 => f64::NAN,
        (2, 31) if byte & 3 == 0 => sign * f64::INFINITY,
        (2, 31) => f64::NAN,
        (_, 0) => sign * fraction * 2f64.powi(1 - bias),
        _ => sign * (1.0 + fraction) * 2f64.powi(exponent - bias),
    }
}

fn encode(ty: GgmlType, values: &[f32], out: &mut Vec<u8>) {
    match ty {
        GgmlType::F16 | GgmlType::BF16 => {
            out.resize(values.len() * 2, 0);
            kernels::quantize_row(ty, values, out);
        }
        GgmlType::I32 => values
            .iter()
            .for_each(|&x| out.extend_from_slice(&(x as i32).to_le_bytes())),
        _ => values.iter().for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
    }
}
