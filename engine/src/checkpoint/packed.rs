//! Matrices of GPTQ, AWQ, and NVFP4 checkpoints: several tensors that together are one matrix.

use kernels::GgmlType;

use super::CheckpointError;
use super::config::Config;
use super::decode::number;
use super::safetensors::{SourceTensor, SourceType};
use super::shards::Shards;
use super::view::Run;

/// Elements of a block of NVFP4 with one scale in checkpoints.
const NVFP4_GROUP: usize = 16;

/// Position of each of 8 neighboring columns in a word of AWQ.
const AWQ_ORDER: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// Values of 4-bit floats (E2M1).
const E2M1: [f32; 16] = [
    0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0,
];

/// Form of the elements of a matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Words of 32 bits along the columns. Stored zero points are too small by `zero_offset`.
    Gptq { bits: u32, zero_offset: u32 },
    /// Words of 8 elements along the rows.
    Awq,
    /// Two 4-bit floats per byte along the columns, times `scale`.
    Nvfp4 { scale: f32 },
}

/// Matrix in several tensors of a checkpoint.
#[derive(Debug)]
pub struct PackedMatrix {
    /// Name and shape of the whole matrix, and the type of decoded elements. Its data is empty.
    pub source: SourceTensor,
    form: Form,
    /// Columns with one scale.
    group: usize,
    elements: String,
    scales: String,
    zeros: Option<String>,
    /// Group of each column.
    groups: Option<String>,
    /// GGUF type that holds the elements exactly.
    exact: Option<GgmlType>,
}

/// Settings of a quantized checkpoint.
struct Method {
    bits: u32,
    group: Option<usize>,
    zero_offset: u32,
    is_awq: bool,
}

/// Returns the packed matrices of a checkpoint.
///
/// # Errors
/// If tensors of a matrix are missing or contradict each other, or the settings are not supported.
pub fn packed_matrices(config: &Config, shards: &Shards) -> Result<Vec<PackedMatrix>, CheckpointError> {
    let method = method(config)?;
    let mut found = Vec::new();
    for tensor in shards.iter() {
        let matrix = if let (Some(base), Some(method)) = (tensor.name.strip_suffix(".qweight"), &method) {
            integers(shards, tensor, base, method)
        } else if tensor.ty == SourceType::U8 {
            match nvfp4(shards, tensor) {
                Some(matrix) => matrix,
                None => continue,
            }
        } else {
            continue;
        };
        found.push(matrix.map_err(|text| CheckpointError::tensor(shards.path(&tensor.name), &tensor.name, text))?);
    }
    Ok(found)
}

/// Returns the settings of GPTQ and AWQ.
fn method(config: &Config) -> Result<Option<Method>, CheckpointError> {
    let setting = |name: &str| config.number(&format!("quantization_config.{name}"));
    let text = |name: &str| config.text(&format!("quantization_config.{name}"));
    let fault = |text: String| Err(CheckpointError::config(config.path(), text));
    let (is_awq, supported): (bool, &[u32]) = match text("quant_method") {
        Some("gptq") => (false, &[2, 4, 8]),
        Some("awq") => (true, &[4]),
        _ => return Ok(None),
    };
    let bits = setting("bits").or(setting("w_bit")).unwrap_or(4.0);
    let Some(&bits) = supported.iter().find(|&&n| f64::from(n) == bits) else {
        return fault(format!(
            "weights of {bits} bits cannot be converted; the supported numbers of bits are {supported:?}"
        ));
    };
    if let (true, Some(version)) = (is_awq, text("version").filter(|v| !v.eq_ignore_ascii_case("gemm"))) {
        return fault(format!(
            "AWQ weights of version `{version}` cannot be converted; expected `gemm`"
        ));
    }
    let group = setting("group_size").or(setting("q_group_size")).unwrap_or(-1.0);
    Ok(Some(Method {
        bits,
        group: (group >= 1.0).then_some(group as usize),
        zero_offset: u32::from(!is_awq && text("checkpoint_format").unwrap_or("gptq") == "gptq"),
        is_awq,
    }))
}

/// Returns the matrix of a tensor of GPTQ or AWQ integers.
fn integers(shards: &Shards, words: &SourceTensor, base: &str, method: &Method) -> Result<PackedMatrix, String> {
    let per_word = (32 / method.bits) as usize;
    let (&[a, b], SourceType::I32) = (&words.shape[..], words.ty) else {
        return Err(format!(
            "has shape {:?}, expected 32-bit words in two dimensions",
            words.shape
        ));
    };
    let (rows, columns) = match method.is_awq {
        true => (b.checked_mul(per_word), Some(a)),
        false => (Some(b), a.checked_mul(per_word)),
    };
    let (Some(rows), Some(columns)) = (rows, columns) else {
        return Err("is too large".to_owned());
    };
    let group = method.group.unwrap_or(columns).max(1);
    let n_groups = columns.div_ceil(group);
    let part = |suffix: &str, shape: &[usize]| {
        let name = format!("{base}.{suffix}");
        match shards.get(&name) {
            Some(tensor) if tensor.shape == shape => Ok(tensor),
            Some(tensor) => Err(format!("has `{name}` of shape {:?}, expected {shape:?}", tensor.shape)),
            None => Err(format!("has no `{name}`")),
        }
    };
    let scales = part("scales", &[n_groups, rows])?;
    let zeros = part("qzeros", &[n_groups, rows / per_word])?;
    if zeros.ty != SourceType::I32 || !rows.is_multiple_of(per_word) {
        return Err(format!("has zero points `{}` that are not 32-bit words", zeros.name));
    }
    if !matches!(scales.ty, SourceType::F16 | SourceType::Bf16 | SourceType::F32) {
        return Err(format!("has scales `{}` that are not floats", scales.name));
    }
    let groups = match method.is_awq {
        true => None,
        false => part("g_idx", &[columns]).ok().filter(|t| t.ty == SourceType::I32),
    };
    let of_column = |column: usize| match groups {
        Some(tensor) => word(shards.data(&tensor.name), column) as usize,
        None => column / group,
    };
    if let Some(column) = (0..columns).find(|&column| of_column(column) >= n_groups) {
        return Err(format!(
            "has column {column} in group {}, expected at most {}",
            of_column(column),
            n_groups - 1
        ));
    }
    let is_in_order = (0..columns).all(|column| of_column(column) == column / group);
    // A symmetric zero point is half the range.
    let zero = (1u32 << (method.bits - 1)) - method.zero_offset;
    let byte = (0..8 / method.bits).fold(0, |byte, i| byte | zero << (i * method.bits)) as u8;
    let is_symmetric = shards.data(&zeros.name).iter().all(|&b| b == byte);
    let is_exact = is_in_order
        && is_symmetric
        && scales.ty == SourceType::F16
        && columns.is_multiple_of(32)
        && (group.is_multiple_of(32) || n_groups == 1);
    let exact = match method.bits {
        4 if is_exact => Some(GgmlType::Q4_0),
        8 if is_exact => Some(GgmlType::Q8_0),
        _ => None,
    };
    Ok(PackedMatrix {
        source: whole(base, scales.ty, rows, columns),
        form: match method.is_awq {
            true => Form::Awq,
            false => Form::Gptq {
                bits: method.bits,
                zero_offset: method.zero_offset,
            },
        },
        group,
        elements: words.name.clone(),
        scales: scales.name.clone(),
        zeros: Some(zeros.name.clone()),
        groups: groups.filter(|_| !is_in_order).map(|t| t.name.clone()),
        exact,
    })
}

/// Returns the matrix of a tensor of 4-bit floats; `None` for tensors without the scales of NVFP4.
fn nvfp4(shards: &Shards, bytes: &SourceTensor) -> Option<Result<PackedMatrix, String>> {
    let (base, is_inverse) = match bytes.name.strip_suffix(".weight_packed") {
        Some(base) => (base, true),
        None => (bytes.name.strip_suffix(".weight")?, false),
    };
    let whole_scale = if is_inverse {
        "weight_global_scale"
    } else {
        "weight_scale_2"
    };
    let whole_scale = shards.get(&format!("{base}.{whole_scale}"))?;
    let scales = shards.get(&format!("{base}.weight_scale"))?;
    let &[rows, half] = &bytes.shape[..] else { return None };
    let matrix = || {
        let columns = half.checked_mul(2).ok_or("is too large")?;
        let expected = [rows, columns / NVFP4_GROUP];
        if scales.shape != expected || scales.ty != SourceType::F8E4m3 || !columns.is_multiple_of(NVFP4_GROUP) {
            return Err(format!(
                "has scales of type {:?} and shape {:?}, expected 8-bit floats (E4M3) of shape {expected:?}",
                scales.ty, scales.shape
            ));
        }
        let data = shards.data(&whole_scale.name);
        if whole_scale.ty != SourceType::F32 || data.len() != 4 {
            return Err(format!(
                "has a scale `{}` that is not one 32-bit float",
                whole_scale.name
            ));
        }
        let scale = number(SourceType::F32, data) as f32;
        let scale = if is_inverse { 1.0 / scale } else { scale };
        if !scale.is_finite() {
            return Err(format!(
                "has the scale {scale} in `{}`; expected a finite number",
                whole_scale.name
            ));
        }
        Ok(PackedMatrix {
            source: whole(base, SourceType::Bf16, rows, columns),
            form: Form::Nvfp4 { scale },
            group: NVFP4_GROUP,
            elements: bytes.name.clone(),
            scales: scales.name.clone(),
            zeros: None,
            groups: None,
            exact: columns.is_multiple_of(64).then_some(GgmlType::NVFP4),
        })
    };
    Some(matrix())
}

/// Returns the description of a whole matrix.
fn whole(base: &str, ty: SourceType, rows: usize, columns: usize) -> SourceTensor {
    SourceTensor {
        name: format!("{base}.weight"),
        ty,
        shape: vec![rows, columns],
        data: 0..0,
    }
}

/// Returns a little-endian word; 0 beyond the end.
fn word(bytes: &[u8], i: usize) -> u32 {
    bytes.as_chunks::<4>().0.get(i).map_or(0, |b| u32::from_le_bytes(*b))
}

impl PackedMatrix {
    /// Returns the GGUF type that holds the elements exactly.
    pub fn exact(&self) -> Option<GgmlType> {
        self.exact
    }

    /// Returns the factor of all elements that blocks of [`PackedMatrix::exact`] do not contain.
    pub fn factor(&self) -> Option<f32> {
        match self.form {
            Form::Nvfp4 { scale } => Some(scale),
            _ => None,
        }
    }

    /// Yields the names of all tensors of the matrix.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        let optional = [&self.zeros, &self.groups];
        [&self.elements, &self.scales]
            .into_iter()
            .chain(optional.into_iter().flatten())
    }

    /// Returns the matrix with its data.
    pub fn data<'a>(&'a self, shards: &'a Shards) -> PackedData<'a> {
        let data = |name: &Option<String>| name.as_ref().map_or(&[][..], |name| shards.data(name));
        PackedData {
            matrix: self,
            elements: shards.data(&self.elements),
            scales: shards.data(&self.scales),
            scale_type: shards.get(&self.scales).map_or(SourceType::F32, |t| t.ty),
            zeros: data(&self.zeros),
            groups: data(&self.groups),
        }
    }
}

/// A packed matrix with its data.
pub struct PackedData<'a> {
    matrix: &'a PackedMatrix,
    elements: &'a [u8],
    scales: &'a [u8],
    scale_type: SourceType,
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
        let size = self.scale_type.bytes();
        &self.scales[i * size..(i + 1) * size]
    }

    fn scale(&self, row: usize, column: usize) -> f32 {
        number(self.scale_type, self.scale_bytes(row, column)) as f32
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
