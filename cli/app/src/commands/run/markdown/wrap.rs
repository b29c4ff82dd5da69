//! Word wrapping.

use unicode_width::UnicodeWidthChar;

use super::inline::Style;

/// Wraps words and styles to a fixed width.
pub struct Wrap {
    width: usize,
    /// Columns used in the current line.
    column: usize,
    /// Indentation of continuation lines.
    indent: usize,
    /// Spaces before the next word; dropped at the start of a line.
    blanks: usize,
    /// The unfinished word with its styles.
    word: String,
    word_width: usize,
    /// Current style, at the end of `word`.
    style: Style,
    out: String,
}

impl Wrap {
    /// Creates a wrapper for `width` columns.
    pub fn new(width: usize) -> Wrap {
        Wrap {
            width,
            column: 0,
            indent: 0,
            blanks: 0,
            word: String::new(),
            word_width: 0,
            style: Style(""),
            out: String::new(),
        }
    }

    /// Returns and clears the output.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// Indents continuation lines to the current column.
    pub fn indent_here(&mut self) {
        self.flush();
        self.indent = self.column.min(self.width / 2);
    }

    pub fn new_line(&mut self) {
        self.flush();
        self.blanks = 0;
        self.out.push('\n');
        self.column = 0;
        self.indent = 0;
    }

    /// Appends text without wrapping.
    pub fn verbatim(&mut self, text: &str, style: Style) {
        self.flush();
        self.set_style(style);
        self.word.push_str(&visible(text));
        self.word_width = text.chars().map(width_of).sum();
        self.set_style(Style(""));
        self.put_word();
    }

    /// Appends text with wrapping.
    pub fn text(&mut self, text: &str, style: Style) {
        for c in text.chars() {
            if c == ' ' || c == '\t' {
                self.end_word();
                self.blanks += 1;
                continue;
            }
            let width = width_of(c);
            // CJK lines may break between any two characters.
            let is_word = width > 1;
            if is_word || self.word_width + width > self.width - self.indent {
                self.end_word();
            }
            self.set_style(style);
            self.word.push_str(&visible(c.encode_utf8(&mut [0; 4])));
            self.word_width += width;
            if is_word {
                self.end_word();
            }
        }
        self.set_style(Style(""));
    }

    /// Emits the unfinished word and pending spaces.
    pub fn flush(&mut self) {
        self.end_word();
        if self.column + self.blanks < self.width {
            self.out.push_str(&" ".repeat(self.blanks));
            self.column += self.blanks;
        }
        self.blanks = 0;
    }

    fn end_word(&mut self) {
        if self.word_width == 0 {
            return;
        }
        let is_first = self.column <= self.indent;
        if !is_first && self.column + self.blanks + self.word_width > self.width {
            self.out.push('\n');
            self.out.push_str(&" ".repeat(self.indent));
            self.column = self.indent;
            self.blanks = 0;
        }
        self.out.push_str(&" ".repeat(self.blanks));
        self.column += self.blanks;
        self.blanks = 0;
        self.put_word();
    }

    fn put_word(&mut self) {
        self.column += self.word_width;
        self.word_width = 0;
        self.out.push_str(&self.word);
        self.word.clear();
    }

    fn set_style(&mut self, style: Style) {
        if self.style != style {
            if !self.style.0.is_empty() {
                self.word.push_str("\x1b[0m");
            }
            if !style.0.is_empty() {
                self.word.push_str(&format!("\x1b[{}m", style.0));
            }
            self.style = style;
        }
    }
}

fn width_of(c: char) -> usize {
    // A control character is replaced by one visible character.
    c.width().unwrap_or(1)
}

/// Replaces control characters, so that model output cannot move the cursor.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}
