//! Parser for GBNF, the grammar notation of llama.cpp.
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

/// Maximum count in a repetition such as `{m,n}`, as in llama.cpp.
pub const MAX_REPEAT: u32 = 2000;
/// Maximum nesting depth of groups.
const MAX_DEPTH: usize = 100;
/// Maximum number of nodes in a grammar.
const MAX_NODES: usize = 100_000;

/// A node of the syntax tree.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    /// A single character from a set.
    Char(CharSet),
    /// Between `min` and `max` characters of a set, lexed as one lexeme.
    Run(CharSet, u32, Option<u32>),
    /// The token with this id, or if `true`, any other token.
    Token(u32, bool),
    /// Reference to a rule, an index into [`Rules::bodies`].
    Rule(usize),
    /// Sequence of syntax tree nodes.
    Seq(Vec<Node>),
    /// Alternatives.
    Alt(Vec<Node>),
    /// Between `min` and `max` repetitions of a node.
    Repeat(Box<Node>, u32, Option<u32>),
}

/// A parsed grammar.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// Syntax trees of the rule bodies.
    pub bodies: Vec<Node>,
    /// Index of the rule `root`.
    pub root: usize,
}

/// Parses a grammar. `token` resolves token names such as `<think>` to ids.
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
    /// Offset of the first use of each rule.
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

    /// Skips white space and comments, including line breaks if `over_lines`.
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
            return self.error(self.at, "expected a rule name");
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
            return self.error(self.at, format!("expected ::= after rule name {name:?}"));
        }
        self.space(true);
        let body = self.choices(false)?;
        let number = self.number_of(name, start);
        if self.bodies[number].is_some() {
            return self.error(start, format!("rule {name:?} is defined twice"));
        }
        self.bodies[number] = Some(body);
        if !matches!(self.peek(), None | Some('\r' | '\n')) {
            return self.error(self.at, "expected end of line");
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
                // A repetition after a quoted string applies to the whole string.
                let items: Vec<Node> = all.drain(n_before..).collect();
                all.push(Node::Repeat(Box::new(one(items)), min, max));
                self.space(nested);
            }
        }
        Ok(one(all))
    }

    /// Parses one item. Returns false at the end of the sequence.
    fn item(&mut self, all: &mut Vec<Node>) -> Result<bool, GrammarError> {
        self.n_nodes += 1;
        if self.n_nodes > MAX_NODES {
            return self.error(self.at, format!("grammar has more than {MAX_NODES} nodes"));
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
                    return self.error(start, format!("groups are nested more than {MAX_DEPTH} levels deep"));
                }
                self.space(true);
                let group = self.choices(true)?;
                if !self.take(")") {
                    return self.error(self.at, "unclosed group: expected )");
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

    /// Parses a character or an escape sequence.
    fn character(&mut self, end: char, start: usize) -> Result<char, GrammarError> {
        let at = self.at;
        let digits = match self.next() {
            None | Some('\n' | '\r') => return self.error(start, format!("missing closing {end}")),
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
                        "unknown escape: expected one of t r n \\ \" [ ] - ^ x u U after the backslash",
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
                return self.error(at, format!("character range {first:?} to {last:?} is empty"));
            }
            set.add(first, last);
        }
        let set = set.sorted();
        let set = if negated { set.complement() } else { set };
        if set.is_empty() {
            return self.error(start, "character class is empty");
        }
        Ok(set)
    }

    fn token(&mut self) -> Result<Node, GrammarError> {
        let start = self.at;
        let negated = self.take("!");
        if !self.rest().starts_with('<') {
            return self.error(self.at, "expected a token after !, as in !<[5]> or !<think>");
        }
        let end = self
            .rest()
            .find(['>', '\n'])
            .filter(|&end| self.rest()[end..].starts_with('>'));
        let Some(end) = end else {
            return self.error(start, "unclosed token: expected >");
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
            None => self.error(start, format!("unknown token {name}")),
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

    /// Parses the rest of `{m}`, `{m,}`, or `{m,n}` after the opening brace.
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
            return self.error(self.at, "unclosed repetition: expected }");
        }
        if max.is_some_and(|max| max < min) {
            return self.error(start, "invalid repetition: maximum is less than minimum");
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
            _ => self.error(self.at, format!("expected a repetition count of at most {MAX_REPEAT}")),
        }
    }

    fn finish(self) -> Result<Rules, GrammarError> {
        for (name, &number) in &self.numbers {
            if self.bodies[number].is_none() {
                return self.error(self.used_at[number], format!("undefined rule {name:?}"));
            }
        }
        match self.numbers.get("root") {
            Some(&root) => Ok(Rules {
                bodies: self.bodies.into_iter().flatten().collect(),
                root,
            }),
            None => self.error(0, "missing rule \"root\""),
        }
    }
}

/// Returns a sequence node, or the node itself if there is only one.
fn one(mut all: Vec<Node>) -> Node {
    match all.len() {
        1 => all.swap_remove(0),
        _ => Node::Seq(all),
    }
}
