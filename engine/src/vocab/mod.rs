//! Tokenization: text to tokens and back. Modules in the order of the data flow:
//!
//! - `source`: tokenizer metadata of a GGUF file as plain data
//! - `tokens`: validated texts, scores, and attributes of the tokens
//! - `special`: special tokens and their roles, including end-of-generation tokens
//! - `partition`: splits the input at special tokens
//! - `pre`: splits the remaining text into words (BPE vocabularies)
//! - `bpe`, `spm`, `wpm`, `ugm`, `rwkv`, `plamo2`, `dummy`: tokenizers, one file per kind of vocabulary, on top of
//!   `merge`, `words`, `prefixes`, and `charsmap`
//! - `detok`, `utf8`, `text`: detokenization, whole or streaming
//!
//! To add a kind of vocabulary, add a row to [`MODELS`], a file next to `bpe.rs`, and an arm to `Tokenizer`.

use std::borrow::Cow;
use std::fmt;

use crate::gguf::Gguf;

mod attr;
mod bpe;
mod bytes;
mod charsmap;
mod detok;
mod dummy;
mod error;
mod hash;
mod merge;
mod partition;
mod plamo2;
mod pre;
mod prefixes;
mod protected;
mod roles;
mod rwkv;
mod source;
mod special;
mod spm;
mod text;
mod tokens;
mod ugm;
mod utf8;
mod words;
mod wpm;

#[cfg(test)]
mod tests;

pub use attr::TokenAttr;
pub use error::{VocabError, VocabWarning};
pub use roles::Special;
pub use source::VocabSource;
pub use text::{TextStream, partial_match_len};
pub use utf8::Utf8Stream;

use bpe::Bpe;
use detok::Spelling;
pub(crate) use hash::StringList;
use partition::{Fragment, Partition};
use plamo2::Plamo2;
use pre::Alphabet;
pub(crate) use pre::{SplitOptions, name_of as pre_tokenizer_of};
use rwkv::Rwkv;
use source::key;
use special::SpecialIds;
use spm::Spm;
use tokens::Tokens;
use ugm::Ugm;
use wpm::Wpm;

/// Token id: the row of the token in the embedding matrix.
pub type Token = u32;

/// Kind of vocabulary, derived from `tokenizer.ggml.model`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VocabKind {
    /// Vocabulary of token ids without texts.
    None,
    /// Test vocabulary with arbitrary tokens.
    Test,
    /// SentencePiece BPE, which merges by score.
    Spm,
    /// Byte-pair encoding.
    Bpe,
    /// WordPiece.
    Wpm,
    /// Unigram.
    Ugm,
    /// RWKV: greedy longest match over bytes.
    Rwkv,
    /// Unigram variant of the PLaMo-2 models.
    Plamo2,
    /// BPE with DNA segments.
    HybridDna,
    /// BPE on words separated by spaces.
    Whitespace,
}

/// Supported values of `tokenizer.ggml.model`.
pub const MODELS: [(&str, VocabKind); 12] = [
    ("no_vocab", VocabKind::None),
    ("none", VocabKind::None),
    ("test", VocabKind::Test),
    ("llama", VocabKind::Spm),
    ("gpt2", VocabKind::Bpe),
    ("gemma4", VocabKind::Bpe),
    ("bert", VocabKind::Wpm),
    ("t5", VocabKind::Ugm),
    ("rwkv", VocabKind::Rwkv),
    ("plamo2", VocabKind::Plamo2),
    ("hybriddna", VocabKind::HybridDna),
    ("whitespace", VocabKind::Whitespace),
];

impl fmt::Display for VocabKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::None => "none",
            Self::Test => "test",
            Self::Spm => "SPM",
            Self::Bpe => "BPE",
            Self::Wpm => "WPM",
            Self::Ugm => "UGM",
            Self::Rwkv => "RWKV",
            Self::Plamo2 => "PLaMo-2",
            Self::HybridDna => "hybrid DNA",
            Self::Whitespace => "whitespace BPE",
        })
    }
}

/// A vocabulary: tokens, special tokens, and the tokenizer.
#[derive(Debug)]
pub struct Vocab {
    kind: VocabKind,
    model: String,
    pre: Option<String>,
    tokens: Tokens,
    pieces: StringList,
    special: SpecialIds,
    line_feed: Option<Token>,
    eog: Vec<Token>,
    suppressed: Vec<Token>,
    options: Options,
    /// Special tokens that are parsed if `parse_special` is set.
    all_specials: Partition,
    /// Special tokens that are always parsed.
    user_defined: Partition,
    tokenizer: Tokenizer,
    warnings: Vec<VocabWarning>,
}

/// Tokens and spaces added by tokenization and removed by detokenization.
#[derive(Debug, Clone, Copy, Default)]
struct Options {
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    /// True if a separator token ends every sequence.
    sep_last: bool,
    add_space_prefix: bool,
    clean_spaces: bool,
}

#[derive(Debug)]
enum Tokenizer {
    None,
    Dummy,
    Spm(Box<Spm>),
    Bpe(Box<Bpe>),
    Wpm(Box<Wpm>),
    Ugm(Box<Ugm>),
    Rwkv(Box<Rwkv>),
    Plamo2(Box<Plamo2>),
}

impl Vocab {
    /// Builds the vocabulary of a GGUF file.
    ///
    /// # Errors
    /// Returns a [`VocabError`] if metadata is missing or invalid, or if the tokenizer is not supported.
    pub fn load(gguf: &Gguf) -> Result<Self, VocabError> {
        Self::from_source(&VocabSource::from_gguf(gguf)?)
    }

    /// Builds a vocabulary from plain data.
    ///
    /// # Errors
    /// Returns a [`VocabError`] if the data is incomplete or invalid, or if the tokenizer is not supported.
    pub fn from_source(source: &VocabSource) -> Result<Self, VocabError> {
        let kind = MODELS
            .iter()
            .find(|(model, _)| *model == source.model)
            .ok_or_else(|| VocabError::UnknownModel {
                found: source.model.chars().take(64).collect(),
                expected: MODELS.map(|(model, _)| model).to_vec(),
            })?;
        match *kind {
            (_, VocabKind::None) => Self::without_texts(source),
            (model, kind @ (VocabKind::HybridDna | VocabKind::Whitespace)) => {
                Err(VocabError::UnsupportedModel { model, kind })
            }
            (_, kind) => Self::with_texts(source, kind),
        }
    }

    fn without_texts(source: &VocabSource) -> Result<Self, VocabError> {
        let key = format!("{}.vocab_size", source.architecture);
        let n = tokens::checked_count(&key, source.vocab_size.unwrap_or(0))?;
        Ok(Self {
            kind: VocabKind::None,
            model: source.model.to_owned(),
            pre: None,
            tokens: Tokens::without_texts(n),
            pieces: StringList::default(),
            special: SpecialIds::default(),
            line_feed: None,
            eog: Vec::new(),
            suppressed: Vec::new(),
            options: Options::default(),
            all_specials: Partition::default(),
            user_defined: Partition::default(),
            tokenizer: Tokenizer::None,
            warnings: Vec::new(),
        })
    }

    fn with_texts(source: &VocabSource, kind: VocabKind) -> Result<Self, VocabError> {
        let mut warnings = Vec::new();
        let pre = if kind == VocabKind::Bpe {
            Some(pre_tokenizer(source, &mut warnings)?)
        } else {
            None
        };
        let mut tokens = Tokens::load(source, &mut warnings)?;
        let no_bos = pre.is_some_and(|(_, pre)| pre.no_bos);
        let special = SpecialIds::find(source, kind, no_bos, &mut tokens, &mut warnings)?;
        tokens.mark_unused();
        let eog = special::end_of_generation(&special, &mut tokens, &mut warnings);
        let spelling = match (kind, pre) {
            (VocabKind::Spm | VocabKind::Wpm | VocabKind::Ugm, _) => Spelling::Spaced,
            (VocabKind::Rwkv, _) => Spelling::Escaped,
            (_, Some((_, pre))) => match pre.alphabet {
                Alphabet::Bytes => Spelling::Bytes,
                Alphabet::Chars => Spelling::Plain,
                Alphabet::Spaced | Alphabet::Metaspace => Spelling::Spaced,
            },
            _ => Spelling::Plain,
        };
        let pieces = detok::pieces(&tokens, spelling);
        special::mark_strips(source, &mut tokens);
        let tokenizer = tokenizer(source, kind, pre, special.get(Special::Unk), &mut tokens)?;
        let specials = |wanted: TokenAttr, hidden: TokenAttr| {
            let all = (0..tokens.n).map(|token| (token, tokens.text(token), tokens.attr(token)));
            Partition::new(all.filter(|(.., attr)| attr.intersects(wanted) && !attr.intersects(hidden)))
        };
        let mut vocab = Self {
            kind,
            model: source.model.to_owned(),
            pre: pre.map(|(name, _)| name.to_owned()),
            options: options(source, kind, pre.map(|(_, pre)| pre), &special, &mut warnings),
            all_specials: specials(Tokens::PARSED, TokenAttr::UNDEFINED),
            user_defined: specials(TokenAttr::USER_DEFINED, TokenAttr::CONTROL | TokenAttr::UNKNOWN),
            suppressed: suppressed(source, tokens.n),
            tokens,
            pieces,
            special,
            line_feed: None,
            eog,
            tokenizer,
            warnings,
        };
        vocab.line_feed = match &vocab.tokenizer {
            Tokenizer::Spm(spm) => spm.byte_token(b'\n'),
            // WordPiece treats newlines as separators, so no token represents a newline.
            Tokenizer::Wpm(_) => None,
            _ => vocab.tokenize("\n", false, false).first().copied(),
        };
        vocab.line_feed = vocab.line_feed.or(vocab.special.get(Special::Pad));
        Ok(vocab)
    }

    /// Converts text to tokens.
    ///
    /// - `add_special`: adds the tokens that frame a sequence (see [`add_bos`](Self::add_bos) and
    ///   [`add_eos`](Self::add_eos)).
    /// - `parse_special`: parses control tokens such as `<|im_end|>`. Leave it off for untrusted input, so
    ///   that control tokens are tokenized as plain text.
    ///
    /// Returns no tokens if the vocabulary has no texts.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let partition = if parse_special {
            &self.all_specials
        } else {
            &self.user_defined
        };
        self.tokenize_parts(text, add_special, partition, None)
    }

    /// Tokenizes the text between the special tokens of a partition, without the character `mark`.
    fn tokenize_parts(&self, text: &str, add_special: bool, partition: &Partition, mark: Option<char>) -> Vec<Token> {
        let mut out = Vec::new();
        if matches!(self.tokenizer, Tokenizer::None) {
            return out;
        }
        if add_special && self.options.add_bos {
            out.extend(self.bos());
        }
        // The space prefix applies at the start of the text and after every special token.
        let mut begins = true;
        for fragment in partition.split(text) {
            match fragment {
                Fragment::Token(token) => {
                    out.push(token);
                    begins = true;
                }
                Fragment::Text(range) => {
                    let fragment = protected::without_mark(&text[range], mark);
                    self.tokenize_plain(&fragment, begins && self.options.add_space_prefix, &mut out);
                    begins = false;
                }
            }
        }
        if add_special && self.options.add_eos {
            out.extend(self.eos());
        }
        if add_special && self.options.sep_last {
            out.extend(self.special(Special::Sep));
        }
        out
    }

    /// Tokenizes two texts as one sequence, such as the query and document of a reranker, with separator and
    /// end tokens as the model expects. Special tokens are not parsed.
    pub fn tokenize_pair(&self, first: &str, second: &str) -> Vec<Token> {
        let mut out = self.tokenize(first, true, false);
        if self.options.add_sep && !self.options.sep_last {
            out.extend(self.special(Special::Sep));
        }
        out.extend(self.tokenize(second, false, false));
        if self.options.add_eos {
            out.extend(self.eos());
        }
        if self.options.sep_last {
            out.extend(self.special(Special::Sep));
        }
        out
    }

    fn tokenize_plain(&self, text: &str, space_prefix: bool, out: &mut Vec<Token>) {
        match &self.tokenizer {
            Tokenizer::None => {}
            Tokenizer::Dummy => dummy::tokenize(self.n_tokens(), text, out),
            Tokenizer::Spm(spm) => spm.tokenize(&self.tokens, text, space_prefix, out),
            Tokenizer::Bpe(bpe) => bpe.tokenize(&self.tokens, text, out),
            Tokenizer::Wpm(wpm) => wpm.tokenize(&self.tokens, text, out),
            Tokenizer::Ugm(ugm) => ugm.tokenize(&self.tokens, text, space_prefix, out),
            Tokenizer::Rwkv(rwkv) => rwkv.tokenize(text, out),
            Tokenizer::Plamo2(plamo2) => plamo2.tokenize(text, out),
        }
    }

    /// Returns the bytes that a token represents. A character may span several tokens; see [`Utf8Stream`].
    ///
    /// Control and unknown tokens are empty unless `special` is set. Ids outside the vocabulary are empty.
    pub fn token_to_piece(&self, token: Token, special: bool) -> &[u8] {
        const HIDDEN: TokenAttr = TokenAttr::UNKNOWN.union(TokenAttr::CONTROL);
        if !special && self.attr(token).intersects(HIDDEN) {
            &[]
        } else {
            self.pieces.get(token)
        }
    }

    /// Converts tokens to text and replaces invalid UTF-8 with U+FFFD.
    ///
    /// - `remove_special`: omits the tokens that [`tokenize`](Self::tokenize) adds.
    /// - `unparse_special`: renders control tokens.
    ///
    /// A space prefix added by tokenization is removed.
    pub fn detokenize(&self, tokens: &[Token], remove_special: bool, unparse_special: bool) -> String {
        let bytes = self.detokenize_bytes(tokens, remove_special, unparse_special);
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// Like [`detokenize`](Self::detokenize), but returns the raw bytes.
    pub fn detokenize_bytes(&self, tokens: &[Token], remove_special: bool, unparse_special: bool) -> Vec<u8> {
        let Options {
            add_bos,
            add_eos,
            add_space_prefix,
            clean_spaces,
            sep_last,
            ..
        } = self.options;
        let mut tokens = tokens;
        if remove_special {
            let first = if add_bos { self.bos() } else { None };
            let eos = if add_eos { self.eos() } else { None };
            let sep = if sep_last { self.special(Special::Sep) } else { None };
            tokens = detok::unframed(tokens, first, eos.or(sep));
        }
        let mut text = Vec::new();
        for (i, &token) in tokens.iter().enumerate() {
            let piece = self.token_to_piece(token, unparse_special);
            text.extend_from_slice(match piece {
                [b' ', rest @ ..] if i == 0 && add_space_prefix => rest,
                _ => piece,
            });
        }
        if clean_spaces { detok::clean_spaces(text) } else { text }
    }

    /// Returns the kind of vocabulary.
    pub fn kind(&self) -> VocabKind {
        self.kind
    }

    /// Returns `tokenizer.ggml.model`.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// Returns the name of the pre-tokenizer (BPE vocabularies).
    pub fn pre(&self) -> Option<&str> {
        self.pre.as_deref()
    }

    /// Returns warnings about the vocabulary found while loading.
    pub fn warnings(&self) -> &[VocabWarning] {
        &self.warnings
    }

    /// Returns the number of tokens; all token ids are smaller.
    pub fn n_tokens(&self) -> u32 {
        self.tokens.n
    }

    /// Returns the number of merges (BPE vocabularies).
    pub fn n_merges(&self) -> usize {
        match &self.tokenizer {
            Tokenizer::Bpe(bpe) => bpe.n_merges(),
            _ => 0,
        }
    }

    /// Returns the text of a token as spelled in the vocabulary, where spaces may be `▁` or `Ġ`. Ids outside
    /// the vocabulary are empty.
    pub fn text(&self, token: Token) -> Cow<'_, str> {
        String::from_utf8_lossy(self.text_bytes(token))
    }

    /// Like [`text`](Self::text), but returns the raw bytes.
    pub fn text_bytes(&self, token: Token) -> &[u8] {
        self.tokens.text(token)
    }

    /// Returns the score of a token, or 0 if the vocabulary has no scores.
    pub fn score(&self, token: Token) -> f32 {
        self.tokens.scores.get(token as usize).copied().unwrap_or(0.0)
    }

    /// Returns the attributes of a token.
    pub fn attr(&self, token: Token) -> TokenAttr {
        self.tokens.attr(token)
    }

    /// Returns the token with exactly this text, as spelled in the vocabulary.
    pub fn find(&self, text: &str) -> Option<Token> {
        self.tokens.find(text.as_bytes())
    }

    /// Returns the token of a role.
    pub fn special(&self, special: Special) -> Option<Token> {
        self.special.get(special)
    }

    /// Iterates over all roles that have a token.
    pub fn special_tokens(&self) -> impl Iterator<Item = (Special, Token)> {
        roles::SPECIALS
            .iter()
            .filter_map(|row| Some((row.special, self.special(row.special)?)))
    }

    /// Returns the beginning-of-sequence token.
    pub fn bos(&self) -> Option<Token> {
        self.special(Special::Bos)
    }

    /// Returns the end-of-sequence token.
    pub fn eos(&self) -> Option<Token> {
        self.special(Special::Eos)
    }

    /// Returns the end-of-turn token.
    pub fn eot(&self) -> Option<Token> {
        self.special(Special::Eot)
    }

    /// Returns the newline token.
    pub fn line_feed(&self) -> Option<Token> {
        self.line_feed
    }

    /// Returns true if generation stops at this token.
    pub fn is_eog(&self, token: Token) -> bool {
        self.eog.binary_search(&token).is_ok()
    }

    /// Returns all end-of-generation tokens, in ascending order.
    pub fn eog_tokens(&self) -> &[Token] {
        &self.eog
    }

    /// Returns tokens that must never be sampled (`tokenizer.ggml.suppress_tokens`).
    pub fn suppressed_tokens(&self) -> &[Token] {
        &self.suppressed
    }

    /// Returns true if tokenization with `add_special` prepends [`bos`](Self::bos).
    pub fn add_bos(&self) -> bool {
        self.options.add_bos
    }

    /// Returns true if tokenization with `add_special` appends [`eos`](Self::eos).
    pub fn add_eos(&self) -> bool {
        self.options.add_eos
    }

    /// Returns true if the model expects a separator token between two texts.
    pub fn add_sep(&self) -> bool {
        self.options.add_sep
    }

    /// Returns true if tokenization inserts a space before the text.
    pub fn add_space_prefix(&self) -> bool {
        self.options.add_space_prefix
    }

    /// Returns true if detokenization removes spaces before punctuation.
    pub fn clean_spaces(&self) -> bool {
        self.options.clean_spaces
    }
}

/// Creates the tokenizer for this kind of vocabulary.
fn tokenizer(
    source: &VocabSource,
    kind: VocabKind,
    pre: Option<(&str, &'static pre::PreTokenizer)>,
    unknown: Option<Token>,
    tokens: &mut Tokens,
) -> Result<Tokenizer, VocabError> {
    Ok(match (kind, pre) {
        (VocabKind::Spm, _) => Tokenizer::Spm(Box::new(Spm::new(tokens, unknown))),
        (VocabKind::Wpm, _) => Tokenizer::Wpm(Box::new(Wpm::new(
            tokens,
            unknown,
            source.lowercase,
            source.strip_accents,
        ))),
        (VocabKind::Ugm, _) => Tokenizer::Ugm(Box::new(Ugm::new(source, tokens, unknown)?)),
        (VocabKind::Rwkv, _) => Tokenizer::Rwkv(Box::new(Rwkv::new(tokens, unknown))),
        (VocabKind::Plamo2, _) => Tokenizer::Plamo2(Box::new(Plamo2::new(tokens)?)),
        (_, Some((name, pre))) => Tokenizer::Bpe(Box::new(Bpe::new(source, name, pre, tokens)?)),
        _ => Tokenizer::Dummy,
    })
}

/// Looks up the pre-tokenizer by name; a missing name selects `default` with a warning.
fn pre_tokenizer<'a>(
    source: &VocabSource<'a>,
    warnings: &mut Vec<VocabWarning>,
) -> Result<(&'a str, &'static pre::PreTokenizer), VocabError> {
    let name = match source.pre {
        // Gemma 4 files do not name a pre-tokenizer.
        _ if source.model == "gemma4" => "gemma4",
        None | Some("") => {
            warnings.push(VocabWarning::MissingPreTokenizer);
            "default"
        }
        Some(name) => name,
    };
    let row = pre::by_name(name).ok_or_else(|| VocabError::UnknownPreTokenizer {
        found: name.chars().take(64).collect(),
        close: pre::close_names(name),
    })?;
    Ok((name, row))
}

/// Returns the options from the metadata, with defaults by kind of vocabulary and pre-tokenizer.
fn options(
    source: &VocabSource,
    kind: VocabKind,
    pre: Option<&pre::PreTokenizer>,
    special: &SpecialIds,
    warnings: &mut Vec<VocabWarning>,
) -> Options {
    let (is_spm, is_wpm, is_ugm) = (kind == VocabKind::Spm, kind == VocabKind::Wpm, kind == VocabKind::Ugm);
    let force_bos = pre.is_some_and(|pre| pre.force_bos);
    if force_bos && source.add_bos == Some(false) {
        warnings.push(VocabWarning::BosForced);
    }
    let options = Options {
        // WordPiece models are always trained with frame tokens and RWKV models never, so the keys are
        // ignored.
        add_bos: is_wpm
            || force_bos
            || (kind != VocabKind::Rwkv && source.add_bos.unwrap_or(is_spm || pre.is_some_and(|pre| pre.add_bos))),
        add_eos: source.add_eos.unwrap_or(is_ugm) && !is_wpm && kind != VocabKind::Rwkv,
        add_sep: source.add_sep.unwrap_or(is_wpm || pre.is_some_and(|pre| pre.add_sep)),
        sep_last: is_wpm,
        add_space_prefix: (is_spm || is_ugm) && source.add_space_prefix.unwrap_or(is_spm),
        clean_spaces: is_wpm || pre.is_some_and(|pre| pre.clean_spaces),
    };
    let wanted = [
        (options.add_bos, Special::Bos, key::ADD_BOS),
        (options.add_eos, Special::Eos, key::ADD_EOS),
    ];
    for (_, _, key) in wanted
        .into_iter()
        .filter(|(add, role, _)| *add && special.get(*role).is_none())
    {
        warnings.push(VocabWarning::MissingSpecial { key });
    }
    options
}

/// Returns the suppressed tokens without ids outside the vocabulary.
fn suppressed(source: &VocabSource, n_tokens: u32) -> Vec<Token> {
    let ids = source.suppress_tokens.iter();
    ids.filter_map(|&id| Token::try_from(id).ok())
        .filter(|&token| token < n_tokens)
        .collect()
}
