//! Control vectors: GGUF files with tensors `direction.N` (f32 `[n_embd]`) for layers from 1.

use std::path::{Path, PathBuf};

use kernels::GgmlType;

use crate::finite::{NotFinite, check_finite};
use crate::gguf::{FileKind, GgufFile, TensorInfo};
use crate::model::Model;

use super::error::check_file_kind;
use super::{AdapterError, AdapterMismatch};

const PREFIX: &str = "direction.";

/// Control vector: a direction in activation space for some or all layers of a model (Zou et al., arXiv
/// 2310.01405).
#[derive(Clone, Debug, PartialEq)]
pub struct ControlVector {
    path: PathBuf,
    n_embd: usize,
    /// Directions by layer; always `None` for layer 0.
    directions: Vec<Option<Vec<f32>>>,
}

impl ControlVector {
    /// Loads a control vector for a model.
    ///
    /// # Errors
    /// Returns an [`AdapterError`] if the file is not valid or its tensors do not match the model.
    pub fn load(path: impl AsRef<Path>, model: &Model) -> Result<ControlVector, AdapterError> {
        Self::from_file(&GgufFile::open(path)?, model)
    }

    /// Loads a control vector from an open file, which may be in memory.
    ///
    /// # Errors
    /// Returns an [`AdapterError`] under the conditions of [`ControlVector::load`].
    pub fn from_file(file: &GgufFile, model: &Model) -> Result<ControlVector, AdapterError> {
        // Files of other tools may have no metadata.
        let has = |key| file.header().metadata.contains(key);
        if has("general.type") || has("general.architecture") {
            check_file_kind(file, FileKind::ControlVector)?;
        }
        let path = file.path().to_owned();
        let (n_embd, n_layer) = (model.base().n_embd(), model.base().n_layer());
        let mut directions = vec![None; n_layer];
        let mut problems = Vec::new();
        for t in file.tensors() {
            let direction = layer_of(t, n_embd, n_layer).and_then(|layer| {
                let values = floats(file.tensor_data(t));
                let not_finite = |e: NotFinite| AdapterMismatch::NotFinite {
                    name: t.name.clone(),
                    index: e.index,
                };
                check_finite(&values).map_err(not_finite).map(|()| (layer, values))
            });
            match direction {
                Ok((layer, values)) => directions[layer] = Some(values),
                Err(flaw) => problems.push(flaw),
            }
        }
        if !problems.is_empty() {
            return Err(AdapterError::Tensors { path, problems });
        }
        file.mapping().check_unchanged()?;
        if directions.iter().all(Option::is_none) {
            let expected = "direction.*";
            return Err(AdapterError::Empty { path, expected });
        }
        tracing::debug!(path = %path.display(), "loaded a control vector");
        Ok(ControlVector {
            path,
            n_embd,
            directions,
        })
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of elements per direction.
    pub fn n_embd(&self) -> usize {
        self.n_embd
    }

    /// Returns the direction of a layer, `[n_embd]`.
    pub fn direction(&self, layer: usize) -> Option<&[f32]> {
        self.directions.get(layer)?.as_deref()
    }

    /// Returns the number of layers of the model.
    pub(crate) fn n_layer(&self) -> usize {
        self.directions.len()
    }
}

/// Returns the layer of a tensor, or the reason why the tensor is invalid.
fn layer_of(t: &TensorInfo, n_embd: usize, n_layer: usize) -> Result<usize, AdapterMismatch> {
    let name = t.name.clone();
    // Only the canonical decimal form is accepted, so that each layer has a unique name.
    let number = t.name.strip_prefix(PREFIX);
    let parsed = number.and_then(|n| n.parse::<usize>().ok().filter(|layer| layer.to_string() == n));
    let Some(layer) = parsed else {
        let expected = "`direction.<layer>`";
        return Err(AdapterMismatch::Name { name, expected });
    };
    if layer == 0 || layer >= n_layer {
        let expected = format!(
            "layer {layer} for control vectors (expected 1 to {})",
            n_layer.saturating_sub(1)
        );
        return Err(AdapterMismatch::Unknown { name, expected });
    }
    if t.ty != GgmlType::F32 {
        let (expected, found) = ("f32", t.ty);
        return Err(AdapterMismatch::Type { name, expected, found });
    }
    if t.ne != [n_embd, 1, 1, 1] {
        let (expected, found) = (format!("[{n_embd}]"), t.shape().to_vec());
        return Err(AdapterMismatch::Shape { name, expected, found });
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
