//! Splits a source text into tokens and the gaps between them.

use std::ops::Range;

use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// A comment, `// …` or `/* … */`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comment {
    /// Text of the comment, including the slashes.
    pub text: String,
    /// Line breaks between the previous token or comment and this one.
    pub newlines: usize,
}

impl Comment {
    /// Returns true if nothing can follow the comment on its line.
    pub fn ends_line(&self) -> bool {
        self.text.starts_with("//") || self.text.contains('\n')
    }
}

/// Comments and line breaks before a token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    pub comments: Vec<Comment>,
    /// Line breaks between the previous token or comment and the token.
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

    /// Returns true if the token starts a line or follows a comment.
    pub fn breaks(&self) -> bool {
        self.newlines > 0 || !self.comments.is_empty()
    }
}

/// Returns the length of the comment at the start of `text`, or 0.
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

/// Kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenKind {
    Word,
    Literal,
    Operator,
    /// Brackets (open and close) around [`Tree::inside`].
    Group(char, char),
    /// The parentheses of `rust!`, including their contents.
    Rust,
}

/// A token, or a bracketed group.
#[derive(Clone, Debug)]
pub struct Tree {
    pub kind: TokenKind,
    /// Printed text of the token; empty for groups.
    pub text: String,
    /// Comments and line breaks before the token.
    pub gap: Gap,
    /// Offset of the first byte in the source, which identifies the token.
    pub start: usize,
    /// Characters between the first non-space character of the line and the token.
    pub indent: usize,
    pub inside: Vec<Tree>,
    /// Comments and line breaks before the closing bracket.
    pub end: Gap,
}

impl Tree {
    pub fn is(&self, text: &str) -> bool {
        self.text == text
    }

    pub fn is_brace(&self) -> bool {
        self.kind == TokenKind::Group('{', '}')
    }
}

/// Operators that consist of two characters.
const OPERATORS: [&str; 15] = [
    "->", "<-", "=>", "..", "==", "!=", "<=", ">=", "&&", "||", "+=", "-=", "*=", "/=", "::",
];

/// Returns the braces of the first macro call in a file.
pub fn macro_body(file: TokenStream) -> Option<proc_macro2::Group> {
    let tokens: Vec<TokenTree> = file.into_iter().collect();
    tokens.windows(3).find_map(|t| match t {
        [TokenTree::Ident(name), TokenTree::Punct(p), TokenTree::Group(g)]
            if ["arch", "encoder", "fragment", "parent"]
                .iter()
                .any(|known| name == known)
                && p.as_char() == '!'
                && g.delimiter() == Delimiter::Brace =>
        {
            Some(g.clone())
        }
        _ => None,
    })
}

/// Collects all tokens in source order.
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

/// Reads the contents of a group and the gap before its closing bracket.
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
    /// Byte offset at which the previous token ends.
    at: usize,
}

impl Reader<'_> {
    fn gap(&mut self, to: usize) -> Gap {
        let from = std::mem::replace(&mut self.at, to);
        Gap::of(&self.text[from.min(to)..to])
    }

    fn leaf(&mut self, kind: TokenKind, at: Range<usize>) -> Tree {
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
        // True if the previous token may be the first part of an operator.
        let mut joint = false;
        for token in tokens {
            let at = token.span().byte_range();
            // Doc comments are lexed as attributes but are treated like other comments here.
            if at.start < self.at || self.text[at.start..].starts_with("//") {
                continue;
            }
            let was_joint = std::mem::take(&mut joint);
            match token {
                TokenTree::Group(_) if is_rust(&trees) => trees.push(self.leaf(TokenKind::Rust, at)),
                TokenTree::Group(g) => trees.push(self.group(&g)),
                TokenTree::Ident(_) => trees.push(self.leaf(TokenKind::Word, at)),
                TokenTree::Literal(_) => trees.push(self.leaf(TokenKind::Literal, at)),
                TokenTree::Punct(p) => {
                    joint = p.spacing() == Spacing::Joint;
                    match trees.last_mut() {
                        Some(last)
                            if was_joint && OPERATORS.contains(&format!("{}{}", last.text, p.as_char()).as_str()) =>
                        {
                            last.text.push(p.as_char());
                            self.at = at.end;
                        }
                        _ => trees.push(self.leaf(TokenKind::Operator, at)),
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
        let mut tree = self.leaf(TokenKind::Group(open, close), group.span_open().byte_range());
        tree.text.clear();
        tree.inside = self.trees(group.stream());
        let close = group.span_close().byte_range();
        tree.end = self.gap(close.start);
        self.at = close.end;
        tree
    }
}

/// Returns true after `rust!`.
fn is_rust(before: &[Tree]) -> bool {
    matches!(before, [.., word, mark] if word.is("rust") && mark.is("!"))
}
