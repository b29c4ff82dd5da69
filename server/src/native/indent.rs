//! Ends a completion at the first less-indented line, so that editors can complete the rest of a block.

/// Passes text through until a line, other than the first, has less than `least` leading whitespace
/// characters.
pub struct Indent {
    least: usize,
    /// Whitespace at the start of the current line, released once the line is accepted.
    pending: Option<String>,
    is_over: bool,
}

impl Indent {
    /// Creates a filter. The output continues an existing line, which is exempt.
    pub fn new(least: usize) -> Indent {
        Indent {
            least,
            pending: None,
            is_over: false,
        }
    }

    /// Returns true after a less-indented line.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Filters the next piece of text. With `is_last`, also releases pending whitespace.
    pub fn push(&mut self, text: &str, is_last: bool) -> String {
        if self.least == 0 {
            return text.to_owned();
        }
        let mut out = String::new();
        for c in text.chars() {
            if self.is_over {
                break;
            }
            match &mut self.pending {
                Some(pending) if matches!(c, ' ' | '\t') => pending.push(c),
                Some(pending) if pending.chars().count() < self.least => self.is_over = true,
                pending => {
                    out += &pending.take().unwrap_or_default();
                    out.push(c);
                    if c == '\n' {
                        *pending = Some(String::new());
                    }
                }
            }
        }
        if is_last && !self.is_over {
            out += &self.pending.take().unwrap_or_default();
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the accepted text; checks that splitting the input does not change it.
    #[track_caller]
    fn accepted(least: usize, text: &str) -> (String, bool) {
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
    fn output_stops_before_less_indented_line() {
        assert_eq!(
            accepted(4, "x\n    y\n      z\n  w"),
            ("x\n    y\n      z\n".to_owned(), true)
        );
        assert_eq!(
            accepted(4, "x\n    y\n\t\t\t\tz"),
            ("x\n    y\n\t\t\t\tz".to_owned(), false)
        );
        assert_eq!(accepted(1, "x\n\ny"), ("x\n".to_owned(), true));
        assert_eq!(accepted(2, "x\n "), ("x\n ".to_owned(), false));
        assert_eq!(accepted(0, "x\ny"), ("x\ny".to_owned(), false));
    }
}
