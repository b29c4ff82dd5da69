//! Splitting a model into several files, and merging the files.
//!
//! The layout is the same as in llama.cpp's `gguf-split`. The first part has the metadata, all parts have the three
//! `split.*` keys, and the tensors keep their order.

use super::split::{KEY_COUNT, KEY_NO, KEY_TENSORS_COUNT};
use super::{GgufSet, Metadata, TensorInfo};

/// Upper bounds of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PartLimits {
    /// Maximum number of tensors.
    pub n_tensors: usize,
    /// Maximum bytes of tensor data. A larger tensor gets a separate part.
    pub n_bytes: usize,
    /// True if the first part has metadata alone.
    pub is_first_empty: bool,
}

/// More parts than a file name can number, or than the `split.*` keys can count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the model would have {n} parts; the maximum is {MAX_PARTS}")]
pub struct TooManyParts {
    /// Number of parts.
    pub n: usize,
}

/// Maximum number of parts: five digits of a file name hold more, the keys are u16.
const MAX_PARTS: usize = u16::MAX as usize;

/// Tensors of one part and its metadata.
#[derive(Debug)]
pub struct Part<'a> {
    /// Metadata of the part.
    pub metadata: Metadata,
    /// Tensors, each with the index of its file in [`GgufSet::shards`].
    pub tensors: Vec<(usize, &'a TensorInfo)>,
}

impl Part<'_> {
    /// Returns the bytes of tensor data.
    pub fn n_bytes(&self) -> usize {
        self.tensors.iter().map(|(_, t)| t.bytes).sum()
    }
}

/// Divides a model into parts.
///
/// # Errors
/// Returns a [`TooManyParts`] if more than 65,535 parts are needed.
pub fn split<'a>(set: &'a GgufSet, limits: &PartLimits) -> Result<Vec<Part<'a>>, TooManyParts> {
    let mut groups: Vec<Vec<_>> = vec![Vec::new()];
    let mut n_bytes = 0usize;
    for (shard, tensor) in set.tensors() {
        let last = groups.len() - 1;
        let is_full = groups[last].len() >= limits.n_tensors || n_bytes.saturating_add(tensor.bytes) > limits.n_bytes;
        let is_reserved = last == 0 && limits.is_first_empty;
        if is_reserved || (is_full && !groups[last].is_empty()) {
            groups.push(Vec::new());
            n_bytes = 0;
        }
        n_bytes = n_bytes.saturating_add(tensor.bytes);
        let last = groups.len() - 1;
        groups[last].push((shard, tensor));
    }
    let count = u16::try_from(groups.len()).map_err(|_| TooManyParts { n: groups.len() })?;
    let parts = groups.into_iter().zip(0u16..).map(|(tensors, no)| {
        let mut metadata = if no == 0 { merged(set) } else { Metadata::default() };
        metadata.insert(KEY_NO, no);
        metadata.insert(KEY_COUNT, count);
        metadata.insert(KEY_TENSORS_COUNT, i32::try_from(set.n_tensors()).unwrap_or(i32::MAX));
        Part { metadata, tensors }
    });
    Ok(parts.collect())
}

/// Returns the metadata of the complete model: the metadata of the first part without the `split.*` keys.
pub fn merged(set: &GgufSet) -> Metadata {
    let mut metadata = set.metadata().clone();
    for key in [KEY_NO, KEY_COUNT, KEY_TENSORS_COUNT] {
        metadata.remove(key);
    }
    metadata
}
