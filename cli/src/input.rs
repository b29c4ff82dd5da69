//! Reads text from files and standard input.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// Reads standard input, without a trailing newline.
pub fn standard_input() -> Outcome<String> {
    whole_standard_input().map(without_line_feed)
}

/// Reads standard input.
pub fn whole_standard_input() -> Outcome<String> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::new(format_args!("standard input: {e}")))?;
    text_of(bytes, &"standard input")
}

/// Reads a file, without a trailing newline; `-` is standard input.
pub fn read(path: &Path) -> Outcome<String> {
    read_whole(path).map(without_line_feed)
}

/// Reads a file; `-` is standard input.
pub fn read_whole(path: &Path) -> Outcome<String> {
    if path.as_os_str() == "-" {
        return whole_standard_input();
    }
    let bytes = fs::read(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    text_of(bytes, &path.display())
}

fn text_of(bytes: Vec<u8>, name: &dyn Display) -> Outcome<String> {
    String::from_utf8(bytes).map_err(|_| Failure::new(format_args!("{name}: invalid UTF-8")))
}

fn without_line_feed(mut text: String) -> String {
    let end = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n'));
    text.truncate(end.map_or(text.len(), str::len));
    text
}

/// Replaces the escape sequences `\\n`, `\\r`, `\\t`, `\\'`, `\\"`, `\\\\` and `\\xHH`; other backslashes
/// remain. Invalid UTF-8 in the result is replaced.
pub fn unescaped(text: &str) -> String {
    let (mut out, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let after = &rest[at + 1..];
        let (byte, n) = match after.chars().next() {
            Some('n') => (b'\n', 1),
            Some('r') => (b'\r', 1),
            Some('t') => (b'\t', 1),
            Some(c @ ('\'' | '"' | '\\')) => (c as u8, 1),
            Some('x') => match after.get(1..3).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                Some(byte) => (byte, 3),
                None => (b'\\', 0),
            },
            _ => (b'\\', 0),
        };
        out.push(byte);
        rest = &after[n..];
    }
    out.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unescaped_replaces_escape_sequences() {
        assert_eq!(unescaped(r#"a\nb\tc\\d\"e\'"#), "a\nb\tc\\d\"e'");
        assert_eq!(unescaped(r"\xc3\xa9 \x4"), "é \\x4");
        assert_eq!(unescaped(r"\q\"), r"\q\");
    }
}
