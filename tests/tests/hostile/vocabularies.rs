//! Malicious vocabularies: invalid ids, arrays of wrong lengths, invalid merges.

use engine::gguf::{Array, StringArray, Value};

use super::draft::{Draft, Outcome};

const N: usize = 32;

fn strings<S: AsRef<[u8]>>(all: impl IntoIterator<Item = S>) -> Value {
    Value::Array(Array::String(all.into_iter().collect::<StringArray>()))
}

/// Returns a SentencePiece vocabulary of 32 tokens, including byte tokens.
fn spm() -> Draft {
    let texts = [
        "<unk>",
        "<s>",
        "</s>",
        "\u{2581}",
        "\u{2581}a",
        "a",
        "t",
        "e",
        "x",
        "te",
        "xt",
        "text",
        "<0x0A>",
        "<0xC3>",
        "<0xB6>",
    ];
    let filler = (texts.len()..N).map(|i| format!("tok{i}"));
    let mut types = vec![1i32; N];
    (types[0], types[1], types[2]) = (2, 3, 3);
    types[12..15].fill(6);
    Draft::small("llama-dense")
        .with("tokenizer.ggml.model", "llama")
        .with(
            "tokenizer.ggml.tokens",
            strings(texts.iter().map(|t| (*t).to_owned()).chain(filler)),
        )
        .with("tokenizer.ggml.scores", (0..N).map(|i| -(i as f32)).collect::<Vec<_>>())
        .with("tokenizer.ggml.token_type", types)
        .with("tokenizer.ggml.bos_token_id", 1u32)
        .with("tokenizer.ggml.eos_token_id", 2u32)
        .with("tokenizer.ggml.unknown_token_id", 0u32)
}

/// Returns a byte-level BPE vocabulary of 32 tokens.
fn bpe() -> Draft {
    let texts = [
        "<|end|>", "a", "t", "e", "x", "te", "xt", "text", "\u{120}", "\u{120}a", "\u{10a}",
    ];
    let filler = (texts.len()..N).map(|i| format!("tok{i}"));
    let mut types = vec![1i32; N];
    types[0] = 3;
    Draft::small("qwen2-dense")
        .with("tokenizer.ggml.model", "gpt2")
        .with("tokenizer.ggml.pre", "qwen2")
        .with(
            "tokenizer.ggml.tokens",
            strings(texts.iter().map(|t| (*t).to_owned()).chain(filler)),
        )
        .with("tokenizer.ggml.token_type", types)
        .with("tokenizer.ggml.merges", strings(["t e", "x t", "te xt", "\u{120} a"]))
        .with("tokenizer.ggml.bos_token_id", 0u32)
        .with("tokenizer.ggml.eos_token_id", 0u32)
}

#[test]
fn invalid_token_ids_are_rejected() {
    for draft in [spm(), bpe()] {
        assert_eq!(draft.outcome("sound"), Outcome::Ran);
        for id in [
            "bos",
            "eos",
            "eot",
            "eom",
            "unknown",
            "seperator",
            "padding",
            "mask",
            "fim_pre",
            "fim_sep",
        ] {
            let key = format!("tokenizer.ggml.{id}_token_id");
            for value in [
                Value::U32(N as u32),
                Value::U32(u32::MAX),
                Value::U32(i32::MAX as u32),
                Value::I32(-2),
                Value::I64(i64::MIN),
                Value::U64(u64::MAX),
                Value::F32(1.5),
                Value::from("1"),
            ] {
                let what = format!("{key} = {}", value.describe());
                if let Outcome::Refused(sentence) = draft.with(&key, value).outcome(&what) {
                    assert!(sentence.contains(&key), "{what}: {sentence}");
                }
            }
        }
    }
}

#[test]
fn arrays_of_wrong_length_are_rejected() {
    for draft in [spm(), bpe()] {
        for (key, lengths) in [("scores", [0, 1, N - 1, N + 1]), ("token_type", [0, 1, N - 1, N + 1])] {
            let key = format!("tokenizer.ggml.{key}");
            for n in lengths {
                let value = if key.ends_with("scores") {
                    Value::from(vec![0.0f32; n])
                } else {
                    Value::from(vec![1i32; n])
                };
                let Outcome::Refused(sentence) = draft.with(&key, value).outcome(&key) else {
                    panic!("{key} of {n} elements was accepted");
                };
                assert!(sentence.contains(&key), "{sentence}");
            }
        }
    }
}

#[test]
fn invalid_tokens_and_merges_are_rejected_or_harmless() {
    let (spm, bpe) = (spm(), bpe());
    let tokens = "tokenizer.ggml.tokens";
    for draft in [&spm, &bpe] {
        for (what, value) in [
            ("none", strings::<&str>([])),
            ("one", strings(["a"])),
            ("all equal", strings(["a"; N])),
            ("all empty", strings([""; N])),
            ("not UTF-8", strings([b"\xff\xc3\x28"; N])),
            ("numbers", Value::from(vec![1i32; N])),
            ("long", strings((0..N).map(|i| "x".repeat(10_000 + i)))),
            ("specials in specials", strings((0..N).map(|i| "<s>".repeat(i + 1)))),
        ] {
            let types = Value::from(vec![3i32; N]);
            for draft in [draft.clone(), draft.with("tokenizer.ggml.token_type", types)] {
                draft.with(tokens, value.clone()).outcome(&format!("tokens: {what}"));
            }
        }
        for ty in [0, 5, 7, -1, i32::MIN, i32::MAX] {
            let draft = draft.with("tokenizer.ggml.token_type", vec![ty; N]);
            draft.outcome(&format!("all tokens of type {ty}"));
        }
        let nan = vec![f32::NAN; N];
        draft
            .with("tokenizer.ggml.scores", nan)
            .outcome("scores that are not numbers");
    }
    for merge in ["", " ", "  ", "a", "a ", " a", "zz zz", "t e x", "\u{120}", "a a"] {
        let draft = bpe.with("tokenizer.ggml.merges", strings([merge]));
        if let Outcome::Refused(sentence) = draft.outcome(merge) {
            assert!(sentence.contains("merge"), "{merge:?}: {sentence}");
        }
    }
    let not_text = bpe.with("tokenizer.ggml.merges", strings([b"\xff \xfe"]));
    not_text.outcome("merges that are not UTF-8");
}

#[test]
fn keys_of_wrong_type_are_rejected() {
    for draft in [spm(), bpe()] {
        let keys: Vec<String> = draft.metadata.iter().map(|(k, _)| k.to_owned()).collect();
        for key in keys.iter().filter(|k| k.starts_with("tokenizer.")) {
            for value in super::lies() {
                let what = format!("{key} = {}", value.describe());
                if let Outcome::Refused(sentence) = draft.with(key, value).outcome(&what) {
                    assert!(sentence.contains("tokenizer."), "{what}: {sentence}");
                }
            }
        }
    }
}
