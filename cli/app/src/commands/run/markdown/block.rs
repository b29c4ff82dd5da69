//! Classifies lines of Markdown by how they start.

/// Kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    Text,
    Heading {
        /// Bytes of the `#` marks and spaces before the text.
        len: usize,
    },
    Item {
        /// Spaces before the marker.
        indent: usize,
        /// Bytes before the text.
        len: usize,
    },
    Quote {
        /// Bytes before the text.
        len: usize,
    },
    /// Start or end of a code block.
    Fence,
    Code,
    Table,
    /// Thematic break.
    Rule,
}

/// Maximum digits of the number of an ordered list item.
const MAX_DIGITS: usize = 9;

/// Returns the fence at the start of a line: a run of backticks or tildes.
pub fn fence_of(line: &str) -> &str {
    let line = line.trim_start();
    let mark = line.chars().next().unwrap_or('`');
    &line[..line.len() - line.trim_start_matches(mark).len()]
}

/// Classifies a line by its start; `None` if more characters are needed. `fence` is the fence of an open code
/// block; `ended` means that the line is complete.
pub fn of(line: &str, fence: Option<&str>, ended: bool) -> Option<Block> {
    let words = line.trim_start();
    if let Some(fence) = fence {
        return of_code(words, fence, ended);
    }
    let indent = line.len() - words.len();
    let Some(first) = words.chars().next() else {
        return ended.then_some(Block::Text);
    };
    match first {
        '#' => {
            let n = words.len() - words.trim_start_matches('#').len();
            of_mark(words, n, ended, n <= 6).map(|is| {
                if is {
                    Block::Heading { len: indent + n + 1 }
                } else {
                    Block::Text
                }
            })
        }
        '-' | '*' | '+' | '_' | '=' => of_dashes(words, indent, first, ended),
        '0'..='9' => {
            let n = words.len() - words.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            match words[n..].chars().next() {
                None if ended || n > MAX_DIGITS => Some(Block::Text),
                None => None,
                Some('.' | ')') if n <= MAX_DIGITS => {
                    of_mark(words, n + 1, ended, true).map(|is| item(is, indent, n + 2))
                }
                Some(_) => Some(Block::Text),
            }
        }
        '>' => of_mark(words, 1, ended, true).map(|is| Block::Quote {
            len: indent + 1 + usize::from(is),
        }),
        '`' | '~' => {
            let n = fence_of(words).len();
            match n {
                // A fence is printed as a whole line, including its info string.
                3.. => ended.then_some(Block::Fence),
                _ if n < words.len() || ended => Some(Block::Text),
                _ => None,
            }
        }
        '|' => ended.then_some(Block::Table),
        _ => Some(Block::Text),
    }
}

fn of_code(words: &str, fence: &str, ended: bool) -> Option<Block> {
    let mark = fence.chars().next().unwrap_or('`');
    let is_mark = words.trim_end().chars().all(|c| c == mark);
    if !is_mark {
        return Some(Block::Code);
    }
    if !ended {
        return None;
    }
    Some(if words.trim_end().len() >= fence.len() {
        Block::Fence
    } else {
        Block::Code
    })
}

/// Returns whether a space follows a marker of `n` bytes; `None` if undecided.
fn of_mark(words: &str, n: usize, ended: bool, fits: bool) -> Option<bool> {
    match words[n..].chars().next() {
        None if ended => Some(false),
        None => None,
        Some(next) => Some(fits && next == ' '),
    }
}

fn item(is: bool, indent: usize, len: usize) -> Block {
    if is {
        Block::Item {
            indent,
            len: indent + len,
        }
    } else {
        Block::Text
    }
}

/// Classifies lines that start with `-`, `*`, or `+`: list items or thematic breaks.
fn of_dashes(words: &str, indent: usize, first: char, ended: bool) -> Option<Block> {
    let is_only = words.trim_end().chars().all(|c| c == first);
    if is_only && words.trim_end().len() >= 3 && first != '+' {
        return ended.then_some(Block::Rule);
    }
    let can_be_item = matches!(first, '-' | '*' | '+');
    match words[1..].chars().next() {
        Some(' ') if can_be_item => Some(item(true, indent, 2)),
        // `--` may become a thematic break.
        Some(next) if next == first && is_only && !ended => None,
        None if !ended => None,
        _ => Some(Block::Text),
    }
}
