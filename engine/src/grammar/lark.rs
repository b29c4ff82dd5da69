//! Conversion of a grammar to llguidance's variant of Lark.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::chars::CharSet;
use super::gbnf::{Node, Rules};

/// Returns the grammar in Lark notation.
pub fn text_of(rules: &Rules) -> String {
    let mut writer = Writer::default();
    let mut text = format!("start: r{}\n", rules.root);
    for (number, body) in rules.bodies.iter().enumerate() {
        let body = writer.node(body);
        let _ = writeln!(text, "r{number}: {body}");
    }
    for (expression, name) in &writer.terminals {
        let _ = writeln!(text, "{name}: /{expression}/");
    }
    text
}

#[derive(Default)]
struct Writer {
    /// Maps regular expressions to terminal names.
    terminals: BTreeMap<String, String>,
}

impl Writer {
    fn node(&mut self, node: &Node) -> String {
        match node {
            Node::Char(set) => self.terminal(class(set)),
            Node::Run(set, min, max) => {
                let counts = match (*min.max(&1), max) {
                    (1, None) => "+".to_owned(),
                    (min, None) => format!("{{{min},}}"),
                    (_, Some(0)) => return EMPTY.to_owned(),
                    (min, Some(max)) => format!("{{{min},{max}}}"),
                };
                let name = self.terminal(class(set) + &counts);
                // Terminals must not match the empty string.
                if *min == 0 { format!("({name})?") } else { name }
            }
            Node::Token(id, false) => format!("<[{id}]>"),
            Node::Token(id, true) => format!("<[^{id}]>"),
            Node::Rule(number) => format!("r{number}"),
            Node::Seq(nodes) if nodes.is_empty() => EMPTY.to_owned(),
            Node::Seq(nodes) => format!("({})", self.all(nodes, " ")),
            Node::Alt(nodes) => format!("({})", self.all(nodes, " | ")),
            Node::Repeat(_, _, Some(0)) => EMPTY.to_owned(),
            Node::Repeat(inner, min, max) => {
                let inner = self.node(inner);
                match (min, max) {
                    (0, None) => format!("({inner})*"),
                    (1, None) => format!("({inner})+"),
                    (0, Some(1)) => format!("({inner})?"),
                    (min, None) => format!("({inner}){{{min},}}"),
                    (min, Some(max)) => format!("({inner}){{{min},{max}}}"),
                }
            }
        }
    }

    fn all(&mut self, nodes: &[Node], between: &str) -> String {
        let all: Vec<String> = nodes.iter().map(|n| self.node(n)).collect();
        all.join(between)
    }

    fn terminal(&mut self, expression: String) -> String {
        let name = format!("T{}", self.terminals.len());
        self.terminals.entry(expression).or_insert(name).clone()
    }
}

/// Lark notation for the empty string.
const EMPTY: &str = "\"\"";

/// Returns the set as a character class of a regular expression. All characters are escaped.
fn class(set: &CharSet) -> String {
    let range = |&(first, last): &(char, char)| format!("\\x{{{:x}}}-\\x{{{:x}}}", first as u32, last as u32);
    format!("[{}]", set.ranges().iter().map(range).collect::<String>())
}
