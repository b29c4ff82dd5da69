//! What a line of markdown is, told from how it begins.

/// A kind of line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Block {
    /// Words.
    Text,
    /// Words behind so many bytes of `#` and blanks.
    Heading {
        /// Bytes before the words.
        len: usize,
    },
    /// An item of a list.
    Item {
        /// Blanks before its mark.
        indent: usize,
        /// Bytes before its words.
        len: usize,
    },
    /// What somebody said.
    Quote {
        /// Bytes before the words.
        len: usize,
    },
    /// What begins or ends code.
    Fence,
    /// A line of code.
    Code,
    /// A row of a table.
    Table,
    /// A line across the page.
    Rule,
}

/// Digits of a number before an item.
const MAX_DIGITS: usize = 9;

/// The fence that a line of backticks or tildes is.
pub fn fence_of(line: &str) -> &str {
    let line = line.trim_start();
    let mark = line.chars().next().unwrap_or('`');
    &line[..line.len() - line.trim_start_matches(mark).len()]
}

/// What a line that begins like this is; `None` while that cannot be told. `fence`: what has begun code; `ended`: this is all of the line.
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
            of_mark(words, n, ended, n <= 6).map(|is| match is {
                true => Block::Heading { len: indent + n + 1 },
                false => Block::Text,
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
                // A fence is shown whole, with what follows it.
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
    match is_mark {
        true if ended => Some(match words.trim_end().len() >= fence.len() {
            true => Block::Fence,
            false => Block::Code,
        }),
        true => None,
        false => Some(Block::Code),
    }
}

/// Is a mark of `n` bytes followed by a blank? `None` while that is open.
fn of_mark(words: &str, n: usize, ended: bool, fits: bool) -> Option<bool> {
    match words[n..].chars().next() {
        None if ended => Some(false),
        None => None,
        Some(next) => Some(fits && next == ' '),
    }
}

fn item(is: bool, indent: usize, len: usize) -> Block {
    match is {
        true => Block::Item {
            indent,
            len: indent + len,
        },
        false => Block::Text,
    }
}

/// `- `, `* ` and `+ ` begin items; `---` and the like are rules.
fn of_dashes(words: &str, indent: usize, first: char, ended: bool) -> Option<Block> {
    let is_only = words.trim_end().chars().all(|c| c == first);
    if is_only && words.trim_end().len() >= 3 && first != '+' {
        return ended.then_some(Block::Rule);
    }
    let can_be_item = matches!(first, '-' | '*' | '+');
    match words[1..].chars().next() {
        Some(' ') if can_be_item => Some(item(true, indent, 2)),
        // `--` may become a rule.
        Some(next) if next == first && is_only && !ended => None,
        None if !ended => None,
        _ => Some(Block::Text),
    }
}
