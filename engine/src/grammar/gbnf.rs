//! The parser of GBNF, the notation of llama.cpp's grammar files.
//!
//! ```text
//! grammar  = { name "::=" choices newline }
//! choices  = sequence { "|" sequence }
//! sequence = { item [ "*" | "+" | "?" | "{" m [ "," [ n ] ] "}" ] }
//! item     = '"' characters '"' | "[" [ "^" ] ranges "]" | "." | name | "(" choices ")" | [ "!" ] "<" name ">" | [ "!" ] "<[" id "]>"
//! ```

use std::collections::BTreeMap;

use super::chars::CharSet;
use super::error::GrammarError;

/// Most repetitions that a grammar may count, as in llama.cpp.
pub const MAX_REPEAT: u32 = 2000;
/// Most groups within each other.
const MAX_DEPTH: usize = 100;
/// Most parts of a grammar.
const MAX_NODES: usize = 100_000;

/// What a text may be made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// One character of a set.
    Char(CharSet),
    /// Characters of a set: at least so many and at most so many.
    Run(CharSet, u32, Option<u32>),
    /// One token that is the one of this id, or with `true` any other.
    Token(u32, bool),
    /// A rule by its number.
    Rule(usize),
    /// One after the other.
    Seq(Vec<Node>),
    /// One of them.
    Alt(Vec<Node>),
    /// At least so many times and at most so many times.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A grammar: its rules' bodies, of which the root is one.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Bodies by number.
    pub bodies: Vec<Node>,
    /// The number of the rule `root`.
    pub root: usize,
}

/// Parses a grammar. `token` finds the token of a name such as `<think>`.
pub fn parse(text: &str, token: &dyn Fn(&str) -> Option<u32>) -> Result<Rules, GrammarError> {
    let mut parser = Parser {
        text,
        at: 0,
        token,
        numbers: BTreeMap::new(),
        bodies: Vec::new(),
        used_at: Vec::new(),
        depth: 0,
        n_nodes: 0,
    };
    parser.space(true);
    while !parser.rest().is_empty() {
        parser.rule()?;
    }
    parser.finish()
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    token: &'a dyn Fn(&str) -> Option<u32>,
    numbers: BTreeMap<&'a str, usize>,
    bodies: Vec<Option<Node>>,
    /// Where each rule was named first.
    used_at: Vec<usize>,
    depth: usize,
    n_nodes: usize,
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-' || c == '_'
}

impl<'a> Parser<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, text: &str) -> bool {
        let is_there = self.rest().starts_with(text);
        if is_there {
            self.at += text.len();
        }
        is_there
    }

    fn error<T>(&self, at: usize, message: impl Into<String>) -> Result<T, GrammarError> {
        Err(GrammarError::at(self.text, at, message))
    }

    /// White space and comments, over ends of lines where the rule goes on.
    fn space(&mut self, over_lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => self.at += self.rest().find(['\n', '\r']).unwrap_or(self.rest().len()),
                ' ' | '\t' => self.at += 1,
                '\r' | '\n' if over_lines => self.at += 1,
                _ => break,
            }
        }
    }

    fn name(&mut self) -> Result<&'a str, GrammarError> {
        let rest = self.rest();
        let len = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
        if len == 0 {
            return self.error(self.at, "expected the name of a rule");
        }
        self.at += len;
        Ok(&rest[..len])
    }

    fn number_of(&mut self, name: &'a str, at: usize) -> usize {
        let n = self.bodies.len();
        let number = *self.numbers.entry(name).or_insert(n);
        if number == n {
            self.bodies.push(None);
            self.used_at.push(at);
        }
        number
    }

    fn rule(&mut self) -> Result<(), GrammarError> {
        let start = self.at;
        let name = self.name()?;
        self.space(false);
        if !self.take("::=") {
            return self.error(self.at, format!("expected ::= behind the name {name:?}"));
        }
        self.space(true);
        let body = self.choices(false)?;
        let number = self.number_of(name, start);
        if self.bodies[number].is_some() {
            return self.error(start, format!("the rule {name:?} is there twice"));
        }
        self.bodies[number] = Some(body);
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return self.error(self.at, "expected the end of the line");
        }
        self.space(true);
        Ok(())
    }

    fn choices(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut all = vec![self.sequence(nested)?];
        while self.take("|") {
            self.space(true);
            all.push(self.sequence(nested)?);
        }
        Ok(match all.len() {
            1 => all.swap_remove(0),
            _ => Node::Alt(all),
        })
    }

    fn sequence(&mut self, nested: bool) -> Result<Node, GrammarError> {
        let mut all = Vec::new();
        loop {
            let n_before = all.len();
            if !self.item(&mut all)? {
                break;
            }
            self.space(nested);
            while let Some((min, max)) = self.repetition()? {
                // Of a text in quotes all is repeated.
                let items: Vec<Node> = all.drain(n_before..).collect();
                all.push(Node::Repeat(Box::new(one(items)), min, max));
                self.space(nested);
            }
        }
        Ok(one(all))
    }

    /// Adds what comes next; false if there is nothing of a sequence.
    fn item(&mut self, all: &mut Vec<Node>) -> Result<bool, GrammarError> {
        self.n_nodes += 1;
        if self.n_nodes > MAX_NODES {
            return self.error(self.at, format!("the grammar has more than {MAX_NODES} parts"));
        }
        let start = self.at;
        match self.peek() {
            Some('"') => {
                self.at += 1;
                while !self.take("\"") {
                    let c = self.character('"', start)?;
                    self.n_nodes += 1;
                    all.push(Node::Char(CharSet::of(c, c)));
                }
            }
            Some('[') => {
                self.at += 1;
                all.push(Node::Char(self.class(start)?));
            }
            Some('.') => {
                self.at += 1;
                all.push(Node::Char(CharSet::all()));
            }
            Some('(') => {
                self.at += 1;
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return self.error(start, format!("more than {MAX_DEPTH} groups within each other"));
                }
                self.space(true);
                let group = self.choices(true)?;
                if !self.take(")") {
                    return self.error(self.at, "expected a ) that ends the group");
                }
                self.depth -= 1;
                all.push(group);
            }
            Some('<' | '!') => {
                let node = self.token()?;
                all.push(node);
            }
            Some(c) if is_of_name(c) => {
                let name = self.name()?;
                let number = self.number_of(name, start);
                all.push(Node::Rule(number));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A character, or an escape that stands for one.
    fn character(&mut self, end: char, start: usize) -> Result<char, GrammarError> {
        let at = self.at;
        let digits = match self.next() {
            None | Some('\n' | '\r') => return self.error(start, format!("expected a {end} that ends this")),
            Some('\\') => match self.next() {
                Some('t') => return Ok('\t'),
                Some('r') => return Ok('\r'),
                Some('n') => return Ok('\n'),
                Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^')) => return Ok(c),
                Some('x') => 2,
                Some('u') => 4,
                Some('U') => 8,
                _ => {
                    return self.error(
                        at,
                        "no such escape: expected one of t r n \\ \" [ ] - ^ x u U behind the backslash",
                    );
                }
            },
            Some(c) => return Ok(c),
        };
        let hex = self
            .rest()
            .get(..digits)
            .filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let code = hex.and_then(|hex| u32::from_str_radix(hex, 16).ok());
        match code.and_then(char::from_u32) {
            Some(c) => {
                self.at += digits;
                Ok(c)
            }
            None => self.error(at, format!("expected {digits} hexadecimal digits of a character")),
        }
    }

    fn class(&mut self, start: usize) -> Result<CharSet, GrammarError> {
        let negated = self.take("^");
        let mut set = CharSet::default();
        while !self.take("]") {
            let at = self.at;
            let first = self.character(']', start)?;
            let is_range = self.rest().starts_with('-') && !self.rest()[1..].starts_with(']');
            let last = if is_range {
                self.at += 1;
                self.character(']', start)?
            } else {
                first
            };
            if last < first {
                return self.error(at, format!("the range from {first:?} to {last:?} is empty"));
            }
            set.add(first, last);
        }
        let set = set.sorted();
        let set = if negated { set.complement() } else { set };
        match set.is_empty() {
            true => self.error(start, "no character is in this class"),
            false => Ok(set),
        }
    }

    fn token(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        let negated = self.take("!");
        if !self.rest().starts_with('<') {
            return self.error(self.at, "expected a token behind !, as in !<[5]> or !<think>");
        }
        let end = self
            .rest()
            .find(['>', '\n'])
            .filter(|&end| self.rest()[end..].starts_with('>'));
        let Some(end) = end else {
            return self.error(start, "expected a > that ends the token");
        };
        let name = &self.rest()[..=end];
        self.at += name.len();
        let by_number = name.strip_prefix("<[").and_then(|n| n.strip_suffix("]>"));
        let id = match by_number {
            Some(number) => number.parse().ok(),
            None => (self.token)(name),
        };
        match id {
            Some(id) => Ok(Node::Token(id, negated)),
            None => self.error(start, format!("the vocabulary has no token {name}")),
        }
    }

    fn repetition(&mut self) -> Result<Option<(u32, Option<u32>)>, GrammarError> {
        let start = self.at;
        let found = match self.peek() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            Some('{') => {
                self.at += 1;
                return self.counted(start).map(Some);
            }
            _ => return Ok(None),
        };
        self.at += 1;
        Ok(Some(found))
    }

    /// `{m}`, `{m,}`, `{m,n}`, of which the brace is read.
    fn counted(&mut self, start: usize) -> Result<(u32, Option<u32>), GrammarError> {
        self.space(false);
        let min = self.count()?;
        self.space(false);
        let max = if self.take(",") {
            self.space(false);
            if self.peek().is_some_and(|c| c.is_ascii_digit()) {
                Some(self.count()?)
            } else {
                None
            }
        } else {
            Some(min)
        };
        self.space(false);
        if !self.take("}") {
            return self.error(self.at, "expected a } that ends the repetition");
        }
        if max.is_some_and(|max| max < min) {
            return self.error(start, "the most repetitions are fewer than the least");
        }
        Ok((min, max))
    }

    fn count(&mut self) -> Result<u32, GrammarError> {
        let rest = self.rest();
        let len = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        match rest[..len].parse() {
            Ok(n) if n <= MAX_REPEAT => {
                self.at += len;
                Ok(n)
            }
            _ => self.error(
                self.at,
                format!("expected a number of repetitions, at most {MAX_REPEAT}"),
            ),
        }
    }

    fn finish(self) -> Result<Rules, GrammarError> {
        for (name, &number) in &self.numbers {
            if self.bodies[number].is_none() {
                return self.error(self.used_at[number], format!("there is no rule {name:?}"));
            }
        }
        match self.numbers.get("root") {
            Some(&root) => Ok(Rules {
                bodies: self.bodies.into_iter().flatten().collect(),
                root,
            }),
            None => self.error(0, "there is no rule \"root\", which the text is to match"),
        }
    }
}

/// A sequence; of one part the part itself.
fn one(mut all: Vec<Node>) -> Node {
    match all.len() {
        1 => all.swap_remove(0),
        _ => Node::Seq(all),
    }
}
