//! Text from files, models, and requests on its way to the terminal and the log. Control characters could move the
//! cursor, color the screen, or send keys, so they are written as escapes.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Returns true for control characters except line breaks and tabs, and for characters that change the text
/// direction.
fn is_control(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => true,
        c => c.is_control(),
    }
}

/// Escapes control characters as in JSON.
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_control(c) {
            // Writing to a string cannot fail. All these characters have four digits.
            let _ = write!(out, "\\u{:04x}", c as u32);
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Writer that escapes control characters; see [`printable`]. Invalid UTF-8 is passed through.
pub struct PrintableWriter<W: Write> {
    inner: W,
    /// First bytes of a character that is split between two writes.
    begun: Vec<u8>,
}

impl<W: Write> PrintableWriter<W> {
    pub fn new(inner: W) -> PrintableWriter<W> {
        let begun = Vec::new();
        PrintableWriter { inner, begun }
    }
}

impl<W: Write> Write for PrintableWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = [&self.begun, bytes].concat();
        self.begun.clear();
        let mut at = 0;
        for chunk in text.utf8_chunks() {
            self.inner.write_all(printable(chunk.valid()).as_bytes())?;
            at += chunk.valid().len() + chunk.invalid().len();
            let is_begun =
                at == text.len() && std::str::from_utf8(chunk.invalid()).is_err_and(|e| e.error_len().is_none());
            if is_begun {
                self.begun.extend_from_slice(chunk.invalid());
            } else {
                self.inner.write_all(chunk.invalid())?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> Drop for PrintableWriter<W> {
    fn drop(&mut self) {
        // Errors of the last bytes cannot be reported.
        let _ = self.inner.write_all(&self.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            printable("a\u{1b}[31mb\u{9b}1m\u{7f}\r"),
            "a\\u001b[31mb\\u009b1m\\u007f\\u000d"
        );
        assert_eq!(printable("\u{202e}gnp.exe\u{2069}"), "\\u202egnp.exe\\u2069");
        for plain in ["", "a\tb\nc", "é 日本 👩‍👩‍👧 \u{200f}", "\\u001b"] {
            assert!(matches!(printable(plain), Cow::Borrowed(text) if text == plain));
        }
    }

    #[test]
    fn writer_escapes_characters_that_are_split_between_writes() {
        let text = "é\u{9b}1m 👩\u{1b}]0;x\u{7}\u{202e}".as_bytes();
        for step in 1..=text.len() {
            let mut out = Vec::new();
            let mut writer = PrintableWriter::new(&mut out);
            text.chunks(step).for_each(|part| writer.write_all(part).unwrap());
            drop(writer);
            let expected = "é\\u009b1m 👩\\u001b]0;x\\u0007\\u202e";
            assert_eq!(String::from_utf8(out).unwrap(), expected, "{step}");
        }
        let mut out = Vec::new();
        PrintableWriter::new(&mut out).write_all(b"\xff\x1b\xe2\x80").unwrap();
        assert_eq!(out, b"\xff\\u001b\xe2\x80");
    }
}
