//! Texts that end where a line is indented less than the first one: editors ask so for the rest of a block of code.

/// Lets text through up to the first line, other than the one that it begins in, with fewer blanks before it than `least`.
pub struct Indent {
    least: usize,
    /// Blanks at the beginning of a line, which go out once the line stays.
    held: Option<String>,
    is_over: bool,
}

impl Indent {
    /// Nothing has come yet, and the line that it begins in is another's.
    pub fn new(least: usize) -> Indent {
        Indent {
            least,
            held: None,
            is_over: false,
        }
    }

    /// True once a line was indented less.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Takes text, and gives what is sure to stay; with `is_last` blanks that nothing follows, too.
    pub fn push(&mut self, text: &str, is_last: bool) -> String {
        if self.least == 0 {
            return text.to_owned();
        }
        let mut out = String::new();
        for c in text.chars() {
            if self.is_over {
                break;
            }
            match &mut self.held {
                Some(held) if matches!(c, ' ' | '\t') => held.push(c),
                Some(held) if held.chars().count() < self.least => self.is_over = true,
                held => {
                    out += &held.take().unwrap_or_default();
                    out.push(c);
                    *held = (c == '\n').then(String::new);
                }
            }
        }
        if is_last && !self.is_over {
            out += &self.held.take().unwrap_or_default();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What stays, the same whether text comes whole or by characters.
    #[track_caller]
    fn kept(least: usize, text: &str) -> (String, bool) {
        let run = |pieces: &[&str]| {
            let mut indent = Indent::new(least);
            let mut out: String = pieces.iter().map(|piece| indent.push(piece, false)).collect();
            out += &indent.push("", true);
            (out, indent.is_over())
        };
        let whole = run(&[text]);
        assert_eq!(run(&text.split("").collect::<Vec<_>>()), whole);
        whole
    }

    #[test]
    fn a_text_ends_before_a_line_that_is_indented_less() {
        assert_eq!(
            kept(4, "x\n    y\n      z\n  w"),
            ("x\n    y\n      z\n".to_owned(), true)
        );
        assert_eq!(
            kept(4, "x\n    y\n\t\t\t\tz"),
            ("x\n    y\n\t\t\t\tz".to_owned(), false)
        );
        assert_eq!(kept(1, "x\n\ny"), ("x\n".to_owned(), true));
        assert_eq!(kept(2, "x\n "), ("x\n ".to_owned(), false));
        assert_eq!(kept(0, "x\ny"), ("x\ny".to_owned(), false));
    }
}
