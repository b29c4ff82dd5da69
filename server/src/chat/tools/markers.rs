//! Matching of tool-call markers, independent of whitespace, and common parts of two texts.

/// Maximum length in bytes of the variable part of a marker.
pub const MAX_GAP: usize = 256;

/// Result of matching a marker at the start of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkerMatch {
    /// The marker matches and ends at this offset.
    Whole(usize),
    /// The text ends inside the marker.
    Partial,
    /// The marker does not match.
    Not,
}

/// Matches a marker at the start of a text, ignoring whitespace in both.
pub fn at_start(text: &str, mark: &str) -> MarkerMatch {
    let mut expected = mark.chars().filter(|c| !c.is_whitespace());
    let mut next = expected.next();
    for (at, c) in text.char_indices() {
        match next {
            None => return MarkerMatch::Whole(at),
            Some(_) if c.is_whitespace() => {}
            Some(w) if w == c => next = expected.next(),
            Some(_) => return MarkerMatch::Not,
        }
    }
    match next {
        None => MarkerMatch::Whole(text.len()),
        Some(_) => MarkerMatch::Partial,
    }
}

/// Returns the start of a marker: up to the end of its first tag, or up to whitespace. A closing bracket without
/// content, as in `]<]minimax[>[<call>`, does not end a tag.
pub fn first_part(mark: &str) -> &str {
    let mark = mark.trim_start();
    let mut is_open = false;
    let end = mark.char_indices().find_map(|(at, c)| match c {
        '>' | ']' if is_open => Some(at + c.len_utf8()),
        c if c.is_whitespace() => Some(at),
        c => {
            is_open = !matches!(c, '<' | '[' | '>' | ']');
            None
        }
    });
    &mark[..end.unwrap_or(mark.len())]
}

/// Returns the last tag of a marker that whitespace separates into several parts.
pub fn last_part(mark: &str) -> Option<&str> {
    let (_, last) = mark.trim().rsplit_once(char::is_whitespace)?;
    if last.starts_with('<') && last.len() > 2 {
        Some(last)
    } else {
        None
    }
}

/// Returns the common prefix of two texts.
pub fn common_start<'a>(a: &'a str, b: &str) -> &'a str {
    let n = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    &a[..n.map(|(c, _)| c.len_utf8()).sum::<usize>()]
}

/// Returns the common suffix of two texts.
pub fn common_end<'a>(a: &'a str, b: &str) -> &'a str {
    let n = a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b);
    &a[a.len() - n.map(|(c, _)| c.len_utf8()).sum::<usize>()..]
}

/// Returns the common prefix of two texts, without a partial tag.
pub fn common_tags_before<'a>(a: &'a str, b: &str) -> &'a str {
    let common = common_start(a, b);
    if common.len() == a.len() || common.len() == b.len() {
        return common;
    }
    let end = common.rfind(['>', ']', '}', ')']).map_or(0, |at| at + 1);
    &common[..end]
}

/// Returns the common suffix of two texts, without a partial tag.
pub fn common_tags_behind<'a>(a: &'a str, b: &str) -> &'a str {
    let common = common_end(a, b);
    if common.len() == a.len() || common.len() == b.len() {
        return common;
    }
    let is_start = |c: char| matches!(c, '<' | '[' | '{' | '(') || c.is_whitespace();
    &common[common.find(is_start).unwrap_or(common.len())..]
}

/// Removes a partial tag from the end of a text.
pub fn without_open_tag(text: &str) -> &str {
    match (text.rfind('<'), text.rfind('>')) {
        (Some(open), None) => &text[..open],
        (Some(open), Some(close)) if open > close => &text[..open],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marker_match_ignores_whitespace() {
        assert_eq!(at_start("<a> <b=", "<a>\n<b="), MarkerMatch::Whole(7));
        assert_eq!(at_start("\n<a>\n\n<b=f", "<a><b="), MarkerMatch::Whole(9));
        assert_eq!(at_start("<a>\n<", "<a><b="), MarkerMatch::Partial);
        assert_eq!(at_start("<a><c", "<a><b="), MarkerMatch::Not);
        assert_eq!(at_start("x", ""), MarkerMatch::Whole(0));
    }

    #[test]
    fn common_parts_keep_tags_whole() {
        assert_eq!(common_tags_behind("<calls｜><call｜>", "</call｜><call｜>"), "<call｜>");
        assert_eq!(common_tags_before("</a></b>", "</a></c>"), "</a>");
        assert_eq!(without_open_tag("<x>y<z_"), "<x>y");
        assert_eq!((first_part("<a>\n<b="), last_part("<a>\n<b=")), ("<a>", Some("<b=")));
        assert_eq!((first_part("[X][{"), last_part("<a>")), ("[X]", None));
        assert_eq!(first_part("]<]minimax[>[<call>\n"), "]<]minimax[>[<call>");
    }
}
