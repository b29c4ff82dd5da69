//! Compares the engine with the published implementations of many families: `tools/oracle.py` creates tiny random
//! models with `transformers`, which llama.cpp's converter or `llama convert` converts.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use engine::conformance::all_logits;
use engine::gguf::logits::Logits;
use engine::model::Model;
use tests::{exact, nmse};

/// Largest NMSE to the published implementation in 64 bits. Rounding in 32 bits alone causes about 1e-12.
const BOUND: f64 = 1e-10;

/// Minimum number of families, so that a script that writes nothing cannot pass.
const N_FAMILIES: usize = 60;

/// Families that `llama convert` reads.
const OWN_FAMILIES: [&str; 34] = [
    "arcee",
    "bert",
    "cohere2",
    "deepseek_v2",
    "deepseek_v3",
    "dots1",
    "ernie4_5",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm4",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "granitemoe",
    "hunyuan_v1_dense",
    "llama",
    "mamba2",
    "minimax_m2",
    "mistral",
    "mixtral",
    "modernbert",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
    "seed_oss",
    "smollm3",
];

/// Returns the NMSE of a converted model to its recorded results.
fn error_of(model: &Path) -> f64 {
    let name = model.display();
    let recorded = Logits::read(model.with_extension("logits")).unwrap_or_else(|e| panic!("{name}: {e}"));
    let params = exact();
    let loaded = Model::load(model, archs::ALL, &params.load).unwrap_or_else(|e| panic!("{name}: {e}"));
    let tokens = engine::conformance::tokens(&recorded);
    let found = all_logits(loaded.into(), &tokens, &params.context).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(found.len(), recorded.values().len(), "{name}");
    nmse(recorded.values(), &found)
}

#[test]
#[ignore = "needs the Python packages torch and transformers, and downloads llama.cpp's converter (60 MB)"]
fn published_families_match_transformers() {
    let source = std::env::var_os("LLAMA_CPP_SOURCE");
    let options = source.map(|source| vec![OsString::from("--converter"), source]);
    check(&options.unwrap_or_default(), N_FAMILIES);
}

#[test]
#[ignore = "needs the Python packages torch and transformers, and the program in target/release, or LLAMA_PROGRAM"]
fn converted_families_match_transformers() {
    let program = std::env::var_os("LLAMA_PROGRAM");
    let program = program.unwrap_or_else(|| tests::root().join("target/release/llama").into());
    let families = OWN_FAMILIES.iter().map(OsString::from);
    let options: Vec<OsString> = families.chain(["--llama".into(), program]).collect();
    check(&options, OWN_FAMILIES.len());
}

/// Makes models with the script and compares the results of each. `least` is the number of models expected.
fn check(options: &[OsString], least: usize) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let script = tests::root().join("tests/tools/oracle.py");
    let python = std::env::var_os("LLAMA_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.arg(script).arg(directory.path()).args(options);
    let status = command.status();
    let status = status.expect("this test needs `python3` in PATH, or another Python in LLAMA_PYTHON");
    assert!(status.success(), "the script made all models");

    let files = std::fs::read_dir(directory.path()).expect("the directory is readable");
    let mut models: Vec<_> = files.map(|file| file.expect("a readable entry").path()).collect();
    models.retain(|path| path.extension().is_some_and(|extension| extension == "gguf"));
    models.sort();
    let mut failures = Vec::new();
    for model in &models {
        let family = model
            .file_stem()
            .and_then(|name| name.to_str())
            .expect("a name in UTF-8");
        let error = error_of(model);
        println!("{family:<20} {error:.1e}");
        if error.is_nan() || error > BOUND {
            failures.push(format!("{family}: {error:.1e}"));
        }
    }
    assert!(models.len() >= least, "{} families", models.len());
    assert!(failures.is_empty(), "{failures:?}");
}
