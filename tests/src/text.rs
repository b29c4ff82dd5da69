//! A tiny model with a character vocabulary and random weights.

use engine::gguf::{Gguf, Metadata, StringArray, seeded};

use crate::fixture;

/// Returns the model file for the tokenizer model "llama" or "gpt2". It has 128 tokens: 0 to 2 are special, 2
/// is EOS, and the last two are reasoning tags.
pub fn text_model(model: &str, template: Option<&str>) -> Vec<u8> {
    text_model_with(model, template, |_| {})
}

/// Like [`text_model`], with additional metadata.
pub fn text_model_with(model: &str, template: Option<&str>, more: impl FnOnce(&mut Metadata)) -> Vec<u8> {
    let mut header = Gguf::open_header(fixture("llama-dense").header).expect("a header");
    let space = if model == "llama" { "▁" } else { "Ġ" };
    let line_feed = if model == "llama" { "\n" } else { "Ċ" };
    let mut tokens = vec!["<unk>".to_owned(), "<s>".to_owned(), "</s>".to_owned()];
    tokens.extend([space, line_feed].map(str::to_owned));
    tokens.extend(('!'..='~').map(String::from));
    let words = [
        "ab", "abc", "true", "false", "\":", "{\"", "on", "one", "yes", "no", "th", "tw",
    ];
    tokens.extend(words.map(str::to_owned));
    tokens.extend((tokens.len()..126).map(|i| format!("w{i}")));
    tokens.extend(["<think>", "</think>"].map(str::to_owned));
    let mut kinds = vec![1_i32; 128];
    kinds[..3].copy_from_slice(&[2, 3, 3]);
    kinds[126..].fill(3);
    let metadata = &mut header.metadata;
    metadata.insert("tokenizer.ggml.model", model);
    metadata.insert(
        "tokenizer.ggml.tokens",
        tokens.iter().map(String::as_str).collect::<StringArray>(),
    );
    metadata.insert("tokenizer.ggml.scores", vec![0.0_f32; 128]);
    metadata.insert("tokenizer.ggml.token_type", kinds);
    metadata.insert("tokenizer.ggml.eos_token_id", 2_u32);
    metadata.insert("tokenizer.ggml.bos_token_id", 1_u32);
    if model == "gpt2" {
        metadata.insert("tokenizer.ggml.pre", "gpt-2");
        metadata.insert("tokenizer.ggml.merges", ["a b"].into_iter().collect::<StringArray>());
    }
    if let Some(template) = template {
        metadata.insert("tokenizer.chat_template", template);
    }
    more(metadata);
    seeded::seeded_model(&header, 1).expect("a tiny model")
}
