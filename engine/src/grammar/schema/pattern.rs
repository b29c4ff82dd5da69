//! Regular expressions of JSON schemas, which follow ECMAScript, in the dialect of the grammar compiler.
//!
//! Lookaheads at the start of a pattern become separate patterns: `^(?=A)(?!B)C` restricts a string to `^A`, `^C`, and
//! the complement of `^B`.

use regex_syntax::hir::{Hir, Look};
use regex_syntax::parse;

use super::complement;

/// Maximum length of a pattern in bytes.
const MAX_LEN: usize = 16 << 10;
/// Maximum number of lookaheads.
const MAX_LOOKAHEADS: usize = 8;

/// Returns patterns that a string must match together to match `pattern`.
///
/// # Errors
/// Describes the part of the pattern that cannot be enforced.
pub fn enforceable(pattern: &str) -> Result<Vec<String>, String> {
    if pattern.len() > MAX_LEN {
        return Err(format!("the pattern has {} bytes, maximum {MAX_LEN}", pattern.len()));
    }
    let text = dialect(pattern);
    let mut all = Vec::new();
    let Some(mut rest) = text
        .strip_prefix('^')
        .filter(|rest| rest.starts_with("(?=") || rest.starts_with("(?!"))
    else {
        check(&text)?;
        return Ok(vec![text]);
    };
    while let Some(body) = rest.strip_prefix("(?=").or_else(|| rest.strip_prefix("(?!")) {
        if all.len() == MAX_LOOKAHEADS {
            return Err(format!("more than {MAX_LOOKAHEADS} lookaheads"));
        }
        let end = group_end(body).ok_or("a group is not closed")?;
        let inner = format!("^(?:{})", &body[..end]);
        check(&inner)?;
        all.push(match rest.as_bytes()[2] {
            b'!' => complement::complement(&inner)?,
            _ => inner,
        });
        rest = &body[end + 1..];
    }
    if has_alternatives(rest) {
        return Err("a lookahead in one of several alternatives cannot be enforced".to_owned());
    }
    let rest = format!("^{rest}");
    check(&rest)?;
    all.push(rest);
    Ok(all)
}

/// Returns the pattern of the strings that do not match `pattern`.
pub fn excluded(pattern: &str) -> Result<String, String> {
    let text = dialect(pattern);
    check(&text)?;
    complement::complement(&text)
}

/// Returns a pattern that matches only `text`.
pub fn literal(text: &str) -> String {
    regex_syntax::escape(text)
}

/// Checks that the grammar compiler can handle a pattern.
fn check(text: &str) -> Result<(), String> {
    let hir = parse(text).map_err(|e| {
        let message = match &e {
            regex_syntax::Error::Parse(e) => e.kind().to_string(),
            regex_syntax::Error::Translate(e) => e.kind().to_string(),
            _ => "invalid regular expression".to_owned(),
        };
        format!("unsupported pattern: {message}")
    })?;
    if has_boundary(&hir) {
        return Err("unsupported pattern: word boundaries (\\b) cannot be enforced".to_owned());
    }
    Ok(())
}

/// Returns true if a pattern has assertions other than the start and the end of the text.
fn has_boundary(hir: &Hir) -> bool {
    let looks = hir.properties().look_set();
    looks.iter().any(|look| !matches!(look, Look::Start | Look::End))
}

/// Escapes characters of an ECMAScript class that the grammar compiler would interpret differently: `[`, `&`, `~`, and
/// `-` after a class such as `\w`.
fn dialect(pattern: &str) -> String {
    let mut text = String::with_capacity(pattern.len());
    let (mut chars, mut in_class, mut is_behind_class) = (pattern.chars().peekable(), false, false);
    while let Some(c) = chars.next() {
        let was_behind_class = std::mem::take(&mut is_behind_class);
        match c {
            '\\' => {
                let Some(next) = chars.next() else {
                    text.push('\\');
                    break;
                };
                is_behind_class = matches!(next, 'd' | 'D' | 'w' | 'W' | 's' | 'S');
                text.extend([c, next]);
            }
            '[' if in_class => text += "\\[",
            '&' | '~' if in_class => text.extend(['\\', c]),
            '-' if in_class && was_behind_class && chars.peek() != Some(&']') => text += "\\-",
            '[' => {
                in_class = true;
                text.push(c);
                if chars.peek() == Some(&'^') {
                    text.extend(chars.next());
                }
            }
            ']' => {
                in_class = false;
                text.push(c);
            }
            _ => text.push(c),
        }
    }
    text
}

/// Returns the offset of the parenthesis that closes a group.
fn group_end(text: &str) -> Option<usize> {
    let mut depth = 0_usize;
    for (at, c) in plain_chars(text) {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return Some(at),
            ')' => depth -= 1,
            _ => {}
        }
    }
    None
}

/// Returns true if the outermost level of a pattern has several alternatives.
fn has_alternatives(text: &str) -> bool {
    let mut depth = 0_usize;
    for (_, c) in plain_chars(text) {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            '|' if depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// Returns the characters that are neither escaped nor in a class.
fn plain_chars(text: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut is_escaped, mut in_class) = (false, false);
    text.char_indices().filter(move |(_, c)| {
        if std::mem::take(&mut is_escaped) {
            return false;
        }
        match c {
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            _ => return !in_class,
        }
        false
    })
}
