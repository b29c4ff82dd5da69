//! Reads `tokenizer.json` of the library `tokenizers`.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value as Json;

use super::pieces::{base64, byte_piece};
use super::{TokenType, Vocabulary};
use crate::checkpoint::CheckpointError;
use crate::checkpoint::shards::read_text;
use crate::vocab::{SplitOptions, pre_tokenizer_of};

/// Maximum length of the file in bytes. Published files are below 40 MiB.
const MAX_FILE: u64 = 128 << 20;
/// Maximum token id.
const MAX_ID: usize = 1 << 22;

/// Expression of `ByteLevel` with `use_regex`.
const BYTE_LEVEL: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
    model: Model,
}

#[derive(Deserialize)]
struct AddedToken {
    id: usize,
    content: String,
    #[serde(default)]
    special: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    vocab: Vocab,
    #[serde(default)]
    merges: Vec<Merge>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: Option<bool>,
    #[serde(default)]
    unk_token: Option<String>,
    #[serde(default)]
    unk_id: Option<usize>,
    #[serde(default)]
    continuing_subword_prefix: Option<String>,
}

/// A merge, written as "a b" or as ["a", "b"].
#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

/// Tokens with ids, or with scores in the order of their ids.
enum Vocab {
    Ids(Vec<(String, usize)>),
    Scores(Vec<(String, f32)>),
}

impl<'de> Deserialize<'de> for Vocab {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Vocab, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocab;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object or a list of tokens")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vocab, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    all.push(entry);
                }
                Ok(Vocab::Ids(all))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vocab, A::Error> {
                let mut all = Vec::new();
                while let Some(entry) = seq.next_element()? {
                    all.push(entry);
                }
                Ok(Vocab::Scores(all))
            }
        }
        deserializer.deserialize_any(Tokens)
    }
}

/// Reads a vocabulary. `clean_spaces` is a setting of the checkpoint that selects between equal pre-tokenizers.
pub fn read(path: &Path, clean_spaces: bool) -> Result<Vocabulary, CheckpointError> {
    let text = read_text(path, MAX_FILE)?;
    let file: File = serde_json::from_str(&text).map_err(|e| fault(path, format!("invalid tokenizer: {e}")))?;
    drop(text);
    let mut v = Vocabulary::default();
    match &file.model.vocab {
        Vocab::Ids(tokens) => {
            for (text, id) in tokens {
                check_id(path, *id)?;
                v.place(*id, text.clone(), TokenType::Normal);
            }
        }
        Vocab::Scores(tokens) => {
            for (id, (text, score)) in tokens.iter().enumerate() {
                v.place(id, text.clone(), TokenType::Normal);
                v.scores.push(*score);
            }
        }
    }
    let kind = file.model.kind.as_deref();
    match (kind, &file.model.vocab) {
        (Some("Unigram"), Vocab::Scores(_)) => unigram(&file, &mut v),
        (Some("WordPiece"), _) => word_piece(&file, &mut v),
        (Some("BPE") | None, Vocab::Ids(_)) => bpe(&file, &mut v, clean_spaces).map_err(|text| fault(path, text))?,
        (kind, _) => return Err(fault(path, format!("unknown kind of tokenizer: {kind:?}"))),
    }
    if let Some(unk) = &file.model.unk_token {
        v.unk = v.unk.or_else(|| v.id(unk));
    }
    if let Some(Some((_, ty))) = v.unk.and_then(|id| v.tokens.get_mut(id)) {
        *ty = TokenType::Unknown;
    }
    for token in &file.added_tokens {
        check_id(path, token.id)?;
        let is_unknown = v.unk == Some(token.id);
        let ty = if is_unknown {
            TokenType::Unknown
        } else if token.special {
            TokenType::Control
        } else {
            TokenType::UserDefined
        };
        v.place(token.id, token.content.clone(), ty);
    }
    if !v.scores.is_empty() {
        v.scores.resize(v.tokens.len(), -1000.0);
    }
    v.around = Some(around(&file.post_processor));
    Ok(v)
}

fn fault(path: &Path, text: impl Into<String>) -> CheckpointError {
    CheckpointError::tokenizer(path, text)
}

fn check_id(path: &Path, id: usize) -> Result<(), CheckpointError> {
    if id > MAX_ID {
        return Err(fault(path, format!("a token has the id {id}; the maximum is {MAX_ID}")));
    }
    Ok(())
}

/// Returns all parts of a component, whether it is a sequence or not.
fn parts<'a>(component: &'a Json, list: &str) -> Vec<&'a Json> {
    match component.get(list).and_then(Json::as_array) {
        Some(parts) if component["type"] == "Sequence" => parts.iter().collect(),
        _ if component.is_null() => Vec::new(),
        _ => vec![component],
    }
}

fn unigram(file: &File, v: &mut Vocabulary) {
    v.model = "t5";
    v.unk = file.model.unk_id;
    mark_bytes(v, file.model.byte_fallback);
    let normalizers = parts(&file.normalizer, "normalizers");
    for normalizer in &normalizers {
        if let Some(map) = normalizer.get("precompiled_charsmap").and_then(Json::as_str) {
            v.charsmap = base64(map);
        }
    }
    let is_strip = |n: &&Json| n["type"] == "Strip" || (n["type"] == "Replace" && n["pattern"]["Regex"] == " {2,}");
    v.flags
        .push(("remove_extra_whitespaces", normalizers.iter().any(is_strip)));
    v.flags.push(("add_space_prefix", has_prefix(file)));
}

fn word_piece(file: &File, v: &mut Vocabulary) {
    v.model = "bert";
    let mark = file
        .model
        .continuing_subword_prefix
        .clone()
        .unwrap_or_else(|| "##".to_owned());
    let special: Vec<&str> = file.added_tokens.iter().map(|t| t.content.as_str()).collect();
    for (text, _) in v.tokens.iter_mut().flatten() {
        if let Some(rest) = text.strip_prefix(&mark) {
            *text = rest.to_owned();
        } else if !special.contains(&text.as_str()) {
            text.insert(0, '▁');
        }
    }
    let flag = |name: &str| file.normalizer.get(name).and_then(Json::as_bool);
    let lowercase = flag("lowercase").unwrap_or(true);
    v.flags.push(("normalizer.lowercase", lowercase));
    v.flags
        .push(("normalizer.strip_accents", flag("strip_accents").unwrap_or(lowercase)));
}

/// Converts byte-level BPE, or BPE over characters with `▁` for spaces.
fn bpe(file: &File, v: &mut Vocabulary, clean_spaces: bool) -> Result<(), String> {
    let pre = parts(&file.pre_tokenizer, "pretokenizers");
    let decoders = parts(&file.decoder, "decoders");
    let is_byte_level = pre.iter().chain(&decoders).any(|p| p["type"] == "ByteLevel");
    let pair = |merge: &Merge| match merge {
        Merge::Text(text) => text.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned())),
        Merge::Pair(a, b) => Some((a.clone(), b.clone())),
    };
    let merges: Option<Vec<(String, String)>> = file.model.merges.iter().map(pair).collect();
    let merges = merges.ok_or("a merge has no space between its parts")?;
    if is_byte_level {
        v.model = "gpt2";
        let options = SplitOptions {
            ignore_merges: file.model.ignore_merges.unwrap_or(false),
            clean_spaces,
        };
        let patterns = patterns(&pre)?;
        let name = pre_tokenizer_of(&patterns, options);
        v.pre = Some(name.ok_or_else(|| {
            let merges = if options.ignore_merges {
                ", with `ignore_merges`"
            } else {
                ""
            };
            format!("unknown pre-tokenizer: {patterns:?}{merges}")
        })?);
        if merges.iter().any(|(a, b)| a.contains(' ') || b.contains(' ')) {
            return Err("a merge contains a space".to_owned());
        }
        v.merges = merges.iter().map(|(a, b)| format!("{a} {b}")).collect();
        return Ok(());
    }
    v.model = "llama";
    mark_bytes(v, file.model.byte_fallback);
    let mut ranks: HashMap<String, usize> = HashMap::new();
    for (rank, (a, b)) in merges.iter().enumerate() {
        ranks.entry(format!("{a}{b}")).or_insert(rank);
    }
    let score = |token: &Option<(String, TokenType)>| {
        let rank = token.as_ref().and_then(|(text, _)| ranks.get(text));
        rank.map_or(0.0, |&rank| -(rank as f32 + 1.0))
    };
    v.scores = v.tokens.iter().map(score).collect();
    v.flags.push(("add_space_prefix", has_prefix(file)));
    Ok(())
}

/// Marks the tokens of single bytes.
fn mark_bytes(v: &mut Vocabulary, has_fallback: bool) {
    for (text, ty) in v.tokens.iter_mut().flatten() {
        if has_fallback && byte_piece(text) {
            *ty = TokenType::Byte;
        }
    }
}

/// Returns true if a text starts with an added space.
fn has_prefix(file: &File) -> bool {
    let prepends = |n: &&Json| n["type"] == "Prepend";
    let metaspace = |p: &&Json| {
        let scheme = p.get("prepend_scheme").and_then(Json::as_str);
        let old = p.get("add_prefix_space").and_then(Json::as_bool);
        p["type"] == "Metaspace" && scheme.map_or(old.unwrap_or(true), |s| s != "never")
    };
    parts(&file.normalizer, "normalizers").iter().any(prepends)
        || parts(&file.pre_tokenizer, "pretokenizers").iter().any(metaspace)
}

/// Returns the expressions of a pre-tokenizer, in order.
fn patterns(pre: &[&Json]) -> Result<Vec<String>, String> {
    let mut patterns = Vec::new();
    for part in pre {
        let flag = |name: &str| part.get(name).and_then(Json::as_bool);
        match part["type"].as_str().unwrap_or_default() {
            "ByteLevel" => {
                if flag("add_prefix_space") == Some(true) {
                    return Err("`add_prefix_space` of the pre-tokenizer `ByteLevel` is not supported".to_owned());
                }
                if flag("use_regex").unwrap_or(true) {
                    patterns.push(BYTE_LEVEL.to_owned());
                }
            }
            "Digits" if flag("individual_digits") == Some(true) => patterns.push(r"\p{N}".to_owned()),
            "Digits" => patterns.push(r"\p{N}+".to_owned()),
            "Split" => {
                let behavior = part["behavior"].as_str().unwrap_or_default();
                let inverted = flag("invert").unwrap_or(false);
                let is_isolated = behavior == "Isolated" || (behavior == "Removed" && inverted);
                let pattern = part["pattern"]["Regex"].as_str();
                match pattern {
                    Some(pattern) if is_isolated => patterns.push(pattern.to_owned()),
                    _ => return Err(format!("the pre-tokenizer has a split that is not supported: {part}")),
                }
            }
            other => {
                return Err(format!(
                    "the pre-tokenizer has the part `{other}`, which is not supported"
                ));
            }
        }
    }
    Ok(patterns)
}

/// Returns whether tokens precede and follow a text.
fn around(post: &Json) -> (bool, bool) {
    for part in parts(post, "processors") {
        match part["type"].as_str() {
            Some("TemplateProcessing") => {
                let single = part["single"].as_array().map_or(&[][..], |v| v);
                let is_special = |p: Option<&Json>| p.is_some_and(|p| p.get("SpecialToken").is_some());
                return (is_special(single.first()), is_special(single.last()));
            }
            Some("RobertaProcessing" | "BertProcessing") => return (true, true),
            _ => {}
        }
    }
    (false, false)
}
