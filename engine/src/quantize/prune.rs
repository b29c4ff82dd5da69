//! Removal of layers.

use std::collections::BTreeSet;

use crate::gguf::{Array, Metadata, Value};

/// Set of layers to remove. Later layers are renumbered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrunedLayers(BTreeSet<usize>);

/// Prefix of the names of layer tensors.
const LAYER: &str = "blk.";

impl PrunedLayers {
    /// Creates a set of layers to remove.
    pub fn new(layers: impl IntoIterator<Item = usize>) -> PrunedLayers {
        PrunedLayers(layers.into_iter().collect())
    }

    /// Yields the layers.
    pub(super) fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// Returns the name of a tensor in the output; `None` if its layer is removed.
    pub(super) fn name(&self, name: &str) -> Option<String> {
        let Some((layer, kind)) = split(name) else {
            return Some(name.to_owned());
        };
        let new = self.index(layer)?;
        Some(format!("{LAYER}{new}.{kind}"))
    }

    /// Returns the number of a layer in the output; `None` if the layer is removed.
    fn index(&self, layer: usize) -> Option<usize> {
        let is_kept = !self.0.contains(&layer);
        is_kept.then(|| layer - self.0.range(..layer).count())
    }

    /// Adjusts the layer counts, and shortens arrays with one element per layer.
    pub(super) fn change_metadata(&self, metadata: &mut Metadata) {
        if self.0.is_empty() {
            return;
        }
        let arch = metadata.get("general.architecture").and_then(Value::as_str);
        let Some(arch) = arch.map(str::to_owned) else {
            return;
        };
        let number = |metadata: &Metadata, key: &str| {
            let value = metadata.get(&format!("{arch}.{key}")).and_then(Value::as_u64);
            value.and_then(|value| usize::try_from(value).ok())
        };
        let Some(n_layer) = number(metadata, "block_count") else {
            return;
        };
        let n_mtp = number(metadata, "nextn_predict_layers").unwrap_or(0);
        let n_dense = number(metadata, "leading_dense_block_count").unwrap_or(0);
        for (key, range) in [
            ("block_count", 0..n_layer),
            ("nextn_predict_layers", n_layer.saturating_sub(n_mtp)..n_layer),
            ("leading_dense_block_count", 0..n_dense),
        ] {
            let key = format!("{arch}.{key}");
            let pruned = self.0.range(range.clone()).count();
            if let Some(old) = metadata.get(&key).filter(|old| old.as_u64().is_some()) {
                let new = with_number(old, range.len() - pruned);
                metadata.insert(key, new);
            }
        }
        let prefix = format!("{arch}.");
        // Sections of rotary positions belong to axes, not to layers.
        let of_layers = |key: &str, value: &Value| {
            let may_be = key.starts_with(&prefix) && !key.ends_with(".dimension_sections");
            may_be && value.as_array().is_some_and(|array| array.len() == n_layer)
        };
        let lists = metadata.iter().filter(|(key, value)| of_layers(key, value));
        let shorter: Vec<(String, Value)> = lists
            .filter_map(|(key, value)| Some((key.to_owned(), Value::Array(self.kept(value.as_array()?)))))
            .collect();
        for (key, value) in shorter {
            metadata.insert(key, value);
        }
    }

    /// Returns the array elements of the remaining layers.
    fn kept(&self, array: &Array) -> Array {
        fn of<T: Clone>(pruned: &BTreeSet<usize>, values: &[T]) -> Vec<T> {
            let kept = values.iter().enumerate().filter(|(i, _)| !pruned.contains(i));
            kept.map(|(_, value)| value.clone()).collect()
        }
        match array {
            Array::U8(v) => Array::U8(of(&self.0, v)),
            Array::I8(v) => Array::I8(of(&self.0, v)),
            Array::U16(v) => Array::U16(of(&self.0, v)),
            Array::I16(v) => Array::I16(of(&self.0, v)),
            Array::U32(v) => Array::U32(of(&self.0, v)),
            Array::I32(v) => Array::I32(of(&self.0, v)),
            Array::F32(v) => Array::F32(of(&self.0, v)),
            Array::U64(v) => Array::U64(of(&self.0, v)),
            Array::I64(v) => Array::I64(of(&self.0, v)),
            Array::F64(v) => Array::F64(of(&self.0, v)),
            Array::Bool(v) => Array::Bool(of(&self.0, v)),
            other => other.clone(),
        }
    }
}

/// Returns a number with the type of `old`.
fn with_number(old: &Value, n: usize) -> Value {
    match old {
        Value::U64(_) => Value::U64(n as u64),
        Value::I32(_) => Value::I32(n as i32),
        _ => Value::U32(n as u32),
    }
}

/// Returns the layer of a tensor and the rest of its name.
pub(super) fn split(name: &str) -> Option<(usize, &str)> {
    let (layer, kind) = name.strip_prefix(LAYER)?.split_once('.')?;
    Some((layer.parse().ok()?, kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pruned_layers_change_names_and_metadata() {
        let pruned = PrunedLayers::new([1, 4]);
        assert_eq!(
            pruned.name("blk.3.attn_q.weight").as_deref(),
            Some("blk.2.attn_q.weight")
        );
        assert_eq!(
            pruned.name("blk.0.attn_q.weight").as_deref(),
            Some("blk.0.attn_q.weight")
        );
        assert_eq!(pruned.name("blk.4.attn_q.weight"), None);
        assert_eq!(pruned.name("output.weight").as_deref(), Some("output.weight"));
        let mut metadata = Metadata::default();
        metadata.insert("general.architecture", "llama");
        metadata.insert("llama.block_count", 5u32);
        metadata.insert("llama.nextn_predict_layers", 1u32);
        metadata.insert("llama.leading_dense_block_count", 3u32);
        metadata.insert("llama.head_count", Value::Array(Array::I32(vec![1, 2, 3, 4, 5])));
        metadata.insert(
            "llama.rope.dimension_sections",
            Value::Array(Array::I32(vec![1, 2, 3, 4, 5])),
        );
        pruned.change_metadata(&mut metadata);
        let number = |key: &str| metadata.require::<u32>(key).unwrap();
        assert_eq!(number("llama.block_count"), 3);
        assert_eq!(number("llama.nextn_predict_layers"), 0);
        assert_eq!(number("llama.leading_dense_block_count"), 2);
        let list = |key: &str| metadata.get(key).and_then(Value::as_array).cloned();
        assert_eq!(list("llama.head_count"), Some(Array::I32(vec![1, 3, 4])));
        assert_eq!(
            list("llama.rope.dimension_sections"),
            Some(Array::I32(vec![1, 2, 3, 4, 5]))
        );
    }
}
