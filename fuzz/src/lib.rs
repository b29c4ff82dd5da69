//! Tiny models for the fuzz targets and their seed corpora.

use std::sync::Arc;

use engine::context::{Context, ContextParams};
use engine::gguf::{Gguf, GgufFile, seeded};
use engine::model::{LoadParams, Model};
use kernels::GgmlType;

/// Headers of a dense model, a model with experts, and a model with sliding-window and full attention.
const DENSE: &[u8] = include_bytes!("../../tests/data/archs/qwen3-dense.header.gguf");
const EXPERTS: &[u8] = include_bytes!("../../tests/data/archs/llama-moe.header.gguf");
const WINDOWS: &[u8] = include_bytes!("../../tests/data/archs/gemma3-dense.header.gguf");

/// Models that adapters are loaded for.
pub fn adapted_models() -> [Arc<Model>; 2] {
    [model(DENSE), model(EXPERTS)]
}

/// Creates a context with two groups of cells and small rows, so that saved states are short.
pub fn state_context() -> Context {
    let params = ContextParams {
        n_ctx: 48,
        n_seq_max: 3,
        type_k: GgmlType::Q4_0,
        type_v: GgmlType::Q4_0,
        ..small_batches()
    };
    Context::new(model(WINDOWS), &params).expect("context parameters should be valid")
}

/// Creates a context for one or two tokens.
pub fn adapted_context(model: &Arc<Model>) -> Context {
    let params = ContextParams {
        n_ctx: 8,
        ..small_batches()
    };
    Context::new(model.clone(), &params).expect("context parameters should be valid")
}

fn small_batches() -> ContextParams {
    ContextParams {
        n_batch: 8,
        n_ubatch: 4,
        n_threads: 1,
        n_threads_batch: 1,
        ..ContextParams::default()
    }
}

fn model(header: &[u8]) -> Arc<Model> {
    let header = Gguf::parse_header(header).expect("fixture should parse");
    let bytes = seeded::seeded_model(&header, 1).expect("weights should be allocated");
    let file = GgufFile::from_bytes("model.gguf", &bytes).expect("file should be complete");
    Arc::new(Model::from_file(file, archs::ALL, &LoadParams::default()).expect("model should load"))
}
