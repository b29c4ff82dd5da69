//! Tests of `llama inspect`, `tokenize`, `arch`, and `logits`, and of the generated documentation.

use std::collections::BTreeSet;

use crate::common::{Home, ended, ended_with_input, fixtures, root};
use crate::crash_safety::{Full, limited};
use engine::gguf::logits::Logits;

fn llama(args: &[&str]) -> crate::common::Ended {
    ended(Home::new().llama(args))
}

fn fixture(name: &str) -> String {
    fixtures().join(name).into_os_string().into_string().unwrap()
}

#[test]
fn inspect_accepts_missing_tensor_data() {
    let result = llama(&["inspect", &fixture("qwen3-dense.header.gguf")]);
    let text = result.succeeds();
    for part in [
        "architecture  qwen3",
        "qwen3.block_count",
        "blk.0.attn_q_norm.weight",
        "f32",
        "the file is truncated",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn inspect_prints_json() {
    let home = Home::new();
    let model = home.model("gemma3-dense", None);
    let result = ended(home.llama(&["inspect", "--json", &model]));
    let report: serde_json::Value = serde_json::from_str(result.succeeds()).unwrap();
    assert_eq!(report["architecture"], "gemma3");
    assert_eq!(report["declaration"]["status"], "matches");
    assert_eq!(report["missing_bytes"], 0);
    let tensors = report["tensors"].as_array().unwrap();
    let bytes: u64 = tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum();
    assert_eq!(report["tensor_bytes"], bytes);
    assert_eq!(report["types"]["f32"]["tensors"], tensors.len());
    assert!(report["hyper_parameters"]["gemma3.block_count"].as_u64() > Some(0));
    assert!(report["metadata"]["tokenizer.ggml.tokens"]["length"].as_u64() > Some(0));
    let full = ended(home.llama(&["inspect", "--json", "--arrays", &model]));
    let report: serde_json::Value = serde_json::from_str(full.succeeds()).unwrap();
    assert!(report["metadata"]["tokenizer.ggml.tokens"].is_array());
}

#[test]
fn inspect_rejects_other_files() {
    llama(&["inspect", "missing.gguf"]).fails_saying(&["missing.gguf"]);
    llama(&["inspect", "."]).fails_saying(&["the directory has no config.json"]);
    llama(&["inspect", root().join("Cargo.toml").to_str().unwrap()]).fails_saying(&["Cargo.toml", "not a GGUF file"]);
}

#[test]
fn tokenize_prints_tokens_and_ids() {
    let home = Home::new();
    let model = home.model("llama-dense", None);
    let pieces = ended(home.llama(&["tokenize", "-m", &model, "--no-special", "abc"]));
    let ids = ended(home.llama(&["tokenize", "-m", &model, "--no-special", "--ids", "abc"]));
    let from_pieces: Vec<_> = pieces
        .succeeds()
        .lines()
        .map(|l| l.split_whitespace().next().unwrap())
        .collect();
    assert!(!from_pieces.is_empty());
    assert_eq!(ids.succeeds().trim(), from_pieces.join(","));
    let piped = ended_with_input(home.llama(&["tokenize", "-m", &model, "--no-special", "--ids"]), "abc");
    assert_eq!(piped.succeeds(), ids.out);
}

#[test]
fn logits_match_recording() {
    let home = Home::new();
    let model = home.model("qwen2-dense", None);
    let recorded = Logits::read(fixture("qwen2-dense.logits")).unwrap();
    let ids: Vec<_> = recorded.tokens().iter().map(ToString::to_string).collect();
    let file = home.path("tokens");
    std::fs::write(&file, ids.join(" \n")).unwrap();
    let out = home.path("out.logits");
    let out = out.to_str().unwrap();
    let exact = ["--ctk", "f32", "--ctv", "f32", "-o", out, "-m", &model];
    for tokens in [["--tokens", &ids.join(",")], ["--tokens-file", file.to_str().unwrap()]] {
        let result = ended(home.llama(&[&["logits", "--ubatch", "7"], &tokens[..], &exact].concat()));
        assert_eq!(result.succeeds(), "");
        let found = Logits::read(out).unwrap();
        assert_eq!(
            (found.tokens(), found.n_vocab()),
            (recorded.tokens(), recorded.n_vocab())
        );
        assert!(recorded.nmse(found.values()) < 1e-8);
    }
    ended(home.llama(&[&["logits", "--tokens", "1,x"], &exact[..]].concat())).fails_saying(&["\"x\""]);
    ended(home.llama(&[&["logits", "--tokens", "1,99999"], &exact[..]].concat())).fails_saying(&["99999"]);
    assert_eq!(ended(home.llama(&["logits", "-m", &model, "-o", out])).status, 2);
}

/// Runs `llama arch check` and returns the names of its lines and the last line.
fn checked(args: &[&str]) -> (crate::common::Ended, Vec<String>, String) {
    let dir = fixtures();
    let result = llama(&[&["arch", "check", "--fixtures", dir.to_str().unwrap()], args].concat());
    let mut lines: Vec<_> = result.out.lines().map(str::to_owned).collect();
    let last = lines.pop().unwrap_or_default();
    (result, lines, last)
}

#[test]
fn arch_check_passes_recorded_configurations() {
    let (result, lines, last) = checked(&["--known"]);
    assert_eq!(result.status, 0, "{}", result.out);
    assert_eq!(last, format!("{} passed, 0 failed", lines.len()));
    let names: Vec<_> = lines.iter().map(|l| l.split_whitespace().next().unwrap()).collect();
    assert!(
        names.is_sorted() && names.contains(&"llama-moe") && names.contains(&"gemma3-dense"),
        "{names:?}"
    );
    for line in &lines {
        let words: Vec<_> = line.split_whitespace().collect();
        let exact = words.len() == 3 && words[1].parse::<f64>().is_ok_and(|x| x < 1e-8);
        assert!(words[2] == "ok" && exact, "{line}");
    }
}

#[test]
fn arch_check_passes_with_ubatches_and_f16_cache() {
    for args in [&["--ubatch", "1"][..], &["-ub", "7"], &["-ctk", "f16", "--ctv", "f16"]] {
        let (result, _, last) = checked(&[&["--known"], args].concat());
        assert_eq!(result.status, 0, "{args:?}: {}", result.out);
        assert!(last.ends_with(" 0 failed"), "{args:?}: {last}");
    }
}

#[test]
fn arch_check_selects_by_name() {
    let (_, lines, last) = checked(&["llama"]);
    assert_eq!((lines.len(), last.as_str()), (2, "2 passed, 0 failed"));
    let (_, lines, _) = checked(&["llama-moe", "qwen3"]);
    assert_eq!(lines.len(), 2);
    let (result, ..) = checked(&["no-such"]);
    result.fails_saying(&["no-such"]);
}

#[test]
fn arch_check_fails_for_differences_and_unknown_architectures() {
    let (result, lines, last) = checked(&["qwen3", "--seed", "2"]);
    assert_eq!(
        (result.status, last.as_str(), result.err.as_str()),
        (1, "0 passed, 1 failed", "")
    );
    assert!(lines[0].contains(" FAIL"), "{lines:?}");
    let (result, ..) = checked(&["qwen3", "--limit", "1e-30"]);
    assert_eq!(result.status, 1);

    let home = Home::new();
    let header = std::fs::read(fixture("qwen3-dense.header.gguf")).unwrap();
    let at = header.windows(5).position(|w| w == b"qwen3").unwrap();
    let mut renamed = header.clone();
    renamed[at..at + 5].copy_from_slice(b"qwenX");
    std::fs::write(home.path("new.header.gguf"), renamed).unwrap();
    std::fs::write(home.path("cut.header.gguf"), &header[..header.len() / 2]).unwrap();
    std::fs::copy(fixture("qwen3-dense.logits"), home.path("new.logits")).unwrap();
    std::fs::write(home.path("lone.header.gguf"), &header).unwrap();
    let dir = home.path("");
    let result = llama(&["arch", "check", dir.to_str().unwrap()]);
    result.fails_saying(&["it is a directory without a config.json", "FILE.rs", "--fixtures"]);
    let result = llama(&["arch", "check", "--fixtures", dir.to_str().unwrap()]);
    assert_eq!(result.status, 1);
    let lines: Vec<_> = result.out.lines().collect();
    assert!(lines[0].starts_with("cut") && lines[0].contains("FAIL"), "{lines:?}");
    assert!(
        lines[1].starts_with("lone") && lines[1].contains("lone.logits"),
        "{lines:?}"
    );
    assert!(
        lines[2].starts_with("new") && lines[2].contains("unsupported architecture `qwenX`"),
        "{lines:?}"
    );
    assert_eq!(lines[3], "0 passed, 3 failed");
}

#[test]
fn arch_lists_shows_and_draws() {
    let list = llama(&["arch"]);
    assert_eq!(list.succeeds(), llama(&["arch", "list"]).out);
    let names: BTreeSet<_> = list.out.lines().map(|l| l.split_whitespace().next().unwrap()).collect();
    for name in ["llama", "internlm2", "qwen2", "qwen3", "gemma3"] {
        assert!(names.contains(name), "{name}");
        let shown = llama(&["arch", name]);
        for part in ["token_embd", "blk.N.attn_q", "n_embd", "graph"] {
            assert!(shown.succeeds().contains(part), "{name}: {part:?} in {}", shown.out);
        }
        let mermaid = llama(&["arch", name, "--draw", "mermaid"]);
        assert!(
            mermaid.succeeds().starts_with("flowchart TD\n") && mermaid.out.contains(" --> "),
            "{}",
            mermaid.out
        );
        let dot = llama(&["arch", name, "--draw", "dot"]);
        assert!(
            dot.succeeds().starts_with("digraph") && dot.out.trim_end().ends_with('}'),
            "{}",
            dot.out
        );
    }
    llama(&["arch", "no-such"]).fails_saying(&["no-such"]);
    llama(&["arch", "qwn3"]).fails_saying(&["`qwn3`", "did you mean qwen3"]);
}

/// `llama arch` shows information beyond the graph: families, windows with their RoPE bases, branches, and
/// both graphs of an encoder-decoder model.
#[test]
fn arch_shows_families_windows_branches_and_both_graphs() {
    let shown = llama(&["arch", "gemma3"]);
    for part in [
        "blk.N.attn_q.weight",
        "attn_post_norm",
        "sliding(n_swa) if is_swa",
        "base=rope_base",
        "if logit_cap > 0.0",
        "\"27B\"        n_layer == 62",
    ] {
        assert!(shown.succeeds().contains(part), "{part:?} in {}", shown.out);
    }
    let shown = llama(&["arch", "internlm2"]);
    assert!(shown.succeeds().contains("\nlike: decoder\n"), "{}", shown.out);
    let shown = llama(&["arch", "t5"]);
    let (encoder, decoder) = shown.succeeds().split_once("\ndecoder\n").expect("two graphs");
    assert!(
        encoder.contains("\nencoder\n") && !encoder.contains("cross_attention"),
        "{encoder}"
    );
    assert!(
        decoder.contains("cross_attention") && decoder.contains("if !has(gate)"),
        "{decoder}"
    );
    let drawn = llama(&["arch", "t5", "--draw", "mermaid"]);
    for part in [
        "subgraph encoder [",
        "subgraph encoder_layer [",
        "subgraph decoder [",
        "subgraph layer [",
    ] {
        assert!(drawn.succeeds().contains(part), "{part:?} in {}", drawn.out);
    }
    assert_eq!(drawn.out.matches("end\n").count(), 4, "{}", drawn.out);
}

#[test]
fn generated_documents_are_current() {
    let pages = [
        ("docs/cli.md", &["reference"][..]),
        ("docs/architectures.md", &["arch", "list", "--markdown"]),
    ];
    for (page, args) in pages {
        let (path, printed) = (root().join(page), llama(args));
        if std::env::var_os("LLAMA_UPDATE").is_some() {
            std::fs::write(&path, printed.succeeds()).unwrap();
        }
        let is_current = std::fs::read_to_string(&path).unwrap() == printed.succeeds();
        assert!(
            is_current,
            "{page} is outdated: `llama {}` prints it, and LLAMA_UPDATE=1 rewrites it",
            args.join(" ")
        );
    }
}

/// A seeded model passes its self-check; if a recording exists, its logits are compared.
#[test]
fn arch_check_compares_seeded_model_with_recording() {
    let home = Home::new();
    let dir = home.path("seeds");
    let dir = dir.to_str().unwrap();
    let seed = ended(home.llama(&["arch", "seed", "qwen3", "-o", dir]));
    assert!(seed.succeeds().contains("qwen3.gguf: 26 tensors"), "{}", seed.out);
    let (model, header) = (format!("{dir}/qwen3.gguf"), format!("{dir}/qwen3.header.gguf"));
    let checked = ended(home.llama(&["arch", "check", &model]));
    for part in [
        "n_embd 256",
        "n_head_kv 1",
        "per token in 2 layers",
        "not checked against",
        "qwen3.logits",
    ] {
        assert!(checked.succeeds().contains(part), "{part:?} in {}", checked.out);
    }
    assert!(!checked.out.contains("FAIL"), "{}", checked.out);
    assert_eq!(checked.out.matches("  ok").count(), 6, "{}", checked.out);

    let logits = format!("{dir}/qwen3.logits");
    let exact = [
        "--ctk", "f32", "--ctv", "f32", "-o", &logits, "-m", &model, "--tokens", "1,2,3",
    ];
    ended(home.llama(&[&["logits"], &exact[..]].concat())).succeeds();
    for file in [&model, &header] {
        let compared = ended(home.llama(&["arch", "check", file]));
        assert!(compared.succeeds().contains("qwen3.logits: ok"), "{}", compared.out);
    }
    let other = ended(home.llama(&["arch", "check", &header, "--seed", "2"]));
    assert_eq!(other.status, 1);
    assert!(other.out.contains("qwen3.logits: FAIL"), "{}", other.out);
}

#[test]
fn arch_check_file_reports_errors() {
    let home = Home::new();
    let good = root().join("archs/qwen3.rs");
    let checked = llama(&["arch", "check", "--file", good.to_str().unwrap()]);
    assert!(checked.succeeds().contains("no errors"), "{}", checked.out);
    let text = std::fs::read_to_string(&good).unwrap();
    let faulty = home.path("my.rs");
    std::fs::write(&faulty, text.replace("rms_norm(x, ffn_norm", "rms_norm(x, ffn_nrm")).unwrap();
    std::fs::create_dir(home.path("fragments")).unwrap();
    for fragment in std::fs::read_dir(root().join("archs/fragments")).unwrap() {
        let fragment = fragment.unwrap();
        std::fs::copy(fragment.path(), home.path("fragments").join(fragment.file_name())).unwrap();
    }
    let checked = llama(&["arch", "check", "--file", faulty.to_str().unwrap()]);
    assert_eq!(checked.status, 1);
    for part in ["my.rs:", "`ffn_nrm`", "did you mean `ffn_norm`?", "^^^"] {
        assert!(checked.out.contains(part), "{part:?} in {}", checked.out);
    }
    let slip = text
        .replace("\"qwen3\"", "\"mine\"")
        .replace("\"ffn_norm\"", "\"ffn_nrm\"");
    std::fs::write(&faulty, slip).unwrap();
    let checked = llama(&["arch", "check", "--file", faulty.to_str().unwrap()]);
    let message = "no other architecture has a tensor \"ffn_nrm\"; did you mean \"ffn_norm\"?";
    assert!(checked.out.contains(message), "{}", checked.out);
}

#[test]
fn arch_fmt_formats_declarations() {
    let home = Home::new();
    let file = home.path("my.rs");
    let text = std::fs::read_to_string(root().join("archs/qwen3.rs")).unwrap();
    std::fs::write(&file, text.replace("    ", "  ").replace(" -> ", "->")).unwrap();
    let path = file.to_str().unwrap();
    let checked = llama(&["arch", "fmt", "--check", path]);
    assert_eq!(checked.status, 1);
    assert!(checked.out.contains("my.rs: needs formatting"), "{}", checked.out);
    llama(&["arch", "fmt", path]).succeeds();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    assert_eq!(llama(&["arch", "fmt", "--check", path]).succeeds(), "");
    // A full disk leaves the old file.
    let other = text.replace("    ", "  ");
    std::fs::write(&file, &other).unwrap();
    let full = limited(home.llama(&["arch", "fmt", path]), 100, Full::Fails);
    ended(full).fails_saying(&["too large"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), other);
    std::fs::write(&file, "arch! { ( }").unwrap();
    let faulty = llama(&["arch", "fmt", path]);
    assert_eq!(
        (faulty.status, std::fs::read_to_string(&file).unwrap().as_str()),
        (1, "arch! { ( }")
    );
    assert!(faulty.out.contains("my.rs:1:"), "{}", faulty.out);
}

#[test]
fn short_help_omits_rare_flags() {
    let (short, long) = (llama(&["run", "-h"]), llama(&["run", "--help"]));
    assert!(short.succeeds().lines().count() < 50, "{}", short.out);
    for flag in ["--temp", "--ctx-size", "--arch", "--no-stats"] {
        assert!(short.out.contains(flag) && long.succeeds().contains(flag), "{flag}");
    }
    for flag in ["--ubatch-size", "--cache-type-k", "--typical", "--logit-bias"] {
        assert!(long.out.contains(flag), "{flag}");
    }
}

#[test]
fn completions_and_man_pages_cover_all_commands() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = ended(home.llama(&["completions", shell]));
        for part in ["tokenize", "temp", "ctx-size"] {
            assert!(script.succeeds().contains(part), "{part} for {shell}");
        }
    }
    let directory = home.path("");
    ended(home.llama(&["man", "-o", directory.to_str().unwrap()])).succeeds();
    for (page, part) in [
        ("llama.1", "tokenize"),
        ("llama-run.1", "repeat\\-penalty"),
        ("llama-arch-check.1", "fixtures"),
    ] {
        let text = std::fs::read_to_string(home.path(page)).unwrap();
        assert!(text.contains(part), "{part} in {page}");
    }
}
