//! Completion of commands, parameters, model names, and files.

use std::path::Path;

use engine::sample::PARAMS;

use super::commands::{Argument, COMMANDS};

/// Maximum number of suggested files.
const MAX_FILES: usize = 200;

/// Returns the start of the word to complete and its possible completions.
pub fn candidates(typed: &str, models: &[String]) -> (usize, Vec<String>) {
    let Some((command, argument)) = typed.split_once(' ') else {
        if !typed.starts_with('/') {
            return (0, Vec::new());
        }
        return (0, fitting(COMMANDS.iter().map(|command| command.name), typed));
    };
    let start = typed.len() - argument.len();
    let takes = COMMANDS.iter().find(|c| c.name == command).map(|c| c.argument);
    let found = match takes {
        Some(Argument::Parameter) if !argument.contains(' ') => fitting(PARAMS.iter().map(|p| p.flag), argument),
        Some(Argument::File) => files(argument),
        Some(Argument::Model) => {
            let mut found = fitting(models.iter().map(String::as_str), argument);
            found.extend(files(argument));
            found
        }
        _ => Vec::new(),
    };
    (start, found)
}

fn fitting<'a>(all: impl Iterator<Item = &'a str>, prefix: &str) -> Vec<String> {
    all.filter(|one| one.starts_with(prefix)).map(str::to_owned).collect()
}

/// Returns the files and directories that start with a prefix; directories end in a separator.
fn files(prefix: &str) -> Vec<String> {
    let (directory, name) = match prefix.rfind('/') {
        Some(at) => prefix.split_at(at + 1),
        None => ("", prefix),
    };
    let shown = if directory.is_empty() {
        Path::new(".")
    } else {
        Path::new(directory)
    };
    let entries = std::fs::read_dir(shown).into_iter().flatten().flatten();
    let named = entries.filter_map(|entry| {
        let file = entry.file_name().into_string().ok()?;
        let is_hidden = file.starts_with('.') && !name.starts_with('.');
        let ends = if entry.path().is_dir() { "/" } else { "" };
        (file.starts_with(name) && !is_hidden).then(|| format!("{directory}{file}{ends}"))
    });
    let mut found: Vec<String> = named.take(MAX_FILES).collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn completion_offers_commands_parameters_models_and_files() {
        let models = ["qwen3:0.6b".to_owned(), "user/repo:Q4_0".to_owned()];
        let of = |typed: &str| candidates(typed, &models);
        assert_eq!(of("/re"), (0, vec!["/regen".into(), "/read".into(), "/resume".into()]));
        assert_eq!(of("re"), (0, vec![]));
        assert_eq!(
            of("/set top-"),
            (5, vec!["top-n-sigma".into(), "top-k".into(), "top-p".into()])
        );
        assert_eq!(of("/set top-k 4").1, Vec::<String>::new());
        assert_eq!(of("/model qw"), (7, vec!["qwen3:0.6b".into()]));
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("notes.txt"), "").unwrap();
        std::fs::write(path(".hidden"), "").unwrap();
        std::fs::create_dir(path("notes")).unwrap();
        let typed = format!("/read {}", path("no"));
        assert_eq!(of(&typed), (6, vec![path("notes.txt"), path("notes/")]));
        assert_eq!(of(&format!("/save {}/", dir.path().display())).1.len(), 2);
    }
}
