//! Converts recorded checkpoints of `transformers` and compares the results with those of `transformers` in 64 bits.

use std::path::{Path, PathBuf};

use engine::checkpoint::{Conversion, OutputType, write};
use engine::conformance::all_logits;
use engine::gguf::logits::Logits;
use engine::model::Model;
use tests::{exact, nmse};

/// Largest NMSE to the published implementation in 64 bits. Rounding in 32 bits alone causes about 1e-13.
const BOUND: f64 = 1e-11;

fn directories() -> Vec<PathBuf> {
    let directory = tests::root().join("tests/data/checkpoints");
    let entries = std::fs::read_dir(directory).expect("the directory is readable");
    let mut all: Vec<_> = entries.map(|entry| entry.expect("a readable entry").path()).collect();
    all.sort();
    all
}

/// Converts a checkpoint, runs the file, and returns the NMSE to the recorded results.
fn error_of(checkpoint: &Path, ty: OutputType) -> f64 {
    let name = checkpoint.display();
    let conversion = Conversion::open(checkpoint, archs::ALL, ty).unwrap_or_else(|e| panic!("{name}: {e}"));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    write(&conversion, &mut file.as_file(), &|_| true).unwrap_or_else(|e| panic!("{name}: {e}"));
    let recorded = Logits::read(checkpoint.join("logits")).unwrap_or_else(|e| panic!("{name}: {e}"));
    let params = exact();
    let loaded = Model::load(file.path(), archs::ALL, &params.load).unwrap_or_else(|e| panic!("{name}: {e}"));
    let tokens = engine::conformance::tokens(&recorded);
    let found = all_logits(loaded.into(), &tokens, &params.context).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(found.len(), recorded.values().len(), "{name}");
    nmse(recorded.values(), &found)
}

#[test]
fn converted_checkpoints_match_recorded_logits() {
    let directories = directories();
    assert!(directories.len() >= 6, "{} checkpoints", directories.len());
    for checkpoint in directories {
        for ty in [OutputType::Auto, OutputType::F32] {
            let error = error_of(&checkpoint, ty);
            println!("{}: {error:.1e} as {ty:?}", checkpoint.display());
            assert!(error < BOUND, "{}: {error:.1e} as {ty:?}", checkpoint.display());
        }
    }
}
