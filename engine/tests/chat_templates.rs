//! Renders the chat templates of published models.

use std::path::{Path, PathBuf};

use engine::chat::{ChatError, ChatTemplate, Message};
use engine::gguf::Gguf;
use engine::vocab::Vocab;
use serde_json::Map;

/// Returns the directory of vocabularies.
fn vocabs() -> PathBuf {
    super::root::root().join("tests/data/vocabs")
}

/// Loads the chat template of a model file.
fn template(path: &Path) -> Result<ChatTemplate, ChatError> {
    let gguf = Gguf::open_header(path).unwrap_or_else(|e| panic!("{e}"));
    if !gguf.metadata.contains("tokenizer.chat_template") {
        return Err(ChatError::NoTemplate);
    }
    let vocab = Vocab::load(&gguf).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    ChatTemplate::of_model(&gguf.metadata, &vocab)
}

#[test]
fn every_published_template_renders() {
    let dir = vocabs();
    let mut n_rendered = 0;
    for entry in std::fs::read_dir(&dir).expect("the directory of vocabularies is readable") {
        let path = entry.expect("the directory of vocabularies is readable").path();
        if path.extension().is_none_or(|e| e != "gguf") {
            continue;
        }
        let template = match template(&path) {
            Err(ChatError::NoTemplate) => continue,
            result => result.unwrap_or_else(|e| panic!("{}: {e}", path.display())),
        };
        let texts = ["SYSTEM-TEXT", "FIRST-TEXT", "ANSWER-TEXT", "SECOND-TEXT"];
        let [system, first, completion, second] = texts;
        let messages = [
            Message::system(system),
            Message::user(first),
            Message::assistant(completion),
            Message::user(second),
        ];
        for n in [2, 4] {
            let prompt = template.render(&messages[..n], true, &Map::new());
            let prompt = prompt.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            // The prompt contains all messages in order.
            let places: Vec<usize> = texts[..n].iter().filter_map(|text| prompt.find(text)).collect();
            assert!(places.len() == n && places.is_sorted(), "{}: {prompt}", path.display());
        }
        n_rendered += 1;
    }
    assert_eq!(n_rendered, 5, "number of rendered templates in {}", dir.display());
}

#[test]
fn qwen2_renders_its_published_format() {
    let template = template(&vocabs().join("qwen2.gguf")).unwrap_or_else(|e| panic!("{e}"));
    let messages = [Message::system("Be brief."), Message::user("Hi")];
    let expected = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(template.render(&messages, true, &Map::new()).as_deref(), Ok(expected));
}

#[test]
fn phi3_renders_its_published_format() {
    let template = template(&vocabs().join("phi-3.gguf")).unwrap_or_else(|e| panic!("{e}"));
    let messages = [Message::user("Hi"), Message::assistant("Hello"), Message::user("Bye")];
    let prompt = template.render(&messages, true, &Map::new()).unwrap();
    let expected = "<s><|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n";
    assert_eq!(prompt, expected);
    assert!(template.has_bos(&prompt));
}
