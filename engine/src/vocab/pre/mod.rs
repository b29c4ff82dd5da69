//! Pre-tokenizers of BPE vocabularies: rules for splitting text into words, selected by `tokenizer.ggml.pre`.
//!
//! [`PRE_TOKENIZERS`] lists all known names. Unknown names are an error, because wrong splits yield tokens
//! the model was not trained on.

mod derive;
mod dfa;
mod split;

pub(crate) use derive::{SplitOptions, name_of};
pub(crate) use split::Splitter;
use split::{DigitGroups, SplitRule};

/// Mapping from words to symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alphabet {
    /// Symbols are bytes, spelled as printable characters.
    Bytes,
    /// Symbols are characters, with `<0xXX>` as a fallback.
    Chars,
    /// Symbols are characters, with spaces spelled `▁`.
    Spaced,
    /// Like `Spaced`, and every `▁` starts a word; the first word of a line always has one.
    Metaspace,
}

/// Pre-tokenizer: names, split rules, and options.
#[derive(Debug)]
pub(crate) struct PreTokenizer {
    /// Accepted values of `tokenizer.ggml.pre`.
    pub names: &'static [&'static str],
    /// Split rules, applied in order.
    pub rules: &'static [SplitRule],
    pub alphabet: Alphabet,
    /// A word that equals a token is not merged.
    pub ignore_merges: bool,
    /// Like `ignore_merges`, but only for words that consist of newlines.
    pub keep_newlines: bool,
    /// Whether detokenization removes spaces before punctuation.
    pub clean_spaces: bool,
    /// Default of `tokenizer.ggml.add_bos_token`.
    pub add_bos: bool,
    /// Default of `tokenizer.ggml.add_sep_token`.
    pub add_sep: bool,
    /// True if the vocabulary has no default BOS token.
    pub no_bos: bool,
    /// A BOS token is added regardless of the metadata.
    pub force_bos: bool,
}

impl PreTokenizer {
    const fn new(names: &'static [&'static str], rules: &'static [SplitRule]) -> Self {
        Self {
            names,
            rules,
            alphabet: Alphabet::Bytes,
            ignore_merges: false,
            keep_newlines: false,
            clean_spaces: true,
            add_bos: false,
            add_sep: false,
            no_bos: false,
            force_bos: false,
        }
    }

    const fn alphabet(mut self, alphabet: Alphabet) -> Self {
        self.alphabet = alphabet;
        self
    }

    const fn ignore_merges(mut self) -> Self {
        self.ignore_merges = true;
        self
    }

    const fn keep_newlines(mut self) -> Self {
        self.keep_newlines = true;
        self
    }

    const fn keep_spaces(mut self) -> Self {
        self.clean_spaces = false;
        self
    }

    const fn add_bos(mut self) -> Self {
        self.add_bos = true;
        self
    }

    const fn add_sep(mut self) -> Self {
        self.add_sep = true;
        self
    }

    const fn no_bos(mut self) -> Self {
        self.no_bos = true;
        self
    }

    const fn force_bos(mut self) -> Self {
        self.force_bos = true;
        self
    }
}

/// Returns the pre-tokenizer with this name.
pub(crate) fn by_name(name: &str) -> Option<&'static PreTokenizer> {
    PRE_TOKENIZERS.iter().find(|row| row.names.contains(&name))
}

/// Returns up to three accepted names similar to `name`, closest first.
pub(crate) fn close_names(name: &str) -> Vec<&'static str> {
    // Bounds the quadratic distance computation for hostile names.
    let wanted: Vec<char> = name.to_lowercase().chars().take(64).collect();
    let names = PRE_TOKENIZERS.iter().flat_map(|row| row.names);
    let mut near: Vec<(usize, &'static str)> = names
        .map(|known| (edit_distance(&wanted, &known.chars().collect::<Vec<_>>()), *known))
        .filter(|(distance, known)| *distance <= (known.len() / 2).max(2) && *distance < known.len())
        .collect();
    near.sort();
    near.into_iter().take(3).map(|(_, known)| known).collect()
}

/// Returns the Levenshtein distance.
fn edit_distance(a: &[char], b: &[char]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, cb) in b.iter().enumerate() {
            let changed = diagonal + usize::from(ca != cb);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

const GPT2: SplitRule = SplitRule::Regex(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+");
const LLAMA3: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Split rule of Ufakzeka: `QWEN2` without English contractions.
const UFAKZEKA: SplitRule =
    SplitRule::Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+");
const MINICPM5: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Like `LLAMA3`, with runs of spaces split into powers of two.
const JAIS2: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}",
);
const BAILING: SplitRule = SplitRule::Regex(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
);
const SEED_CODER: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const EXAONE_MOE: SplitRule = SplitRule::Regex(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
);
/// Words split between lowercase and uppercase letters, with contractions attached.
const GPT4O: SplitRule = SplitRule::Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const YOUTU: SplitRule = SplitRule::Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const TEKKEN: SplitRule = SplitRule::Regex(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Like `GPT4O`, with Han characters separate from other letters.
const KIMI_K2: SplitRule = SplitRule::Regex(
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const DEEPSEEK3: SplitRule = SplitRule::Regex(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
);
const SPARK: SplitRule = SplitRule::Regex(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##,
);
/// Letters of the Latin, Greek, Cyrillic, Armenian, and a few other scripts.
const DEEPSEEK_LETTERS: SplitRule = SplitRule::Regex(concat!(
    r"\s?[",
    r"A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}",
    r"\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}",
    r"\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}",
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}",
    r"\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}",
    r"\x{1F5D}\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6}-\x{1FCC}",
    r"\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}",
    r"\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}",
    r"\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}",
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}",
    r"\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}",
    r"\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}",
    r"]+",
));
/// Chinese characters and Hangul syllables, as in the first DeepSeek models.
const DEEPSEEK_CJK: SplitRule = SplitRule::Regex(r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+");
const CJK_KANA: SplitRule = SplitRule::Regex(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+");
const LINE_ENDS: SplitRule = SplitRule::Regex(r"[\r\n]");
/// Lines and runs of newlines; no word spans both.
const LINES: SplitRule = SplitRule::Regex(r"[^\n]+|[\n]+");
const DIGIT: SplitRule = SplitRule::Regex(r"\p{N}");
const NUMBER: SplitRule = SplitRule::Regex(r"\p{N}+");
const THREE_DIGITS: SplitRule = SplitRule::Regex(r"\p{N}{1,3}");
const THREE_ASCII_DIGITS: SplitRule = SplitRule::Regex("[0-9][0-9][0-9]");
const BLOOM: SplitRule = SplitRule::Regex(r" ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+");
/// Chinese, Japanese, Korean, and Southeast Asian scripts without word spacing.
const AFMOE_SCRIPTS: SplitRule = SplitRule::Regex(concat!(
    r"[\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{F900}-\x{FAFF}\x{3040}-\x{309F}\x{30A0}-\x{30FF}\x{FF65}-\x{FF9F}",
    r"\x{2F00}-\x{2FDF}\x{E40}-\x{E7F}\x{E80}-\x{EFF}\x{1780}-\x{17FF}\x{1000}-\x{109F}\x{AA60}-\x{AA7F}",
    r"\x{A9E0}-\x{A9FF}\x{AC00}-\x{D7AF}\x{1100}-\x{11FF}]+",
));
const YOUTU_SCRIPTS: SplitRule = SplitRule::Regex(concat!(
    r"[\x{AC00}-\x{D7A3}\x{3131}-\x{318E}]+|[\x{FF01}\x{2026}\x{201C}\x{201D}\x{2018}\x{2019}\x{2014}\x{FF1A}",
    r"\x{FF1B}\x{FF0C}\x{3001}-\x{303F}\x{FE30}-\x{FE4F}]+|[\x{3105}-\x{312F}]+|",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
));

/// All pre-tokenizers. Names in one row are synonyms.
pub(crate) const PRE_TOKENIZERS: &[PreTokenizer] = &[
    PreTokenizer::new(
        &["default"],
        &[
            SplitRule::Regex(r"[\p{P}\$\+<=>\^~\|]+"),
            GPT2,
            NUMBER,
            THREE_ASCII_DIGITS,
        ],
    ),
    PreTokenizer::new(
        &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
    )
    .ignore_merges()
    .add_bos(),
    PreTokenizer::new(&["dbrx", "smaug-bpe"], &[LLAMA3]),
    PreTokenizer::new(&["chatglm-bpe"], &[LLAMA3]).no_bos(),
    PreTokenizer::new(&["glm4", "glm5"], &[LLAMA3]).no_bos().ignore_merges(),
    PreTokenizer::new(&["jais-2"], &[JAIS2]),
    PreTokenizer::new(
        &["deepseek-llm"],
        &[
            LINE_ENDS,
            DEEPSEEK_LETTERS,
            SplitRule::Regex(r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+"),
            SplitRule::Regex(r"\s+$"),
            DEEPSEEK_CJK,
            NUMBER,
        ],
    )
    .keep_spaces(),
    PreTokenizer::new(
        &["deepseek-coder"],
        &[
            LINE_ENDS,
            SplitRule::Regex(r"\s?\p{L}+"),
            SplitRule::Regex(r"\s?\p{P}+"),
            DEEPSEEK_CJK,
            DIGIT,
        ],
    )
    .keep_spaces(),
    PreTokenizer::new(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[THREE_DIGITS, CJK_KANA, DEEPSEEK3],
    )
    .keep_spaces(),
    PreTokenizer::new(&["spark2_5"], &[THREE_DIGITS, CJK_KANA, SPARK, DIGIT]).keep_spaces(),
    PreTokenizer::new(&["youtu"], &[YOUTU_SCRIPTS, YOUTU])
        .keep_spaces()
        .ignore_merges(),
    PreTokenizer::new(
        &["falcon"],
        &[SplitRule::Regex(r"[\p{P}\$\+<=>\^~\|`]+"), GPT2, THREE_ASCII_DIGITS],
    ),
    PreTokenizer::new(
        &["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        &[DIGIT, GPT2],
    ),
    PreTokenizer::new(&["command-r", "smollm"], &[DIGIT, GPT2]).keep_spaces(),
    PreTokenizer::new(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
        ],
        &[GPT2],
    ),
    PreTokenizer::new(&["jina-v1-en", "jina-v2-code", "roberta-bpe"], &[GPT2]).add_sep(),
    PreTokenizer::new(&["trillion", "granite-docling"], &[GPT2]).keep_spaces(),
    PreTokenizer::new(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    )
    .keep_spaces(),
    PreTokenizer::new(&["megrez", "stablelm2"], &[QWEN2]),
    PreTokenizer::new(&["qwen35"], &[QWEN35]).keep_spaces(),
    PreTokenizer::new(&["ufakzeka"], &[UFAKZEKA]).keep_spaces(),
    PreTokenizer::new(&["laguna"], &[LINES, QWEN2]).keep_spaces(),
    PreTokenizer::new(&["minicpm5"], &[THREE_DIGITS, MINICPM5]).ignore_merges(),
    PreTokenizer::new(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILING]).keep_spaces(),
    PreTokenizer::new(&["seed-coder"], &[SEED_CODER]).keep_spaces(),
    PreTokenizer::new(&["exaone-moe"], &[EXAONE_MOE]),
    PreTokenizer::new(&["bloom", "gpt3-finnish"], &[BLOOM]),
    PreTokenizer::new(&["poro-chat"], &[BLOOM]).keep_spaces(),
    PreTokenizer::new(&["viking"], &[BLOOM, DIGIT]).keep_spaces(),
    PreTokenizer::new(&["tekken"], &[TEKKEN])
        .keep_spaces()
        .ignore_merges()
        .add_bos(),
    PreTokenizer::new(
        &["chameleon"],
        &[
            SplitRule::Regex("<sentinel:[0-9]+>"),
            SplitRule::Regex("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            SplitRule::Regex(r"([\t\n]|    |  )"),
            DIGIT,
            SplitRule::Regex(r"[\p{P}!-/:-@\[-`{-~]"),
            GPT2,
        ],
    )
    .add_bos()
    .keep_spaces(),
    PreTokenizer::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]).keep_spaces(),
    PreTokenizer::new(&["granite-embed-multi-97m"], &[GPT4O])
        .keep_spaces()
        .ignore_merges(),
    PreTokenizer::new(
        &["tiny_aya", "cohere2moe"],
        &[SplitRule::Digits(DigitGroups::Words), GPT4O],
    )
    .keep_spaces(),
    PreTokenizer::new(&["kimi-k2"], &[KIMI_K2]).keep_spaces(),
    PreTokenizer::new(&["superbpe"], &[NUMBER, SplitRule::Digits(DigitGroups::Boundaries)]).keep_spaces(),
    PreTokenizer::new(
        &["afmoe"],
        &[SplitRule::Digits(DigitGroups::Numbers), AFMOE_SCRIPTS, DEEPSEEK3],
    )
    .keep_spaces(),
    PreTokenizer::new(&["gemma4", "granite-embed-multi-311m"], &[LINES])
        .alphabet(Alphabet::Spaced)
        .keep_newlines()
        .force_bos(),
    PreTokenizer::new(&["sarvam-moe"], &[LINES])
        .alphabet(Alphabet::Spaced)
        .keep_spaces(),
    PreTokenizer::new(&["mmbert"], &[LINES])
        .alphabet(Alphabet::Metaspace)
        .keep_newlines(),
    PreTokenizer::new(&["whitespace"], &[SplitRule::Regex(r"\S+")]).alphabet(Alphabet::Chars),
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Instant;

    use super::*;

    fn words<'t>(name: &str, text: &'t str) -> Vec<&'t str> {
        let mut found = Vec::new();
        Splitter::new(by_name(name).unwrap().rules)
            .unwrap()
            .split(text, &mut |word| found.push(word));
        found
    }

    #[test]
    fn names_are_unique_and_expressions_compile() {
        let names: Vec<_> = PRE_TOKENIZERS.iter().flat_map(|row| row.names).collect();
        assert_eq!(names.len(), 92);
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), names.len());
        for row in PRE_TOKENIZERS {
            Splitter::new(row.rules).unwrap_or_else(|e| panic!("{:?}: {e}", row.names));
        }
    }

    #[test]
    fn pre_tokenizers_split_as_published() {
        assert_eq!(
            words("gpt-2", "I'll go  1234, now!\n\n x"),
            ["I", "'ll", " go", " ", " 1234", ",", " now", "!", "\n\n", " x"]
        );
        assert_eq!(
            words("llama-bpe", "It'S 12345 = (x)\r\n  y"),
            ["It", "'S", " ", "123", "45", " =", " (", "x", ")\r\n", " ", " y"]
        );
        assert_eq!(words("qwen2", "a 12\t\tb"), ["a", " ", "1", "2", "\t", "\tb"]);
        assert_eq!(words("qwen35", "e\u{301}t\u{301}"), ["e\u{301}t\u{301}"]);
        assert_eq!(
            words("gpt-4o", "HelloWorld isn't HTTPServer/\n"),
            ["Hello", "World", " isn't", " HTTPServer", "/\n"]
        );
        assert_eq!(words("tekken", "fooBar's 12"), ["foo", "Bar", "'s", " ", "1", "2"]);
        assert_eq!(words("kimi-k2", "abc漢字def's"), ["abc", "漢字", "def's"]);
        assert_eq!(
            words("deepseek-v3", "x=foo 漢かa 1234"),
            ["x", "=foo", " ", "漢か", "a", " ", "123", "4"]
        );
        assert_eq!(
            words("deepseek-llm", "ab 漢字  \n12 "),
            ["ab", " ", "漢字", "  ", "\n", "12", " "]
        );
        assert_eq!(words("smollm", "a 12"), ["a", " ", "1", "2"]);
        assert_eq!(words("bloom", "a,b  c."), ["a", ",", "b", " ", " c", "."]);
        assert_eq!(words("gemma4", "a b\n\nc"), ["a b", "\n\n", "c"]);
        assert_eq!(words("tiny_aya", "x 1234567"), ["x", " ", "1", "234", "567"]);
        assert_eq!(words("superbpe", "a 1234567"), ["a ", "1", "234", "567"]);
        assert_eq!(words("bailingmoe", "a\n\n\nb"), ["a", "\n\n\n", "b"]);
        assert_eq!(words("exaone-moe", "de la \n/x"), ["de la", " \n", "/x"]);
        let blanks = " ".repeat(700) + "x";
        let cut: Vec<_> = words("jais-2", &blanks).iter().map(|w| w.len()).collect();
        assert_eq!(cut, [512, 128, 32, 16, 8, 2, 1, 2]);
    }

    #[test]
    fn splitting_takes_linear_time() {
        let n = 1 << 17;
        let runs = [
            "a",
            " ",
            "\n",
            "A",
            "1",
            "!",
            "漢",
            "\u{301}",
            " \n",
            "a1",
            "'",
            "\u{a0}",
            "<sentinel:1",
            "IMGIMGA",
        ];
        for row in PRE_TOKENIZERS {
            let splitter = Splitter::new(row.rules).unwrap();
            for run in runs {
                let text = run.repeat(n / run.len()) + "x";
                let (started, mut total) = (Instant::now(), 0);
                splitter.split(&text, &mut |word| total += word.len());
                assert_eq!(total, text.len());
                assert!(
                    started.elapsed().as_secs() < 20,
                    "{:?} on {run:?}: {:?}",
                    row.names,
                    started.elapsed()
                );
            }
        }
    }

    #[test]
    fn unknown_name_suggests_similar_names() {
        assert_eq!(close_names("llama4-bpe").first(), Some(&"llama-bpe"));
        assert_eq!(close_names("qwen-2").first(), Some(&"qwen2"));
        assert!(close_names("").is_empty());
        assert!(close_names(&"zq".repeat(1 << 20)).is_empty());
    }
}
