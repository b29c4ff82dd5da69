//! Writing of quantized files, with one batch of rows in memory at a time.

use std::cell::RefCell;
use std::io::{self, Write};

use kernels::GgmlType;
use rayon::prelude::*;

use super::error::QuantizeError;
use super::plan::{PlannedTensor, QuantizePlan};
use crate::finite;
use crate::gguf::{GgufSet, GgufWriter, Metadata, Value};
use crate::importance::{ImportanceError, ImportanceMatrix};

/// Elements decoded at a time.
const BATCH: usize = 1 << 23;

/// Elements that a thread takes at a time.
const TASK: usize = 1 << 16;

/// Version of the formats, in the metadata of every quantized file.
const VERSION: u32 = 2;

/// Writes a file with the planned types. `overrides` replace metadata. `progress` is called with the number of
/// elements done; it returns false to stop. Returns the size of the file.
///
/// # Errors
/// If a weight is not finite, writing fails, or `progress` stops the operation.
pub fn write(
    source: &GgufSet,
    plan: &QuantizePlan,
    overrides: &[(String, Value)],
    out: &mut dyn Write,
    progress: &dyn Fn(usize) -> bool,
) -> Result<u64, QuantizeError> {
    let failure = RefCell::new(None);
    let done = RefCell::new(0);
    let mut writer = GgufWriter::with_metadata(metadata(source, plan, overrides));
    for tensor in &plan.tensors {
        let data = source.tensor_data(&tensor.name).unwrap_or_default();
        let (failure, done, importance) = (&failure, &done, plan.importance.as_deref());
        writer.add_tensor_with(tensor.name.as_str(), tensor.to, &tensor.shape, move |out| {
            let mut step = |n: usize| {
                *done.borrow_mut() += n;
                progress(*done.borrow())
            };
            convert(tensor, data, importance, out, &mut step).map_err(|error| match error {
                Error::Io(error) => error,
                Error::Quantize(error) => {
                    *failure.borrow_mut() = Some(error);
                    io::Error::other("stopped")
                }
            })
        })?;
    }
    writer
        .write(out)
        .map_err(|error| failure.take().unwrap_or_else(|| error.into()))
}

/// Returns the metadata of the output file.
fn metadata(source: &GgufSet, plan: &QuantizePlan, overrides: &[(String, Value)]) -> Metadata {
    // The output is one file, even if the source is split.
    let kept = source.metadata().iter().filter(|(key, _)| !key.starts_with("split."));
    let mut metadata: Metadata = kept.map(|(key, value)| (key, value.clone())).collect();
    metadata.insert("general.file_type", plan.mixture.file_type());
    metadata.insert("general.quantization_version", VERSION);
    for (key, value) in overrides {
        metadata.insert(key.as_str(), value.clone());
    }
    metadata
}

enum Error {
    Io(io::Error),
    Quantize(QuantizeError),
}

/// Converts the rows of a tensor in batches, each on all threads.
fn convert(
    tensor: &PlannedTensor,
    data: &[u8],
    importance: Option<&ImportanceMatrix>,
    out: &mut dyn Write,
    step: &mut dyn FnMut(usize) -> bool,
) -> Result<(), Error> {
    let n_in = tensor.shape.first().copied().unwrap_or(0);
    let (Some(from), Some(to)) = (tensor.from.row_bytes(n_in), tensor.to.row_bytes(n_in)) else {
        return out.write_all(data).map_err(Error::Io);
    };
    if from == 0 || !is_checked(tensor.from) && tensor.from == tensor.to {
        step(tensor.n_elements());
        return out.write_all(data).map_err(Error::Io);
    }
    let weights = weights(tensor, importance).map_err(|error| Error::Quantize(error.into()))?;
    let rows_per_batch = (BATCH / n_in).max(1);
    let rows_per_task = (TASK / n_in).max(1);
    let mut encoded = Vec::new();
    for (batch, data) in data.chunks(rows_per_batch * from).enumerate() {
        let first = batch * rows_per_batch;
        let rows = data.len() / from;
        encoded.resize(rows * to, 0);
        encoded
            .par_chunks_mut(rows_per_task * to)
            .zip(data.par_chunks(rows_per_task * from))
            .enumerate()
            .try_for_each(|(task, (encoded, data))| {
                let first = first + task * rows_per_task;
                convert_rows(tensor, first, (data, from), (encoded, to), weights.as_deref())
            })
            .map_err(Error::Quantize)?;
        out.write_all(&encoded).map_err(Error::Io)?;
        if !step(rows * n_in) {
            return Err(Error::Quantize(QuantizeError::Stopped));
        }
    }
    Ok(())
}

/// Returns the importance of the columns of all matrices of a tensor.
fn weights(tensor: &PlannedTensor, importance: Option<&ImportanceMatrix>) -> Result<Option<Vec<f32>>, ImportanceError> {
    match (&tensor.weighted_by, importance) {
        (Some(name), Some(importance)) => {
            let weights = importance.weights(name, tensor.shape[0], tensor.n_matrices())?;
            Ok(weights.map(|weights| weights.values))
        }
        _ => Ok(None),
    }
}

/// Returns true if the elements of this type may be NaN or infinite on their own.
fn is_checked(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// Converts consecutive rows from index `first` on. Rows have the sizes `from` and `to`.
fn convert_rows(
    tensor: &PlannedTensor,
    first: usize,
    (data, from): (&[u8], usize),
    (encoded, to): (&mut [u8], usize),
    weights: Option<&[f32]>,
) -> Result<(), QuantizeError> {
    let n_in = tensor.shape[0];
    let rows_per_matrix = tensor.shape.get(1).copied().unwrap_or(1).max(1);
    let mut floats = vec![0.0; n_in];
    for (i, (data, encoded)) in data.chunks_exact(from).zip(encoded.chunks_exact_mut(to)).enumerate() {
        kernels::dequantize_row(tensor.from, data, &mut floats);
        finite::check_finite(&floats).map_err(|error| QuantizeError::NotFinite {
            tensor: tensor.name.clone(),
            row: first + i,
            column: error.index,
            value: error.value,
        })?;
        if tensor.from == tensor.to {
            encoded.copy_from_slice(data);
        } else {
            let matrix = (first + i) / rows_per_matrix;
            let weights = weights.and_then(|weights| weights.get(matrix * n_in..(matrix + 1) * n_in));
            kernels::encode_row(tensor.to, &floats, weights, encoded);
        }
    }
    Ok(())
}
