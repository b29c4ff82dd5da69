//! Matrices of GPTQ, AWQ, and NVFP4 checkpoints, each stored in several tensors.

use kernels::GgmlType;

use super::decode::number;
use super::safetensors::{SourceTensor, SourceType};
use super::view::Run;

/// Number of NVFP4 elements that share a scale in checkpoints.
pub const NVFP4_GROUP: usize = 16;

/// Position of each of 8 neighboring columns in a word of AWQ.
const AWQ_ORDER: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Values of 4-bit floats (E2M1).
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Form of the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    /// Words of 32 bits along the columns. Stored zero points are too small by `zero_offset`.
    Gptq { bits: u32, zero_offset: u32 },
    /// Words of 8 elements along the rows.
    Awq,
    /// Two 4-bit floats per byte along the columns, times `scale`.
    Nvfp4 { scale: f32 },
}

/// Matrix that a checkpoint stores in several tensors.
#[derive(Debug)]
pub struct PackedMatrix {
    /// Name and shape of the whole matrix, and the type of decoded elements. Its data is empty.
    pub source: SourceTensor,
    pub form: Form,
    /// Columns with one scale.
    pub group: usize,
    /// Name of the tensor of the elements.
    pub elements: String,
    /// Name and type of the scales.
    pub scales: (String, SourceType),
    /// Name of the zero points.
    pub zeros: Option<String>,
    /// Name of the group of each column.
    pub groups: Option<String>,
    /// GGUF type that holds the elements exactly.
    pub exact: Option<GgmlType>,
}

/// Returns a little-endian word; 0 beyond the end.
pub fn word(bytes: &[u8], i: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(i).map_or(0, |b| u32::from_le_bytes(*b))
}

impl PackedMatrix {
    /// Returns the scale of the whole matrix, which blocks of [`PackedMatrix::exact`] do not store.
    pub fn factor(&self) -> Option<f32> {
        match self.form {
            Form::Nvfp4 { scale } => Some(scale),
            _ => None,
        }
    }

    /// Yields the names of all tensors of the matrix.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let optional = [&self.zeros, &self.groups];
        [&self.elements, &self.scales.0]
            .into_iter()
            .chain(optional.into_iter().flatten())
    }

    /// Returns the matrix with its data. `bytes_of` returns the data of a tensor.
    pub fn data<'a>(&'a self, bytes_of: impl Fn(&str) -> &'a [u8]) -> PackedData<'a> {
        let optional = |name: &Option<String>| name.as_ref().map_or(&[][..], |name| bytes_of(name));
        PackedData {
            matrix: self,
            elements: bytes_of(&self.elements),
            scales: bytes_of(&self.scales.0),
            zeros: optional(&self.zeros),
            groups: optional(&self.groups),
        }
    }
}

/// A packed matrix with its data.
pub struct PackedData<'a> {
    matrix: &'a PackedMatrix,
    elements: &'a [u8],
    scales: &'a [u8],
    zeros: &'a [u8],
    groups: &'a [u8],
}

impl PackedData<'_> {
    fn n_rows(&self) -> usize {
        self.matrix.source.shape[0]
    }

    fn n_columns(&self) -> usize {
        self.matrix.source.shape[1]
    }

    /// Appends the values of a run of elements.
    pub fn decode(&self, run: Run, values: &mut Vec<f32>) {
        let n = self.n_columns();
        values.extend(run.indices().map(|i| self.value(i / n, i % n)));
    }

    fn value(&self, row: usize, column: usize) -> f32 {
        match self.matrix.form {
            Form::Nvfp4 { scale } => {
                let q = self.integer(row, column) as usize;
                E2M1[q] * self.scale(row, column) * scale
            }
            _ => (self.integer(row, column) as f32 - self.zero(row, column) as f32) * self.scale(row, column),
        }
    }

    fn group(&self, column: usize) -> usize {
        match self.groups {
            [] => column / self.matrix.group,
            groups => word(groups, column) as usize,
        }
    }

    /// Returns the stored code of an element.
    fn integer(&self, row: usize, column: usize) -> u32 {
        match self.matrix.form {
            Form::Gptq { bits, .. } => {
                let at = column * bits as usize;
                word(self.elements, at / 32 * self.n_rows() + row) >> (at % 32) & ((1 << bits) - 1)
            }
            Form::Awq => word(self.elements, column * (self.n_rows() / 8) + row / 8) >> (4 * AWQ_ORDER[row % 8]) & 15,
            Form::Nvfp4 { .. } => {
                let byte = self.elements[(row * self.n_columns() + column) / 2];
                u32::from(byte >> (4 * (column % 2))) & 15
            }
        }
    }

    /// Returns the zero point of an element.
    fn zero(&self, row: usize, column: usize) -> u32 {
        let group = self.group(column);
        match self.matrix.form {
            Form::Gptq { bits, zero_offset } => {
                let (at, words) = (row * bits as usize, self.n_rows() * bits as usize / 32);
                (word(self.zeros, group * words + at / 32) >> (at % 32) & ((1 << bits) - 1)) + zero_offset
            }
            Form::Awq => word(self.zeros, group * (self.n_rows() / 8) + row / 8) >> (4 * AWQ_ORDER[row % 8]) & 15,
            Form::Nvfp4 { .. } => 0,
        }
    }

    /// Returns the bytes of the scale of an element.
    fn scale_bytes(&self, row: usize, column: usize) -> &[u8] {
        let i = match self.matrix.form {
            Form::Nvfp4 { .. } => (row * self.n_columns() + column) / NVFP4_GROUP,
            _ => self.group(column) * self.n_rows() + row,
        };
        let size = self.matrix.scales.1.bytes();
        &self.scales[i * size..(i + 1) * size]
    }

    fn scale(&self, row: usize, column: usize) -> f32 {
        number(self.matrix.scales.1, self.scale_bytes(row, column)) as f32
    }

    /// Returns the first scale of block `i` that the exact type does not have: NaN, infinity, and, for NVFP4, negative
    /// numbers.
    pub fn bad_scale(&self, i: usize) -> Option<f64> {
        let ty = self.matrix.exact?;
        let per_row = self.n_columns() / ty.block_size();
        let (row, first) = (i / per_row, i % per_row * ty.block_size());
        let columns = match self.matrix.form {
            Form::Nvfp4 { .. } => (first..first + ty.block_size()).step_by(NVFP4_GROUP),
            _ => (first..first + 1).step_by(1),
        };
        let is_unsigned = ty == GgmlType::NVFP4;
        columns
            .map(|column| number(self.matrix.scales.1, self.scale_bytes(row, column)))
            .find(|scale| !scale.is_finite() || (is_unsigned && scale.is_sign_negative()))
    }

    /// Writes block `i` of the matrix in its exact type.
    pub fn block(&self, i: usize, out: &mut [u8]) {
        let Some(ty) = self.matrix.exact else { return };
        let per_row = self.n_columns() / ty.block_size();
        let (row, first) = (i / per_row, i % per_row * ty.block_size());
        let code = |j: usize| self.integer(row, first + j) as u8;
        match ty {
            GgmlType::Q4_0 => {
                out[..2].copy_from_slice(self.scale_bytes(row, first));
                let bytes = out[2..].iter_mut().enumerate();
                bytes.for_each(|(j, byte)| *byte = code(j) | code(j + 16) << 4);
            }
            GgmlType::Q8_0 => {
                out[..2].copy_from_slice(self.scale_bytes(row, first));
                // The zero point is 128.
                out[2..]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(j, byte)| *byte = code(j) ^ 0x80);
            }
            _ => {
                let (scales, bytes) = out.split_at_mut(4);
                for (group, scale) in scales.iter_mut().enumerate() {
                    *scale = self.scale_bytes(row, first + group * NVFP4_GROUP)[0];
                }
                for (group, bytes) in bytes.chunks_exact_mut(8).enumerate() {
                    let code = |j: usize| code(group * NVFP4_GROUP + j);
                    bytes
                        .iter_mut()
                        .enumerate()
                        .for_each(|(j, byte)| *byte = code(j) | code(j + 8) << 4);
                }
            }
        }
    }
}
