//! Streaming Markdown renderer for terminals, with colors and word wrapping.
//!
//! - [`block`]: classifies lines by how they start
//! - [`inline`]: emphasis and code spans
//! - [`wrap`]: word wrapping

mod block;
mod inline;
#[cfg(test)]
mod tests;
mod wrap;

use block::Block;
use inline::Style;
use wrap::Wrap;

/// Style of code.
const CODE: Style = Style("36");
const HEADING: Style = Style("1;35");
const MARK: Style = Style("2");
const NONE: Style = Style("");

/// Minimum width assumed for a terminal.
const MIN_WIDTH: usize = 20;

/// Streaming renderer. Input that is not valid Markdown is printed verbatim.
pub struct Markdown {
    wrap: Wrap,
    /// Kind of the current line, once known.
    block: Option<Block>,
    /// Buffered end of the line that cannot be rendered yet.
    held: String,
    /// Fence of the open code block.
    fence: Option<String>,
    /// Character before the buffered text.
    before: char,
}

impl Markdown {
    /// Creates a renderer for a terminal with `width` columns.
    pub fn new(width: usize) -> Markdown {
        Markdown {
            wrap: Wrap::new(width.max(MIN_WIDTH)),
            block: None,
            held: String::new(),
            fence: None,
            before: ' ',
        }
    }

    /// Appends text and returns the output that is complete.
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

    /// Returns the buffered output.
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

    /// Renders the buffered text as far as possible. `ended` means that the line is complete.
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
            // Already printed by `begin`.
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

    /// Prints the prefix of a line and removes it from the buffer.
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
