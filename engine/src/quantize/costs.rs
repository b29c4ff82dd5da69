//! Costs of types: the divergence that quantizing a matrix to each type causes.

use kernels::GgmlType::{self, *};
use rayon::prelude::*;

use super::error::QuantizeError;
use super::plan::{PlannedTensor, QuantizePlan};
use super::write::column_weights;
use crate::finite;
use crate::gguf::GgufSet;

/// Number of elements sampled from each matrix to measure errors.
const SAMPLE: usize = 1 << 16;

/// Maximum importance of a column, as a multiple of the median. Some tokens, such as the first one, have outliers in a
/// few columns that are hundreds of times larger than usual values. Outliers dominate the mean square, but not the
/// divergence.
const CAP: f32 = 8.0;

/// Candidate types with or without an importance matrix.
const TYPES: [GgmlType; 17] = [
    Q2_0, Q2_K, IQ3_XXS, Q3_K, IQ3_S, MXFP4, IQ4_XS, Q4_0, IQ4_NL, Q4_K, Q4_1, Q5_0, Q5_K, Q5_1, Q6_K, Q8_0, F16,
];

/// Additional candidate types with an importance matrix.
const WEIGHTED_TYPES: [GgmlType; 5] = [IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S];

/// Cost of storing a matrix in a type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypeCost {
    /// Type of the matrix.
    pub ty: GgmlType,
    /// Size of the matrix.
    pub bytes: usize,
    /// Sum of squared errors divided by the sum of squares, both weighted by importance.
    pub error: f64,
    /// Divergence if only this matrix is quantized; 0 before the measurement.
    pub divergence: f64,
}

/// Costs of a matrix, or of a stack of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MatrixCosts {
    /// Name of the tensor.
    pub name: String,
    /// Number of elements.
    pub n_weights: usize,
    /// Ratio of divergence to error.
    pub sensitivity: f64,
    /// Whether the sensitivity was measured instead of interpolated between layers.
    pub is_measured: bool,
    /// Costs of each type, sorted by size.
    pub types: Vec<TypeCost>,
}

/// Returns the default candidate types.
pub fn candidate_types(has_importance: bool) -> Vec<GgmlType> {
    if has_importance {
        [&WEIGHTED_TYPES[..], &TYPES[..]].concat()
    } else {
        TYPES.to_vec()
    }
}

/// Measures the errors of all free tensors of a plan in all types. `progress` is called with the number of tensors
/// done; it returns false to stop.
///
/// # Errors
/// Returns an error if a tensor fits none of the types, a weight is not finite, or `progress` stops the operation.
pub fn measure_errors(
    source: &GgufSet,
    plan: &QuantizePlan,
    types: &[GgmlType],
    progress: &dyn Fn(usize) -> bool,
) -> Result<Vec<MatrixCosts>, QuantizeError> {
    let mut costs = Vec::new();
    for tensor in plan.tensors.iter().filter(|tensor| tensor.is_free) {
        let sample = Sample::new(source, plan, tensor)?;
        let n_in = tensor.shape[0];
        let n_rows = tensor.n_elements() / n_in.max(1);
        let fitting = types.par_iter().filter_map(|&ty| {
            let bytes = ty.row_bytes(n_in)? * n_rows;
            let error = sample.error(ty);
            Some(TypeCost {
                ty,
                bytes,
                error,
                divergence: 0.0,
            })
        });
        let mut fitting: Vec<_> = fitting.collect();
        if fitting.is_empty() {
            return Err(QuantizeError::NoType {
                tensor: tensor.source.clone(),
                n_in,
            });
        }
        fitting.sort_by_key(|cost| cost.bytes);
        costs.push(MatrixCosts {
            name: tensor.source.clone(),
            n_weights: tensor.n_elements(),
            sensitivity: 1.0,
            is_measured: false,
            types: fitting,
        });
        if !progress(costs.len()) {
            return Err(QuantizeError::Stopped);
        }
    }
    Ok(costs)
}

/// Limits the importance of columns to [`CAP`] times the median; 1 for all columns if the median is 0.
fn capped(weights: &[f32]) -> Vec<f32> {
    let mut sorted = weights.to_vec();
    let middle = sorted.len() / 2;
    let (_, median, _) = sorted.select_nth_unstable_by(middle, f32::total_cmp);
    let cap = CAP * *median;
    let is_useful = cap > 0.0;
    weights
        .iter()
        .map(|weight| if is_useful { weight.min(cap) } else { 1.0 })
        .collect()
}

/// Evenly spaced rows of a tensor, with the importance of their columns.
struct Sample {
    n_in: usize,
    rows: Vec<f32>,
    weights: Option<Vec<f32>>,
    /// Weights of errors: `weights`, limited by [`capped`].
    capped: Vec<f32>,
    /// Matrix of each row.
    matrices: Vec<usize>,
}

impl Sample {
    fn new(source: &GgufSet, plan: &QuantizePlan, tensor: &PlannedTensor) -> Result<Sample, QuantizeError> {
        let n_in = tensor.shape[0];
        let n_rows = tensor.n_elements() / n_in.max(1);
        let n_sampled = (SAMPLE / n_in.max(1)).clamp(1, n_rows.max(1));
        let data = source.read_tensor(&tensor.source)?;
        let row_bytes = tensor.from.row_bytes(n_in).unwrap_or(0);
        let rows_per_matrix = tensor.shape.get(1).copied().unwrap_or(1).max(1);
        let mut sample = Sample {
            n_in,
            rows: vec![0.0; n_in * n_sampled],
            weights: column_weights(tensor, plan.importance.as_deref())?,
            capped: Vec::new(),
            matrices: Vec::with_capacity(n_sampled),
        };
        let of_matrices = sample.weights.iter().flat_map(|weights| weights.chunks(n_in.max(1)));
        sample.capped = of_matrices.flat_map(capped).collect();
        for (i, floats) in sample.rows.chunks_exact_mut(n_in).enumerate() {
            // In 128 bits, the product cannot overflow.
            let row = (i as u128 * n_rows as u128 / n_sampled as u128) as usize;
            let Some(bytes) = data.get(row * row_bytes..(row + 1) * row_bytes) else {
                break;
            };
            kernels::dequantize_row(tensor.from, bytes, floats);
            finite::check_finite(floats).map_err(|error| QuantizeError::NotFinite {
                tensor: tensor.source.clone(),
                row,
                column: error.index,
                value: error.value,
            })?;
            sample.matrices.push(row / rows_per_matrix);
        }
        Ok(sample)
    }

    /// Returns the relative error of a type whose blocks divide the rows.
    fn error(&self, ty: GgmlType) -> f64 {
        let mut encoded = vec![0; ty.row_bytes(self.n_in).unwrap_or(0)];
        let mut decoded = vec![0.0; self.n_in];
        let (mut errors, mut squares) = (0.0, 0.0);
        for (row, matrix) in self.rows.chunks_exact(self.n_in).zip(&self.matrices) {
            let weights = self.weights.as_ref().map(|w| &w[matrix * self.n_in..][..self.n_in]);
            kernels::encode_row(ty, row, weights, &mut encoded);
            kernels::dequantize_row(ty, &encoded, &mut decoded);
            let capped = self.capped.get(matrix * self.n_in..).unwrap_or_default();
            for (j, (x, y)) in row.iter().zip(&decoded).enumerate() {
                let weight = capped.get(j).map_or(1.0, |w| f64::from(*w));
                errors += weight * f64::from(x - y).powi(2);
                squares += weight * f64::from(*x).powi(2);
            }
        }
        if squares > 0.0 { errors / squares } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn importance_is_capped_at_a_multiple_of_the_median() {
        assert_eq!(capped(&[1.0, 2.0, 1e6, 3.0, 0.5]), [1.0, 2.0, 16.0, 3.0, 0.5]);
        // If the median is 0, all columns have the same importance.
        assert_eq!(capped(&[0.0, 0.0, 5.0]), [1.0, 1.0, 1.0]);
    }

    #[test]
    fn candidate_types_below_two_bits_need_importance() {
        assert!(!candidate_types(false).contains(&IQ1_S));
        let all = candidate_types(true);
        assert!(all.contains(&IQ1_S) && all.contains(&Q4_K));
        assert!(all.iter().all(|&ty| kernels::can_encode(ty)));
    }
}
