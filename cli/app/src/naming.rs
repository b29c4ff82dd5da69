//! Decides whether a positional argument names a model or is a prompt, for all commands.

use std::ffi::{OsStr, OsString};
use std::path::{MAIN_SEPARATOR, Path, PathBuf};

use crate::args::HubArgs;
use crate::checkpoints::is_checkpoint;
use crate::failure::{Failure, Outcome};
use crate::hub::{HubError, Name};

/// Returns the model and the remaining arguments, which must be UTF-8. See [`model_and_words`].
pub fn model_and_texts(
    model: Option<&Path>,
    hub: &HubArgs,
    words: Vec<OsString>,
) -> Outcome<(Option<PathBuf>, Vec<String>)> {
    let (model, words) = model_and_words(model, hub, words)?;
    let text = |word: OsString| {
        let wrong = |word: OsString| Failure::new(format_args!("argument {word:?} is not valid UTF-8"));
        word.into_string().map_err(wrong)
    };
    Ok((model, words.into_iter().map(text).collect::<Outcome<_>>()?))
}

/// Returns the model and the remaining arguments. The model is given by `-m`, by `hub`, or as the first
/// positional argument.
pub fn model_and_words(
    model: Option<&Path>,
    hub: &HubArgs,
    words: Vec<OsString>,
) -> Outcome<(Option<PathBuf>, Vec<OsString>)> {
    if model.is_some() || hub.names_a_model() {
        return Ok((model.map(Path::to_owned), words));
    }
    let mut words = words.into_iter();
    match words.next() {
        Some(first) if names_a_model(&first) => Ok((Some(first.into()), words.collect())),
        Some(first) if first.to_str().is_some_and(looks_like_a_name) => {
            let first = first.to_string_lossy();
            let why = Failure::from(HubError::invalid_name(&first));
            Err(why.with_remedy(format_args!("use -p {first:?} to pass it as a prompt")))
        }
        first => Ok((None, first.into_iter().chain(words).collect())),
    }
}

/// Returns true if a positional argument is a model. A path to a missing file must not be taken for a prompt.
pub fn names_a_model(word: &OsStr) -> bool {
    // Only paths can be invalid UTF-8.
    let Some(text) = word.to_str() else { return true };
    let looks_like_a_path = !text.contains(char::is_whitespace) && text.contains(MAIN_SEPARATOR);
    Path::new(text).is_file()
        || is_checkpoint(Path::new(text))
        || Name::meant(text).is_some()
        || looks_like_a_path
        || text.to_ascii_lowercase().ends_with(".gguf")
}

/// Returns true for a single word with a digit or colon, such as qwen3:0.6b. Prompts rarely look like this.
fn looks_like_a_name(text: &str) -> bool {
    let is_of_names = |c: char| c.is_ascii_alphanumeric() || "._-:".contains(c);
    let tells = |c: char| c.is_ascii_digit() || c == ':';
    text.starts_with(|c: char| c.is_ascii_alphabetic()) && text.chars().all(is_of_names) && text.contains(tells)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(model: Option<&str>, words: &[&str]) -> Option<(Option<String>, Vec<String>)> {
        let words = words.iter().map(OsString::from).collect();
        let (model, texts) = model_and_texts(model.map(Path::new), &HubArgs::default(), words).ok()?;
        Some((model.map(|path| path.display().to_string()), texts))
    }

    #[test]
    fn first_argument_is_model_if_file_like() {
        let of = |model: Option<&str>, texts: &[&str]| {
            let texts = texts.iter().map(ToString::to_string).collect();
            Some((model.map(str::to_owned), texts))
        };
        assert_eq!(split(None, &["a.gguf", "b", "c"]), of(Some("a.gguf"), &["b", "c"]));
        assert_eq!(split(None, &["/no/such"]), of(Some("/no/such"), &[]));
        assert_eq!(split(None, &["why is it so?", "b"]), of(None, &["why is it so?", "b"]));
        assert_eq!(split(Some("m"), &["a.gguf"]), of(Some("m"), &["a.gguf"]));
        assert_eq!(split(None, &[]), of(None, &[]));
        assert_eq!(split(None, &["qwen3:0.6b", "hi"]), of(Some("qwen3:0.6b"), &["hi"]));
        assert_eq!(
            split(None, &["user/repo:Q4_0", "hi"]),
            of(Some("user/repo:Q4_0"), &["hi"])
        );
        assert_eq!(split(None, &["qwem3:0.6b", "hi"]), None);
    }

    #[test]
    fn model_names_differ_from_prompts() {
        for name in ["smollm2:135m", "qwen3", "gemma-3-1b-it", "Llama-3.2"] {
            assert!(looks_like_a_name(name), "{name}");
        }
        for question in ["hi", "why?", "2+2=", "42", "who made qwen3?", "C++17?"] {
            assert!(!looks_like_a_name(question), "{question}");
        }
    }
}
