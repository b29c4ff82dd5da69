//! Markdown of an answer as a terminal shows it: coloured, wrapped between words, and as it comes.
//!
//! - [`block`]: what a line is, told from how it begins
//! - [`inline`]: emphasis and code within a line
//! - [`wrap`]: words in lines of a width

mod block;
mod inline;
#[cfg(test)]
mod tests;
mod wrap;

use block::Block;
use inline::Style;
use wrap::Wrap;

/// How code is shown.
const CODE: Style = Style("36");
const HEADING: Style = Style("1;35");
const MARK: Style = Style("2");
const NONE: Style = Style("");

/// Narrower terminals are written to as if they had this width.
const MIN_WIDTH: usize = 20;

/// Text on its way to a terminal. Nothing of it is lost: what turns out to be no markdown is shown as it is.
pub struct Markdown {
    wrap: Wrap,
    /// What the line is, once that can be told.
    block: Option<Block>,
    /// The end of the line so far that cannot be shown yet.
    held: String,
    /// What encloses lines of code, while they come.
    fence: Option<String>,
    /// The character before what is held.
    before: char,
}

impl Markdown {
    /// For a terminal of so many columns.
    pub fn new(width: usize) -> Markdown {
        Markdown {
            wrap: Wrap::new(width.max(MIN_WIDTH)),
            block: None,
            held: String::new(),
            fence: None,
            before: ' ',
        }
    }

    /// Takes text, and gives what can be shown now.
    pub fn push(&mut self, text: &str) -> String {
        for part in text.split_inclusive('\n') {
            match part.strip_suffix('\n') {
                Some(rest) => {
                    self.held.push_str(rest);
                    self.end_line();
                }
                None => {
                    self.held.push_str(part);
                    self.show(false);
                }
            }
        }
        self.wrap.take()
    }

    /// Gives what is left.
    pub fn finish(&mut self) -> String {
        self.show(true);
        self.wrap.flush();
        self.block = None;
        self.wrap.take()
    }

    fn end_line(&mut self) {
        self.show(true);
        self.wrap.new_line();
        self.block = None;
        self.before = ' ';
    }

    /// Shows what can be shown of the line. `ended`: no more of it comes.
    fn show(&mut self, ended: bool) {
        let block = match self.block {
            Some(block) => block,
            None => match block::of(&self.held, self.fence.as_deref(), ended) {
                Some(block) => {
                    self.begin(block);
                    block
                }
                None => return,
            },
        };
        match block {
            Block::Code => {
                let line = std::mem::take(&mut self.held);
                self.wrap.verbatim(&line, CODE);
            }
            Block::Table => {
                let line = std::mem::take(&mut self.held);
                self.wrap.verbatim(&line, NONE);
            }
            // Shown when it began.
            Block::Fence | Block::Rule => self.held.clear(),
            Block::Heading { .. } => self.inline(HEADING, ended),
            Block::Item { .. } | Block::Quote { .. } | Block::Text => self.inline(NONE, ended),
        }
    }

    fn inline(&mut self, base: Style, ended: bool) {
        let shown = inline::spans(&self.held, self.before, base, ended, &mut |text, style| {
            self.wrap.text(text, style)
        });
        self.before = self.held[..shown].chars().next_back().unwrap_or(self.before);
        self.held.drain(..shown);
    }

    /// Shows how a line begins, and takes that out of what is held.
    fn begin(&mut self, block: Block) {
        self.block = Some(block);
        match block {
            Block::Code | Block::Table | Block::Text => {}
            Block::Fence => {
                let line = std::mem::take(&mut self.held);
                self.fence = match self.fence {
                    Some(_) => None,
                    None => Some(block::fence_of(&line).to_owned()),
                };
                self.wrap.verbatim(&line, MARK);
            }
            Block::Rule => {
                let line = std::mem::take(&mut self.held);
                self.wrap.verbatim(line.trim_end(), MARK);
            }
            Block::Heading { len } => {
                self.held.drain(..len);
            }
            Block::Item { indent, len } => {
                let mark = self.held[..len].trim().to_owned();
                self.held.drain(..len);
                let mark = match mark.as_str() {
                    "-" | "*" | "+" => "•".to_owned(),
                    _ => mark,
                };
                self.wrap.verbatim(&" ".repeat(indent), NONE);
                self.wrap.verbatim(&format!("{mark} "), MARK);
                self.wrap.indent_here();
            }
            Block::Quote { len } => {
                self.held.drain(..len);
                self.wrap.verbatim("│ ", MARK);
                self.wrap.indent_here();
            }
        }
    }
}
