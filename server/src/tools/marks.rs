//! Marks that stand around calls: how they begin, whatever white space stands between their parts, and what two texts have in common.

/// Whether a text begins with a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It does; the mark ends here.
    Whole(usize),
    /// It may, once more of it has come.
    Begun,
    /// It does not.
    Not,
}

/// Looks for a mark at the beginning of a text; white space counts in neither.
pub fn at_start(text: &str, mark: &str) -> Found {
    let mut wanted = mark.chars().filter(|c| !c.is_whitespace());
    let mut next = wanted.next();
    for (at, c) in text.char_indices() {
        match next {
            None => return Found::Whole(at),
            Some(_) if c.is_whitespace() => {}
            Some(w) if w == c => next = wanted.next(),
            Some(_) => return Found::Not,
        }
    }
    match next {
        None => Found::Whole(text.len()),
        Some(_) => Found::Begun,
    }
}

/// The first part of a mark: up to the end of its first tag, or to white space.
pub fn first_part(mark: &str) -> &str {
    let mark = mark.trim_start();
    let end = mark.char_indices().find_map(|(at, c)| match c {
        '>' | ']' => Some(at + c.len_utf8()),
        c if c.is_whitespace() => Some(at),
        _ => None,
    });
    &mark[..end.unwrap_or(mark.len())]
}

/// The last part of a mark, where it has several that white space divides and the last is a tag.
pub fn last_part(mark: &str) -> Option<&str> {
    let (_, last) = mark.trim().rsplit_once(char::is_whitespace)?;
    (last.starts_with('<') && last.len() > 2).then_some(last)
}

/// The beginning that two texts have in common.
pub fn common_start<'a>(a: &'a str, b: &str) -> &'a str {
    let n = a.chars().zip(b.chars()).take_while(|(a, b)| a == b);
    &a[..n.map(|(c, _)| c.len_utf8()).sum::<usize>()]
}

/// The end that two texts have in common.
pub fn common_end<'a>(a: &'a str, b: &str) -> &'a str {
    let n = a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b);
    &a[a.len() - n.map(|(c, _)| c.len_utf8()).sum::<usize>()..]
}

/// The beginning that two texts have in common, but not a part of a tag.
pub fn common_tags_before<'a>(a: &'a str, b: &str) -> &'a str {
    let common = common_start(a, b);
    if common.len() == a.len() || common.len() == b.len() {
        return common;
    }
    let end = common.rfind(['>', ']', '}', ')']).map_or(0, |at| at + 1);
    &common[..end]
}

/// The end that two texts have in common, but not a part of a tag.
pub fn common_tags_behind<'a>(a: &'a str, b: &str) -> &'a str {
    let common = common_end(a, b);
    if common.len() == a.len() || common.len() == b.len() {
        return common;
    }
    let is_start = |c: char| matches!(c, '<' | '[' | '{' | '(') || c.is_whitespace();
    &common[common.find(is_start).unwrap_or(common.len())..]
}

/// Cuts off the beginning of a tag that a text ends with.
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
    fn white_space_in_marks_does_not_count() {
        assert_eq!(at_start("<a> <b=", "<a>\n<b="), Found::Whole(7));
        assert_eq!(at_start("\n<a>\n\n<b=f", "<a><b="), Found::Whole(9));
        assert_eq!(at_start("<a>\n<", "<a><b="), Found::Begun);
        assert_eq!(at_start("<a><c", "<a><b="), Found::Not);
        assert_eq!(at_start("x", ""), Found::Whole(0));
    }

    #[test]
    fn tags_are_not_cut() {
        assert_eq!(common_tags_behind("<calls｜><call｜>", "</call｜><call｜>"), "<call｜>");
        assert_eq!(common_tags_before("</a></b>", "</a></c>"), "</a>");
        assert_eq!(without_open_tag("<x>y<z_"), "<x>y");
        assert_eq!((first_part("<a>\n<b="), last_part("<a>\n<b=")), ("<a>", Some("<b=")));
        assert_eq!((first_part("[X][{"), last_part("<a>")), ("[X]", None));
    }
}
