//! Reads text from files and standard input.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::{Failure, Outcome};
use crate::log::hint;

/// Maximum size of a text in bytes. Devices such as `/dev/zero` never end.
const MAX_LEN: u64 = 256 << 20;

/// Time without standard input after which a hint is printed.
const PATIENCE_MS: i32 = 2000;

/// Reads standard input, without a trailing newline.
pub fn standard_input() -> Outcome<String> {
    whole_standard_input().map(without_line_feed)
}

/// Reads standard input.
pub fn whole_standard_input() -> Outcome<String> {
    text_of(standard_bytes()?, &"standard input")
}

fn standard_bytes() -> Outcome<Vec<u8>> {
    if is_idle() {
        hint!("waiting for the end of standard input; without any, add `< /dev/null`");
    }
    bounded(io::stdin().lock(), MAX_LEN, &"standard input")
}

/// Waits for standard input. Returns true if it stays open without data, as in a program that never closes its pipe.
fn is_idle() -> bool {
    let mut stdin = libc::pollfd {
        fd: libc::STDIN_FILENO,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: the pointer is valid for one entry.
    unsafe { libc::poll(&raw mut stdin, 1, PATIENCE_MS) == 0 }
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
    text_of(bytes_of(path)?, &path.display())
}

/// Reads a file without changing its line ends; `-` is standard input.
pub fn read_unchanged(path: &Path) -> Outcome<String> {
    if path.as_os_str() == "-" {
        return whole_standard_input();
    }
    decoded(bytes_of(path)?, &path.display())
}

/// Reads a binary file; `-` is standard input.
pub fn bytes(path: &Path) -> Outcome<Vec<u8>> {
    if path.as_os_str() == "-" {
        return standard_bytes();
    }
    bytes_of(path)
}

fn bytes_of(path: &Path) -> Outcome<Vec<u8>> {
    let file = File::open(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    bounded(file, MAX_LEN, &path.display())
}

/// Reads at most `max` bytes; more are an error.
fn bounded(from: impl Read, max: u64, name: &dyn Display) -> Outcome<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(max + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::new(format_args!("{name}: {e}")))?;
    if bytes.len() as u64 > max {
        let max = max >> 20;
        return Err(Failure::new(format_args!("{name}: the text is larger than {max} MiB")));
    }
    Ok(bytes)
}

/// Decodes a text file, as Python reads one: without a byte order mark, and with newlines as line ends.
fn text_of(bytes: Vec<u8>, name: &dyn Display) -> Outcome<String> {
    let text = decoded(bytes, name)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
}

fn decoded(bytes: Vec<u8>, name: &dyn Display) -> Outcome<String> {
    let is_utf16 = bytes.starts_with(b"\xff\xfe") || bytes.starts_with(b"\xfe\xff");
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let what = if is_utf16 {
            "UTF-16 text".to_owned()
        } else {
            format!("invalid UTF-8 at byte {at}")
        };
        Failure::new(format_args!("{name}: {what}; convert it to UTF-8"))
    })
}

fn without_line_feed(mut text: String) -> String {
    if text.ends_with('\n') {
        text.pop();
    }
    text
}

/// Replaces the escape sequences `\\n`, `\\r`, `\\t`, `\\'`, `\\"`, `\\\\`, and `\\xHH`; other backslashes
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
    fn text_has_no_byte_order_mark_and_uniform_newlines() {
        let read = |bytes: &[u8]| text_of(bytes.to_vec(), &"x").map_err(|e| format!("{e:?}"));
        assert_eq!(read(b"\xef\xbb\xbfa\r\nb\rc\n").as_deref(), Ok("a\nb\nc\n"));
        assert_eq!(without_line_feed("a\n\n".to_owned()), "a\n");
        assert!(read(b"\xff\xfea\0").is_err_and(|e| e.contains("UTF-16")));
        assert!(read(b"ab\xff").is_err_and(|e| e.contains("at byte 2")));
    }

    #[test]
    fn endless_input_is_an_error() {
        let endless = bounded(io::repeat(0), 1 << 20, &"/dev/zero").map_err(|e| format!("{e:?}"));
        assert!(endless.is_err_and(|e| e.contains("/dev/zero: the text is larger than 1 MiB")));
        assert_eq!(bounded(&b"abc"[..], 3, &"x").ok(), Some(b"abc".to_vec()));
    }

    #[test]
    fn unescaped_replaces_escape_sequences() {
        assert_eq!(unescaped(r#"a\nb\tc\\d\"e\'"#), "a\nb\tc\\d\"e'");
        assert_eq!(unescaped(r"\xc3\xa9 \x4"), "é \\x4");
        assert_eq!(unescaped(r"\q\"), r"\q\");
    }
}
