//! Kinds of GGUF files: models, and files that belong to a model.

use std::fmt;

use super::{Metadata, Value};

/// Kind of a GGUF file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// Model with weights.
    Model,
    /// Low-rank adapter of a model.
    Adapter,
    /// Directions that are added to the outputs of layers.
    ControlVector,
    /// Image or audio encoder that belongs to a language model.
    Projector,
    /// Statistics of activations for quantization tools.
    ImportanceMatrix,
    /// Tokenizer without weights.
    Vocabulary,
}

impl FileKind {
    /// Returns the kind of a file, which llama.cpp's tools record in `general.type` or `general.architecture`.
    /// `n_tensors` is the number of tensors in all shards.
    pub fn of(metadata: &Metadata, n_tensors: usize) -> FileKind {
        let text = |key| metadata.get(key).and_then(Value::as_str);
        match (text("general.type"), text("general.architecture")) {
            (Some("adapter"), _) => FileKind::Adapter,
            (Some("mmproj"), _) | (_, Some("clip")) => FileKind::Projector,
            (Some("imatrix"), _) => FileKind::ImportanceMatrix,
            (_, Some("controlvector")) => FileKind::ControlVector,
            _ if n_tensors == 0 && metadata.contains("tokenizer.ggml.tokens") => FileKind::Vocabulary,
            _ => FileKind::Model,
        }
    }

    /// Returns advice on how to use a file of this kind.
    pub fn advice(self) -> &'static str {
        match self {
            FileKind::Model => "load it as a model",
            FileKind::Adapter => "load its base model, and add the adapter with --lora",
            FileKind::ControlVector => "load its model, and add the vector with --control-vector",
            FileKind::Projector => {
                "load the language model that it belongs to, and add this file with --mmproj to read images"
            }
            FileKind::ImportanceMatrix => "`llama quantize --imatrix` reads it",
            FileKind::Vocabulary => "only `llama tokenize` and `llama inspect` can use it",
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Model => "a model",
            FileKind::Adapter => "a LoRA adapter",
            FileKind::ControlVector => "a control vector",
            FileKind::Projector => "a multimodal projector (mmproj)",
            FileKind::ImportanceMatrix => "an importance matrix (imatrix)",
            FileKind::Vocabulary => "a vocabulary without weights",
        })
    }
}
