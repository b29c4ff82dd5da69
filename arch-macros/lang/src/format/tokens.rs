//! A text as tokens, and what stands between them.

use std::ops::Range;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A `// …` or `/* … */`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// With its slashes.
    pub text: String,
    /// Line ends between it and what stands before it.
    pub newlines: usize,
}

impl Comment {
    /// True if nothing can follow it on its line.
    pub fn ends_line(&self) -> bool {
        self.text.starts_with("//") || self.text.contains('\n')
    }
}

/// What stands before a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    pub comments: Vec<Comment>,
    /// Line ends between the last comment, or the token before, and the token.
    pub newlines: usize,
}

impl Gap {
    fn of(text: &str) -> Gap {
        let mut gap = Gap::default();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let length = match comment_length(rest) {
                0 => {
                    gap.newlines += usize::from(c == '\n');
                    c.len_utf8()
                }
                length => {
                    gap.comments.push(Comment {
                        text: rest[..length].trim_end().to_owned(),
                        newlines: std::mem::take(&mut gap.newlines),
                    });
                    length
                }
            };
            rest = &rest[length..];
        }
        gap
    }

    /// True if the token stands on a line of its own, or after comments.
    pub fn breaks(&self) -> bool {
        self.newlines > 0 || !self.comments.is_empty()
    }
}

/// Length of the comment that a text begins with, 0 if there is none.
fn comment_length(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if !text.starts_with("/*") {
        return 0;
    }
    let (mut at, mut depth) = (0, 0);
    while at < text.len() {
        match text.as_bytes().get(at..at + 2) {
            Some(b"/*") => (at, depth) = (at + 2, depth + 1),
            Some(b"*/") => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Word,
    Literal,
    Operator,
    /// With its brackets, for [`Tree::inside`].
    Group(char, char),
    /// The parentheses of a `rust!`, with the text in them.
    Rust,
}

/// A token, or brackets and all between them.
#[derive(Clone, Debug)]
pub struct Tree {
    pub kind: Kind,
    /// What is printed; nothing for groups.
    pub text: String,
    /// Before the token.
    pub gap: Gap,
    /// Its first byte in the source, by which it is told from others.
    pub start: usize,
    /// Characters between the first one of its line and it, spaces before that left out.
    pub indent: usize,
    pub inside: Vec<Tree>,
    /// Before the closing bracket.
    pub end: Gap,
}

impl Tree {
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub fn is_brace(&self) -> bool {
        self.kind == Kind::Group('{', '}')
    }
}

/// Operators of more than one character.
const OPERATORS: [&str; 14] = [
    "->", "=>", "..", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=", "*=", "/=", "::",
];

/// The braces of the first macro call of a file.
pub fn macro_body(file: TokenStream) -> Option<proc_macro2::Group> {
    let tokens: Vec<TokenTree> = file.into_iter().collect();
    tokens.windows(3).find_map(|t| match t {
        [TokenTree::Ident(name), TokenTree::Punct(p), TokenTree::Group(g)]
            if (name == "arch" || name == "fragment") && p.as_char() == '!' && g.delimiter() == Delimiter::Brace =>
        {
            Some(g.clone())
        }
        _ => None,
    })
}

/// Every token of a text in its order.
pub fn words(tokens: TokenStream, into: &mut Vec<String>) {
    for token in tokens {
        match token {
            TokenTree::Group(g) => {
                into.push(format!("{:?}", g.delimiter()));
                words(g.stream(), into);
                into.push(String::new());
            }
            other => into.push(other.to_string()),
        }
    }
}

/// What stands in a group, and before its closing bracket.
pub fn read(text: &str, group: &proc_macro2::Group) -> (Vec<Tree>, Gap) {
    let mut reader = Reader {
        text,
        at: group.span_open().byte_range().end,
    };
    let trees = reader.trees(group.stream());
    let end = reader.gap(group.span_close().byte_range().start);
    (trees, end)
}

struct Reader<'a> {
    text: &'a str,
    /// Where the last token ended.
    at: usize,
}

impl Reader<'_> {
    fn gap(&mut self, to: usize) -> Gap {
        let from = std::mem::replace(&mut self.at, to);
        Gap::of(&self.text[from.min(to)..to])
    }

    fn leaf(&mut self, kind: Kind, at: Range<usize>) -> Tree {
        let gap = self.gap(at.start);
        let line = self.text[..at.start].rfind('\n').map_or(0, |n| n + 1);
        let line = &self.text[line..at.start];
        let indent = line.chars().count() - line.trim_start().chars().count();
        self.at = at.end;
        Tree {
            kind,
            text: self.text[at.clone()].to_owned(),
            gap,
            start: at.start,
            indent,
            inside: Vec::new(),
            end: Gap::default(),
        }
    }

    fn trees(&mut self, tokens: TokenStream) -> Vec<Tree> {
        let mut trees: Vec<Tree> = Vec::new();
        // True if the last token was the first part of an operator, or may be.
        let mut joint = false;
        for token in tokens {
            let at = token.span().byte_range();
            // The tokens that a doc comment stands for: it is one like others here.
            if at.start < self.at || self.text[at.start..].starts_with("//") {
                continue;
            }
            let was_joint = std::mem::take(&mut joint);
            match token {
                TokenTree::Group(_) if is_rust(&trees) => trees.push(self.leaf(Kind::Rust, at)),
                TokenTree::Group(g) => trees.push(self.group(&g)),
                TokenTree::Ident(_) => trees.push(self.leaf(Kind::Word, at)),
                TokenTree::Literal(_) => trees.push(self.leaf(Kind::Literal, at)),
                TokenTree::Punct(p) => {
                    joint = p.spacing() == Spacing::Joint;
                    match trees.last_mut() {
                        Some(last)
                            if was_joint && OPERATORS.contains(&format!("{}{}", last.text, p.as_char()).as_str()) =>
                        {
                            last.text.push(p.as_char());
                            self.at = at.end;
                        }
                        _ => trees.push(self.leaf(Kind::Operator, at)),
                    }
                }
            }
        }
        trees
    }

    fn group(&mut self, group: &proc_macro2::Group) -> Tree {
        let (open, close) = match group.delimiter() {
            Delimiter::Brace => ('{', '}'),
            Delimiter::Bracket => ('[', ']'),
            Delimiter::Parenthesis | Delimiter::None => ('(', ')'),
        };
        let mut tree = self.leaf(Kind::Group(open, close), group.span_open().byte_range());
        tree.text.clear();
        tree.inside = self.trees(group.stream());
        let close = group.span_close().byte_range();
        tree.end = self.gap(close.start);
        self.at = close.end;
        tree
    }
}

/// True behind `rust!`.
fn is_rust(before: &[Tree]) -> bool {
    matches!(before, [.., word, mark] if word.is("rust") && mark.is("!"))
}
