//! Writing of quantized files, with one batch of rows in memory at a time.

use std::cell::RefCell;
use std::io::{self, Write};

use kernels::GgmlType;
use rayon::prelude::*;

use super::calibrated::CalibratedRounding;
use super::error::QuantizeError;
use super::moments::MatrixFactors;
use super::plan::{PlannedTensor, QuantizePlan};
use crate::finite;
use crate::gguf::{GgufError, GgufSet, GgufWriter, Metadata, Value};
use crate::importance::{ImportanceError, ImportanceMatrix};
use crate::measure::MeasureError;

/// Elements decoded at a time.
const BATCH: usize = 1 << 23;

/// Elements that a thread takes at a time.
const TASK: usize = 1 << 16;

/// Number of rows that are encoded together.
const GROUP: usize = 8;

/// Version of the formats, in the metadata of every quantized file.
const VERSION: u32 = 2;

/// Metadata key: number of tensors in all parts of a model.
const TENSORS_COUNT: &str = "split.tensors.count";

/// Output file with the planned types, or a part of a split output.
#[derive(Clone)]
pub struct QuantizedFile<'a> {
    source: &'a GgufSet,
    plan: &'a QuantizePlan,
    overrides: &'a [(String, Value)],
    /// Index of the source file whose tensors the output contains; `None` for all tensors.
    part: Option<usize>,
    rounding: Option<&'a CalibratedRounding<'a>>,
}

impl<'a> QuantizedFile<'a> {
    /// Creates a file with all tensors. `overrides` replace metadata.
    pub fn new(source: &'a GgufSet, plan: &'a QuantizePlan, overrides: &'a [(String, Value)]) -> QuantizedFile<'a> {
        QuantizedFile {
            source,
            plan,
            overrides,
            part: None,
            rounding: None,
        }
    }

    /// Rounds with error feedback.
    pub fn rounded_by(self, rounding: Option<&'a CalibratedRounding<'a>>) -> QuantizedFile<'a> {
        QuantizedFile { rounding, ..self }
    }

    /// Restricts the file to the tensors and metadata of one file of a split source.
    pub fn of_part(self, part: usize) -> QuantizedFile<'a> {
        QuantizedFile {
            part: Some(part),
            ..self
        }
    }

    /// Yields the tensors of the file.
    pub fn tensors(&self) -> impl Iterator<Item = &'a PlannedTensor> {
        let part = self.part;
        let tensors = self.plan.tensors.iter();
        tensors.filter(move |tensor| part.is_none_or(|part| tensor.shard == part))
    }

    /// Returns the header and the offsets at which the header and each tensor end.
    ///
    /// # Errors
    /// Returns an error if the metadata cannot be written.
    pub fn layout(&self) -> Result<(Vec<u8>, Vec<u64>), QuantizeError> {
        let mut writer = GgufWriter::with_metadata(self.metadata());
        for tensor in self.tensors() {
            writer.add_tensor_with(tensor.name.as_str(), tensor.to, &tensor.shape, |_| Ok(()))?;
        }
        Ok((writer.header()?, writer.ends()?))
    }

    /// Writes the file. With `n_done`, continues a file that already has a header and `n_done` tensors. `progress` is
    /// called with the number of completed elements; it returns false to stop. Returns the number of bytes written.
    ///
    /// # Errors
    /// Returns an error if a weight is not finite, writing fails, or `progress` stops the operation.
    pub fn write(
        &self,
        n_done: Option<usize>,
        out: &mut dyn Write,
        progress: &dyn Fn(usize) -> bool,
    ) -> Result<u64, QuantizeError> {
        let failure = RefCell::new(None);
        let finished = self.tensors().take(n_done.unwrap_or(0));
        let done = RefCell::new(finished.map(PlannedTensor::n_elements).sum::<usize>());
        let mut writer = GgufWriter::with_metadata(self.metadata());
        for tensor in self.tensors() {
            let (failure, done, importance) = (&failure, &done, self.plan.importance.as_deref());
            writer.add_tensor_with(tensor.name.as_str(), tensor.to, &tensor.shape, move |out| {
                let mut step = |n: usize| {
                    *done.borrow_mut() += n;
                    progress(*done.borrow())
                };
                let factors = match self.rounding {
                    Some(rounding) => rounding.factors(tensor, &mut || step(0)).map_err(Error::Quantize),
                    None => Ok(None),
                };
                let result = factors.and_then(|factors| {
                    let data = self.source.read_tensor(&tensor.source)?;
                    let weights = Weights {
                        importance: column_weights(tensor, importance)?,
                        factors,
                    };
                    convert(tensor, &data, &weights, out, &mut step)
                });
                result.map_err(|error| match error {
                    Error::Io(error) => error,
                    Error::Quantize(error) => {
                        *failure.borrow_mut() = Some(error);
                        io::Error::other("stopped")
                    }
                })
            })?;
        }
        let written = match n_done {
            None => writer.write(out),
            Some(n) => writer.write_rest(n, out),
        };
        written.map_err(|error| failure.take().unwrap_or_else(|| error.into()))
    }

    fn metadata(&self) -> Metadata {
        let is_kept = |key: &str| self.part.is_some() || !key.starts_with("split.");
        let shard = &self.source.shards()[self.part.unwrap_or(0)];
        let kept = shard.metadata().iter().filter(|(key, _)| is_kept(key));
        let mut metadata: Metadata = kept.map(|(key, value)| (key, value.clone())).collect();
        if metadata.contains(TENSORS_COUNT) {
            let n_tensors = i32::try_from(self.plan.tensors.len()).unwrap_or(i32::MAX);
            metadata.insert(TENSORS_COUNT, n_tensors);
        }
        if self.part.is_some_and(|part| part > 0) {
            return metadata;
        }
        self.plan.pruned.change_metadata(&mut metadata);
        metadata.insert("general.file_type", self.plan.mixture.file_type());
        metadata.insert("general.quantization_version", VERSION);
        for (key, value) in self.overrides {
            metadata.insert(key.as_str(), value.clone());
        }
        metadata
    }
}

enum Error {
    Io(io::Error),
    Quantize(QuantizeError),
}

impl From<GgufError> for Error {
    fn from(error: GgufError) -> Error {
        Error::Quantize(error.into())
    }
}

impl From<ImportanceError> for Error {
    fn from(error: ImportanceError) -> Error {
        Error::Quantize(error.into())
    }
}

/// Weights of the errors of a tensor.
#[derive(Default)]
struct Weights {
    /// Importance of the columns of all matrices.
    importance: Option<Vec<f32>>,
    /// Error feedback of each matrix, or of all matrices.
    factors: Option<MatrixFactors>,
}

impl Weights {
    /// Encodes rows of a matrix.
    fn encode(&self, ty: GgmlType, matrix: usize, rows: &[f32], n_in: usize, encoded: &mut [u8]) {
        let factors = self.factors.as_ref();
        let of_matrix = factors.and_then(|factors| factors.get(matrix.min(factors.len().saturating_sub(1))));
        if let Some(Some(feedback)) = of_matrix {
            return kernels::encode_rows(ty, rows, feedback, encoded);
        }
        let importance = self.importance.as_ref();
        let importance = importance.and_then(|weights| weights.get(matrix * n_in..(matrix + 1) * n_in));
        let row_bytes = encoded.len() / (rows.len() / n_in).max(1);
        for (row, encoded) in rows.chunks_exact(n_in).zip(encoded.chunks_exact_mut(row_bytes)) {
            kernels::encode_row(ty, row, importance, encoded);
        }
    }
}

/// Converts the rows of a tensor in batches, each on all threads.
fn convert(
    tensor: &PlannedTensor,
    data: &[u8],
    weights: &Weights,
    out: &mut dyn Write,
    step: &mut dyn FnMut(usize) -> bool,
) -> Result<(), Error> {
    let n_in = tensor.shape.first().copied().unwrap_or(0);
    let (Some(from), Some(to)) = (tensor.from.row_bytes(n_in), tensor.to.row_bytes(n_in)) else {
        return out.write_all(data).map_err(Error::Io);
    };
    if from == 0 || !is_checked(tensor.from) && tensor.from == tensor.to {
        out.write_all(data).map_err(Error::Io)?;
        return if step(tensor.n_elements()) {
            Ok(())
        } else {
            Err(Error::Quantize(QuantizeError::Stopped))
        };
    }
    let rows_per_task = (TASK / n_in).max(1).next_multiple_of(GROUP);
    let rows_per_batch = (BATCH / n_in).max(1).next_multiple_of(rows_per_task);
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
                convert_rows(tensor, first, (data, from), (encoded, to), weights)
            })
            .map_err(Error::Quantize)?;
        out.write_all(&encoded).map_err(Error::Io)?;
        if !step(rows * n_in) {
            return Err(Error::Quantize(QuantizeError::Stopped));
        }
    }
    Ok(())
}

/// Returns the encoded rows of a tensor.
///
/// # Errors
/// Returns an error if a weight is not finite.
pub(super) fn encode(
    source: &GgufSet,
    tensor: &PlannedTensor,
    importance: Option<&ImportanceMatrix>,
) -> Result<Vec<u8>, QuantizeError> {
    let data = source.read_tensor(&tensor.source)?;
    let mut encoded = Vec::new();
    let weights = Weights {
        importance: column_weights(tensor, importance)?,
        factors: None,
    };
    match convert(tensor, &data, &weights, &mut encoded, &mut |_| true) {
        Ok(()) => Ok(encoded),
        Err(Error::Quantize(error)) => Err(error),
        Err(Error::Io(error)) => Err(MeasureError::from(error).into()),
    }
}

/// Returns the importance of the columns of all matrices of a tensor.
pub(super) fn column_weights(
    tensor: &PlannedTensor,
    importance: Option<&ImportanceMatrix>,
) -> Result<Option<Vec<f32>>, ImportanceError> {
    match (&tensor.weighted_by, importance) {
        (Some(name), Some(importance)) => {
            let weights = importance.weights(name, tensor.shape[0], tensor.n_matrices())?;
            Ok(weights.map(|weights| weights.values))
        }
        _ => Ok(None),
    }
}

/// Returns true if individual elements of this type may be NaN or infinite.
fn is_checked(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}

/// Converts consecutive rows starting at index `first`. Rows have the sizes `from` and `to`.
fn convert_rows(
    tensor: &PlannedTensor,
    first: usize,
    (data, from): (&[u8], usize),
    (encoded, to): (&mut [u8], usize),
    weights: &Weights,
) -> Result<(), QuantizeError> {
    let n_in = tensor.shape[0];
    let rows_per_matrix = tensor.shape.get(1).copied().unwrap_or(1).max(1);
    let n_rows = data.len() / from;
    let mut floats = vec![0.0; GROUP.min(n_rows) * n_in];
    let mut done = 0;
    while done < n_rows {
        let row = first + done;
        let (matrix, of_matrix) = (row / rows_per_matrix, rows_per_matrix - row % rows_per_matrix);
        let n = GROUP.min(n_rows - done).min(of_matrix);
        let (data, floats) = (&data[done * from..][..n * from], &mut floats[..n * n_in]);
        for (i, (data, floats)) in data.chunks_exact(from).zip(floats.chunks_exact_mut(n_in)).enumerate() {
            kernels::dequantize_row(tensor.from, data, floats);
            finite::check_finite(floats).map_err(|error| QuantizeError::NotFinite {
                tensor: tensor.name.clone(),
                row: row + i,
                column: error.index,
                value: error.value,
            })?;
        }
        let encoded = &mut encoded[done * to..][..n * to];
        if tensor.from == tensor.to {
            encoded.copy_from_slice(data);
        } else {
            weights.encode(tensor.to, matrix, floats, n_in, encoded);
        }
        done += n;
    }
    Ok(())
}
