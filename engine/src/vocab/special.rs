//! Assigns roles to special tokens, by metadata key or by text, and determines the end-of-generation tokens.

use std::collections::BTreeSet;

use super::roles::{SPECIALS, Special};
use super::source::VocabSource;
use super::tokens::Tokens;
use super::{Token, TokenAttr, VocabError, VocabKind, VocabWarning};

/// Texts of end-of-generation tokens, used in addition to the metadata, which often names only one of
/// several.
const EOG_TEXTS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Roles that end generation.
const EOG_SPECIALS: [Special; 6] = [
    Special::Eos,
    Special::Eot,
    Special::Eom,
    Special::FimPad,
    Special::FimRep,
    Special::FimSep,
];

/// Structure tokens of the harmony format. They are always rendered because the parser needs them to separate
/// channels.
const ALWAYS_SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

/// Special tokens, indexed by role.
#[derive(Debug, Clone, Default)]
pub(super) struct SpecialIds([Option<Token>; SPECIALS.len()]);

impl SpecialIds {
    pub fn get(&self, special: Special) -> Option<Token> {
        self.0[special as usize]
    }

    fn set(&mut self, special: Special, token: Option<Token>) {
        self.0[special as usize] = token;
    }

    /// Resolves roles from defaults, metadata keys, and texts, in this order. Corrects the attributes of tokens found
    /// by text.
    pub fn find(
        source: &VocabSource,
        kind: VocabKind,
        no_bos: bool,
        tokens: &mut Tokens,
        warnings: &mut Vec<VocabWarning>,
    ) -> Result<Self, VocabError> {
        let mut ids = Self::defaults(source, kind, tokens.n);
        if no_bos {
            ids.set(Special::Bos, None);
        }
        for &(key, special, id) in &source.special_ids {
            // -1 means "no such token"; many files store the value as an unsigned integer.
            if id == -1 || id == i64::from(u32::MAX) {
                ids.set(special, None);
                continue;
            }
            let token = Token::try_from(id).ok().filter(|&token| token < tokens.n);
            if token.is_none() {
                return Err(VocabError::TokenOutOfRange {
                    key,
                    n_tokens: tokens.n,
                    found: id,
                });
            }
            ids.set(special, token);
        }
        for row in &SPECIALS {
            if ids.get(row.special).is_none()
                && let Some(token) = row.texts.iter().find_map(|text| tokens.find(text.as_bytes()))
            {
                ids.set(row.special, Some(token));
                tokens.mark_control(token, warnings);
            }
        }
        Ok(ids)
    }

    /// Returns the conventional ids for this kind of vocabulary, without ids outside the vocabulary.
    fn defaults(source: &VocabSource, kind: VocabKind, n_tokens: u32) -> Self {
        let defaults: &[(Special, Token)] = match kind {
            VocabKind::Spm => &[(Special::Bos, 1), (Special::Eos, 2), (Special::Unk, 0)],
            VocabKind::Wpm => &[
                (Special::Bos, 101),
                (Special::Unk, 100),
                (Special::Sep, 102),
                (Special::Pad, 0),
                (Special::Mask, 103),
            ],
            VocabKind::Plamo2 => &[
                (Special::Bos, 1),
                (Special::Eos, 2),
                (Special::Unk, 0),
                (Special::Pad, 3),
            ],
            VocabKind::Ugm => &[(Special::Eos, 1), (Special::Unk, 2), (Special::Pad, 0)],
            VocabKind::Bpe if source.model != "gemma4" => &[(Special::Bos, 11), (Special::Eos, 11)],
            _ => &[],
        };
        let mut ids = Self::default();
        for &(special, token) in defaults.iter().filter(|(_, token)| *token < n_tokens) {
            ids.set(special, Some(token));
        }
        ids
    }
}

/// Returns the end-of-generation tokens in ascending order. Corrects the attributes of tokens found by text.
pub(super) fn end_of_generation(ids: &SpecialIds, tokens: &mut Tokens, warnings: &mut Vec<VocabWarning>) -> Vec<Token> {
    let mut eog: BTreeSet<Token> = EOG_SPECIALS.iter().filter_map(|&special| ids.get(special)).collect();
    for text in EOG_TEXTS {
        if let Some(token) = tokens.find(text.as_bytes()) {
            eog.insert(token);
            tokens.mark_control(token, warnings);
        }
    }
    for text in ALWAYS_SHOWN {
        if let Some(token) = tokens.find(text.as_bytes()) {
            tokens.attrs[token as usize] = TokenAttr::USER_DEFINED;
        }
    }
    let eog_token = |text: &str| tokens.find(text.as_bytes()).filter(|token| eog.contains(token));
    // In vocabularies with <|return|> and <|call|>, <|end|> only ends one of several messages of a turn.
    let calls = eog_token("<|call|>").or(eog_token("<|calls|>")).is_some();
    let multi_part = eog_token("<|return|>").or(eog_token("<|flush|>")).is_some();
    if calls
        && multi_part
        && let Some(end) = eog_token("<|end|>")
    {
        eog.remove(&end);
        tokens.attrs[end as usize] = TokenAttr::USER_DEFINED;
    }
    // These vocabularies contain </s> as an HTML tag, not as an end-of-sequence token.
    let eog_token = |text: &str| tokens.find(text.as_bytes()).filter(|token| eog.contains(token));
    let has_other_end = eog_token("<|tool_response>").or(eog_token("<|plamo:eos|>")).is_some();
    if has_other_end && let Some(tag) = eog_token("</s>") {
        eog.remove(&tag);
        tokens.attrs[tag as usize] = TokenAttr::NORMAL;
    }
    eog.into_iter().collect()
}

/// Sets the whitespace stripping of special tokens, which GGUF files do not store, by model name.
pub(super) fn mark_strips(source: &VocabSource, tokens: &mut Tokens) {
    let pre = source.pre.unwrap_or_default();
    let name = source.general_name.to_lowercase();
    let has = |haystack: &str, needles: &[&str]| needles.iter().any(|needle| haystack.contains(needle));
    let lstrip = if has(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code", "mmbert"])
        || has(source.architecture, &["nomic-bert-moe", "jina-bert-v3"])
    {
        Some("<mask>")
    } else if has(&name, &["phi-3", "phi3"]) {
        for attr in tokens.attrs.iter_mut().filter(|attr| attr.intersects(Tokens::PARSED)) {
            *attr |= TokenAttr::RSTRIP;
        }
        if let Some(token) = tokens.find(b"</s>") {
            tokens.attrs[token as usize] |= TokenAttr::RSTRIP;
        }
        for text in ["<unk>", "<s>", "<|endoftext|>"] {
            if let Some(token) = tokens.find(text.as_bytes()) {
                let attr = &mut tokens.attrs[token as usize];
                *attr = attr.without(TokenAttr::RSTRIP);
            }
        }
        None
    } else if has(&name, &["modern-bert"]) {
        Some("[MASK]")
    } else {
        None
    };
    if let Some(token) = lstrip.and_then(|text| tokens.find(text.as_bytes())) {
        tokens.attrs[token as usize] |= TokenAttr::LSTRIP;
    }
}
