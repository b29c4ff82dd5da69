//! Snapshots of the expansions of declarations in `archs/`, and properties of all expansions.

use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;

fn archs_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs")
}

/// Returns the tokens inside the file's `arch! { … }`.
fn declaration(name: &str) -> TokenStream {
    let text = std::fs::read_to_string(archs_dir().join(format!("{name}.rs"))).unwrap();
    let file: syn::File = syn::parse_str(&text).unwrap();
    match &file.items[..] {
        [syn::Item::Macro(m)] => m.mac.tokens.clone(),
        _ => panic!("{name}.rs must contain exactly one `arch!`"),
    }
}

/// Expands a declaration, with `archs/` as the library of parents and fragments.
fn expand(name: &str) -> TokenStream {
    arch_lang::expand_with(declaration(name), &arch_lang::Directory(archs_dir()))
}

fn expanded(name: &str) -> String {
    let tokens = expand(name);
    let file: syn::File = syn::parse2(tokens).unwrap();
    prettyplease::unparse(&file)
}

#[test]
fn architectures_match_expansion_snapshots() {
    for name in ["llama", "internlm2", "qwen2", "qwen3", "gemma3"] {
        insta::assert_snapshot!(name, expanded(name));
    }
}

#[test]
fn description_lists_every_tensor_and_value() {
    let arch = arch_lang::compile_with(declaration("llama"), &arch_lang::Directory(archs_dir())).unwrap();
    let description = arch_lang::describe(&arch);
    let mut text = String::new();
    for row in &description.tensors {
        text += &format!("{}\n", row.join(" | "));
    }
    for (i, n) in description.flow.iter().enumerate() {
        let layer = if n.in_layer { "  " } else { "" };
        text += &format!("{i}: {layer}{} {} <- {:?}\n", n.label, n.shape, n.inputs);
    }
    insta::assert_snapshot!("llama_described", text);
}

#[test]
fn expansions_are_deterministic_and_free_of_errors() {
    let mut seen = 0;
    for entry in std::fs::read_dir(archs_dir()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        let name = path.file_stem().unwrap().to_str().unwrap();
        let first = expand(name).to_string();
        assert!(!first.contains("compile_error"), "{name}: {first}");
        assert_eq!(first, expand(name).to_string(), "{name}");
        seen += 1;
    }
    assert!(seen >= 5, "{seen} files");
}
