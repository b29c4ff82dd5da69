//! Control vectors as GGUF files: tensors `direction.N`, f32 `[n_embd]`, for the layers from 1 on.

use std::path::{Path, PathBuf};

use kernels::GgmlType;

use crate::gguf::{GgufFile, TensorInfo};
use crate::model::Model;

use super::{AdapterError, AdapterFlaw};

const PREFIX: &str = "direction.";

/// Directions in the space of a model's activations (Zou et al., arXiv 2310.01405), one for some or all of its layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVector {
    path: PathBuf,
    n_embd: usize,
    /// By layer; layer 0 never has one.
    directions: Vec<Option<Vec<f32>>>,
}

impl ControlVector {
    /// Loads a file for a model.
    pub fn load(path: impl AsRef<Path>, model: &Model) -> Result<ControlVector, AdapterError> {
        Self::from_file(&GgufFile::open(path)?, model)
    }

    /// Loads an opened file, which may be in memory.
    pub fn from_file(file: &GgufFile, model: &Model) -> Result<ControlVector, AdapterError> {
        let path = file.path().to_owned();
        let (n_embd, n_layer) = (model.base().n_embd(), model.base().n_layer());
        let mut directions = vec![None; n_layer];
        let mut flaws = Vec::new();
        for t in file.tensors() {
            match layer_of(t, n_embd, n_layer) {
                Ok(layer) => directions[layer] = Some(floats(file.tensor_data(t))),
                Err(flaw) => flaws.push(flaw),
            }
        }
        if !flaws.is_empty() {
            return Err(AdapterError::Tensors { path, flaws });
        }
        if directions.iter().all(Option::is_none) {
            let expected = "direction.*";
            return Err(AdapterError::Empty { path, expected });
        }
        Ok(ControlVector {
            path,
            n_embd,
            directions,
        })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Elements of each direction.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// The direction of a layer, `[n_embd]`.
    pub fn direction(&self, layer: usize) -> Option<&[f32]> {
        self.directions.get(layer)?.as_deref()
    }

    /// Number of layers of the model it was loaded for.
    pub(crate) fn n_layer(&self) -> usize {
        self.directions.len()
    }
}

/// The layer that a tensor is for, or what is wrong with it.
fn layer_of(t: &TensorInfo, n_embd: usize, n_layer: usize) -> Result<usize, AdapterFlaw> {
    let name = t.name.clone();
    // As it would be printed: no sign, no leading zeros, so that no layer is named twice.
    let number = t.name.strip_prefix(PREFIX);
    let parsed = number.and_then(|n| n.parse::<usize>().ok().filter(|layer| layer.to_string() == n));
    let Some(layer) = parsed else {
        let expected = "`direction.<layer>`";
        return Err(AdapterFlaw::Name { name, expected });
    };
    if layer == 0 || layer >= n_layer {
        let expected = format!(
            "layer {layer} that directions can be added to; it has 1 to {}",
            n_layer.saturating_sub(1)
        );
        return Err(AdapterFlaw::Unknown { name, expected });
    }
    if t.ty != GgmlType::F32 {
        let (expected, found) = ("f32", t.ty);
        return Err(AdapterFlaw::Type { name, expected, found });
    }
    if t.ne != [n_embd, 1, 1, 1] {
        let (expected, found) = (format!("[{n_embd}]"), t.shape().to_vec());
        return Err(AdapterFlaw::Shape { name, expected, found });
    }
    Ok(layer)
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b))
        .collect()
}
