//! Converts recorded checkpoints of `transformers`, runs them in place, and compares the results with those of
//! `transformers` in 64 bits.

use std::path::{Path, PathBuf};

use engine::checkpoint::{Conversion, OutputType, open_model, write};
use engine::conformance::all_logits;
use engine::gguf::logits::Logits;
use engine::model::{LoadParams, Model};
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

/// Converts a checkpoint, runs the file, and returns its logits.
fn converted(checkpoint: &Path, ty: OutputType, recorded: &Logits) -> Vec<f32> {
    let name = checkpoint.display();
    let conversion = Conversion::open(checkpoint, archs::ALL, ty).unwrap_or_else(|e| panic!("{name}: {e}"));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    write(&conversion, &mut file.as_file(), &|_| true).unwrap_or_else(|e| panic!("{name}: {e}"));
    let model = Model::load(file.path(), archs::ALL, &exact().load).unwrap_or_else(|e| panic!("{name}: {e}"));
    logits(model, recorded)
}

/// Loads a checkpoint without converting it to a file, and returns its logits.
fn in_place(checkpoint: &Path, change: impl Fn(&mut LoadParams), recorded: &Logits) -> Vec<f32> {
    let name = checkpoint.display();
    let set = open_model(checkpoint, archs::ALL).unwrap_or_else(|e| panic!("{name}: {e}"));
    let mut load = exact().load;
    change(&mut load);
    let model = Model::from_set(set, archs::ALL, &load).unwrap_or_else(|e| panic!("{name}: {e}"));
    logits(model, recorded)
}

fn logits(model: Model, recorded: &Logits) -> Vec<f32> {
    let tokens = engine::conformance::tokens(recorded);
    all_logits(model.into(), &tokens, &exact().context).unwrap_or_else(|e| panic!("{e}"))
}

fn recorded(checkpoint: &Path) -> Logits {
    Logits::read(checkpoint.join("logits")).unwrap_or_else(|e| panic!("{}: {e}", checkpoint.display()))
}

#[test]
fn converted_checkpoints_match_recorded_logits() {
    let directories = directories();
    assert!(directories.len() >= 20, "{} checkpoints", directories.len());
    for checkpoint in directories {
        for ty in [OutputType::Auto, OutputType::F32] {
            let recorded = recorded(&checkpoint);
            let found = converted(&checkpoint, ty, &recorded);
            assert_eq!(found.len(), recorded.values().len(), "{}", checkpoint.display());
            let error = nmse(recorded.values(), &found);
            println!("{}: {error:.1e} as {ty:?}", checkpoint.display());
            assert!(error < BOUND, "{}: {error:.1e} as {ty:?}", checkpoint.display());
        }
    }
}

#[test]
fn checkpoints_in_place_match_converted_files_bit_for_bit() {
    type Change = fn(&mut LoadParams);
    let changes: [(&str, Change); 3] = [
        ("mapped", |_| {}),
        ("checked", |load| load.check_tensors = true),
        ("copied", |load| load.mmap = false),
    ];
    for checkpoint in directories() {
        let recorded = recorded(&checkpoint);
        let expected = converted(&checkpoint, OutputType::Auto, &recorded);
        for (name, change) in changes {
            let found = in_place(&checkpoint, change, &recorded);
            assert!(found == expected, "{} {name}", checkpoint.display());
        }
    }
}

#[test]
fn models_in_place_use_mapped_matrices() {
    let checkpoint = tests::root().join("tests/data/checkpoints/llama");
    let set = open_model(&checkpoint, archs::ALL).unwrap();
    let file_of = |name: &str| set.tensor(name).unwrap_or_else(|| panic!("no {name}")).0;
    // The rows of the queries are rotated, and vectors are converted to F32.
    for (name, file) in [
        ("blk.0.attn_q.weight", 0),
        ("blk.0.attn_norm.weight", 0),
        ("blk.0.attn_v.weight", 1),
        ("blk.1.ffn_down.weight", 1),
        ("token_embd.weight", 1),
    ] {
        assert_eq!(file_of(name), file, "{name}");
    }
    let model = Model::from_set(set, archs::ALL, &exact().load).unwrap();
    let rows = model.tensors().iter();
    let converted: usize = rows.filter(|row| row.shard == 0).map(|row| row.bytes()).sum();
    // Besides the converted tensors, only padding takes memory.
    let own = model.own_bytes();
    assert!(
        (converted..converted + 64 * model.tensors().len()).contains(&own),
        "{own} bytes, {converted} converted"
    );
}
