//! Roles of special tokens, with the metadata keys and texts that identify them.

/// Role of a special token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Special {
    /// Beginning of a sequence.
    Bos,
    /// End of a sequence.
    Eos,
    /// End of a turn.
    Eot,
    /// End of a message.
    Eom,
    /// Unknown token.
    Unk,
    /// Separator between two texts.
    Sep,
    /// Padding.
    Pad,
    /// Mask token.
    Mask,
    /// Fill-in-the-middle: start of the prefix.
    FimPre,
    /// Fill-in-the-middle: start of the suffix.
    FimSuf,
    /// Fill-in-the-middle: start of the middle part.
    FimMid,
    /// Fill-in-the-middle: padding.
    FimPad,
    /// Fill-in-the-middle: start of a repository name.
    FimRep,
    /// Fill-in-the-middle: start of a file name.
    FimSep,
}

/// Lookup rule for a role.
#[derive(Debug)]
pub(super) struct SpecialRow {
    pub special: Special,
    /// Metadata keys; later keys take precedence.
    pub keys: &'static [&'static str],
    /// Texts that identify the token if no key is present, in order of preference.
    pub texts: &'static [&'static str],
}

const fn row(special: Special, keys: &'static [&'static str], texts: &'static [&'static str]) -> SpecialRow {
    SpecialRow { special, keys, texts }
}

/// All roles, indexed by [`Special`].
pub(super) const SPECIALS: [SpecialRow; 14] = [
    row(Special::Bos, &["tokenizer.ggml.bos_token_id"], &[]),
    row(Special::Eos, &["tokenizer.ggml.eos_token_id"], &[]),
    row(
        Special::Eot,
        &["tokenizer.ggml.eot_token_id"],
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
    ),
    row(Special::Eom, &["tokenizer.ggml.eom_token_id"], &["<|eom_id|>"]),
    row(Special::Unk, &["tokenizer.ggml.unknown_token_id"], &[]),
    // Sic: GGUF files use this spelling.
    row(Special::Sep, &["tokenizer.ggml.seperator_token_id"], &[]),
    row(Special::Pad, &["tokenizer.ggml.padding_token_id"], &[]),
    row(Special::Mask, &["tokenizer.ggml.mask_token_id"], &[]),
    row(
        Special::FimPre,
        &["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"],
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    row(
        Special::FimSuf,
        &["tokenizer.ggml.fim_suf_token_id", "tokenizer.ggml.suffix_token_id"],
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    row(
        Special::FimMid,
        &["tokenizer.ggml.fim_mid_token_id", "tokenizer.ggml.middle_token_id"],
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    row(
        Special::FimPad,
        &["tokenizer.ggml.fim_pad_token_id"],
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    row(
        Special::FimRep,
        &["tokenizer.ggml.fim_rep_token_id"],
        &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    ),
    row(Special::FimSep, &["tokenizer.ggml.fim_sep_token_id"], &["<|file_sep|>"]),
];
