//! String literals of templates, with Python's escape sequences.

use minijinja::{Error, ErrorKind};
use std::iter::Peekable;
use std::str::Chars;

/// Returns the value of one or several adjacent string literals.
pub(super) fn unescaped(source: &str) -> Result<String, Error> {
    let mut out = String::with_capacity(source.len());
    let mut chars = source.chars().peekable();
    while let Some(quote) = chars.next() {
        if quote.is_whitespace() {
            continue;
        }
        loop {
            match chars.next() {
                None => return Err(bad("unterminated string")),
                Some(c) if c == quote => break,
                Some('\\') => escape(&mut chars, &mut out)?,
                Some(c) => out.push(c),
            }
        }
    }
    Ok(out)
}

/// Appends the character of an escape sequence whose backslash was read.
fn escape(chars: &mut Peekable<Chars>, out: &mut String) -> Result<(), Error> {
    let Some(c) = chars.next() else {
        return Err(bad("unterminated string"));
    };
    match c {
        '\n' => {}
        '\\' | '\'' | '"' => out.push(c),
        'a' => out.push('\x07'),
        'b' => out.push('\x08'),
        'f' => out.push('\x0c'),
        'n' => out.push('\n'),
        'r' => out.push('\r'),
        't' => out.push('\t'),
        'v' => out.push('\x0b'),
        '0'..='7' => out.push(octal(c, chars)),
        'x' => out.push(character(hexadecimal(chars, 2)?)?),
        'U' => out.push(character(hexadecimal(chars, 8)?)?),
        'u' => {
            let unit = hexadecimal(chars, 4)?;
            // Python would keep the halves of a surrogate pair separate and fail to encode them.
            let is_pair = (0xd800..0xdc00).contains(&unit)
                && chars.next_if_eq(&'\\').is_some()
                && chars.next_if_eq(&'u').is_some();
            if is_pair {
                let low = hexadecimal(chars, 4)?;
                let code = 0x10000 + ((unit - 0xd800) << 10) + low.wrapping_sub(0xdc00);
                out.push(character(code)?);
            } else {
                out.push(character(unit)?);
            }
        }
        other => out.extend(['\\', other]),
    }
    Ok(())
}

fn octal(first: char, chars: &mut Peekable<Chars>) -> char {
    let mut code = first.to_digit(8).unwrap_or(0);
    for _ in 0..2 {
        let Some(digit) = chars.peek().and_then(|c| c.to_digit(8)) else {
            break;
        };
        code = code * 8 + digit;
        chars.next();
    }
    // At most 0o777.
    char::from_u32(code).unwrap_or_default()
}

fn hexadecimal(chars: &mut Peekable<Chars>, n: usize) -> Result<u32, Error> {
    let mut code: u32 = 0;
    for _ in 0..n {
        let digit = chars.next().and_then(|c| c.to_digit(16));
        code = code << 4 | digit.ok_or_else(|| bad("truncated escape sequence"))?;
    }
    Ok(code)
}

fn character(code: u32) -> Result<char, Error> {
    char::from_u32(code).ok_or_else(|| bad("an escape sequence is not a valid character"))
}

fn bad(message: &'static str) -> Error {
    Error::new(ErrorKind::BadEscape, message)
}
