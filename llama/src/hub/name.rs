//! Model names: `user/repo`, `user/repo:QUANT`, or a short name.

use std::fmt;
use std::path::Path;

use super::short_names::SHORT_NAMES;

/// Maximum length of a name component, as on Hugging Face.
const MAX_PART: usize = 96;

/// A repository and the selected file in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Owner of the repository.
    pub user: String,
    /// Name of the repository.
    pub repo: String,
    /// Quantization such as `Q4_K_M`; `None` selects the preferred one.
    pub quant: Option<String>,
    /// Path of the selected file, instead of a quantization.
    pub file: Option<String>,
}

impl Name {
    /// Parses `user/repo[:QUANT]` or a short name.
    pub fn parse(text: &str) -> Option<Name> {
        if let Some(short) = SHORT_NAMES.iter().find(|short| short.is(text)) {
            return Name::parse(short.means);
        }
        let (path, quant) = match text.split_once(':') {
            Some((path, quant)) => (path, Some(quant)),
            None => (text, None),
        };
        let (user, repo) = path.split_once('/')?;
        let is_valid = is_part(user) && is_part(repo) && quant.is_none_or(is_part);
        is_valid.then(|| Name {
            user: user.to_owned(),
            repo: repo.to_owned(),
            quant: quant.map(str::to_owned),
            file: None,
        })
    }

    /// Parses a command-line argument, unless it can only be a path.
    pub fn meant(text: &str) -> Option<Name> {
        let is_path = Path::new(text).is_absolute() || text.to_ascii_lowercase().ends_with(".gguf");
        if is_path { None } else { Name::parse(text) }
    }

    /// Returns the name of one file of the repository.
    pub fn with_file(self, file: &str) -> Name {
        Name {
            quant: None,
            file: Some(file.to_owned()),
            ..self
        }
    }

    /// Returns `user/repo`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.user, self.repo)
    }
}

/// Returns true if the component is safe in URLs and directory names.
fn is_part(text: &str) -> bool {
    let is_valid = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_PART).contains(&text.len())
        && text.chars().all(is_valid)
        && !text.starts_with('.')
        && !text.contains("--")
        && !text.contains("..")
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.user, self.repo)?;
        match (&self.file, &self.quant) {
            (Some(file), _) => write!(f, " {file}"),
            (None, Some(quant)) => write!(f, ":{quant}"),
            (None, None) => Ok(()),
        }
    }
}
