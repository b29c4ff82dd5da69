//! Text to tokens and back. Modules stand in the order the data flows:
//!
//! - `source`: what a vocabulary is built from, read from a file's metadata
//! - `tokens`: texts, scores and attributes of the tokens, checked
//! - `special`: tokens with a role, and which of them end a generation
//! - `partition`: special tokens are taken out of a text
//! - `pre`: the rest is cut into words (byte-pair vocabularies)
//! - `bpe`, `spm`, `wpm`, `ugm`, `rwkv`, `plamo2`, `dummy`: text to tokens, one file for each kind of vocabulary; `merge`, `words` and
//!   `prefixes` are what they share, `charsmap` is what `ugm` normalizes by
//! - `detok`, `utf8`, `text`: tokens to text, at once or as they come
//!
//! A new kind of vocabulary is a row of [`MODELS`], a file beside `bpe.rs`, and an arm in `Tokenizer`.

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
pub use text::{TextStream, n_begun};
pub use utf8::Utf8Stream;

use bpe::Bpe;
use detok::Spelling;
pub(crate) use hash::Texts;
use partition::{Fragment, Partition};
use plamo2::Plamo2;
use pre::Alphabet;
use rwkv::Rwkv;
use source::key;
use special::SpecialIds;
use spm::Spm;
use tokens::Tokens;
use ugm::Ugm;
use wpm::Wpm;

/// The number of a token: its row in the model's embedding.
pub type Token = u32;

/// The kinds of vocabularies that files can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum VocabKind {
    /// Token ids without texts.
    None,
    /// Meaningless tokens, for tests.
    Test,
    /// SentencePiece with scores.
    Spm,
    /// Byte-pair encoding.
    Bpe,
    /// WordPiece.
    Wpm,
    /// Unigram.
    Ugm,
    /// Greedy longest match.
    Rwkv,
    /// Unigram of the PLaMo-2 models.
    Plamo2,
    /// Byte-pair encoding with DNA in between.
    HybridDna,
    /// Byte-pair encoding of words between blanks.
    Whitespace,
}

/// Values of `tokenizer.ggml.model`.
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

/// A vocabulary: tokens, their roles, and how text becomes them.
#[derive(Debug)]
pub struct Vocab {
    kind: VocabKind,
    model: String,
    pre: Option<String>,
    tokens: Tokens,
    pieces: Texts,
    special: SpecialIds,
    line_feed: Option<Token>,
    eog: Vec<Token>,
    suppressed: Vec<Token>,
    options: Options,
    /// Special tokens to parse from text.
    all_specials: Partition,
    /// Those that are parsed even where text is only text.
    user_defined: Partition,
    tokenizer: Tokenizer,
    warnings: Vec<VocabWarning>,
}

/// What is added to text and taken from it.
#[derive(Debug, Clone, Copy, Default)]
struct Options {
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    /// A separator ends a text.
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
    /// Builds the vocabulary of a file.
    pub fn load(gguf: &Gguf) -> Result<Self, VocabError> {
        Self::from_source(&VocabSource::from_gguf(gguf)?)
    }

    /// Builds a vocabulary from plain data.
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
            pieces: Texts::default(),
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
            // Line feeds separate words and are none.
            Tokenizer::Wpm(_) => None,
            _ => vocab.tokenize("\n", false, false).first().copied(),
        };
        vocab.line_feed = vocab.line_feed.or(vocab.special.get(Special::Pad));
        Ok(vocab)
    }

    /// Text to tokens.
    ///
    /// `add_special`: with the tokens that the model expects around a text (see [`add_bos`](Self::add_bos) and
    /// [`add_eos`](Self::add_eos)). `parse_special`: the texts of control tokens become those tokens; otherwise they are
    /// text like any other, which is what text from outside must be. A vocabulary without texts gives no tokens.
    pub fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        let mut out = Vec::new();
        if matches!(self.tokenizer, Tokenizer::None) {
            return out;
        }
        if add_special && self.options.add_bos {
            out.extend(self.bos());
        }
        let partition = if parse_special {
            &self.all_specials
        } else {
            &self.user_defined
        };
        // The text behind a special token begins like the first one.
        let mut begins = true;
        for fragment in partition.split(text) {
            match fragment {
                Fragment::Token(token) => {
                    out.push(token);
                    begins = true;
                }
                Fragment::Text(range) => {
                    self.tokenize_plain(&text[range], begins && self.options.add_space_prefix, &mut out);
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

    /// Two texts as one, such as a question and a document for a classifier: the first with what goes around a text, a separator where
    /// the model expects one, the second, and what ends a text. Their special tokens are text.
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

    /// What a token looks like in a text: bytes, as characters can be spread over several tokens (see [`Utf8Stream`]).
    /// Control and unknown tokens look like nothing unless `special` is true. Empty for an id that no token has.
    pub fn token_to_piece(&self, token: Token, special: bool) -> &[u8] {
        const HIDDEN: TokenAttr = TokenAttr::UNKNOWN.union(TokenAttr::CONTROL);
        if !special && self.attr(token).intersects(HIDDEN) {
            &[]
        } else {
            self.pieces.get(token)
        }
    }

    /// Tokens to text; what is not UTF-8 becomes U+FFFD.
    ///
    /// `remove_special`: without the tokens that [`tokenize`](Self::tokenize) adds. `unparse_special`: control tokens are
    /// shown. The space that tokenizing put before the text is gone.
    pub fn detokenize(&self, tokens: &[Token], remove_special: bool, unparse_special: bool) -> String {
        let bytes = self.detokenize_bytes(tokens, remove_special, unparse_special);
        String::from_utf8(bytes).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
    }

    /// As [`detokenize`](Self::detokenize), as bytes.
    pub fn detokenize_bytes(&self, tokens: &[Token], remove_special: bool, unparse_special: bool) -> Vec<u8> {
        let Options {
            add_bos,
            add_eos,
            add_space_prefix,
            clean_spaces,
            ..
        } = self.options;
        let mut tokens = tokens;
        if remove_special {
            let last = self.eos().filter(|_| add_eos);
            let last = last.or(self.special(Special::Sep).filter(|_| self.options.sep_last));
            tokens = detok::unframed(tokens, self.bos().filter(|_| add_bos), last);
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

    /// The kind of vocabulary.
    pub fn kind(&self) -> VocabKind {
        self.kind
    }

    /// `tokenizer.ggml.model`.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The pre-tokenizer in use (byte-pair vocabularies).
    pub fn pre(&self) -> Option<&str> {
        self.pre.as_deref()
    }

    /// What is odd about this vocabulary.
    pub fn warnings(&self) -> &[VocabWarning] {
        &self.warnings
    }

    /// Number of tokens; token ids are below it.
    pub fn n_tokens(&self) -> u32 {
        self.tokens.n
    }

    /// Number of merges (byte-pair vocabularies).
    pub fn n_merges(&self) -> usize {
        match &self.tokenizer {
            Tokenizer::Bpe(bpe) => bpe.n_merges(),
            _ => 0,
        }
    }

    /// A token's text as the vocabulary spells it (spaces may be `▁` or `Ġ`), empty for an id that no token has.
    pub fn text(&self, token: Token) -> Cow<'_, str> {
        String::from_utf8_lossy(self.text_bytes(token))
    }

    /// As [`text`](Self::text), as the file has it.
    pub fn text_bytes(&self, token: Token) -> &[u8] {
        self.tokens.text(token)
    }

    /// A token's score, 0 where the vocabulary has none.
    pub fn score(&self, token: Token) -> f32 {
        self.tokens.scores.get(token as usize).copied().unwrap_or(0.0)
    }

    /// A token's attributes.
    pub fn attr(&self, token: Token) -> TokenAttr {
        self.tokens.attr(token)
    }

    /// The token with exactly this text, as the vocabulary spells it.
    pub fn find(&self, text: &str) -> Option<Token> {
        self.tokens.find(text.as_bytes())
    }

    /// The token of a role.
    pub fn special(&self, special: Special) -> Option<Token> {
        self.special.get(special)
    }

    /// All roles that have a token.
    pub fn special_tokens(&self) -> impl Iterator<Item = (Special, Token)> {
        roles::SPECIALS
            .iter()
            .filter_map(|row| Some((row.special, self.special(row.special)?)))
    }

    /// Beginning of a sequence.
    pub fn bos(&self) -> Option<Token> {
        self.special(Special::Bos)
    }

    /// End of a sequence.
    pub fn eos(&self) -> Option<Token> {
        self.special(Special::Eos)
    }

    /// End of a turn.
    pub fn eot(&self) -> Option<Token> {
        self.special(Special::Eot)
    }

    /// The token of a line feed.
    pub fn line_feed(&self) -> Option<Token> {
        self.line_feed
    }

    /// True if generating stops at this token.
    pub fn is_eog(&self, token: Token) -> bool {
        self.eog.binary_search(&token).is_ok()
    }

    /// All tokens at which generating stops, ascending.
    pub fn eog_tokens(&self) -> &[Token] {
        &self.eog
    }

    /// Tokens that are never to be generated.
    pub fn suppressed_tokens(&self) -> &[Token] {
        &self.suppressed
    }

    /// True if tokenizing with `add_special` puts [`bos`](Self::bos) first.
    pub fn add_bos(&self) -> bool {
        self.options.add_bos
    }

    /// True if tokenizing with `add_special` puts [`eos`](Self::eos) last.
    pub fn add_eos(&self) -> bool {
        self.options.add_eos
    }

    /// True if the model expects a separator between two texts.
    pub fn add_sep(&self) -> bool {
        self.options.add_sep
    }

    /// True if a text is tokenized as if a space stood before it.
    pub fn add_space_prefix(&self) -> bool {
        self.options.add_space_prefix
    }

    /// True if detokenizing takes out spaces before punctuation.
    pub fn clean_spaces(&self) -> bool {
        self.options.clean_spaces
    }
}

/// How text becomes tokens of this kind.
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

/// The pre-tokenizer's name and row.
fn pre_tokenizer<'a>(
    source: &VocabSource<'a>,
    warnings: &mut Vec<VocabWarning>,
) -> Result<(&'a str, &'static pre::PreTokenizer), VocabError> {
    let name = match source.pre {
        // Such files name the model only.
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

/// Keys, or else what goes with the kind of vocabulary and the pre-tokenizer.
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
        // WordPiece models have always seen a text between its two frames, and RWKV's never, whatever files say.
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

/// Ids that no token has are left out, as there is nothing to suppress.
fn suppressed(source: &VocabSource, n_tokens: u32) -> Vec<Token> {
    let ids = source.suppress_tokens.iter();
    ids.filter_map(|&id| Token::try_from(id).ok())
        .filter(|&token| token < n_tokens)
        .collect()
}
