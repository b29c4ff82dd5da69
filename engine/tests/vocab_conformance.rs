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

/// A text and the tokens recorded for it.
type Case = (String, Vec<u32>);

/// The vocabularies with what is recorded for them.
fn cases(folder: &Path) -> Vec<(PathBuf, Vec<Case>)> {
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
    assert!(check_folder(&folder) >= 15 * 46);
}

/// A unigram vocabulary with a table of normalizations, and what SentencePiece, which made it, gives.
#[test]
fn own_vocabularies_give_the_recorded_tokens() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/vocabs");
    assert_eq!(check_folder(&folder), 19);
}

/// Compares all vocabularies of a folder with their records and returns the number of texts.
fn check_folder(folder: &Path) -> usize {
    let mut n = 0;
    for (path, cases) in cases(folder) {
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

/// Text, tokens and path of the real models that are recorded, for those that lie in the folder `LLAMA_MODELS` names.
fn recorded_models() -> Vec<(PathBuf, Case)> {
    let (Some(recorded), Some(models)) = (shared("conformance/models"), std::env::var_os("LLAMA_MODELS")) else {
        println!("skipped: the models are where LLAMA_MODELS says");
        return Vec::new();
    };
    ["SmolLM2-135M-Instruct.Q4_1", "gemma-3-270m-q4_k_m"]
        .iter()
        .map(|name| {
            let json = std::fs::read_to_string(recorded.join(format!("{name}.json"))).unwrap();
            let json: serde_json::Value = serde_json::from_str(&json).unwrap();
            let text = json["text"].as_str().unwrap().to_owned();
            let tokens = json["tokens"]
                .as_array()
                .unwrap()
                .iter()
                .map(|id| id.as_u64().unwrap() as u32)
                .collect();
            (Path::new(&models).join(format!("{name}.gguf")), (text, tokens))
        })
        .filter(|(path, _)| path.exists())
        .collect()
}

#[test]
fn real_models_give_the_recorded_tokens() {
    for (path, (text, expected)) in recorded_models() {
        let vocab = load(&path).unwrap();
        assert_eq!(vocab.tokenize(&text, true, false), expected, "{}", path.display());
        assert_eq!(vocab.detokenize(&expected, true, false), text);
        let (mut stream, mut streamed) = (Utf8Stream::new(), String::new());
        for &token in &expected {
            stream.push(vocab.token_to_piece(token, false), &mut streamed);
        }
        stream.flush(&mut streamed);
        assert_eq!(streamed, text);
        println!(
            "{}: {} tokens, warnings {:?}",
            path.display(),
            vocab.n_tokens(),
            vocab.warnings()
        );
        println!(
            "  end of generation: {:?}",
            vocab.eog_tokens().iter().map(|&t| vocab.text(t)).collect::<Vec<_>>()
        );
    }
}

#[test]
fn headers_without_real_vocabularies_load() {
    for (folder, kind) in [
        ("conformance/archs", VocabKind::Test),
        ("conformance/headers", VocabKind::None),
    ] {
        let Some(folder) = shared(folder) else { return };
        let paths = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
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
        assert!(n > 0, "{}", folder.display());
    }
}
