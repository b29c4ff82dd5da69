//! Words in lines of a width.

use unicode_width::UnicodeWidthChar;

use super::inline::Style;

/// Lines as they fill.
pub struct Wrap {
    width: usize,
    /// Columns of the line that are taken.
    column: usize,
    /// Columns at which lines go on that are too long.
    indent: usize,
    /// Blanks that come before the next word, unless it begins a line.
    blanks: usize,
    /// The word that is not over yet, with its styles, and its columns.
    word: String,
    word_width: usize,
    /// The style at the end of the word, and that at the end of what went out.
    style: Style,
    out: String,
}

impl Wrap {
    /// Lines of so many columns.
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

    /// What can be shown so far.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.out)
    }

    /// Lines that are too long go on under this column.
    pub fn indent_here(&mut self) {
        self.flush();
        self.indent = self.column.min(self.width / 2);
    }

    /// Ends a line.
    pub fn new_line(&mut self) {
        self.flush();
        self.blanks = 0;
        self.out.push('\n');
        self.column = 0;
        self.indent = 0;
    }

    /// Text that stands as it is, however long the line becomes.
    pub fn verbatim(&mut self, text: &str, style: Style) {
        self.flush();
        self.set_style(style);
        self.word.push_str(&visible(text));
        self.word_width = text.chars().map(width_of).sum();
        self.set_style(Style(""));
        self.put_word();
    }

    /// Words.
    pub fn text(&mut self, text: &str, style: Style) {
        for c in text.chars() {
            if c == ' ' || c == '\t' {
                self.end_word();
                self.blanks += 1;
                continue;
            }
            let width = width_of(c);
            // Lines of such scripts end between any two characters.
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

    /// Lets out the word that is not over, and blanks.
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
    // Control characters are shown as one that says so.
    c.width().unwrap_or(1)
}

/// Text whose control characters say that they are some: an answer cannot move the cursor.
fn visible(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\t' => ' ',
            c if c.is_control() => '\u{fffd}',
            c => c,
        })
        .collect()
}
