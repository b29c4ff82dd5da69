//! Finds the matrices of GPTQ, AWQ, and NVFP4 checkpoints.

use kernels::GgmlType;

use super::CheckpointError;
use super::config::Config;
use super::decode::number;
use super::packed::{Form, NVFP4_GROUP, PackedMatrix, word};
use super::safetensors::{SourceTensor, SourceType};
use super::shards::Shards;

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
/// Returns an error if tensors of a matrix are missing or contradict each other, or the settings are not supported.
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

/// Returns the matrix whose integers a GPTQ or AWQ tensor holds.
fn integers(shards: &Shards, words: &SourceTensor, base: &str, method: &Method) -> Result<PackedMatrix, String> {
    let per_word = (32 / method.bits) as usize;
    let (&[a, b], SourceType::I32) = (&words.shape[..], words.ty) else {
        return Err(format!(
            "has shape {:?}, expected 32-bit words in two dimensions",
            words.shape
        ));
    };
    let (rows, columns) = if method.is_awq {
        (b.checked_mul(per_word), Some(a))
    } else {
        (Some(b), a.checked_mul(per_word))
    };
    let (Some(rows), Some(columns)) = (rows, columns) else {
        return Err("is too large".to_owned());
    };
    let group = method.group.unwrap_or(columns).max(1);
    let n_groups = columns.div_ceil(group);
    let scales = part(shards, base, "scales", &[n_groups, rows])?;
    let zeros = part(shards, base, "qzeros", &[n_groups, rows / per_word])?;
    if zeros.ty != SourceType::I32 || !rows.is_multiple_of(per_word) {
        return Err(format!("has zero points `{}` that are not 32-bit words", zeros.name));
    }
    if !matches!(scales.ty, SourceType::F16 | SourceType::Bf16 | SourceType::F32) {
        return Err(format!("has scales `{}` that are not floats", scales.name));
    }
    let groups = if method.is_awq {
        None
    } else {
        groups(shards, base, columns, group)?
    };
    // A symmetric zero point is half the range.
    let zero = (1u32 << (method.bits - 1)) - method.zero_offset;
    let byte = (0..8 / method.bits).fold(0, |byte, i| byte | zero << (i * method.bits)) as u8;
    let is_exact = groups.is_none()
        && shards.data(&zeros.name).iter().all(|&b| b == byte)
        && scales.ty == SourceType::F16
        && columns.is_multiple_of(32)
        && (group.is_multiple_of(32) || n_groups == 1);
    let exact = match method.bits {
        4 if is_exact => Some(GgmlType::Q4_0),
        8 if is_exact => Some(GgmlType::Q8_0),
        _ => None,
    };
    let gptq = Form::Gptq {
        bits: method.bits,
        zero_offset: method.zero_offset,
    };
    Ok(PackedMatrix {
        source: whole(base, scales.ty, rows, columns),
        form: if method.is_awq { Form::Awq } else { gptq },
        group,
        elements: words.name.clone(),
        scales: (scales.name.clone(), scales.ty),
        zeros: Some(zeros.name.clone()),
        groups,
        exact,
    })
}

/// Returns a tensor of a matrix, which must have this shape.
fn part<'a>(shards: &'a Shards, base: &str, suffix: &str, shape: &[usize]) -> Result<&'a SourceTensor, String> {
    let name = format!("{base}.{suffix}");
    match shards.get(&name) {
        Some(tensor) if tensor.shape == shape => Ok(tensor),
        Some(tensor) => Err(format!("has `{name}` of shape {:?}, expected {shape:?}", tensor.shape)),
        None => Err(format!("has no `{name}`")),
    }
}

/// Returns the name of the tensor with the group of each column; `None` if the columns are in order.
fn groups(shards: &Shards, base: &str, columns: usize, group: usize) -> Result<Option<String>, String> {
    let Some(tensor) = shards.get(&format!("{base}.g_idx")) else {
        return Ok(None);
    };
    if tensor.shape != [columns] || tensor.ty != SourceType::I32 {
        return Err(format!(
            "has `{}` of shape {:?}, expected {columns} 32-bit integers",
            tensor.name, tensor.shape
        ));
    }
    let data = shards.data(&tensor.name);
    let of_column = |column: usize| word(data, column) as usize;
    let n_groups = columns.div_ceil(group);
    if let Some(column) = (0..columns).find(|&column| of_column(column) >= n_groups) {
        return Err(format!(
            "has column {column} in group {}, expected at most {}",
            of_column(column),
            n_groups - 1
        ));
    }
    let is_in_order = (0..columns).all(|column| of_column(column) == column / group);
    Ok((!is_in_order).then(|| tensor.name.clone()))
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
            scales: (scales.name.clone(), scales.ty),
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
