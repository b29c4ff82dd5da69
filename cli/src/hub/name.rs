//! Names of models: `user/repo`, `user/repo:QUANT`, or a short name.

use std::fmt;
use std::path::Path;

use super::short_names::SHORT_NAMES;

/// Longest part of a name, as hubs have it.
const MAX_PART: usize = 96;

/// A repository, and which of its files is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// Who has it.
    pub user: String,
    /// What they call it.
    pub repo: String,
    /// Quantization, as in `Q4_K_M`; `None`: the one most people want.
    pub quant: Option<String>,
    /// Path of the file that is meant, in place of a quantization.
    pub file: Option<String>,
}

impl Name {
    /// `user/repo[:QUANT]`, or a short name of the table. `None` if it is neither.
    pub fn parse(text: &str) -> Option<Name> {
        if let Some(short) = SHORT_NAMES.iter().find(|short| short.is(text)) {
            return Name::parse(short.means);
        }
        let (path, quant) = match text.split_once(':') {
            Some((path, quant)) => (path, Some(quant)),
            None => (text, None),
        };
        let (user, repo) = path.split_once('/')?;
        let is_right = is_part(user) && is_part(repo) && quant.is_none_or(is_part);
        is_right.then(|| Name {
            user: user.to_owned(),
            repo: repo.to_owned(),
            quant: quant.map(str::to_owned),
            file: None,
        })
    }

    /// The name that a word on the command line has, unless it can only be a path.
    pub fn meant(text: &str) -> Option<Name> {
        let is_path = Path::new(text).is_absolute() || text.to_ascii_lowercase().ends_with(".gguf");
        if is_path { None } else { Name::parse(text) }
    }

    /// The same repository, and one of its files.
    pub fn with_file(self, file: &str) -> Name {
        Name {
            quant: None,
            file: Some(file.to_owned()),
            ..self
        }
    }

    /// `user/repo`.
    pub fn repository(&self) -> String {
        format!("{}/{}", self.user, self.repo)
    }
}

/// A part must not lead anywhere else, neither in an address nor in a folder.
fn is_part(text: &str) -> bool {
    let is_right = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (1..=MAX_PART).contains(&text.len())
        && text.chars().all(is_right)
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
