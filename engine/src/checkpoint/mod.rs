//! Published checkpoints: safetensors, `config.json`, and tokenizers, and their conversion to GGUF files.
//!
//! The mapping of names and settings is declared in the `checkpoint` sections of architecture files. Modules, in the
//! order of the data flow:
//!
//! - `safetensors`, `shards`: checked headers, and the tensors of all files
//! - `config`, `setting`: `config.json`, the values of settings, and the values of metadata keys
//! - `view`, `data`, `decode`, `repack`: steps of a mapping, and the converted elements
//! - `packing`, `packed`: matrices of GPTQ, AWQ, and NVFP4 checkpoints
//! - `rope`, `tokenizer`: rotary scaling and vocabularies
//! - `unread`: settings that change results, but that no item of a section reads
//! - `plan`, `write`, `in_place`: a checked plan, the writer of its file, and the checkpoint as an open model
//! - `adapter`: low-rank adapters

mod adapter;
mod config;
mod data;
mod decode;
mod error;
mod in_place;
mod packed;
mod packing;
mod plan;
mod repack;
mod rope;
mod safetensors;
mod setting;
mod shards;
mod tokenizer;
mod unread;
mod view;
mod write;

pub use adapter::{AdaptedWeight, AdapterConversion};
pub use error::CheckpointError;
pub use in_place::{classes_of, is_checkpoint, open_model, open_model_header};
pub use plan::{Conversion, ConvertedTensor, OutputType};
pub use safetensors::{SourceTensor, SourceType, parse as parse_safetensors};
pub use write::write;

#[cfg(test)]
mod tests;
