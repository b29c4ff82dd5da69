//! Arranges tokens in lines.

use std::collections::BTreeSet;

use super::MAX_WIDTH;
use super::spacing::spaced;
use super::tokens::{Gap, TokenKind, Tree};

/// Number of spaces per indentation level.
const INDENT: usize = 4;

/// Keywords of items that end with a block.
const BLOCKS: [&str; 18] = [
    "if",
    "test",
    "models",
    "hparams",
    "tensors",
    "encoder",
    "graph",
    "mtp",
    "embedding",
    "rank",
    "checkpoint",
    "layer",
    "for",
    "fn",
    "image",
    "audio",
    "tiles",
    "text",
];

/// Keywords before a list. Continuation lines align with the first entry of the list.
const LISTS: [&str; 5] = ["use", "without", "ignore", "check", "warn"];

/// First bytes of the tokens before which the formatter inserts a line break.
pub type Breaks = BTreeSet<usize>;

/// Formatted contents of a macro's braces.
pub struct Printed {
    pub text: String,
    /// Width of each line, without its trailing comment.
    widths: Vec<usize>,
    places: Vec<Place>,
}

/// A possible line break.
struct Place {
    line: usize,
    /// Column of the first character that would move to the next line.
    column: usize,
    /// Number of enclosing brackets.
    depth: usize,
    /// First token that would move to the next line.
    token: usize,
}

impl Printed {
    /// Returns the token before which the first overlong line is best broken.
    pub fn place_to_break(&self) -> Option<usize> {
        let too_long = |p: &&Place| self.widths[p.line] > MAX_WIDTH;
        let line = self.places.iter().filter(too_long).map(|p| p.line).min()?;
        let fits = |p: &&Place| p.line == line && p.column <= MAX_WIDTH;
        let places = self.places.iter().filter(fits);
        let best = places.min_by_key(|p| (p.depth, std::cmp::Reverse(p.column)))?;
        Some(best.token)
    }
}

/// Formats the contents of a macro's braces.
pub fn print(trees: &[Tree], end: &Gap, breaks: &Breaks) -> Printed {
    let mut printer = Printer::new(breaks);
    printer.items(trees, INDENT);
    printer.close(end, INDENT, 0);
    Printed {
        text: printer.text,
        widths: printer.widths,
        places: printer.places,
    }
}

/// Section whose braces enclose the tokens.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Statements,
    /// Tensor declarations, aligned in columns.
    Tensors,
}

struct Printer<'a> {
    breaks: &'a Breaks,
    text: String,
    column: usize,
    /// Indentation of the current line.
    indent: usize,
    /// Indentation of the current item.
    item: usize,
    /// Widths of the finished lines, without comments.
    widths: Vec<usize>,
    depth: usize,
    context: Context,
    places: Vec<Place>,
}

impl<'a> Printer<'a> {
    fn new(breaks: &'a Breaks) -> Printer<'a> {
        Printer {
            breaks,
            text: String::new(),
            column: 0,
            indent: 0,
            item: 0,
            widths: vec![0],
            depth: 0,
            context: Context::Statements,
            places: Vec::new(),
        }
    }

    fn newline(&mut self, indent: usize) {
        self.text.push('\n');
        self.text.extend(std::iter::repeat_n(' ', indent));
        (self.column, self.indent) = (indent, indent);
        self.widths.push(indent);
    }

    fn blank_line(&mut self) {
        self.text.push('\n');
        self.widths.push(0);
    }

    fn push(&mut self, text: &str) {
        self.text.push_str(text);
        for (i, line) in text.split('\n').enumerate() {
            if i > 0 {
                (self.column, self.indent) = (0, line.len() - line.trim_start().len());
                self.widths.push(0);
            }
            self.column += line.chars().count();
            if let Some(width) = self.widths.last_mut() {
                *width = self.column;
            }
        }
    }

    /// Pads the current line with spaces up to a column.
    fn pad(&mut self, column: usize) {
        let n = column.saturating_sub(self.column);
        self.text.extend(std::iter::repeat_n(' ', n));
        self.column += n;
    }

    /// Prints the comments before an item or a closing bracket. No blank line precedes the first one if
    /// `first` is set.
    fn comments(&mut self, gap: &Gap, indent: usize, mut first: bool) -> bool {
        for comment in &gap.comments {
            if comment.newlines == 0 {
                self.text.push(' ');
            } else {
                if comment.newlines > 1 && !first {
                    self.blank_line();
                }
                self.newline(indent);
                first = false;
            }
            self.text.push_str(&comment.text);
        }
        first
    }

    /// Prints the comments and the line break before a closing bracket with indentation `outer`.
    fn close(&mut self, end: &Gap, inner: usize, outer: usize) {
        self.comments(end, inner, false);
        self.newline(outer);
    }

    /// Prints statements or declarations, each on its own line.
    fn items(&mut self, trees: &[Tree], indent: usize) {
        let items = split(trees);
        let columns = self.columns(&items);
        for (i, (item, columns)) in items.iter().zip(columns).enumerate() {
            let gap = &item[0].gap;
            let first = self.comments(gap, indent, i == 0);
            if gap.newlines > 1 && !first {
                self.blank_line();
            }
            self.newline(indent);
            self.item = indent;
            match (columns, cells(item)) {
                (Some(columns), Some(cells)) => self.tensor(cells, columns, indent),
                _ => {
                    let list = LISTS.iter().find(|word| item[0].is(word));
                    self.inline(item, indent + list.map_or(INDENT, |word| word.len() + 1));
                }
            }
        }
    }

    /// Prints a tensor declaration whose cells 2 to 4 start at the given columns, relative to the
    /// indentation.
    fn tensor(&mut self, cells: [&[Tree]; 4], columns: [usize; 3], indent: usize) {
        let columns = [0, columns[0], columns[1], columns[2]];
        for (cell, column) in cells.into_iter().zip(columns) {
            self.pad(indent + column);
            self.inline(cell, indent + INDENT);
        }
    }

    /// Returns the cell columns of the tensors among the items. Tensors on consecutive lines are aligned.
    fn columns(&self, items: &[&[Tree]]) -> Vec<Option<[usize; 3]>> {
        let mut columns: Vec<Option<[usize; 3]>> = vec![None; items.len()];
        if self.context != Context::Tensors {
            return columns;
        }
        let widths: Vec<_> = items.iter().map(|item| self.widths_of(item)).collect();
        let mut first = 0;
        for i in 0..items.len() {
            let apart = items[i][0].gap.newlines > 1 || items[i][0].gap.comments.iter().any(|c| c.newlines > 0);
            if apart || widths[i].is_none() {
                first = i;
            }
            if widths[i].is_none() {
                first = i + 1;
                continue;
            }
            let run = widths[first..=i].iter().flatten();
            let widest = run.fold([0; 3], |a, b| [a[0].max(b[0]), a[1].max(b[1]), a[2].max(b[2])]);
            let [name, kind, gguf] = widest.map(|w| w + 1);
            columns[first..=i].fill(Some([name, name + kind, name + kind + gguf]));
        }
        columns
    }

    /// Returns the widths of the first three cells of a tensor that fits on one line.
    fn widths_of(&self, item: &[Tree]) -> Option<[usize; 3]> {
        let width = |cell: &[Tree]| {
            let mut printer = Printer::new(self.breaks);
            printer.inline(cell, 0);
            (printer.widths.len() == 1).then_some(printer.column)
        };
        let [name, kind, gguf, _] = cells(item)?;
        Some([width(name)?, width(kind)?, width(gguf)?])
    }

    /// Prints tokens on one line. Line breaks of the source are kept; continuation lines are indented by
    /// `next`.
    fn inline(&mut self, trees: &[Tree], next: usize) {
        let opened = self.opened(trees);
        for (i, tree) in trees.iter().enumerate() {
            if i > 0 {
                let ended = self.comments_inside(&tree.gap, next);
                let stays = tree.is_brace() || [",", ";", "else"].iter().any(|t| tree.is(t));
                if ended || (!stays && self.breaks_before(tree)) {
                    self.newline(next);
                } else {
                    if spaced(trees, i) {
                        self.push(" ");
                    }
                    if trees[i - 1].is(",") {
                        self.note_place(tree);
                    }
                }
            }
            match tree.kind {
                TokenKind::Group(..) if opened[i] => self.block(&trees[0], tree),
                TokenKind::Group(open, close) => self.brackets(tree, open, close),
                TokenKind::Rust => self.rust(tree),
                _ => self.push(&tree.text),
            }
        }
    }

    fn breaks_before(&self, tree: &Tree) -> bool {
        tree.gap.newlines > 0 || self.breaks.contains(&tree.start)
    }

    fn note_place(&mut self, token: &Tree) {
        self.places.push(Place {
            line: self.widths.len() - 1,
            column: self.column,
            depth: self.depth,
            token: token.start,
        });
    }

    /// Prints the comments inside an item. Returns true if the line must end after them.
    fn comments_inside(&mut self, gap: &Gap, next: usize) -> bool {
        for (i, comment) in gap.comments.iter().enumerate() {
            let after_line = i > 0 && gap.comments[i - 1].ends_line();
            if comment.newlines > 0 || after_line {
                self.newline(next);
            } else {
                self.push(" ");
            }
            self.push(&comment.text);
        }
        gap.comments.last().is_some_and(|c| c.ends_line())
    }

    /// Returns, for each token, whether it is printed as a multi-line block. All branches of an `if` agree.
    fn opened(&self, trees: &[Tree]) -> Vec<bool> {
        let alone = |t: &Tree| t.is_brace() && (has_statements(t) || self.is_broken(t));
        let mut opened: Vec<bool> = trees.iter().map(alone).collect();
        let mut chain: Vec<usize> = Vec::new();
        for (i, tree) in trees.iter().enumerate().filter(|(_, t)| t.is_brace()) {
            let goes_on = chain.last().is_some_and(|last| trees[last + 1].is("else"));
            if !goes_on {
                chain.clear();
            }
            chain.push(i);
            if chain.iter().any(|&i| opened[i]) {
                chain.iter().for_each(|&i| opened[i] = !trees[i].inside.is_empty());
            }
            opened[i] |= !tree.end.comments.is_empty();
        }
        opened
    }

    /// Returns true if the contents of the brackets span several lines.
    fn is_broken(&self, tree: &Tree) -> bool {
        let inside = |t: &Tree| t.gap.breaks() || self.breaks.contains(&t.start) || self.is_broken(t);
        tree.end.breaks()
            || tree.inside.iter().any(inside)
            || (tree.kind == TokenKind::Rust && tree.text.contains('\n'))
    }

    /// Prints braces on several lines, in an item that starts with `word`.
    fn block(&mut self, word: &Tree, tree: &Tree) {
        // The parameters of a function may end on a continuation line.
        let outer = if word.is("fn") { self.item } else { self.indent };
        let inner = outer + INDENT;
        let (context, depth) = (self.context, self.depth);
        self.push("{");
        match word.text.as_str() {
            "test" | "text" => {
                let first = tree.inside.first();
                first.iter().for_each(|t| _ = self.comments(&t.gap, inner, true));
                self.newline(inner);
                self.inline(&tree.inside, inner);
            }
            name => {
                if name == "tensors" {
                    self.context = Context::Tensors;
                }
                self.depth = 0;
                self.items(&tree.inside, inner);
            }
        }
        (self.context, self.depth) = (context, depth);
        self.close(&tree.end, inner, outer);
        self.push("}");
    }

    /// Prints brackets whose contents either start on the same line or are on separate lines.
    fn brackets(&mut self, tree: &Tree, open: char, close: char) {
        let (outer, pad) = (self.indent, if open == '{' { " " } else { "" });
        self.push(&open.to_string());
        let Some(first) = tree.inside.first() else {
            self.comments_inside(&tree.end, outer + INDENT);
            return self.push(&close.to_string());
        };
        self.depth += 1;
        let begins_line = open != '{' && (self.breaks_before(first) || !first.gap.comments.is_empty());
        if begins_line {
            self.comments(&first.gap, outer + INDENT, true);
            self.newline(outer + INDENT);
        } else {
            self.push(pad);
        }
        if open == '{' {
            self.depth -= 1;
            self.note_place(first);
            self.depth += 1;
        }
        let next = self.column;
        self.inline(&tree.inside, next);
        self.depth -= 1;
        if tree.end.breaks() {
            self.close(&tree.end, next, outer);
        } else {
            self.push(pad);
        }
        self.push(&close.to_string());
    }

    /// Prints Rust code unchanged, shifted to the indentation of its first line.
    fn rust(&mut self, tree: &Tree) {
        let indent = self.indent;
        for (i, line) in tree.text.split('\n').enumerate() {
            if i > 0 {
                let own = line.len() - line.trim_start().len();
                let line = line.trim_end();
                self.text.push('\n');
                self.widths.push(0);
                self.column = 0;
                if !line.is_empty() {
                    self.pad((own + indent).saturating_sub(tree.indent));
                }
            }
            self.push(if i > 0 { line.trim() } else { line.trim_end() });
        }
    }
}

/// Returns true if braces contain items that end with a semicolon.
fn has_statements(tree: &Tree) -> bool {
    (tree.is_brace() && tree.inside.iter().any(|t| t.is(";"))) || tree.inside.iter().any(has_statements)
}

/// Splits tokens into statements, declarations, or sections.
fn split(trees: &[Tree]) -> Vec<&[Tree]> {
    let mut items = Vec::new();
    let mut first = 0;
    for (i, tree) in trees.iter().enumerate() {
        let begins = &trees[first];
        let is_block = BLOCKS.iter().any(|word| begins.is(word));
        let goes_on = trees.get(i + 1).is_some_and(|t| t.is("else") || t.is(";"));
        if tree.is(";") || (tree.is_brace() && is_block && !goes_on) {
            items.push(&trees[first..=i]);
            first = i + 1;
        }
    }
    if first < trees.len() {
        items.push(&trees[first..]);
    }
    items
}

/// Splits a tensor declaration with a GGUF name into its cells: name, kind, GGUF name, and sizes with the
/// remainder of the line.
fn cells(item: &[Tree]) -> Option<[&[Tree]; 4]> {
    let colon = item.iter().position(|t| t.is(":"))?;
    let [name @ .., _] = &item[..=colon] else { return None };
    let one_name = matches!(name, [_]) || matches!(name, [_, mark] if mark.is("?"));
    let kinds = item.iter().skip(colon + 1).map(|t| t.kind).take(3);
    let is_tensor = kinds.eq([TokenKind::Word, TokenKind::Literal, TokenKind::Group('[', ']')]);
    let [kind, gguf] = [colon + 1, colon + 2].map(|i| i..i + 1);
    (one_name && is_tensor).then(|| [&item[..=colon], &item[kind], &item[gguf], &item[colon + 3..]])
}
