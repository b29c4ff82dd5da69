//! Tests of the WordPiece, unigram, and RWKV tokenizers.

use super::*;

fn ids(vocab: &Vocab, texts: &[&str]) -> Vec<Token> {
    texts.iter().map(|text| vocab.find(text).expect(text)).collect()
}

fn wpm(lowercase: Option<bool>) -> Vocab {
    let mut tokens = vec![
        ("[UNK]", 0.0, UNKNOWN),
        ("[CLS]", 0.0, CONTROL),
        ("[SEP]", 0.0, CONTROL),
    ];
    let words = ["▁play", "ing", "s", "▁p", "▁cafe", "▁!", "▁中", "▁Play", "▁café"];
    tokens.extend(words.map(|word| (word, 0.0, NORMAL)));
    Vocab::from_source(&VocabSource {
        lowercase,
        special_ids: vec![
            ("tokenizer.ggml.unknown_token_id", Special::Unk, 0),
            ("tokenizer.ggml.bos_token_id", Special::Bos, 1),
            ("tokenizer.ggml.seperator_token_id", Special::Sep, 2),
        ],
        ..source("bert", &tokens)
    })
    .unwrap()
}

#[test]
fn wordpiece_uses_longest_pieces() {
    let vocab = wpm(None);
    let check = |text: &str, expected: &[&str]| assert_eq!(vocab.tokenize(text, false, false), ids(&vocab, expected));
    check("playing  plays", &["▁play", "ing", "▁play", "s"]);
    check("Caf\u{e9}\n", &["▁cafe"]);
    check("play!中中", &["▁play", "▁!", "▁中", "▁中"]);
    check("p\u{0}l\u{200d}ay", &["▁play"]);
    // A word that tokens cannot cover completely becomes one unknown token.
    check("playful plays", &["[UNK]", "▁play", "s"]);
    check("", &[]);
    let framed = vocab.tokenize("play", true, false);
    assert_eq!(framed, ids(&vocab, &["[CLS]", "▁play", "[SEP]"]));
    assert_eq!(vocab.detokenize(&framed, true, true), " play");
}

#[test]
fn wordpiece_keeps_case_and_accents_if_disabled() {
    let vocab = wpm(Some(false));
    assert_eq!(
        vocab.tokenize("Play café", false, false),
        ids(&vocab, &["▁Play", "▁café"])
    );
}

fn ugm(charsmap: Option<Vec<u8>>) -> Result<Vocab, VocabError> {
    let mut tokens = vec![
        ("<pad>", 0.0, CONTROL),
        ("</s>", 0.0, CONTROL),
        ("<unk>", 0.0, UNKNOWN),
        ("<x y>", 0.0, USER_DEFINED),
    ];
    let words = [
        ("▁", -2.0),
        ("▁ab", -3.0),
        ("a", -2.5),
        ("b", -2.5),
        ("abc", -9.0),
        ("c", -1.0),
    ];
    tokens.extend(words.map(|(word, score)| (word, score, NORMAL)));
    Vocab::from_source(&VocabSource {
        add_space_prefix: Some(true),
        remove_extra_whitespaces: Some(true),
        charsmap: charsmap.map(Cow::Owned),
        ..source("t5", &tokens)
    })
}

#[test]
fn unigram_maximizes_score_sum() {
    let vocab = ugm(None).unwrap();
    let check = |text: &str, expected: &[&str]| assert_eq!(vocab.tokenize(text, false, false), ids(&vocab, expected));
    check("abc", &["▁ab", "c"]);
    check("  ab   ab ", &["▁ab", "▁ab"]);
    check("xyzab", &["▁", "<unk>", "a", "b"]);
    check("ab<x y>c", &["▁ab", "<x y>", "▁", "c"]);
    check("", &[]);
    assert_eq!(vocab.tokenize("ab", true, false), ids(&vocab, &["▁ab", "</s>"]));
}

#[test]
fn malformed_charsmap_is_rejected() {
    for (table, reason) in [
        (vec![1, 2], "expected at least 4 bytes, found 2"),
        (
            vec![255, 255, 255, 255, 0],
            "expected a trie of 4294967295 bytes followed by replacements, found 1 bytes",
        ),
    ] {
        let error = ugm(Some(table)).unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("key \"tokenizer.ggml.precompiled_charsmap\": {reason}")),
            "{error}"
        );
    }
}

#[test]
fn nan_scores_yield_unknown_tokens() {
    let tokens = [
        ("<unk>", 0.0, UNKNOWN),
        ("a", f32::NAN, NORMAL),
        ("b", f32::NEG_INFINITY, NORMAL),
    ];
    let vocab = Vocab::from_source(&VocabSource {
        special_ids: vec![("tokenizer.ggml.unknown_token_id", Special::Unk, 0)],
        ..source("t5", &tokens)
    });
    assert_eq!(vocab.unwrap().tokenize("aab", false, false), [0]);
}

#[test]
fn rwkv_uses_longest_token() {
    let tokens = [
        (r"a\n", 0.0, NORMAL),
        ("a", 0.0, NORMAL),
        (r"\xe2", 0.0, NORMAL),
        (r"\x96\x81", 0.0, NORMAL),
    ];
    let vocab = Vocab::from_source(&source("rwkv", &tokens)).unwrap();
    let found = vocab.tokenize("aa\n\u{2581}", true, false);
    assert_eq!(found, [1, 0, 2, 3]);
    assert_eq!(vocab.detokenize(&found, true, false), "aa\n\u{2581}");
    assert_eq!(
        vocab.tokenize("zz", false, false),
        [0; 0],
        "no unknown token is defined"
    );
}
