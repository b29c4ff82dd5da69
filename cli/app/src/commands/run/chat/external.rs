//! External programs used by the chat: the editor and clipboard tools.

use std::io::{self, Write};
use std::process::{Command, Stdio};

use crate::failure::{Failure, Outcome};
use crate::input;

/// Clipboard tools: environment variable that must be set, program, and arguments.
const CLIPBOARDS: &[(Option<&str>, &str, &[&str])] = &[
    (Some("WAYLAND_DISPLAY"), "wl-copy", &[]),
    (Some("DISPLAY"), "xclip", &["-selection", "clipboard"]),
    (Some("DISPLAY"), "xsel", &["--clipboard", "--input"]),
    (None, "pbcopy", &[]),
    (None, "clip.exe", &[]),
];

/// Opens `text` in `VISUAL` or `EDITOR` and returns the edited text.
pub fn edited(text: &str) -> Outcome<String> {
    let set = |name| std::env::var(name).ok().filter(|v: &String| !v.trim().is_empty());
    let editor = set("VISUAL").or_else(|| set("EDITOR"));
    let editor = editor.unwrap_or_else(|| if cfg!(windows) { "notepad" } else { "vi" }.to_owned());
    let mut file = tempfile::Builder::new().prefix("llama-").suffix(".md").tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    // The variable may contain arguments, as in `code --wait`.
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or_default();
    let cannot = |why: &dyn std::fmt::Display| Failure::new(format_args!("cannot run the editor {editor:?}: {why}"));
    let status = Command::new(program).args(words).arg(file.path()).status();
    match status.map_err(|e| cannot(&e))? {
        status if status.success() => input::read(file.path()),
        status => Err(cannot(&status)),
    }
}

/// Copies text to the clipboard and returns the tool used. Without a tool, emits the OSC 52 terminal
/// sequence.
pub fn copy(text: &str) -> Outcome<&'static str> {
    let can_work = |variable: &Option<&str>| variable.is_none_or(|name| std::env::var_os(name).is_some());
    for (_, program, args) in CLIPBOARDS.iter().filter(|(variable, ..)| can_work(variable)) {
        if feed(program, args, text).is_ok() {
            return Ok(program);
        }
    }
    let mut out = io::stdout().lock();
    write!(out, "\x1b]52;c;{}\x07", base64(text.as_bytes()))?;
    out.flush()?;
    Ok("the terminal")
}

fn feed(program: &str, args: &[&str], text: &str) -> io::Result<()> {
    let mut command = Command::new(program);
    let quiet = command
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = quiet.spawn()?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(text.as_bytes())?;
    }
    if child.wait()?.success() {
        Ok(())
    } else {
        Err(io::ErrorKind::Other.into())
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            let digit = DIGITS[(all >> (18 - 6 * i)) as usize & 63] as char;
            text.push(if i <= chunk.len() { digit } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_matches_rfc_vectors() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(text.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xff, 0xfe]), "//4=");
    }
}
