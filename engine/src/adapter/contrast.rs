//! Control vectors from contrasting prompts (Zou et al., arXiv 2310.01405). The direction of a layer points from its
//! outputs for negative prompts to its outputs for positive prompts.

use std::collections::BTreeMap;
use std::io::Write;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};

use kernels::GgmlType;
use rayon::prelude::*;

use crate::finite::check_finite;
use crate::gguf::{GgufError, GgufWriter};
use crate::graph::{Graph, TensorId};
use crate::model::Model;
use crate::random::SplitMix64;
use crate::sched::Observer;

/// Maximum magnitude of a difference that counts as zero.
const NEGLIGIBLE: f32 = 1e-6;

/// The iteration ends when the direction changes by less than this amount.
const TOLERANCE: f64 = 1e-7;

/// Reason why a control vector cannot be derived.
#[derive(Debug, thiserror::Error)]
pub enum ContrastError {
    /// The prompts of a pair have different numbers of outputs.
    #[error(
        "the outputs of layer {layer} have {positive} values for the positive prompt and {negative} for the negative one"
    )]
    Length {
        /// Index of the layer.
        layer: usize,
        /// Number of values.
        positive: usize,
        /// Number of values.
        negative: usize,
    },
    /// An output of a layer is NaN or infinite.
    #[error("the output of layer {layer} has a value that is NaN or infinite")]
    NotFinite {
        /// Index of the layer.
        layer: usize,
    },
    /// The outputs of a layer are equal for all pairs of prompts.
    #[error("layer {layer} has the same outputs for positive and negative prompts")]
    Equal {
        /// Index of the layer.
        layer: usize,
    },
    /// The model has one layer, to which control vectors do not apply.
    #[error("the model has {n_layer} layers; control vectors apply to the second and later layers")]
    FewLayers {
        /// Number of layers.
        n_layer: usize,
    },
}

/// Computation of a direction from differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectionMethod {
    /// The direction of largest squared projections, oriented towards the mean.
    Pca {
        /// Maximum number of power iterations.
        n_iterations: usize,
    },
    /// Mean of the differences.
    Mean,
}

/// Outputs of all layers of a context's last computations, shared with the context.
#[derive(Clone, Default)]
pub struct LayerOutputs(Arc<Mutex<BTreeMap<usize, Vec<f32>>>>);

impl LayerOutputs {
    /// Returns an observer that appends to the outputs.
    pub fn observer(&self) -> Box<dyn Observer> {
        Box::new(self.clone())
    }

    /// Takes the outputs of each layer, `n_embd` floats per token.
    pub fn take(&self) -> BTreeMap<usize, Vec<f32>> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Observer for LayerOutputs {
    fn observes(&mut self, graph: &Graph, node: TensorId) -> bool {
        let tensor = graph.tensor(node);
        tensor.flags.layer_output && tensor.name.layer.is_some() && tensor.ty == GgmlType::F32
    }

    fn show(&mut self, graph: &Graph, node: TensorId, data: &[u8]) -> ControlFlow<()> {
        let tensor = graph.tensor(node);
        let mut outputs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let layer = tensor.name.layer.map_or(0, |layer| layer as usize);
        let to = outputs.entry(layer).or_default();
        for row in 0..tensor.ne[1] {
            let floats = (0..tensor.ne[0]).map(|i| {
                let at = row * tensor.nb[1] + i * tensor.nb[0];
                let bytes = data.get(at..).and_then(|rest| rest.first_chunk());
                f32::from_le_bytes(bytes.copied().unwrap_or_default())
            });
            to.extend(floats);
        }
        ControlFlow::Continue(())
    }
}

/// Differences between the outputs for positive and negative prompts.
pub struct Contrast {
    n_embd: usize,
    arch: &'static str,
    /// Rows of `n_embd` floats for each layer but the last.
    differences: Vec<Vec<f32>>,
}

impl Contrast {
    /// Creates a contrast without prompts.
    ///
    /// # Errors
    /// Returns an error if the model has one layer.
    pub fn new(model: &Model) -> Result<Contrast, ContrastError> {
        let n_layer = model.base().n_layer();
        if n_layer < 2 {
            return Err(ContrastError::FewLayers { n_layer });
        }
        Ok(Contrast {
            n_embd: model.base().n_embd(),
            arch: model.arch().name,
            differences: vec![Vec::new(); n_layer - 1],
        })
    }

    /// Adds the differences of two prompts of equal length. Tokens with equal outputs do not count.
    ///
    /// # Errors
    /// Returns an error if the lengths differ, or an output is not finite.
    pub fn add(
        &mut self,
        positive: &BTreeMap<usize, Vec<f32>>,
        negative: &BTreeMap<usize, Vec<f32>>,
    ) -> Result<(), ContrastError> {
        for (layer, differences) in self.differences.iter_mut().enumerate() {
            let [a, b] = [positive, negative].map(|outputs| outputs.get(&layer).map_or(&[][..], Vec::as_slice));
            if a.len() != b.len() {
                return Err(ContrastError::Length {
                    layer,
                    positive: a.len(),
                    negative: b.len(),
                });
            }
            for (a, b) in a.chunks_exact(self.n_embd).zip(b.chunks_exact(self.n_embd)) {
                let start = differences.len();
                differences.extend(a.iter().zip(b).map(|(a, b)| a - b));
                check_finite(&differences[start..]).map_err(|_| ContrastError::NotFinite { layer })?;
                if differences[start..].iter().all(|x| x.abs() <= NEGLIGIBLE) {
                    differences.truncate(start);
                }
            }
        }
        Ok(())
    }

    /// Returns the direction of each layer but the last, of length 1.
    ///
    /// # Errors
    /// Returns an error if the outputs of a layer are equal for all prompts.
    pub fn directions(&self, method: DirectionMethod) -> Result<Vec<Vec<f32>>, ContrastError> {
        let layers = self.differences.par_iter().enumerate();
        layers
            .map(|(layer, rows)| direction(rows, self.n_embd, method).ok_or(ContrastError::Equal { layer }))
            .collect()
    }

    /// Writes the directions as a control vector. As in llama.cpp, the direction of a layer's output is added to the
    /// output of the next layer.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn write(&self, directions: &[Vec<f32>], out: &mut dyn Write) -> Result<(), GgufError> {
        let mut writer = GgufWriter::new();
        writer
            .set("general.architecture", "controlvector")
            .set("controlvector.model_hint", self.arch)
            .set("controlvector.layer_count", directions.len() as i32);
        for (layer, direction) in directions.iter().enumerate() {
            let name = format!("direction.{}", layer + 1);
            let bytes = direction.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
            writer.add_tensor(name.as_str(), GgmlType::F32, &[direction.len()], bytes)?;
        }
        writer.write(out)?;
        Ok(())
    }
}

/// Returns a direction of length 1; `None` if all rows are zero.
fn direction(rows: &[f32], n_embd: usize, method: DirectionMethod) -> Option<Vec<f32>> {
    let rows: Vec<&[f32]> = rows.chunks_exact(n_embd).collect();
    let mut mean = vec![0f64; n_embd];
    for row in &rows {
        mean.iter_mut().zip(*row).for_each(|(mean, x)| *mean += f64::from(*x));
    }
    let found = match method {
        DirectionMethod::Mean => normalized(mean)?,
        DirectionMethod::Pca { n_iterations } => {
            let mut found = principal(&rows, n_embd, n_iterations)?;
            if found.iter().zip(&mean).map(|(a, b)| a * b).sum::<f64>() < 0.0 {
                found.iter_mut().for_each(|x| *x = -*x);
            }
            found
        }
    };
    Some(found.into_iter().map(|x| x as f32).collect())
}

/// Returns the direction of the largest squared projections of all rows, by power iteration.
fn principal(rows: &[&[f32]], n_embd: usize, n_iterations: usize) -> Option<Vec<f64>> {
    let mut rng = SplitMix64(1);
    let start = (0..n_embd).map(|_| (rng.next_u64() >> 11) as f64 + 1.0).collect();
    let mut found = normalized(start)?;
    for _ in 0..n_iterations.max(1) {
        let mut next = vec![0f64; n_embd];
        for row in rows {
            let projection: f64 = row.iter().zip(&found).map(|(x, v)| f64::from(*x) * v).sum();
            next.iter_mut()
                .zip(*row)
                .for_each(|(next, x)| *next += projection * f64::from(*x));
        }
        let next = normalized(next)?;
        let change: f64 = next.iter().zip(&found).map(|(a, b)| (a - b).powi(2)).sum();
        found = next;
        if change.sqrt() < TOLERANCE {
            break;
        }
    }
    Some(found)
}

/// Scales a vector to length 1; `None` if it is zero.
fn normalized(mut v: Vec<f64>) -> Option<Vec<f64>> {
    let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
    if norm <= 0.0 {
        return None;
    }
    v.iter_mut().for_each(|x| *x /= norm);
    Some(v)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: usize = 40;
    const COLUMNS: usize = 8;

    /// Returns rows whose principal direction differs from their mean.
    fn rows() -> Vec<f32> {
        (0..ROWS * COLUMNS)
            .map(|i| {
                let (row, column) = (i / COLUMNS, i % COLUMNS);
                let noise = ((row * 31 + column * 17 + row * column * 7) % 23) as f32 / 23.0 - 0.5;
                let common = ((row % 5) as f32 - 1.5) * (column as f32 - 2.0) / 4.0;
                noise + common
            })
            .collect()
    }

    #[track_caller]
    fn assert_close(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((f64::from(*found) - expected).abs() < 1e-5, "{found} {expected}");
        }
    }

    /// Expected directions come from numpy: the eigenvector of the largest eigenvalue from `linalg.eigh`, and the
    /// normalized mean.
    #[test]
    fn directions_match_numpy() {
        let rows = rows();
        let pca = DirectionMethod::Pca { n_iterations: 1000 };
        assert_close(&direction(&rows, COLUMNS, pca).unwrap(), &PCA);
        assert_close(&direction(&rows, COLUMNS, DirectionMethod::Mean).unwrap(), &MEAN);
        assert_eq!(direction(&[0.0; 16], COLUMNS, pca), None);
        assert_eq!(direction(&[], COLUMNS, DirectionMethod::Mean), None);
    }

    const PCA: [f64; COLUMNS] = [
        -0.2660862, -0.1245055, -0.0046408, 0.1316605, 0.2459170, 0.3922654, 0.5133682, 0.6468742,
    ];

    const MEAN: [f64; COLUMNS] = [
        -0.3121963, -0.1531967, -0.0475838, 0.0847224, 0.2437220, 0.3760282, 0.5083345, 0.6406407,
    ];

    #[test]
    fn contrast_ignores_tokens_with_equal_outputs() {
        let outputs = |value: f32| BTreeMap::from([(0, vec![1.0, 2.0, value, 4.0]), (1, vec![9.0; 4])]);
        let mut contrast = Contrast {
            n_embd: 2,
            arch: "llama",
            differences: vec![Vec::new()],
        };
        contrast.add(&outputs(7.0), &outputs(3.0)).unwrap();
        assert_eq!(contrast.differences, [vec![4.0, 0.0]]);
        assert_eq!(contrast.directions(DirectionMethod::Mean).unwrap(), [vec![1.0, 0.0]]);
        let error = contrast.add(&outputs(f32::NAN), &outputs(3.0)).unwrap_err();
        assert!(matches!(error, ContrastError::NotFinite { layer: 0 }), "{error}");
        let error = contrast.add(&outputs(1.0), &BTreeMap::new()).unwrap_err();
        assert!(matches!(error, ContrastError::Length { positive: 4, .. }), "{error}");
    }
}
