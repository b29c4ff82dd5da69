//! Generated tensor tables match GGUF files: names and shapes, without missing or extra tensors.

use std::path::Path;

use engine::gguf::Gguf;
use engine::model::{ModelError, declare_header};
use tests::data_dir;

/// Declares the tensors of a header and returns the number of table rows.
fn table(path: &Path) -> Result<usize, ModelError> {
    let header = Gguf::open_header(path)?;
    let name: String = header.require("general.architecture")?;
    let arch = archs::ALL
        .iter()
        .find(|r| r.arch.name == name)
        .unwrap_or_else(|| panic!("{name} is declared"))
        .arch;
    declare_header(&header, path, arch, &name).map(|(_, _, rows)| rows.len())
}

#[test]
fn tiny_model_tables_match() {
    for name in [
        "llama-dense",
        "llama-moe",
        "internlm2-dense",
        "qwen2-dense",
        "qwen3-dense",
        "gemma3-dense",
    ] {
        let path = data_dir().join(format!("archs/{name}.header.gguf"));
        let n_file = Gguf::open_header(&path).unwrap().tensors().len();
        let n = table(&path).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(n, n_file, "{name}");
    }
}

/// Every header of the test data matches its declaration.
#[test]
fn all_fixture_tables_match() {
    for fixture in engine::conformance::fixtures(&data_dir().join("archs")).unwrap() {
        table(&fixture.header).unwrap_or_else(|e| panic!("{e}"));
    }
}

#[test]
fn published_model_tables_match() {
    for (name, n) in [
        ("internlm2-1_8b-f16", 219),
        ("qwen3-1.7b-q4_k_m", 311),
        ("llama-3.1-8b-q4_k_m", 291),
        ("qwen3-8b-q4_k_m", 399),
    ] {
        let path = data_dir().join(format!("headers/{name}.header.gguf"));
        let header = Gguf::open_header(&path).unwrap();
        assert_eq!(header.tensors().len(), n, "{name}");
        let declared = table(&path).unwrap_or_else(|e| panic!("{e}"));
        // A tied output uses the row of the embedding.
        assert_eq!(declared, n, "{name}");
    }
}

/// Removes one tensor and renames another; a single error reports both by name.
#[test]
fn table_differences_are_reported_together() {
    let path = data_dir().join("archs/qwen3-dense.header.gguf");
    let mut bytes = std::fs::read(&path).unwrap();
    for (from, to) in [
        (&b"blk.1.ffn_up.weight"[..], &b"blk.1.ffn_xx.weight"[..]),
        (b"output_norm.weight", b"output_nork.weight"),
    ] {
        let at = bytes
            .windows(from.len())
            .position(|w| w == from)
            .expect("the header contains the name");
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    let header = Gguf::parse_header(&bytes).unwrap();
    let arch = archs::ALL.iter().find(|r| r.arch.name == "qwen3").unwrap().arch;
    let error = declare_header(&header, &path, arch, "qwen3")
        .err()
        .expect("two tensors are missing")
        .to_string();
    for part in [
        "tensor `output_norm.weight` [256] is missing",
        "tensor `blk.1.ffn_up.weight` [256, 384] is missing",
        "tensor `blk.1.ffn_xx.weight` [256, 384] is not part of the architecture",
        "tensor `output_nork.weight` [256] is not part of the architecture",
    ] {
        assert!(error.contains(part), "{error}");
    }
}
