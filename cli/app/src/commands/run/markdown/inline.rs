//! Emphasis and code spans within a line.

/// SGR parameters between `ESC [` and `m`; empty for plain text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style(pub &'static str);

/// Styles of emphasis markers: marker, style in text, style in headings.
const STYLES: &[(&str, &str, &str)] = &[
    // Longest marker first.
    ("***", "1;3", "1;3;35"),
    ("___", "1;3", "1;3;35"),
    ("**", "1", "1;35"),
    ("__", "1", "1;35"),
    ("~~", "9", "9;35"),
    ("*", "3", "3;35"),
    ("_", "3", "3;35"),
];

/// Passes the complete spans of a line to `emit` and returns the bytes consumed. `before` is the character
/// before the text; `ended` means that the line is complete.
pub fn spans(text: &str, before: char, base: Style, ended: bool, emit: &mut dyn FnMut(&str, Style)) -> usize {
    let (mut at, mut plain) = (0, 0);
    let mut before = before;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let span = match c {
            '`' => code(rest, ended),
            '*' | '_' | '~' => emphasis(rest, before, base, ended),
            '\\' => escaped(rest, base, ended),
            _ => Span::None(c.len_utf8()),
        };
        match span {
            Span::None(n) => {
                at += n;
                before = text[..at].chars().next_back().unwrap_or(before);
            }
            Span::Open => break,
            Span::Is { len, inside, style } => {
                emit(&text[plain..at], base);
                match style {
                    Style(_) if style == super::CODE || c == '\\' => emit(inside, style),
                    _ => {
                        spans(inside, ' ', style, true, emit);
                    }
                }
                at += len;
                plain = at;
                before = text[..at].chars().next_back().unwrap_or(before);
            }
        }
    }
    emit(&text[plain..at], base);
    at
}

enum Span<'a> {
    /// The next bytes are plain text.
    None(usize),
    /// More characters are needed.
    Open,
    /// The next `len` bytes are a styled span.
    Is { len: usize, inside: &'a str, style: Style },
}

/// Returns the length in bytes of the run of the first character.
fn run(text: &str) -> usize {
    let first = text.chars().next().unwrap_or(' ');
    text.len() - text.trim_start_matches(first).len()
}

fn code(text: &str, ended: bool) -> Span<'_> {
    let n = run(text);
    if n == text.len() {
        return if ended { Span::None(n) } else { Span::Open };
    }
    let mut at = n;
    while let Some(found) = text[at..].find('`') {
        let close = at + found;
        let len = run(&text[close..]);
        if close + len == text.len() && !ended {
            return Span::Open;
        }
        if len == n {
            return Span::Is {
                len: close + n,
                inside: &text[n..close],
                style: super::CODE,
            };
        }
        at = close + len;
    }
    if ended { Span::None(n) } else { Span::Open }
}

fn emphasis(text: &str, before: char, base: Style, ended: bool) -> Span<'_> {
    let n = run(text);
    let Some(next) = text[n..].chars().next() else {
        return if ended { Span::None(n) } else { Span::Open };
    };
    let mark = &text[..n];
    let Some((_, alone, in_heading)) = STYLES.iter().find(|(m, ..)| *m == mark) else {
        return Span::None(n);
    };
    let is_in_word = |c: char| mark.starts_with('_') && c.is_alphanumeric();
    if next.is_whitespace() || is_in_word(before) {
        return Span::None(n);
    }
    let style = Style(if base == super::HEADING { in_heading } else { alone });
    let mut at = n;
    while let Some(found) = text[at..].find(mark) {
        let close = at + found;
        let len = run(&text[close..]);
        if close + len == text.len() && !ended {
            return Span::Open;
        }
        let last = text[..close].chars().next_back().unwrap_or(' ');
        let after = text[close + len..].chars().next().unwrap_or(' ');
        if len == n && !last.is_whitespace() && !is_in_word(after) {
            return Span::Is {
                len: close + n,
                inside: &text[n..close],
                style,
            };
        }
        at = close + len;
    }
    if ended { Span::None(n) } else { Span::Open }
}

/// Parses a backslash escape.
fn escaped(text: &str, base: Style, ended: bool) -> Span<'_> {
    match text[1..].chars().next() {
        None if !ended => Span::Open,
        Some(c) if c.is_ascii_punctuation() => Span::Is {
            len: 2,
            inside: &text[1..2],
            style: base,
        },
        _ => Span::None(1),
    }
}
