//! Limits of declarations, which are untrusted input.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use arch_lang::{Library, Source};
use sha2::{Digest, Sha256};

/// Maximum size of a declaration in bytes, with all files that it uses.
pub const MAX_BYTES: usize = 1 << 20;

/// Maximum depth of expressions and blocks in a text, in tokens. It counts the tokens of an expression up to a
/// position, and the tokens of all enclosing expressions.
pub const MAX_DEPTH: usize = 2048;

/// Maximum number of tokens of a declaration, with all files that it uses. The compiler looks up names in lists, so its
/// time is quadratic in this number.
pub const MAX_TOKENS: usize = 100_000;

/// Maximum length of a line in bytes. Each error of a declaration shows a line.
const MAX_LINE: usize = 4096;

/// Stack of the compiler, which recurses over expressions and inlined functions.
const STACK: usize = 64 << 20;

/// A text that exceeds a limit.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum TextError {
    /// The declaration is too large.
    #[error("the declaration and the files that it uses have more than {MAX_BYTES} bytes")]
    TooLarge,
    /// The declaration has too many tokens.
    #[error("the declaration and the files that it uses have more than {MAX_TOKENS} words and symbols")]
    TooMany,
    /// An expression is too long or too deep.
    #[error("line {line}: the expression is nested too deeply, or is too long")]
    TooDeep { line: usize },
    /// A line is too long.
    #[error("line {line} has more than {MAX_LINE} bytes")]
    TooLong { line: usize },
}

/// Reads a file of at most [`MAX_BYTES`].
///
/// # Errors
/// Returns `InvalidData` if the text is not UTF-8, and `InvalidInput` if the file is too large or is not a regular
/// file. Also returns all errors of the system.
pub fn read(path: &Path) -> io::Result<String> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
    // Opening a pipe would wait for its writer.
    let metadata = std::fs::metadata(path)?;
    if !metadata.is_file() {
        let found = if metadata.is_dir() {
            "a directory"
        } else {
            "a device or a pipe"
        };
        return Err(invalid(format!("expected a declaration file (*.rs), found {found}")));
    }
    let mut text = String::new();
    File::open(path)?.take(MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    if text.len() > MAX_BYTES {
        return Err(invalid(TextError::TooLarge.to_string()));
    }
    Ok(text)
}

/// Maximum number of files that are read in a directory.
const MAX_FILES: usize = 1000;

/// Returns the first 1000 declaration files (`*.rs`) of a directory, sorted by name.
pub fn declaration_files(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let paths = entries.map(|entry| entry.path());
    let mut first = BTreeSet::new();
    for path in paths.filter(|path| path.extension().is_some_and(|e| e == "rs")) {
        first.insert(path);
        if first.len() > MAX_FILES {
            first.pop_last();
        }
    }
    first.into_iter().collect()
}

/// Checks the size and depth of a text.
///
/// # Errors
/// Returns a [`TextError`] for the first exceeded limit.
pub fn check(text: &str) -> Result<(), TextError> {
    n_tokens(text).map(|_| ())
}

/// Checks the size and depth of a text, and returns its number of tokens.
fn n_tokens(text: &str) -> Result<usize, TextError> {
    if text.len() > MAX_BYTES {
        return Err(TextError::TooLarge);
    }
    let mut depth = Depth {
        runs: vec![0],
        sum: 0,
        in_word: false,
        ended: 0,
        n_tokens: 0,
    };
    for (i, line) in text.lines().enumerate() {
        // Only a line that starts with `//` is certainly a comment: no string or block comment ends in it.
        let is_comment = line.trim_start().starts_with("//") && !line.contains('"') && !line.contains("*/");
        depth.in_word = false;
        if line.len() > MAX_LINE {
            return Err(TextError::TooLong { line: i + 1 });
        }
        if !is_comment && !line.chars().all(|c| depth.fits(c)) {
            return Err(TextError::TooDeep { line: i + 1 });
        }
    }
    if depth.n_tokens > MAX_TOKENS {
        return Err(TextError::TooMany);
    }
    Ok(depth.n_tokens)
}

/// Tokens that enclose a position of a text. Strings and comments also count as tokens.
struct Depth {
    /// Tokens since the last separator, of each open bracket.
    runs: Vec<usize>,
    sum: usize,
    in_word: bool,
    /// Tokens of the statement that the last `}` ended, unless `else` continues it.
    ended: usize,
    /// All tokens.
    n_tokens: usize,
}

impl Depth {
    /// Adds a character. Returns false if the depth exceeds its limit.
    fn fits(&mut self, c: char) -> bool {
        let is_word = c.is_alphanumeric() || c == '_';
        let starts = !(c.is_whitespace() || is_word && self.in_word);
        self.in_word = is_word;
        self.n_tokens += usize::from(starts);
        if starts && self.ended > 0 {
            let continued = if c == 'e' { self.ended } else { 0 };
            self.add(continued);
            self.ended = 0;
        }
        match c {
            '(' | '[' | '{' => self.runs.push(0),
            ')' | ']' | '}' if self.runs.len() > 1 => {
                self.sum -= self.runs.pop().unwrap_or(0);
            }
            _ => {}
        }
        self.add(usize::from(starts));
        if matches!(c, ';' | ',' | '}')
            && let Some(run) = self.runs.last_mut()
        {
            let run = std::mem::take(run);
            self.sum -= run;
            self.ended = if c == '}' { run } else { 0 };
        }
        self.sum + self.runs.len() <= MAX_DEPTH
    }

    fn add(&mut self, n: usize) {
        if let Some(run) = self.runs.last_mut() {
            *run += n;
            self.sum += n;
        }
    }
}

/// Runs the compiler on a thread with enough stack for the allowed depth.
pub(crate) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().stack_size(STACK);
        let compiler = thread.spawn_scoped(scope, work)?;
        compiler
            .join()
            .map_err(|_| io::Error::other("internal error in the compiler of declarations"))
    })
}

/// Library that checks the limits of each file of another library, and computes a digest of the files.
pub(crate) struct Limited<'a> {
    library: &'a dyn Library,
    state: RefCell<State>,
}

struct State {
    /// Bytes left for further files.
    left: usize,
    /// Tokens left for further files.
    tokens_left: usize,
    digest: Sha256,
    error: Option<(String, TextError)>,
}

impl<'a> Limited<'a> {
    /// Wraps the library of a declaration.
    pub fn new(library: &'a dyn Library, text: &str) -> Limited<'a> {
        let mut digest = Sha256::new();
        digest.update(text);
        Limited {
            library,
            state: RefCell::new(State {
                left: MAX_BYTES.saturating_sub(text.len()),
                tokens_left: MAX_TOKENS.saturating_sub(n_tokens(text).unwrap_or(MAX_TOKENS)),
                digest,
                error: None,
            }),
        }
    }

    /// Returns a digest of the declaration and of the files that it used.
    pub fn digest(&self) -> u64 {
        let digest = self.state.borrow().digest.clone().finalize();
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[..8]);
        u64::from_le_bytes(bytes)
    }

    /// Returns the file that exceeded a limit.
    pub fn error(&self) -> Option<(String, TextError)> {
        self.state.borrow().error.clone()
    }

    fn admit(&self, source: Source) -> Option<Source> {
        let state = &mut *self.state.borrow_mut();
        let checked = match state.left.checked_sub(source.text.len()) {
            Some(left) => {
                state.left = left;
                n_tokens(&source.text).and_then(|n| state.tokens_left.checked_sub(n).ok_or(TextError::TooMany))
            }
            None => Err(TextError::TooLarge),
        };
        match checked {
            Ok(tokens_left) => {
                state.tokens_left = tokens_left;
                state.digest.update(&source.text);
                Some(source)
            }
            Err(error) => {
                state.error.get_or_insert((source.file, error));
                None
            }
        }
    }
}

impl Library for Limited<'_> {
    fn find(&self, name: &str) -> Option<Source> {
        self.library.find(name).and_then(|s| self.admit(s))
    }

    fn ambiguous(&self, name: &str) -> Vec<String> {
        self.library.ambiguous(name)
    }

    fn names(&self) -> Vec<String> {
        self.library.names()
    }

    fn fragment(&self, name: &str) -> Option<Source> {
        self.library.fragment(name).and_then(|s| self.admit(s))
    }

    fn fragments(&self) -> Vec<String> {
        self.library.fragments()
    }

    fn files(&self) -> Box<dyn Iterator<Item = Source> + '_> {
        self.library.files()
    }

    fn inherits_checkpoints(&self) -> bool {
        self.library.inherits_checkpoints()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deep_or_long_text_is_rejected() {
        for deep in [
            "! ".repeat(3000),
            "( ".repeat(3000),
            "a + ".repeat(2000),
            "f(a + ".repeat(800),
            "[, ".repeat(2500),
            "if a {} else ".repeat(1500),
        ] {
            let found = check(&deep.replace(' ', "\n"));
            assert!(matches!(found, Err(TextError::TooDeep { .. })), "{found:?}: {deep}");
        }
        assert_eq!(
            check(&format!("\n{}", "x ".repeat(3000))),
            Err(TextError::TooLong { line: 2 })
        );
        let flat = "let x = a + b;\n".repeat(5_000) + &"if a { b(c, d); }\n".repeat(5_000);
        assert_eq!(n_tokens(&flat), Ok(5_000 * 7 + 5_000 * 11));
        assert_eq!(check(&flat.repeat(2)), Err(TextError::TooMany));
        assert_eq!(check(&"x".repeat(MAX_BYTES + 1)), Err(TextError::TooLarge));
    }

    #[test]
    fn first_files_by_name_are_declarations() {
        let directory = std::env::temp_dir().join(format!("llama-declarations-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        for i in (0..MAX_FILES + 5).rev() {
            std::fs::write(directory.join(format!("{i:04}.rs")), "").unwrap();
        }
        std::fs::write(directory.join("0000.txt"), "").unwrap();
        let found = declaration_files(&directory);
        std::fs::remove_dir_all(&directory).unwrap();
        let expected: Vec<PathBuf> = (0..MAX_FILES).map(|i| directory.join(format!("{i:04}.rs"))).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn built_in_texts_are_within_limits() {
        for (file, text) in crate::library::BuiltIn.all() {
            assert_eq!(check(text), Ok(()), "{file}");
        }
    }
}
