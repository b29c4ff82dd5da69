//! Converts between the tokens of rustc and of `proc-macro2`.
//!
//! rustc assigns no locations to the tokens of a parsed string, so tokens of fragments could not be distinguished from
//! tokens of the declaration. This module therefore prints the declaration's tokens as text, each at its original
//! location, and runs the compiler on that text. Tokens in the result at one of these locations get rustc's span back,
//! so that errors, go to definition, and rename work.

use std::collections::HashMap;
use std::str::FromStr;

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use proc_macro2::{Span as Place, TokenStream as Tokens, TokenTree as Token};

/// Runs `work` on `input` as tokens with locations.
pub fn through(input: TokenStream, work: impl FnOnce(Tokens) -> Tokens) -> TokenStream {
    // This library must use a single kind of tokens.
    proc_macro2::fallback::force();
    let mut layout = Layout::default();
    layout.stream(input);
    let tokens = match Tokens::from_str(&layout.text) {
        Ok(tokens) => tokens,
        Err(_) => return error("cannot re-parse the declaration as text"),
    };
    let mut spans = Spans::default();
    let mut given = layout.spans.into_iter();
    spans.note(tokens.clone(), &mut given);
    spans.back(work(tokens))
}

fn error(message: &str) -> TokenStream {
    let mut literal = TokenStream::new();
    literal.extend([TokenTree::from(Literal::string(message))]);
    let call: [TokenTree; 3] = [
        Ident::new("compile_error", Span::call_site()).into(),
        Punct::new('!', Spacing::Alone).into(),
        Group::new(Delimiter::Brace, literal).into(),
    ];
    call.into_iter().collect()
}

/// Prints tokens as text.
struct Layout {
    text: String,
    /// rustc's span of each token. Groups have two: for the opening and the closing delimiter.
    spans: Vec<Span>,
    /// Position of the next character, starting at 1.
    line: usize,
    column: usize,
    /// The previous token is the first part of an operator such as `->`.
    joint: bool,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            text: String::new(),
            spans: Vec::new(),
            line: 1,
            column: 1,
            joint: true,
        }
    }
}

impl Layout {
    fn stream(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(g) => self.group(&g),
                TokenTree::Ident(i) => self.token(&i.to_string(), i.span(), false),
                TokenTree::Literal(l) => self.token(&l.to_string(), l.span(), false),
                TokenTree::Punct(p) => {
                    self.token(&p.as_char().to_string(), p.span(), p.spacing() == Spacing::Joint);
                }
            }
        }
    }

    fn group(&mut self, g: &Group) {
        let (open, close) = match g.delimiter() {
            Delimiter::Parenthesis => ("(", ")"),
            Delimiter::Brace => ("{", "}"),
            Delimiter::Bracket => ("[", "]"),
            // Invisible group that another macro inserted.
            Delimiter::None => return self.stream(g.stream()),
        };
        // The opening delimiter gets the span of the whole group.
        self.token(open, g.span(), false);
        self.stream(g.stream());
        self.token(close, g.span_close(), false);
    }

    /// Writes a token at its location, or after the previous token if that ends later.
    fn token(&mut self, text: &str, span: Span, joint: bool) {
        let (line, column) = (span.line(), span.column());
        if line > self.line {
            self.text.extend(std::iter::repeat_n('\n', line - self.line));
            (self.line, self.column) = (line, 1);
        }
        let gap = if line == self.line && column >= self.column {
            column - self.column
        } else {
            usize::from(!self.joint)
        };
        self.text.extend(std::iter::repeat_n(' ', gap));
        self.column += gap;
        self.text.push_str(text);
        for c in text.chars() {
            (self.line, self.column) = match c {
                '\n' => (self.line + 1, 1),
                _ => (self.line, self.column + 1),
            };
        }
        self.joint = joint;
        self.spans.push(span);
    }
}

/// rustc's spans, by location in the text.
#[derive(Default)]
struct Spans {
    /// File name that `proc-macro2` assigned to the text.
    text: String,
    at: HashMap<(usize, usize), Span>,
}

impl Spans {
    /// Records the spans of all tokens. `spans` yields them in the same order.
    fn note(&mut self, tokens: Tokens, spans: &mut impl Iterator<Item = Span>) {
        for token in tokens {
            match &token {
                Token::Group(g) => {
                    self.put(g.span_open(), spans.next());
                    self.note(g.stream(), spans);
                    self.put(g.span_close(), spans.next());
                }
                other => self.put(other.span(), spans.next()),
            }
        }
    }

    fn put(&mut self, place: Place, span: Option<Span>) {
        if self.text.is_empty() {
            self.text = place.file();
        }
        let start = place.start();
        self.at.extend(span.map(|span| ((start.line, start.column), span)));
    }

    /// Returns rustc's span of a location, or the span of the `arch!` call for tokens outside the
    /// declaration.
    fn of(&self, place: Place) -> Span {
        let start = place.start();
        if place.file() != self.text {
            return Span::call_site();
        }
        let known = self.at.get(&(start.line, start.column));
        known.copied().unwrap_or_else(Span::call_site)
    }

    fn back(&self, tokens: Tokens) -> TokenStream {
        tokens.into_iter().map(|token| self.token(token)).collect()
    }

    fn token(&self, token: Token) -> TokenTree {
        let span = self.of(token.span());
        let mut token: TokenTree = match token {
            Token::Group(g) => {
                let delimiter = match g.delimiter() {
                    proc_macro2::Delimiter::Parenthesis => Delimiter::Parenthesis,
                    proc_macro2::Delimiter::Brace => Delimiter::Brace,
                    proc_macro2::Delimiter::Bracket => Delimiter::Bracket,
                    proc_macro2::Delimiter::None => Delimiter::None,
                };
                Group::new(delimiter, self.back(g.stream())).into()
            }
            Token::Ident(i) => {
                let text = i.to_string();
                match text.strip_prefix("r#") {
                    Some(raw) => Ident::new_raw(raw, span).into(),
                    None => Ident::new(&text, span).into(),
                }
            }
            Token::Punct(p) => {
                let spacing = match p.spacing() {
                    proc_macro2::Spacing::Joint => Spacing::Joint,
                    proc_macro2::Spacing::Alone => Spacing::Alone,
                };
                Punct::new(p.as_char(), spacing).into()
            }
            // The text of a literal parses as a literal.
            Token::Literal(l) => match Literal::from_str(&l.to_string()) {
                Ok(literal) => literal.into(),
                Err(_) => Literal::string("invalid literal").into(),
            },
        };
        token.set_span(span);
        token
    }
}
