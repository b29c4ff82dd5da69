//! Image and audio files that are dropped on the terminal, which types their paths.

use std::path::{Path, PathBuf};

use engine::model::Medium;

/// Extensions of the files that are attached.
const EXTENSIONS: [(&str, Medium); 10] = [
    ("png", Medium::Image),
    ("jpg", Medium::Image),
    ("jpeg", Medium::Image),
    ("webp", Medium::Image),
    ("gif", Medium::Image),
    ("bmp", Medium::Image),
    ("wav", Medium::Audio),
    ("mp3", Medium::Audio),
    ("flac", Medium::Audio),
    ("ogg", Medium::Audio),
];

/// Splits a message into its text and the files whose absolute paths it contains. Terminals quote paths as shells do.
pub fn split(message: &str) -> (String, Vec<(Medium, PathBuf)>) {
    let (mut text, mut files) = (String::new(), Vec::new());
    let mut rest = message;
    while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
        let (space, word) = rest.split_at(start);
        let (path, len) = unquoted(word);
        match medium_of(Path::new(&path)) {
            Some(medium) => files.push((medium, path.into())),
            None => {
                text += space;
                text += &word[..len];
            }
        }
        rest = &word[len..];
    }
    (text.trim().to_owned(), files)
}

/// Returns the medium of an existing file with an absolute path.
fn medium_of(path: &Path) -> Option<Medium> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let (_, medium) = EXTENSIONS.iter().find(|(name, _)| *name == extension)?;
    (path.is_absolute() && path.is_file()).then_some(*medium)
}

/// Reads the first word of a text as a shell does. Also returns the length of the word in the text.
fn unquoted(text: &str) -> (String, usize) {
    let (mut word, mut quote) = (String::new(), None);
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match (quote, c) {
            (None, c) if c.is_whitespace() => return (word, at),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if c == open => quote = None,
            (None | Some('"'), '\\') => word.extend(chars.next().map(|(_, c)| c)),
            (_, c) => word.push(c),
        }
    }
    match quote {
        // Without a closing quote, the quote is text.
        Some(_) => {
            let end = text.find(char::is_whitespace).unwrap_or(text.len());
            (text[..end].to_owned(), end)
        }
        None => (word, text.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_media_are_split_off_the_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        for name in ["a b.PNG", "c.wav", "d.txt"] {
            std::fs::write(path(name), "").unwrap();
        }
        let dir = directory.path().to_str().unwrap();
        let (image, sound) = ((Medium::Image, path("a b.PNG")), (Medium::Audio, path("c.wav")));
        for (message, text, files) in [
            (format!("'{dir}/a b.PNG' "), "", vec![&image]),
            (format!("look at {dir}/a\\ b.PNG  here"), "look at  here", vec![&image]),
            (
                format!("\"{dir}/a b.PNG\" {dir}/c.wav compare"),
                "compare",
                vec![&image, &sound],
            ),
            (
                format!("{dir}/d.txt {dir}/e.png"),
                &format!("{dir}/d.txt {dir}/e.png"),
                vec![],
            ),
            ("don't  read 'c.wav' \\".to_owned(), "don't  read 'c.wav' \\", vec![]),
            ("it's\n\"so\"".to_owned(), "it's\n\"so\"", vec![]),
        ] {
            let (found, paths) = split(&message);
            assert_eq!(
                (found.as_str(), paths.iter().collect::<Vec<_>>()),
                (text, files),
                "{message}"
            );
        }
    }
}
