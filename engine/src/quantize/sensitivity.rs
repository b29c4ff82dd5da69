//! Sensitivity of a model to errors of each matrix: the divergence of the model with one matrix quantized.
//!
//! The divergence is proportional to the squared error of a matrix as long as both are small. One measurement in a
//! type with an error of about one percent therefore serves all types.

use std::collections::BTreeMap;
use std::io::Cursor;
use std::sync::Arc;

use kernels::GgmlType::{self, *};
use rayon::prelude::*;

use super::calibration::Calibration;
use super::costs::{MatrixCosts, TypeCost};
use super::error::QuantizeError;
use super::plan::{PlannedTensor, QuantizePlan};
use super::role;
use super::write::encode;
use crate::gguf::{GgufFile, GgufSet, GgufWriter};
use crate::measure::{
    BaseFormat, BaseReader, BaseWriter, Corpus, LogProbs, MeasureError, ModelComparison, check_model, decode_step,
    logits_at,
};
use crate::model::Model;
use crate::vocab::Token;

/// Types to measure matrices in. The first type that fits a matrix is used.
const PROBES: [GgmlType; 4] = [Q3_K, Q4_0, Q4_K, Q8_0];

/// Measures the sensitivity of all matrices, and sets the divergence of their types. `progress` is called with the
/// numbers of completed and of all measurements; it returns false to stop. Returns the number of scored tokens.
///
/// # Errors
/// Returns an error if the model cannot be loaded or decoded, the text is too short, or `progress` stops the operation.
pub fn measure_sensitivities(
    source: &GgufSet,
    plan: &QuantizePlan,
    costs: &mut [MatrixCosts],
    calibration: &Calibration<'_>,
    progress: &dyn Fn(usize, usize) -> bool,
) -> Result<usize, QuantizeError> {
    let groups = groups(costs);
    let mut all = Vec::new();
    for group in &groups {
        all.extend(trials(costs, group, calibration.n_layers));
    }
    if !progress(0, all.len()) {
        return Err(QuantizeError::Stopped);
    }
    let base = Base::new(source, calibration)?;
    for (done, &(i, at)) in all.iter().enumerate() {
        let costs = &mut costs[i];
        let Some(tensor) = plan.tensors.iter().find(|tensor| tensor.source == costs.name) else {
            continue;
        };
        let file = quantized(source, plan, tensor, costs.types[at].ty)?;
        let divergence = base.divergence(&source.with_replaced(file), calibration)?.max(0.0);
        let probe = &mut costs.types[at];
        probe.divergence = divergence;
        costs.sensitivity = if probe.error > 0.0 {
            divergence / probe.error
        } else {
            0.0
        };
        costs.is_measured = true;
        if !progress(done + 1, all.len()) {
            return Err(QuantizeError::Stopped);
        }
    }
    for group in groups.iter().filter(|group| group.len() > 1) {
        interpolate(costs, group);
        for &i in group {
            scale(&mut costs[i]);
        }
    }
    Ok(base.n_scored)
}

/// Returns the matrices of a group to measure, each with the index of a type. A matrix that all layers share, such as
/// the token embedding, is measured in all types.
fn trials(costs: &[MatrixCosts], group: &[usize], n_layers: usize) -> Vec<(usize, usize)> {
    if let [only] = *group {
        let types = costs[only].types.iter().enumerate();
        let inexact = types.filter(|(_, cost)| cost.error > NEGLIGIBLE);
        return inexact.map(|(at, _)| (only, at)).collect();
    }
    let measured = spread(group.len(), n_layers).map(|i| group[i]);
    measured.map(|i| (i, probe(&costs[i].types))).collect()
}

/// Relative error below which a type is treated as exact.
const NEGLIGIBLE: f64 = 1e-6;

/// Returns the index of the type to measure a matrix in.
fn probe(types: &[TypeCost]) -> usize {
    let found = PROBES
        .iter()
        .find_map(|ty| types.iter().position(|cost| cost.ty == *ty));
    found.unwrap_or(0)
}

/// Derives the divergence of all types from their errors.
fn scale(costs: &mut MatrixCosts) {
    for cost in &mut costs.types {
        cost.divergence = costs.sensitivity * cost.error;
    }
}

/// Returns the indices of the matrices of each kind, in the order of layers.
fn groups(costs: &[MatrixCosts]) -> Vec<Vec<usize>> {
    let mut groups: BTreeMap<&str, Vec<(Option<usize>, usize)>> = BTreeMap::new();
    for (i, costs) in costs.iter().enumerate() {
        let (layer, kind) = role::split(&costs.name);
        groups.entry(kind).or_default().push((layer, i));
    }
    let groups = groups.into_values().map(|mut group| {
        group.sort_unstable();
        group.into_iter().map(|(_, i)| i).collect()
    });
    groups.collect()
}

/// Yields up to `n` evenly spaced indices below `len`, with the first and the last index; the middle if `n` is 1.
fn spread(len: usize, n: usize) -> impl Iterator<Item = usize> {
    let n = n.clamp(1, len.max(1)).min(len);
    (0..n).map(move |i| match n {
        1 => len / 2,
        _ => i * (len - 1) / (n - 1),
    })
}

/// Interpolates the logarithm of the sensitivity between the measured matrices of a group.
fn interpolate(costs: &mut [MatrixCosts], group: &[usize]) {
    let measured: Vec<(usize, f64)> = group
        .iter()
        .enumerate()
        .filter(|(_, i)| costs[**i].is_measured)
        .map(|(at, &i)| (at, costs[i].sensitivity))
        .collect();
    if measured.is_empty() {
        return;
    }
    for (at, &i) in group.iter().enumerate() {
        if costs[i].is_measured {
            continue;
        }
        let after = measured.partition_point(|(other, _)| *other < at);
        let (right, left) = (after.min(measured.len() - 1), after.saturating_sub(1));
        let ((x0, y0), (x1, y1)) = (measured[left], measured[right]);
        costs[i].sensitivity = if x1 > x0 && y0 > 0.0 && y1 > 0.0 {
            let part = (at as f64 - x0 as f64) / (x1 - x0) as f64;
            (y0.ln() + part.clamp(0.0, 1.0) * (y1 / y0).ln()).exp()
        } else {
            y0.max(y1)
        };
    }
}

/// Returns a file with a single tensor, which is quantized and decoded again.
fn quantized(
    source: &GgufSet,
    plan: &QuantizePlan,
    tensor: &PlannedTensor,
    ty: GgmlType,
) -> Result<GgufFile, QuantizeError> {
    let planned = PlannedTensor {
        to: ty,
        ..tensor.clone()
    };
    let encoded = encode(source, &planned, plan.importance.as_deref())?;
    let decoded_type = if tensor.from.is_quantized() { F16 } else { tensor.from };
    let n_in = tensor.shape[0];
    let (from, to) = (
        ty.row_bytes(n_in).unwrap_or(1),
        decoded_type.row_bytes(n_in).unwrap_or(1),
    );
    let mut decoded = vec![0; encoded.len() / from.max(1) * to];
    decoded
        .par_chunks_exact_mut(to)
        .zip(encoded.par_chunks_exact(from))
        .for_each_init(
            || vec![0.0; n_in],
            |floats, (decoded, encoded)| {
                kernels::dequantize_row(ty, encoded, floats);
                kernels::encode_row(decoded_type, floats, None, decoded);
            },
        );
    let mut writer = GgufWriter::new();
    writer.add_tensor(tensor.source.as_str(), decoded_type, &tensor.shape, decoded)?;
    Ok(GgufFile::from_bytes(source.first().path(), &writer.to_bytes()?)?)
}

/// Log-probabilities of the unchanged model.
struct Base {
    corpus: Corpus,
    rows: Vec<u8>,
    n_scored: usize,
}

impl Base {
    fn new(source: &GgufSet, calibration: &Calibration<'_>) -> Result<Base, QuantizeError> {
        let model = calibration.load(source)?;
        check_model(&model)?;
        let n_ctx = calibration.n_ctx;
        let corpus = Corpus::new(model.vocab(), calibration.text, n_ctx, Some(calibration.n_chunks))?;
        let (mut writer, mut n_scored) = (None, 0);
        decode(&model, &corpus, calibration, &mut |rows| {
            n_scored += rows.len();
            let Some((logits, _)) = rows.first() else {
                return Ok(());
            };
            let writer = match &mut writer {
                Some(writer) => writer,
                None => {
                    let new = BaseWriter::new(Vec::new(), BaseFormat::Compact, &corpus, logits.len())?;
                    writer.insert(new)
                }
            };
            Ok(writer.write(rows)?)
        })?;
        let rows = match writer {
            Some(writer) => writer.finish().map_err(MeasureError::from)?,
            None => Vec::new(),
        };
        Ok(Base { corpus, rows, n_scored })
    }

    /// Returns the mean divergence of a changed model.
    fn divergence(&self, changed: &GgufSet, calibration: &Calibration<'_>) -> Result<f64, QuantizeError> {
        let model = calibration.load(changed)?;
        let mut base = BaseReader::new(Cursor::new(&self.rows), self.rows.len() as u64)?;
        let mut result = ModelComparison::default();
        decode(&model, &self.corpus, calibration, &mut |rows| {
            let base = rows.iter().map(|_| base.next_row()).collect::<Result<Vec<_>, _>>()?;
            let compared = rows.par_iter().zip(&base);
            let compared: Vec<_> = compared
                .map(|(&(logits, token), base)| LogProbs::new(logits).compare(base, token))
                .collect();
            compared.into_iter().for_each(|compared| result.add(compared));
            Ok(())
        })?;
        Ok(result.summary().kld.value)
    }
}

/// Logits of a scored position, and the token that follows.
type Scored<'a> = (&'a [f32], Token);

/// Passes the logits of the scored positions of each step to `visit`, each with the token that follows.
fn decode(
    model: &Arc<Model>,
    corpus: &Corpus,
    calibration: &Calibration<'_>,
    visit: &mut dyn FnMut(&[Scored<'_>]) -> Result<(), MeasureError>,
) -> Result<(), QuantizeError> {
    let mut context = calibration.context(model, corpus)?;
    for step in corpus.steps(calibration.n_batch, 0, false) {
        decode_step(&mut context, &step)?;
        let row = |scored| Ok((logits_at(&context, scored)?, scored.token));
        let rows = step.scored.iter().map(row).collect::<Result<Vec<_>, MeasureError>>()?;
        visit(&rows)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_includes_first_and_last_layer() {
        let spread = |len, n| spread(len, n).collect::<Vec<_>>();
        assert_eq!(spread(10, 3), [0, 4, 9]);
        assert_eq!(spread(3, 9), [0, 1, 2]);
        assert_eq!(spread(5, 1), [2]);
        assert_eq!(spread(0, 4), [0; 0]);
    }

    #[test]
    fn sensitivities_are_interpolated_between_layers() {
        let mut costs: Vec<MatrixCosts> = (0..6)
            .map(|layer| MatrixCosts {
                name: format!("blk.{layer}.attn_q.weight"),
                n_weights: 1,
                sensitivity: [0.0, 1.0, 0.0, 0.0, 8.0, 0.0][layer],
                is_measured: layer == 1 || layer == 4,
                types: Vec::new(),
            })
            .collect();
        let groups = groups(&costs);
        assert_eq!(groups, [vec![0, 1, 2, 3, 4, 5]]);
        interpolate(&mut costs, &groups[0]);
        let found: Vec<f64> = costs
            .iter()
            .map(|costs| (1e9 * costs.sensitivity).round() / 1e9)
            .collect();
        assert_eq!(found, [1.0, 1.0, 2.0, 4.0, 8.0, 8.0]);
    }
}
