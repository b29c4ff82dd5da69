//! Text from files and standard input.

use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::{Failure, Outcome};

/// All of standard input, without the line feed that ends it.
pub fn standard_input() -> Outcome<String> {
    whole_standard_input().map(without_line_feed)
}

/// All of standard input as it is.
pub fn whole_standard_input() -> Outcome<String> {
    let mut bytes = Vec::new();
    io::stdin()
        .lock()
        .read_to_end(&mut bytes)
        .map_err(|e| Failure::new(format_args!("standard input: {e}")))?;
    text_of(bytes, &"standard input")
}

/// All of a file, without the line feed that ends it; `-` is standard input.
pub fn read(path: &Path) -> Outcome<String> {
    if path.as_os_str() == "-" {
        return standard_input();
    }
    let bytes = fs::read(path).map_err(|e| Failure::new(format_args!("{}: {e}", path.display())))?;
    text_of(bytes, &path.display()).map(without_line_feed)
}

fn text_of(bytes: Vec<u8>, name: &dyn Display) -> Outcome<String> {
    String::from_utf8(bytes).map_err(|_| Failure::new(format_args!("{name}: not UTF-8 text")))
}

fn without_line_feed(mut text: String) -> String {
    let end = text.strip_suffix("\r\n").or_else(|| text.strip_suffix('\n'));
    text.truncate(end.map_or(text.len(), str::len));
    text
}
