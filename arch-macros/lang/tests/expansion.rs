//! Snapshots of what the declarations in `archs/` become, and properties of every expansion.

use std::path::{Path, PathBuf};

use proc_macro2::TokenStream;

fn archs_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs")
}

/// The tokens inside the file's `arch! { … }`.
fn declaration(name: &str) -> TokenStream {
    let text = std::fs::read_to_string(archs_folder().join(format!("{name}.rs"))).unwrap();
    let file: syn::File = syn::parse_str(&text).unwrap();
    match &file.items[..] {
        [syn::Item::Macro(m)] => m.mac.tokens.clone(),
        _ => panic!("{name}.rs holds something else than one `arch!`"),
    }
}

/// The expansion, with the folder's other declarations to inherit from.
fn expand(name: &str) -> TokenStream {
    arch_lang::expand_with(declaration(name), &arch_lang::Folder(archs_folder()))
}

fn expanded(name: &str) -> String {
    let tokens = expand(name);
    let file: syn::File = syn::parse2(tokens).unwrap();
    prettyplease::unparse(&file)
}

#[test]
fn five_architectures() {
    for name in ["llama", "internlm2", "qwen2", "qwen3", "gemma3"] {
        insta::assert_snapshot!(name, expanded(name));
    }
}

#[test]
fn a_description_has_every_tensor_and_value() {
    let arch = arch_lang::compile_with(declaration("llama"), &arch_lang::Folder(archs_folder())).unwrap();
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
    for entry in std::fs::read_dir(archs_folder()).unwrap() {
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
