//! Helpers for models whose weights are repacked.

use std::sync::Arc;

use engine::adapter::LoraAdapter;
use engine::gguf::{Gguf, GgufFile, GgufWriter};
use engine::model::{LoadParams, Model};
use kernels::GgmlType;

/// Fixtures that cover dense layers, tied embeddings, experts, per-head matmuls, recurrent layers, an
/// encoder-decoder, and a model without a cache.
pub const NAMES: [&str; 8] = [
    "llama-dense",
    "gemma2-dense",
    "llama-moe",
    "deepseek2-moe",
    "mamba2-dense",
    "qwen35moe-moe",
    "t5-dense",
    "bert-dense",
];

/// Loads a model from the bytes of a file.
pub fn model(bytes: &[u8], load: &LoadParams) -> Arc<Model> {
    let file = GgufFile::from_bytes("model.gguf", bytes).unwrap();
    Arc::new(Model::from_file(file, archs::ALL, load).unwrap())
}

/// Returns the rows of the tensor table that are repacked, at least in part.
pub fn repacked(model: &Model) -> Vec<usize> {
    let is_repacked = |i: &usize| model.placement().parts[*i].iter().any(|p| !p.layout.is_plain());
    (0..model.tensors().len()).filter(is_repacked).collect()
}

/// Asserts that every tensor reads back as in the file. Tensors stored in another type must have the same
/// values.
pub fn assert_as_in_file(name: &str, bytes: &[u8], model: &Model) {
    let header = Gguf::parse_header(bytes).unwrap();
    for (i, row) in model.tensors().iter().enumerate() {
        let t = header.tensor(&row.name).unwrap();
        let data = &bytes[header.data_offset() + t.offset + row.offset..][..row.file_bytes()];
        let found = model.tensor_data(i).unwrap();
        if row.stored_type() == row.ty {
            assert!(found == data, "{name}: {}", row.name);
        } else {
            let mut floats = vec![0f32; data.len() / row.ty.block_bytes() * row.ty.block_size()];
            kernels::dequantize_row(row.ty, data, &mut floats);
            let floats: Vec<u8> = floats.iter().flat_map(|x| x.to_le_bytes()).collect();
            assert!(found == floats, "{name}: {}", row.name);
        }
    }
}

/// Creates a rank-2 LoRA adapter for the matrix `weight`.
pub fn lora(model: &Arc<Model>, weight: &str) -> Arc<LoraAdapter> {
    let ne = model.tensors().iter().find(|row| row.name == weight).unwrap().ne;
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", model.arch().name);
    writer.set("general.type", "adapter").set("adapter.type", "lora");
    writer.set("adapter.lora.alpha", 4.0f32);
    for (suffix, shape) in [("lora_a", [ne[0], 2]), ("lora_b", [2, ne[1]])] {
        let values = (0..shape[0] * shape[1]).map(|i| ((i * i) % 13) as f32 / 40.0 - 0.1);
        let data: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        let name = format!("{weight}.{suffix}");
        writer.add_tensor(name, GgmlType::F32, &shape, data).unwrap();
    }
    let file = GgufFile::from_bytes("adapter.gguf", &writer.to_bytes().unwrap()).unwrap();
    Arc::new(LoraAdapter::from_file(&file, model).unwrap())
}
