//! Fuzzes vocabularies: arrays and ids of any length and value, followed by tokenizing and detokenizing.

#![no_main]

use std::borrow::Cow;

use engine::gguf::StringArray;
use engine::vocab::{MODELS, Special, Vocab, VocabSource};
use libfuzzer_sys::arbitrary::{self, Arbitrary};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    model: u8,
    pre: Option<Pre<'a>>,
    tokens: Vec<&'a [u8]>,
    /// Scores and types with the wrong lengths are rejected early, so most inputs get matching lengths.
    fit: bool,
    scores: Option<Vec<f32>>,
    types: Option<Vec<i8>>,
    merges: Option<Vec<&'a [u8]>>,
    ids: [i16; 4],
    habits: [Option<bool>; 4],
    text: &'a str,
    some_tokens: Vec<u8>,
}

#[derive(Arbitrary, Debug)]
enum Pre<'a> {
    Known(u8),
    Other(&'a str),
}

const PRE: [&str; 8] = [
    "default",
    "llama-bpe",
    "qwen2",
    "gpt-2",
    "deepseek-llm",
    "falcon",
    "starcoder",
    "refact",
];

fuzz_target!(|input: Input| {
    let n = input.tokens.len();
    let fitted = |len: usize| if input.fit { n } else { len };
    let strings = |all: &[&[u8]]| Cow::Owned(all.iter().collect::<StringArray>());
    let source = VocabSource {
        model: MODELS[usize::from(input.model) % MODELS.len()].0,
        pre: input.pre.as_ref().map(|pre| match pre {
            Pre::Known(i) => PRE[usize::from(*i) % PRE.len()],
            Pre::Other(name) => name,
        }),
        vocab_size: Some(n as u64),
        tokens: Some(strings(&input.tokens)),
        scores: input.scores.clone().map(|mut v| {
            v.resize(fitted(v.len()), -1.0);
            Cow::Owned(v)
        }),
        token_types: input.types.as_ref().map(|types| {
            let mut v: Vec<i32> = types.iter().map(|&t| i32::from(t)).collect();
            v.resize(fitted(v.len()), 1);
            Cow::Owned(v)
        }),
        merges: input.merges.as_deref().map(strings),
        special_ids: vec![
            ("tokenizer.ggml.bos_token_id", Special::Bos, i64::from(input.ids[0])),
            ("tokenizer.ggml.eos_token_id", Special::Eos, i64::from(input.ids[1])),
            ("tokenizer.ggml.eot_token_id", Special::Eot, i64::from(input.ids[2])),
            ("tokenizer.ggml.unknown_token_id", Special::Unk, i64::from(input.ids[3])),
        ],
        add_bos: input.habits[0],
        add_eos: input.habits[1],
        add_sep: input.habits[2],
        add_space_prefix: input.habits[3],
        ..VocabSource::default()
    };
    let vocab = match Vocab::from_source(&source) {
        Ok(vocab) => vocab,
        Err(e) => return assert!(!e.to_string().is_empty()),
    };
    for parse_special in [false, true] {
        let tokens = vocab.tokenize(input.text, true, parse_special);
        assert!(tokens.iter().all(|&t| t < vocab.n_tokens()), "{tokens:?}");
        vocab.detokenize(&tokens, parse_special, true);
    }
    let some: Vec<u32> = input.some_tokens.iter().map(|&t| u32::from(t)).collect();
    vocab.detokenize(&some, true, false);
});
