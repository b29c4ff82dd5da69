//! Real vocabularies against recorded tokens. The data lies beside the repository; without it these tests say so and
//! pass.

use std::path::{Path, PathBuf};

use engine::gguf::Gguf;
use engine::vocab::{Utf8Stream, Vocab, VocabError, VocabKind};

/// A folder of the shared data, if it is there.
fn shared(folder: &str) -> Option<PathBuf> {
    let root = std::env::var_os("LLAMA_SHARED").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared"),
        PathBuf::from,
    );
    let folder = root.join(folder);
    if !folder.is_dir() {
        println!("skipped: {} is not there", folder.display());
        return None;
    }
    Some(folder)
}

fn load(path: &Path) -> Result<Vocab, VocabError> {
    Vocab::load(&Gguf::open_header(path).unwrap())
}

fn ids(line: &str) -> Vec<u32> {
    line.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// The vocabularies with the texts and tokens recorded for them.
fn cases(folder: &Path) -> Vec<(PathBuf, Vec<(String, Vec<u32>)>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
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
fn real_vocabularies_give_the_recorded_tokens() {
    let Some(folder) = shared("conformance/vocabs") else {
        return;
    };
    let mut n = 0;
    for (path, cases) in cases(&folder) {
        let vocab = match load(&path) {
            Ok(vocab) => vocab,
            Err(VocabError::UnsupportedModel { model: "bert", .. }) => continue,
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
            if !vocab.clean_spaces() || vocab.kind() == VocabKind::Spm {
                assert_eq!(vocab.detokenize(&found, false, false), text, "{}", path.display());
            }
            n += 1;
        }
    }
    assert!(n >= 14 * 46, "{n} cases");
}
