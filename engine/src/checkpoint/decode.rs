//! Values of the elements of a checkpoint, as floats.

use std::sync::LazyLock;

use kernels::GgmlType;

use super::safetensors::SourceType;
use super::view::Run;

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

impl Scales<'_> {
    /// Multiplies the elements of a run by their scales.
    pub fn apply(&self, run: Run, values: &mut [f32]) {
        if run.stride != 1 {
            for (i, value) in run.indices().zip(values) {
                *value *= self.at(i / self.columns, i % self.columns);
            }
            return;
        }
        let (mut at, mut values) = (run.start, values);
        while !values.is_empty() {
            let (row, column) = (at / self.columns, at % self.columns);
            // The scale is constant up to the end of the block and of the row.
            let n = (self.block[1] - column % self.block[1])
                .min(self.columns - column)
                .min(values.len());
            let (same, rest) = values.split_at_mut(n);
            let scale = self.at(row, column);
            same.iter_mut().for_each(|value| *value *= scale);
            (at, values) = (at + n, rest);
        }
    }

    fn at(&self, row: usize, column: usize) -> f32 {
        let i = row / self.block[0] * self.per_row + column / self.block[1];
        let size = self.ty.bytes();
        number(self.ty, &self.bytes[i * size..(i + 1) * size]) as f32
    }
}

/// Appends the values of a run of elements.
pub fn decode(ty: SourceType, bytes: &[u8], run: Run, values: &mut Vec<f32>) {
    let size = ty.bytes();
    let element = |i: usize| &bytes[i * size..(i + 1) * size];
    let start = values.len();
    if run.stride != 1 {
        match ty {
            SourceType::Bf16 => values.extend(run.indices().map(|i| bf16([bytes[2 * i], bytes[2 * i + 1]]))),
            _ => values.extend(run.indices().map(|i| number(ty, element(i)) as f32)),
        }
        return;
    }
    let bytes = &bytes[run.start * size..(run.start + run.n) * size];
    match ty {
        SourceType::F32 => values.extend(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b))),
        SourceType::Bf16 => values.extend(bytes.as_chunks::<2>().0.iter().map(|b| bf16(*b))),
        SourceType::F16 => {
            values.resize(start + run.n, 0.0);
            kernels::dequantize_row(GgmlType::F16, bytes, &mut values[start..]);
        }
        SourceType::F8E4m3 => values.extend(bytes.iter().map(|&b| E4M3[usize::from(b)])),
        SourceType::F8E5m2 => values.extend(bytes.iter().map(|&b| E5M2[usize::from(b)])),
        _ => values.extend(bytes.chunks_exact(size).map(|b| number(ty, b) as f32)),
    }
}

fn bf16(bytes: [u8; 2]) -> f32 {
    f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)
}

/// Returns the value of a little-endian element.
pub fn number(ty: SourceType, b: &[u8]) -> f64 {
    let mut wide = [0u8; 8];
    wide[..b.len()].copy_from_slice(b);
    let bits = u64::from_le_bytes(wide);
    match ty {
        SourceType::Bool | SourceType::U8 => f64::from(b[0]),
        SourceType::I8 => f64::from(b[0].cast_signed()),
        SourceType::F8E4m3 => E4M3[usize::from(b[0])].into(),
        SourceType::F8E5m2 => E5M2[usize::from(b[0])].into(),
        SourceType::F8E8m0 if b[0] == 255 => f64::NAN,
        SourceType::F8E8m0 => 2f64.powi(i32::from(b[0]) - 127),
        SourceType::I16 => f64::from((bits as u16).cast_signed()),
        SourceType::U16 => f64::from(bits as u16),
        SourceType::F16 => {
            let mut x = [0.0];
            kernels::dequantize_row(GgmlType::F16, b, &mut x);
            x[0].into()
        }
        SourceType::Bf16 => bf16([b[0], b[1]]).into(),
        SourceType::I32 => f64::from((bits as u32).cast_signed()),
        SourceType::U32 => f64::from(bits as u32),
        SourceType::F32 => f32::from_bits(bits as u32).into(),
        SourceType::I64 => bits.cast_signed() as f64,
        SourceType::U64 => bits as f64,
        SourceType::F64 => f64::from_bits(bits),
    }
}

/// Values of all 8-bit floats of a type.
type Table = LazyLock<[f32; 256]>;

static E4M3: Table = LazyLock::new(|| std::array::from_fn(|byte| small_float(byte as u8, 3, 7) as f32));
static E5M2: Table = LazyLock::new(|| std::array::from_fn(|byte| small_float(byte as u8, 2, 15) as f32));

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
