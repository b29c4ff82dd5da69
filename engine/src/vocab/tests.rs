//! Tests on small hand-made vocabularies: roles, options, special tokens, detokenization, and hostile
//! metadata.

use std::borrow::Cow;

use proptest::prelude::*;

use super::pre::PRE_TOKENIZERS;
use super::*;
use crate::gguf::{GgufWriter, StringArray, Value};

mod encoders;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Builds a source from tokens given as (text, score, type).
fn source<'a>(model: &'a str, tokens: &[(&str, f32, i32)]) -> VocabSource<'a> {
    VocabSource {
        model,
        tokens: Some(Cow::Owned(tokens.iter().map(|(text, ..)| text).collect())),
        scores: Some(tokens.iter().map(|token| token.1).collect()),
        token_types: Some(tokens.iter().map(|token| token.2).collect()),
        ..VocabSource::default()
    }
}

/// Returns a SentencePiece vocabulary: three special tokens, all bytes, and a few words.
fn spm_source() -> VocabSource<'static> {
    let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let mut tokens = vec![("<unk>", 0.0, UNKNOWN), ("<s>", 0.0, CONTROL), ("</s>", 0.0, CONTROL)];
    tokens.extend(bytes.iter().map(|text| (text.as_str(), 0.0, BYTE)));
    let words = ["▁", "a", "b", "c", "ab", "bc", "▁ab", "▁a", "abc", "▁▁"];
    tokens.extend(words.iter().zip(0..).map(|(word, i)| (*word, -(i as f32), NORMAL)));
    tokens.push(("<tool>", 0.0, USER_DEFINED));
    source("llama", &tokens)
}

/// Returns a byte-level vocabulary: all bytes, a few words with their merges, and three special tokens.
fn bpe_source(pre: &str) -> VocabSource<'_> {
    let bytes: Vec<String> = bytes::BYTE_CHARS.iter().map(char::to_string).collect();
    let mut tokens: Vec<_> = bytes.iter().map(|text| (text.as_str(), 0.0, NORMAL)).collect();
    tokens.extend(["he", "ll", "hell", "hello", "Ġw", "Ġwo"].map(|text| (text, 0.0, NORMAL)));
    tokens.extend(["<|im_end|>", "<|bos|>"].map(|text| (text, 0.0, CONTROL)));
    tokens.push(("<tool>", 0.0, USER_DEFINED));
    // "or" and "wor" are not tokens; "hell" is only reachable through "he" and "ll".
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ w", "Ġw o", "o r", "w or"];
    VocabSource {
        pre: Some(pre),
        merges: Some(Cow::Owned(merges.iter().collect())),
        ..source("gpt2", &tokens)
    }
}

/// Returns a vocabulary of characters with escaped spaces.
fn spaced_source() -> VocabSource<'static> {
    let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let mut tokens = vec![("<bos>", 0.0, CONTROL), ("<eos>", 0.0, CONTROL)];
    tokens.extend(bytes.iter().map(|text| (text.as_str(), 0.0, BYTE)));
    tokens.extend(["▁", "a", "b", "▁a", "\n", "\n\n", ">", "<", "▁<", ">▁<"].map(|text| (text, 0.0, NORMAL)));
    let merges = ["▁ a", "▁ <", "> ▁<"];
    VocabSource {
        merges: Some(Cow::Owned(merges.iter().collect())),
        special_ids: vec![("bos", Special::Bos, 0), ("eos", Special::Eos, 1)],
        ..source("gemma4", &tokens)
    }
}

fn vocab(source: VocabSource) -> Vocab {
    Vocab::from_source(&source).unwrap()
}

/// Joins the texts of tokens with `|`.
fn spelled(vocab: &Vocab, tokens: &[Token]) -> String {
    tokens
        .iter()
        .map(|&token| vocab.text(token))
        .collect::<Vec<_>>()
        .join("|")
}

fn spell(vocab: &Vocab, text: &str, add_special: bool, parse_special: bool) -> String {
    spelled(vocab, &vocab.tokenize(text, add_special, parse_special))
}

#[test]
fn spm_merges_best_score_and_falls_back_to_bytes() {
    let vocab = vocab(spm_source());
    assert_eq!(
        (vocab.bos(), vocab.eos(), vocab.special(Special::Unk)),
        (Some(1), Some(2), Some(0))
    );
    // Scores: "ab" above "bc", "▁ab" above "abc".
    assert_eq!(spell(&vocab, "abc", false, false), "▁ab|c");
    assert_eq!(spell(&vocab, "bcab", true, false), "<s>|▁|bc|ab");
    assert_eq!(spell(&vocab, "é", false, false), "▁|<0xC3>|<0xA9>");
    assert_eq!(spell(&vocab, "", true, false), "<s>");
    assert_eq!(vocab.line_feed(), Some(3 + 10));
    // The space prefix also applies after special tokens, but once per fragment.
    assert_eq!(spell(&vocab, "a<tool>a a</s>a", false, true), "▁a|<tool>|▁a|▁a|</s>|▁a");
    assert_eq!(spell(&vocab, "</s>", false, false), "▁|<0x3C>|<0x2F>|<0x73>|<0x3E>");
}

#[test]
fn spm_text_round_trips() {
    let with_prefix = vocab(spm_source());
    let without = vocab(VocabSource {
        add_space_prefix: Some(false),
        add_eos: Some(true),
        ..spm_source()
    });
    for text in ["", "a", " a", "  ab\n", "é😀 abc"] {
        for vocab in [&with_prefix, &without] {
            let plain = vocab.tokenize(text, false, false);
            assert_eq!(vocab.detokenize(&plain, false, false), text);
            let framed = vocab.tokenize(text, true, false);
            assert_eq!(vocab.detokenize(&framed, true, false), text);
        }
    }
    let framed = without.tokenize("a b", true, false);
    assert_eq!(without.detokenize(&framed, false, true), "<s>a b</s>");
    assert_eq!(without.detokenize(&framed, false, false), "a b");
}

/// A text that cannot be split is merged in parts.
#[test]
fn words_of_megabytes_round_trip() {
    let n = 3 * merge::MAX_WORD + 5;
    for (vocab, text) in [
        (vocab(spm_source()), "ab".repeat(n / 2)),
        (vocab(bpe_source("gpt-2")), "l".repeat(n)),
        (vocab(bpe_source("gpt-2")), "é".repeat(n / 2)),
    ] {
        let tokens = vocab.tokenize(&text, false, false);
        assert!(vocab.detokenize(&tokens, false, false) == text);
        assert!(tokens.len() <= n, "{} tokens", tokens.len());
    }
}

#[test]
fn unknown_character_without_byte_tokens_is_unk() {
    let tokens = [
        ("<unk>", 0.0, UNKNOWN),
        ("▁", 0.0, NORMAL),
        ("a", 0.0, NORMAL),
        ("\n", 0.0, NORMAL),
    ];
    let vocab = vocab(source("llama", &tokens));
    assert_eq!(vocab.tokenize("a😀\n", false, false), [1, 2, 0, 3]);
    // Default ids, used if the file names none.
    assert_eq!(
        (vocab.bos(), vocab.eos(), vocab.line_feed()),
        (Some(1), Some(2), Some(3))
    );
}

#[test]
fn bpe_merges_through_intermediate_symbols() {
    let vocab = vocab(bpe_source("qwen2"));
    assert_eq!(vocab.n_merges(), 8);
    assert_eq!(spell(&vocab, "hello wo", false, false), "hello|Ġwo");
    assert_eq!(spell(&vocab, "hel", false, false), "he|l");
    // "wor" is an intermediate merge result, not a token, so its bytes are emitted.
    assert_eq!(spell(&vocab, "wor", false, false), "w|o|r");
    assert_eq!(vocab.line_feed(), Some(10));
    assert_eq!(vocab.find("Ġwo"), Some(261));
    // Intermediate results of merges need not be tokens.
    assert_eq!(
        (vocab.find("or"), vocab.find("wor"), vocab.n_tokens()),
        (None, None, 265)
    );
}

#[test]
fn ignore_merges_prefers_whole_words() {
    let with = |pre| {
        let mut source = bpe_source(pre);
        source.merges = Some(Cow::Owned(["h e"].iter().collect()));
        vocab(source)
    };
    assert_eq!(spell(&with("qwen2"), "hello", false, false), "he|l|l|o");
    assert_eq!(spell(&with("glm4"), "hello", false, false), "hello");
}

#[test]
fn spaced_vocabulary_keeps_newlines_and_joins_over_spaces() {
    let vocab = vocab(spaced_source());
    assert!(vocab.add_bos());
    assert_eq!(spell(&vocab, "a a> <\n\nb a", true, false), "<bos>|a|▁a|>▁<|\n\n|b|▁a");
    assert_eq!(spell(&vocab, "\n\n\né", false, false), "\n|\n|\n|<0xC3>|<0xA9>");
    assert_eq!(vocab.pre(), Some("gemma4"));
    assert_eq!(
        vocab.detokenize(&vocab.tokenize("a > <", true, false), true, false),
        "a > <"
    );
    let forced = self::vocab(VocabSource {
        add_bos: Some(false),
        ..spaced_source()
    });
    assert!(forced.add_bos() && forced.warnings().contains(&VocabWarning::BosForced));
}

#[test]
fn metaspace_words_start_with_space() {
    let mut source = spaced_source();
    (source.model, source.pre) = ("gpt2", Some("mmbert"));
    let vocab = vocab(source);
    assert_eq!(spell(&vocab, "a> <\n\na", false, false), "▁a|>|▁<|\n\n|▁a");
    assert_eq!(spell(&vocab, " a", false, false), "▁a");
}

#[test]
fn control_tokens_are_parsed_and_rendered_on_request() {
    let vocab = vocab(bpe_source("qwen2"));
    let text = "hello<|im_end|><tool>";
    assert_eq!(spell(&vocab, text, false, true), "hello|<|im_end|>|<tool>");
    assert!(spell(&vocab, text, false, false).ends_with("d|||>|<tool>"));
    let tokens = vocab.tokenize(text, false, true);
    assert_eq!(vocab.detokenize(&tokens, false, false), "hello<tool>");
    assert_eq!(vocab.detokenize(&tokens, false, true), text);
    let end = vocab.find("<|im_end|>").unwrap();
    assert_eq!(
        (vocab.token_to_piece(end, false), vocab.token_to_piece(end, true)),
        (&b""[..], &b"<|im_end|>"[..])
    );
    assert!(vocab.is_eog(end) && vocab.eot() == Some(end));
    assert_eq!(vocab.token_to_piece(vocab.n_tokens(), true), b"");
    assert_eq!(vocab.text(u32::MAX), "");
}

#[test]
fn phi3_special_tokens_strip_following_whitespace() {
    let mut source = spm_source();
    source.general_name = "My Phi-3 mini";
    let vocab = vocab(source);
    assert_eq!(spell(&vocab, "<tool> \n a<s> a", false, true), "<tool>|▁a|<s>|▁|▁a");
    assert!(vocab.attr(2).intersects(TokenAttr::RSTRIP) && !vocab.attr(1).intersects(TokenAttr::RSTRIP));
}

#[test]
fn mask_token_strips_preceding_whitespace() {
    let mut source = bpe_source("jina-v2-code");
    source.tokens = Some(Cow::Owned(
        source
            .tokens
            .unwrap()
            .iter()
            .map(|text| if text == b"<tool>" { b"<mask>" } else { text })
            .collect(),
    ));
    let vocab = vocab(source);
    assert_eq!(spell(&vocab, "he <mask> he", false, false), "he|<mask>|Ġ|he");
    assert!(vocab.add_sep());
}

#[test]
fn bos_and_eos_follow_keys_and_defaults() {
    let ids = || vec![("bos", Special::Bos, 263), ("eos", Special::Eos, 262)];
    let framed = |source: VocabSource| spell(&vocab(source), "he", true, false);
    assert_eq!(
        framed(VocabSource {
            special_ids: ids(),
            ..bpe_source("qwen2")
        }),
        "he"
    );
    assert_eq!(
        framed(VocabSource {
            special_ids: ids(),
            ..bpe_source("llama-bpe")
        }),
        "<|bos|>|he"
    );
    let source = VocabSource {
        add_bos: Some(true),
        add_eos: Some(true),
        special_ids: ids(),
        ..bpe_source("qwen2")
    };
    assert_eq!(framed(source), "<|bos|>|he|<|im_end|>");
    let source = VocabSource {
        add_bos: Some(false),
        special_ids: ids(),
        ..bpe_source("llama-bpe")
    };
    assert_eq!(framed(source), "he");
    // An enabled but undefined token is omitted with a warning; -1, signed or unsigned, means undefined.
    for absent in [-1, u32::MAX.into()] {
        let special_ids = vec![("bos", Special::Bos, absent)];
        let vocab = vocab(VocabSource {
            special_ids,
            ..bpe_source("llama-bpe")
        });
        assert_eq!(spell(&vocab, "he", true, false), "he");
        assert_eq!(
            vocab.warnings(),
            [VocabWarning::MissingSpecial {
                key: "tokenizer.ggml.add_bos_token"
            }]
        );
    }
    // BPE vocabularies default to token 11 for BOS and EOS unless the pre-tokenizer overrides it.
    assert_eq!(vocab(bpe_source("qwen2")).bos(), Some(11));
    assert_eq!(
        (vocab(bpe_source("glm4")).bos(), vocab(bpe_source("glm4")).eos()),
        (None, Some(11))
    );
}

#[test]
fn roles_prefer_keys_over_texts() {
    let tokens = [
        "<|endoftext|>",
        "<|im_end|>",
        "<|fim_prefix|>",
        "<|fim_suffix|>",
        "<|fim_middle|>",
        "<|fim_pad|>",
        "<|file_sep|>",
        "<|eom_id|>",
        "<|unused_7|>",
        "a",
    ];
    let typed: Vec<_> = tokens
        .iter()
        .map(|text| (*text, 0.0, if *text == "a" { NORMAL } else { CONTROL }))
        .collect();
    let mut source = VocabSource {
        merges: Some(Cow::default()),
        pre: Some("qwen2"),
        ..source("gpt2", &typed)
    };
    source.special_ids = vec![("old", Special::FimPre, 9)];
    let vocab = vocab(source);
    let text = |special| vocab.special(special).map(|token| vocab.text(token).into_owned());
    assert_eq!(text(Special::Eot).as_deref(), Some("<|im_end|>"));
    assert_eq!(text(Special::FimPre).as_deref(), Some("a"));
    assert_eq!(text(Special::FimSuf).as_deref(), Some("<|fim_suffix|>"));
    assert_eq!(text(Special::Bos), None);
    assert_eq!(
        spelled(&vocab, vocab.eog_tokens()),
        "<|endoftext|>|<|im_end|>|<|fim_pad|>|<|file_sep|>|<|eom_id|>"
    );
    assert_eq!(vocab.special_tokens().count(), 7);
    assert_eq!(vocab.attr(8).to_string(), "unused|control");
    assert!(vocab.warnings().is_empty());
}

#[test]
fn end_of_message_is_not_end_of_generation() {
    let eog = |texts: &[&str]| {
        let tokens: Vec<_> = texts.iter().map(|text| (*text, 0.0, CONTROL)).collect();
        let vocab = vocab(VocabSource {
            merges: Some(Cow::default()),
            pre: Some("gpt-4o"),
            special_ids: vec![("eos", Special::Eos, 0)],
            ..source("gpt2", &tokens)
        });
        let shown: Vec<_> = (0..vocab.n_tokens())
            .filter(|&t| !vocab.token_to_piece(t, false).is_empty())
            .collect();
        (spelled(&vocab, vocab.eog_tokens()), spelled(&vocab, &shown))
    };
    let shown = |(eog, shown): (&str, &str)| (eog.to_owned(), shown.to_owned());
    assert_eq!(
        eog(&["<|return|>", "<|call|>", "<|end|>", "<|channel|>"]),
        shown(("<|return|>|<|call|>", "<|end|>|<|channel|>"))
    );
    assert_eq!(
        eog(&["<|flush|>", "<|calls|>", "<|end|>"]),
        shown(("<|flush|>|<|calls|>", "<|end|>"))
    );
    assert_eq!(eog(&["x", "<|call|>", "<|end|>"]), shown(("x|<|call|>|<|end|>", "")));
    assert_eq!(
        eog(&["<eos>", "</s>", "<|tool_response>"]),
        shown(("<eos>|<|tool_response>", "</s>"))
    );
    assert_eq!(eog(&["<eos>", "</s>"]), shown(("<eos>|</s>", "")));
}

#[test]
fn pieces_depend_on_token_type() {
    let tokens = [
        ("<0x41>", 0.0, BYTE),
        ("oops", 0.0, BYTE),
        ("x", 0.0, UNUSED),
        ("y", 0.0, 77),
        ("▁z▁", 0.0, NORMAL),
    ];
    let vocab = vocab(source("llama", &tokens));
    let pieces: Vec<_> = (0..5).map(|token| vocab.token_to_piece(token, true)).collect();
    assert_eq!(pieces, [&b"A"[..], b"oops", b"", b"", b" z "]);
}

#[test]
fn vocab_without_texts_has_token_count() {
    for model in ["none", "no_vocab"] {
        let vocab = vocab(VocabSource {
            model,
            vocab_size: Some(128_256),
            ..VocabSource::default()
        });
        assert_eq!((vocab.kind(), vocab.n_tokens()), (VocabKind::None, 128_256));
        assert_eq!(vocab.tokenize("a", true, true), [0; 0]);
        assert_eq!(vocab.detokenize(&[1, 2], true, true), "");
        assert_eq!((vocab.bos(), vocab.text(3), vocab.score(3)), (None, "".into(), 0.0));
    }
    let error = Vocab::from_source(&VocabSource {
        model: "none",
        vocab_size: Some(1 << 31),
        ..VocabSource::default()
    });
    assert!(matches!(
        error,
        Err(VocabError::TooManyTokens { found: 0x8000_0000, .. })
    ));
}

#[test]
fn vocabularies_are_shared_between_threads() {
    let vocab = vocab(bpe_source("qwen2"));
    let expected = vocab.tokenize("hello wo", false, false);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| vocab.tokenize("hello wo", false, false));
        assert_eq!(vocab.tokenize("hello wo", false, false), expected);
        assert_eq!(other.join().unwrap(), expected);
    });
}

#[test]
fn test_vocab_tokenizes_every_text() {
    let texts: Vec<String> = (0..128).map(|i| format!("tok_{i}")).collect();
    let tokens: Vec<_> = texts.iter().map(|text| (text.as_str(), 0.0, NORMAL)).collect();
    let vocab = vocab(source("test", &tokens));
    let tokens = vocab.tokenize("hello world", true, true);
    assert_eq!((tokens.len(), tokens.iter().all(|&token| token < 128)), (3, true));
    assert_eq!(
        vocab.tokenize("abcde", false, false),
        vocab.tokenize("abcde", false, false)
    );
    assert_eq!(vocab.detokenize(&[5, 127], true, true), "tok_5tok_127");
    assert_eq!(
        Vocab::from_source(&source("test", &[]))
            .unwrap()
            .tokenize("a", true, true),
        [0; 0]
    );
}

#[test]
fn error_names_key_expected_and_found() {
    let fails = |source: VocabSource| Vocab::from_source(&source).unwrap_err().to_string();
    assert_eq!(
        fails(VocabSource {
            model: "whitespace",
            ..spm_source()
        }),
        "key \"tokenizer.ggml.model\": \"whitespace\" (whitespace BPE) is not supported"
    );
    let error = fails(VocabSource {
        model: "lama",
        ..spm_source()
    });
    assert!(
        error.starts_with("key \"tokenizer.ggml.model\": expected one of no_vocab, none, test, llama, gpt2"),
        "{error}"
    );
    assert_eq!(
        fails(bpe_source("qwen-2")),
        "key \"tokenizer.ggml.pre\": unknown pre-tokenizer \"qwen-2\"; similar names: qwen2, qwen35"
    );
    assert_eq!(
        fails(VocabSource {
            tokens: None,
            ..spm_source()
        }),
        "missing key \"tokenizer.ggml.tokens\": expected an array of strings"
    );
    assert_eq!(
        fails(VocabSource {
            merges: None,
            ..bpe_source("qwen2")
        }),
        "missing key \"tokenizer.ggml.merges\": expected an array of strings"
    );
    assert_eq!(
        fails(VocabSource {
            scores: Some(vec![0.0; 3].into()),
            ..spm_source()
        }),
        "key \"tokenizer.ggml.scores\": expected 270 elements (one per token), found 3"
    );
    assert_eq!(
        fails(VocabSource {
            token_types: Some(vec![1; 271].into()),
            ..spm_source()
        }),
        "key \"tokenizer.ggml.token_type\": expected 270 elements (one per token), found 271"
    );
    let special_ids = vec![("tokenizer.ggml.bos_token_id", Special::Bos, 270)];
    assert_eq!(
        fails(VocabSource {
            special_ids,
            ..spm_source()
        }),
        "key \"tokenizer.ggml.bos_token_id\": expected a token id below 270, found 270"
    );
    for malformed in ["ab", " ab", "", "ab "] {
        let merges: StringArray = ["a b", malformed].iter().collect();
        assert_eq!(
            fails(VocabSource {
                merges: Some(Cow::Owned(merges)),
                ..bpe_source("qwen2")
            }),
            format!(
                "key \"tokenizer.ggml.merges\": expected two parts separated by a space in merge 1, found \"{malformed}\""
            )
        );
    }
}

#[test]
fn suspicious_metadata_yields_warnings() {
    let tokens = [
        ("a", 0.0, NORMAL),
        ("b", 0.0, NORMAL),
        ("a", 0.0, NORMAL),
        ("", 0.0, NORMAL),
        ("</s>", 0.0, NORMAL),
    ];
    let vocab = vocab(VocabSource {
        pre: None,
        merges: Some(Cow::default()),
        ..source("gpt2", &tokens)
    });
    assert_eq!(
        vocab.warnings(),
        [
            VocabWarning::MissingPreTokenizer,
            VocabWarning::DuplicateTokens { n: 1, first: 2 },
            VocabWarning::EmptyTokens { n: 1, first: 3 },
            VocabWarning::ControlLooking {
                token: 4,
                text: "</s>".into()
            },
        ]
    );
    assert!(vocab.warnings().iter().all(|warning| !warning.to_string().is_empty()));
    assert_eq!(vocab.tokenize("ab", false, false), [0, 1]);
    assert_eq!(
        (vocab.text(2), vocab.pre(), vocab.find("")),
        ("a".into(), Some("default"), None)
    );
}

#[test]
fn source_is_read_from_gguf() {
    let mut writer = GgufWriter::new();
    let texts: StringArray = ["<unk>", "<s>", "</s>", "▁a", "▁", "a", "\n"].iter().collect();
    writer
        .set("general.architecture", "llama")
        .set("tokenizer.ggml.model", "llama")
        .set("tokenizer.ggml.tokens", texts)
        .set("tokenizer.ggml.scores", vec![0.0_f32, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])
        .set("tokenizer.ggml.token_type", vec![2, 3, 3, 1, 1, 1, 1])
        .set("tokenizer.ggml.bos_token_id", 2_u32)
        .set("tokenizer.ggml.padding_token_id", -1)
        .set("tokenizer.ggml.add_eos_token", true)
        .set("tokenizer.ggml.suppress_tokens", vec![5, 99, -3]);
    let load = |writer: &GgufWriter| Vocab::load(&Gguf::parse_header(&writer.header().unwrap()).unwrap());
    let vocab = load(&writer).unwrap();
    assert_eq!(spell(&vocab, "a", true, false), "</s>|▁a|</s>");
    assert_eq!(vocab.special(Special::Pad), None);
    assert_eq!((vocab.suppressed_tokens(), vocab.score(3)), (&[5][..], 1.0));

    let wrong: [(&str, Value); 4] = [
        ("tokenizer.ggml.tokens", 3_u32.into()),
        ("tokenizer.ggml.scores", "x".into()),
        ("tokenizer.ggml.add_bos_token", 1_u32.into()),
        ("tokenizer.ggml.eos_token_id", 1.5_f32.into()),
    ];
    for (key, value) in wrong {
        let mut writer = GgufWriter::with_metadata(Gguf::parse_header(&writer.header().unwrap()).unwrap().metadata);
        writer.set(key, value);
        let error = load(&writer).unwrap_err().to_string();
        assert!(error.starts_with(&format!("key \"{key}\": expected ")), "{error}");
    }
    assert!(matches!(load(&GgufWriter::new()), Err(VocabError::Metadata(_))));
}

/// Generates text with everything that tokenizers treat specially.
fn any_text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        any::<char>().prop_map(String::from),
        "[a-c ]{1,6}",
        prop::sample::select(vec![
            " ",
            "  ",
            "\n",
            "\r\n",
            "\t",
            "▁",
            "hello",
            " wo",
            "<tool>",
            "<|im_end|>",
            "</s>",
            "'s",
            "1234",
            "é",
            "e\u{301}",
            "漢字",
            "👩‍🚀",
            "\0",
            "\u{a0}",
            "<0x41>",
        ])
        .prop_map(String::from),
    ];
    prop::collection::vec(part, 0..24).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_pre_tokenizer_round_trips(text in any_text()) {
        thread_local! {
            static VOCABS: Vec<Vocab> = PRE_TOKENIZERS
                .iter()
                .filter(|row| row.alphabet != Alphabet::Metaspace)
                .map(|row| match row.alphabet {
                    Alphabet::Bytes => vocab(bpe_source(row.names[0])),
                    _ => vocab(VocabSource { model: "gpt2", pre: Some(row.names[0]), ..spaced_source() }),
                })
                .collect();
        }
        VOCABS.with(|vocabs| {
            for vocab in vocabs {
                // A literal `▁` is indistinguishable from an escaped space.
                let text = if vocab.n_tokens() == 265 { text.clone() } else { text.replace('▁', "_") };
                for parse_special in [false, true] {
                    let tokens = vocab.tokenize(&text, true, parse_special);
                    let pieces: Vec<&[u8]> = tokens.iter().map(|&token| vocab.token_to_piece(token, true)).collect();
                    let frame = match tokens.first() {
                        Some(&bos) if vocab.add_bos() => vocab.token_to_piece(bos, true).len(),
                        _ => 0,
                    };
                    let shown = String::from_utf8_lossy(&pieces.concat()[frame..]).into_owned();
                    prop_assert_eq!(shown, text.as_str(), "{:?}", vocab.pre());
                    if !vocab.clean_spaces() && !parse_special {
                        prop_assert_eq!(vocab.detokenize(&tokens, true, false), text.as_str(), "{:?}", vocab.pre());
                    }
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn spm_round_trips(text in any_text()) {
        // A user-defined token splits the text, and every part gets a space prefix.
        let text = text.replace('▁', "_").replace("<tool>", "");
        let vocab = vocab(spm_source());
        prop_assert_eq!(vocab.detokenize(&vocab.tokenize(&text, true, false), true, false), text);
    }

    #[test]
    fn cached_words_tokenize_like_uncached_ones(text in "[ abch]{1,40}") {
        // Long texts use the word cache; a newline separates the repetitions.
        let line = text + "\n";
        for vocab in [vocab(bpe_source("qwen2")), vocab(spm_source())] {
            let once = vocab.tokenize(&line, false, false);
            let n = 3000 / line.len() + 2;
            let many = vocab.tokenize(&line.repeat(n), false, false);
            let prefix = usize::from(vocab.add_space_prefix());
            if prefix == 0 && !line.starts_with([' ', '\n']) {
                prop_assert_eq!(&many, &once.repeat(n));
            }
            prop_assert_eq!(vocab.detokenize(&many, false, false), line.repeat(n));
        }
    }

    #[test]
    fn hostile_metadata_never_panics(
        model in prop::sample::select(MODELS.map(|(model, _)| model).to_vec()),
        pre in prop::sample::select(PRE_TOKENIZERS.iter().flat_map(|row| row.names.iter().copied()).collect::<Vec<_>>()),
        tokens in prop::collection::vec(prop::collection::vec(prop::sample::select(b"ab<>|/s\xe2\x96\x81 \n\xff0x41".to_vec()), 0..6), 0..40),
        scores in prop::collection::vec(any::<f32>(), 40),
        types in prop::collection::vec(-1..8_i32, 40),
        merges in prop::collection::vec(("[ab▁<\n]{1,3}", "[ab▁<\n]{1,3}"), 0..20),
        ids in prop::collection::vec((0..SPECIAL_COUNT, -1..40_i64), 0..6),
        flags in any::<[Option<bool>; 7]>(),
        charsmap in prop::option::of(prop::collection::vec(any::<u8>(), 0..300)),
        text in any_text(),
    ) {
        let n = tokens.len();
        let source = VocabSource {
            model,
            pre: Some(pre),
            vocab_size: Some(7),
            tokens: Some(Cow::Owned(tokens.iter().collect())),
            scores: Some(scores[..n].into()),
            token_types: Some(types[..n].into()),
            merges: Some(Cow::Owned(merges.iter().map(|(left, right)| format!("{left} {right}")).collect())),
            special_ids: ids.iter().map(|&(role, id)| ("key", roles::SPECIALS[role].special, id)).collect(),
            add_bos: flags[0],
            add_eos: flags[1],
            add_sep: flags[2],
            add_space_prefix: flags[3],
            remove_extra_whitespaces: flags[4],
            lowercase: flags[5],
            strip_accents: flags[6],
            // Set the length field to a plausible value, which random bytes rarely are.
            charsmap: charsmap.map(|mut table| {
                let n = table.len().saturating_sub(40) as u32;
                table.splice(0..table.len().min(4), n.to_le_bytes());
                table.into()
            }),
            suppress_tokens: vec![-1, 3, 1000].into(),
            general_name: "phi-3",
            architecture: "x",
        };
        if let Ok(vocab) = Vocab::from_source(&source) {
            for (add_special, parse_special) in [(true, true), (false, false)] {
                let tokens = vocab.tokenize(&text, add_special, parse_special);
                prop_assert!(tokens.iter().all(|&token| token < vocab.n_tokens()));
                vocab.detokenize(&tokens, add_special, parse_special);
            }
            for token in 0..vocab.n_tokens() + 2 {
                vocab.token_to_piece(token, true);
                vocab.text(token);
            }
        }
    }
}

const SPECIAL_COUNT: usize = roles::SPECIALS.len();
