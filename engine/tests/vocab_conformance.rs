//! Compares published vocabularies with recorded tokens; `tests/data/vocabs/README.md` documents the origin
//! of both.

use std::path::{Path, PathBuf};

use engine::gguf::Gguf;
use engine::vocab::{Vocab, VocabError, VocabKind};

/// Returns a directory of the test data.
fn data(dir: &str) -> PathBuf {
    super::root::root().join("tests/data").join(dir)
}

fn load(path: &Path) -> Result<Vocab, VocabError> {
    Vocab::load(&Gguf::open_header(path).unwrap())
}

fn ids(line: &str) -> Vec<u32> {
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// An input string and its recorded tokens.
type Case = (String, Vec<u32>);

/// Returns the vocabularies with their recorded cases.
fn cases(dir: &Path) -> Vec<(PathBuf, Vec<Case>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let beside = |extension: &str| std::fs::read_to_string(format!("{}.{extension}", path.display())).unwrap();
        let texts = beside("inp");
        let lines = beside("out");
        let texts: Vec<_> = texts.split("\n__ggml_vocab_test__\n").collect();
        let lines: Vec<_> = lines.lines().collect();
        assert!(
            texts.len() == lines.len() || texts.len() == lines.len() + 1,
            "{}",
            path.display()
        );
        let cases = texts
            .into_iter()
            .zip(lines)
            .map(|(text, line)| (text.to_owned(), ids(line)));
        found.push((path.clone(), cases.collect()));
    }
    found.sort();
    found
}

#[test]
fn vocabularies_match_recorded_tokens() {
    // 14 published vocabularies with 46 strings each, one with 50, and two small ones with 19 strings for
    // SentencePiece and 267 for PLaMo-2's tokenizer.
    assert_eq!(check_dir(&data("vocabs")), 14 * 46 + 50 + 19 + 267);
}

/// Compares all vocabularies of a directory with their records and returns the number of strings.
fn check_dir(dir: &Path) -> usize {
    let mut n = 0;
    for (path, cases) in cases(dir) {
        let vocab = match load(&path) {
            Ok(vocab) => vocab,
            Err(error) => panic!("{}: {error}", path.display()),
        };
        for (text, expected) in cases {
            let found = vocab.tokenize(&text, false, false);
            let shown = |ids: &[u32]| ids.iter().map(|&id| vocab.text(id).into_owned()).collect::<Vec<_>>();
            assert_eq!(
                found,
                expected,
                "{}: {text:?}\n{:?}\n{:?}",
                path.display(),
                shown(&found),
                shown(&expected)
            );
            let is_lossless = !matches!(vocab.kind(), VocabKind::Wpm | VocabKind::Ugm);
            if is_lossless && (!vocab.clean_spaces() || vocab.kind() == VocabKind::Spm) {
                assert_eq!(vocab.detokenize(&found, false, false), text, "{}", path.display());
            }
            n += 1;
        }
    }
    n
}

#[test]
fn headers_without_real_vocabularies_load() {
    for (dir, kind) in [("archs", VocabKind::Test), ("headers", VocabKind::None)] {
        let dir = data(dir);
        let paths = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path());
        let mut n = 0;
        for path in paths.filter(|path| path.extension().is_some_and(|extension| extension == "gguf")) {
            let vocab = load(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(vocab.kind(), kind, "{}", path.display());
            assert!(
                vocab.n_tokens() > 0 && vocab.warnings().is_empty(),
                "{}: {vocab:?}",
                path.display()
            );
            n += 1;
        }
        assert!(n > 0, "{}", dir.display());
    }
}
