//! rustc's tokens to `proc-macro2`'s own and back.
//!
//! rustc gives the tokens of a parsed text no places, so the files of fragments could not be told apart from the declaration. Therefore
//! the declaration's tokens are laid out as text with every token at its place, the compiler works on that, and in what it returns each
//! token that stands at one of those places gets rustc's span of it again: errors, go to definition and rename find the source.

use std::collections::HashMap;
use std::str::FromStr;

use proc_macro::{Delimiter, Group, Ident, Literal, Punct, Spacing, Span, TokenStream, TokenTree};
use proc_macro2::{Span as Place, TokenStream as Tokens, TokenTree as Token};

/// Runs `work` on `input` as tokens with places.
pub fn through(input: TokenStream, work: impl FnOnce(Tokens) -> Tokens) -> TokenStream {
    // Everything in this library is to be of one kind of tokens.
    proc_macro2::fallback::force();
    let mut layout = Layout::default();
    layout.stream(input);
    let tokens = match Tokens::from_str(&layout.text) {
        Ok(tokens) => tokens,
        Err(_) => return error("the declaration cannot be read as text"),
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

/// Tokens as text.
struct Layout {
    text: String,
    /// rustc's span of each token; of groups when they open and when they close.
    spans: Vec<Span>,
    /// Where the next character would stand, counted from 1.
    line: usize,
    column: usize,
    /// The last token was the first part of an operator such as `->`.
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
            // What other macros put in as a whole.
            Delimiter::None => return self.stream(g.stream()),
        };
        // What stands where a group opens is the whole group.
        self.token(open, g.span(), false);
        self.stream(g.stream());
        self.token(close, g.span_close(), false);
    }

    /// Writes a token at its place, or behind the last where that is further on.
    fn token(&mut self, text: &str, span: Span, joint: bool) {
        let (line, column) = (span.line(), span.column());
        if line > self.line {
            self.text.extend(std::iter::repeat_n('\n', line - self.line));
            (self.line, self.column) = (line, 1);
        }
        let gap = match line == self.line && column >= self.column {
            true => column - self.column,
            false => usize::from(!self.joint),
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

/// rustc's spans by places in the text.
#[derive(Default)]
struct Spans {
    /// What `proc-macro2` calls the text.
    text: String,
    at: HashMap<(usize, usize), Span>,
}

impl Spans {
    /// Notes the spans of all tokens, which come in the same order.
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

    /// rustc's span for a place; that of the whole `arch!` for what does not stand in the declaration.
    fn of(&self, place: Place) -> Span {
        let start = place.start();
        let known = self.at.get(&(start.line, start.column));
        known
            .filter(|_| place.file() == self.text)
            .copied()
            .unwrap_or_else(Span::call_site)
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
            // The text of a literal is one.
            Token::Literal(l) => match Literal::from_str(&l.to_string()) {
                Ok(literal) => literal.into(),
                Err(_) => Literal::string("a literal that cannot be read").into(),
            },
        };
        token.set_span(span);
        token
    }
}
