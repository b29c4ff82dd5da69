//! Finds the delimiter that makes a text unbalanced. The tokenizer of `proc-macro2` reports such a text without a
//! useful position.

/// An opening delimiter that is waiting for its counterpart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Open {
    /// Byte offset in the text.
    at: usize,
    delimiter: char,
    /// Indentation of its line.
    indent: usize,
}

/// Returns the byte offset and the delimiter that is not closed, or closes nothing. `None` if the delimiters match.
///
/// If the end of a block is missing, the closing braces of the blocks around it match the wrong opening braces. The
/// first brace that is closed at another indentation is therefore the likely culprit.
pub fn unbalanced(text: &str) -> Option<(usize, char)> {
    let mut open: Vec<Open> = Vec::new();
    let mut suspect: Option<Open> = None;
    for (at, delimiter) in delimiters(text) {
        if let '(' | '[' | '{' = delimiter {
            let (indent, _) = line_of(text, at);
            open.push(Open { at, delimiter, indent });
            continue;
        }
        let Some(last) = open.pop() else {
            return Some((at, delimiter));
        };
        if closing(last.delimiter) != delimiter {
            return Some((last.at, last.delimiter));
        }
        let (indent, starts_line) = line_of(text, at);
        if starts_line && indent != last.indent {
            suspect.get_or_insert(last);
        }
    }
    let last = open.last()?;
    let culprit = suspect.as_ref().unwrap_or(last);
    Some((culprit.at, culprit.delimiter))
}

/// Returns the indentation of the line of a byte, and whether only blanks precede the byte.
fn line_of(text: &str, at: usize) -> (usize, bool) {
    let start = text[..at].rfind('\n').map_or(0, |i| i + 1);
    let line = &text[start..];
    let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
    (indent, start + indent == at)
}

fn closing(delimiter: char) -> char {
    match delimiter {
        '(' => ')',
        '[' => ']',
        _ => '}',
    }
}

/// Returns the delimiters outside of comments, strings, and characters.
fn delimiters(text: &str) -> Vec<(usize, char)> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = skip(rest);
        if skipped == 0 {
            if "()[]{}".contains(c) {
                found.push((text.len() - rest.len(), c));
            }
            rest = &rest[c.len_utf8()..];
        } else {
            rest = &rest[skipped..];
        }
    }
    found
}

/// Returns the length of the comment, string, or character at the start of the text; 0 if there is none.
fn skip(rest: &str) -> usize {
    let up_to = |end: Option<usize>| end.unwrap_or(rest.len());
    if rest.starts_with("//") {
        return up_to(rest.find('\n'));
    }
    if rest.starts_with("/*") {
        return up_to(rest.find("*/").map(|i| i + 2));
    }
    let mut chars = rest.char_indices();
    match chars.next() {
        Some((_, '"')) => up_to(end_of_string(&rest[1..]).map(|i| i + 1)),
        Some((_, '\'')) if rest.starts_with("'\\") => up_to(rest[2..].find('\'').map(|i| i + 3)),
        // `'{'` is a character, and `'a` without a closing quote is a lifetime.
        Some((_, '\'')) => match (chars.next(), chars.next()) {
            (Some(_), Some((i, '\''))) => i + 1,
            _ => 0,
        },
        _ => 0,
    }
}

/// Returns the offset after the closing quote.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        match c {
            '"' if !escaped => return Some(i + 1),
            '\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<usize> {
        unbalanced(text).map(|(at, _)| text[..at].lines().count().max(1))
    }

    #[test]
    fn balanced_text_has_no_culprit() {
        assert_eq!(unbalanced("a { b(\"}\", '{', '\\'') [ // }\n ] /* ( */ }"), None);
        assert_eq!(unbalanced("fn f<'a>(x: &'a str) {}"), None);
    }

    #[test]
    fn block_without_end_is_found_by_indentation() {
        let text = "arch! {\n    tensors {\n        layer {\n            a: b;\n    }\n    graph {\n    }\n}\n";
        assert_eq!(line(text), Some(3));
        assert_eq!(unbalanced("f(\n  g(\n)"), Some((6, '(')));
        assert_eq!(unbalanced("x = (a + b;\n}"), Some((4, '(')));
        assert_eq!(unbalanced("a }"), Some((2, '}')));
    }
}
