//! Compares the grammar in the documentation with the parser, the keyword tables, and the project's own
//! files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use arch_lang::builtins::{BUILTINS, EPSILONS};
use arch_lang::diag::Errors;
use arch_lang::model::{Kind, RopeKind};
use arch_lang::{parse, words};
use proc_macro2::{Delimiter, Spacing, TokenStream, TokenTree};

/// The right side of a rule, or a part of it.
#[derive(Clone, Debug)]
enum Ebnf {
    /// `"word"`
    Word(String),
    /// Reference to a grammar rule or a token class.
    Rule(String),
    Sequence(Vec<Ebnf>),
    Either(Vec<Ebnf>),
    /// Optional part, written `[ … ]`.
    Maybe(Box<Ebnf>),
    /// Repeated part, written `{ … }`.
    Repeat(Box<Ebnf>),
}

/// Grammar rules by name.
struct Grammar(BTreeMap<String, Ebnf>);

impl Grammar {
    /// Returns the rules from the documentation of the parser and of fragments.
    fn documented() -> Grammar {
        let mut rules = BTreeMap::new();
        let sources = [
            include_str!("../src/parse.rs"),
            include_str!("../src/parse/checkpoint.rs"),
            include_str!("../src/parse/encoder.rs"),
            include_str!("../src/parse/audio.rs"),
            include_str!("../src/fragment.rs"),
        ];
        for source in sources {
            let lines = source.lines().map(|l| l.trim_start_matches("//!"));
            let lines = lines.skip_while(|l| l.trim() != "```ebnf").skip(1);
            let text: Vec<&str> = lines.take_while(|l| l.trim() != "```").collect();
            let mut tokens = tokens_of(&text.join("\n"));
            while !tokens.is_empty() {
                let name = tokens.remove(0);
                assert_eq!(tokens.remove(0), "=", "behind {name}");
                let rule = either(&mut tokens);
                assert_eq!(tokens.remove(0), ";", "after the rule {name}");
                assert!(rules.insert(name.clone(), rule).is_none(), "{name} has two rules");
            }
        }
        Grammar(rules)
    }

    /// Returns the quoted words that a rule may start with, excluding words of other rules.
    fn first_words(&self, rule: &str) -> BTreeSet<String> {
        fn first(e: &Ebnf, out: &mut BTreeSet<String>) {
            match e {
                Ebnf::Word(word) => _ = out.insert(word.clone()),
                Ebnf::Rule(_) => {}
                Ebnf::Sequence(parts) => parts.first().iter().for_each(|e| first(e, out)),
                Ebnf::Either(parts) => parts.iter().for_each(|e| first(e, out)),
                Ebnf::Maybe(e) | Ebnf::Repeat(e) => first(e, out),
            }
        }
        let mut words = BTreeSet::new();
        first(&self.0[rule], &mut words);
        words
    }
}

/// Splits the text of rules into quoted words, names, and signs.
fn tokens_of(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let length = match c {
            '"' => rest[1..].find('"').unwrap() + 2,
            '(' if rest.starts_with("(*") => rest.find("*)").unwrap() + 2,
            c if c.is_alphabetic() => rest.find(|c: char| !c.is_alphanumeric()).unwrap(),
            _ => 1,
        };
        if !rest.starts_with("(*") {
            tokens.push(rest[..length].to_owned());
        }
        rest = rest[length..].trim_start();
    }
    tokens
}

fn either(tokens: &mut Vec<String>) -> Ebnf {
    let mut parts = vec![sequence(tokens)];
    while tokens.first().is_some_and(|t| t == "|") {
        tokens.remove(0);
        parts.push(sequence(tokens));
    }
    if parts.len() == 1 {
        parts.remove(0)
    } else {
        Ebnf::Either(parts)
    }
}

fn sequence(tokens: &mut Vec<String>) -> Ebnf {
    let mut parts = Vec::new();
    while !["|", ";", ")", "]", "}"].contains(&tokens[0].as_str()) {
        let token = tokens.remove(0);
        let mut inside = |close: &str| {
            let inside = either(tokens);
            assert_eq!(tokens.remove(0), close);
            Box::new(inside)
        };
        parts.push(match token.as_str() {
            "(" => *inside(")"),
            "[" => Ebnf::Maybe(inside("]")),
            "{" => Ebnf::Repeat(inside("}")),
            word => match word.strip_prefix('"') {
                Some(word) => Ebnf::Word(word.trim_end_matches('"').to_owned()),
                None => Ebnf::Rule(word.to_owned()),
            },
        });
    }
    Ebnf::Sequence(parts)
}

impl Grammar {
    /// Generates sentences of a rule that together take each alternative at least once. `inside` lists the
    /// enclosing rules.
    fn sentences(&self, e: &Ebnf, inside: &[&str]) -> Vec<String> {
        match e {
            Ebnf::Word(word) => vec![word.clone()],
            Ebnf::Rule(name) => match name.as_str() {
                "IDENT" => vec!["x".into()],
                "STRING" => vec!["\"s\"".into()],
                "INT" | "EXPR" => vec!["1".into()],
                "FLOAT" => vec!["1.5".into()],
                "BOOL" => vec!["true".into()],
                name if inside.iter().filter(|n| **n == name).count() > 1 => Vec::new(),
                name => self.sentences(&self.0[name], &[inside, &[name]].concat()),
            },
            Ebnf::Sequence(parts) => {
                let parts: Vec<_> = parts.iter().map(|e| self.sentences(e, inside)).collect();
                if parts.iter().any(Vec::is_empty) {
                    return Vec::new();
                }
                let n = parts.iter().map(Vec::len).max().unwrap_or(1);
                let nth = |i: usize| {
                    parts
                        .iter()
                        .map(|p| p[i % p.len()].as_str())
                        .collect::<Vec<_>>()
                        .join(" ")
                };
                (0..n).map(nth).collect()
            }
            Ebnf::Either(parts) => parts.iter().flat_map(|e| self.sentences(e, inside)).collect(),
            Ebnf::Maybe(e) | Ebnf::Repeat(e) => {
                let mut all = self.sentences(e, inside);
                all.push(String::new());
                all
            }
        }
    }
}

/// Returns the parser's errors for the contents of an `arch!`.
fn faults(text: &str) -> Vec<String> {
    let mut errors = Errors::new();
    parse::parse(TokenStream::from_str(text).unwrap(), &mut errors);
    errors.finish().into_iter().map(|d| d.message).collect()
}

#[test]
fn parser_accepts_grammar_sentences() {
    let grammar = Grammar::documented();
    let sections = grammar.sentences(&grammar.0["section"], &[]);
    assert!(sections.len() > 60, "{} sentences", sections.len());
    for text in &sections {
        let mut faults = faults(text);
        // The EBNF grammar does not count names.
        faults.retain(|fault| !fault.contains("GGUF names for"));
        assert_eq!(faults, Vec::<String>::new(), "{text}");
    }
    for text in grammar.sentences(&grammar.0["part"], &[]) {
        let mut errors = Errors::new();
        parse::encoder(TokenStream::from_str(&text).unwrap(), &mut errors);
        let faults = errors.finish();
        assert!(faults.is_empty(), "{text}: {faults:?}");
    }
    for text in grammar.sentences(&grammar.0["file"], &[]) {
        let parsed = parse::fragment(TokenStream::from_str(&text).unwrap());
        assert!(parsed.is_ok(), "{text}: {:?}", parsed.err());
    }
    let by = proc_macro2::Ident::new("fragment", proc_macro2::Span::call_site());
    for text in grammar.sentences(&grammar.0["need"], &[]) {
        let parsed = parse::needs(TokenStream::from_str(&text).unwrap(), &by);
        assert!(parsed.is_ok(), "{text}: {:?}", parsed.err());
    }
}

/// Collects the tokens of a file's macro, joining operators.
fn flat(tokens: TokenStream, out: &mut Vec<String>) {
    let mut joint = false;
    for token in tokens {
        let was_joint = std::mem::take(&mut joint);
        match token {
            TokenTree::Group(g) => {
                let (open, close) = match g.delimiter() {
                    Delimiter::Brace => ("{", "}"),
                    Delimiter::Bracket => ("[", "]"),
                    _ => ("(", ")"),
                };
                out.push(open.to_owned());
                flat(g.stream(), out);
                out.push(close.to_owned());
            }
            TokenTree::Punct(p) => {
                joint = p.spacing() == Spacing::Joint;
                let both = out.last().map(|last| format!("{last}{}", p.as_char()));
                match both.filter(|b| {
                    was_joint && ["->", "<-", "..", "+=", "-=", "*=", "/=", "==", "&&", "||"].contains(&b.as_str())
                }) {
                    Some(both) => _ = out.pop().map(|_| out.push(both)),
                    None => out.push(p.as_char().to_string()),
                }
            }
            other => out.push(other.to_string()),
        }
    }
}

/// Recognizes tokens by the grammar.
struct Recognizer<'a> {
    grammar: &'a Grammar,
    tokens: Vec<String>,
    known: BTreeMap<(String, usize), BTreeSet<usize>>,
    /// Index of the farthest token that was examined.
    reached: usize,
}

impl Recognizer<'_> {
    /// Returns the possible ends of `e` if it starts at token `at`.
    fn ends(&mut self, e: &Ebnf, at: usize) -> BTreeSet<usize> {
        match e {
            Ebnf::Word(word) => self.token(at, |t| t == word),
            Ebnf::Rule(name) => self.rule(name, at),
            Ebnf::Sequence(parts) => parts.iter().fold(BTreeSet::from([at]), |ends, part| {
                ends.into_iter().flat_map(|end| self.ends(part, end)).collect()
            }),
            Ebnf::Either(parts) => parts.iter().flat_map(|e| self.ends(e, at)).collect(),
            Ebnf::Maybe(e) => {
                let mut ends = self.ends(e, at);
                ends.insert(at);
                ends
            }
            Ebnf::Repeat(e) => {
                let (mut all, mut new) = (BTreeSet::from([at]), vec![at]);
                while let Some(end) = new.pop() {
                    new.extend(self.ends(e, end).into_iter().filter(|end| all.insert(*end)));
                }
                all
            }
        }
    }

    fn rule(&mut self, name: &str, at: usize) -> BTreeSet<usize> {
        let is_word = |t: &str| t.starts_with(|c: char| c.is_alphabetic() || c == '_');
        match name {
            "IDENT" => {
                return self.token(at, |t| {
                    is_word(t) && !["let", "if", "else", "for", "fn", "_"].contains(&t)
                });
            }
            "STRING" => return self.token(at, |t| t.starts_with('"')),
            "INT" | "FLOAT" => return self.token(at, |t| t.starts_with(|c: char| c.is_ascii_digit())),
            "BOOL" => return self.token(at, |t| t == "true" || t == "false"),
            "EXPR" => return self.expression(at),
            _ => {}
        }
        let key = (name.to_owned(), at);
        if let Some(ends) = self.known.get(&key) {
            return ends.clone();
        }
        let rule = self.grammar.0.get(name).unwrap_or_else(|| panic!("no rule {name}"));
        let ends = self.ends(&rule.clone(), at);
        self.known.insert(key, ends.clone());
        ends
    }

    fn token(&mut self, at: usize, is: impl Fn(&str) -> bool) -> BTreeSet<usize> {
        self.reached = self.reached.max(at);
        self.tokens
            .get(at)
            .filter(|t| is(t))
            .map(|_| at + 1)
            .into_iter()
            .collect()
    }

    /// Returns the possible ends of an expression: any balanced token sequence.
    fn expression(&mut self, from: usize) -> BTreeSet<usize> {
        let mut ends = BTreeSet::new();
        let mut depth = 0;
        for (at, token) in self.tokens.iter().enumerate().skip(from) {
            let token = token.as_str();
            if depth == 0 {
                if at > from && [";", ",", ")", "]", "}", "{", "->", "..", "or", "every"].contains(&token) {
                    ends.insert(at);
                }
                if [";", ",", ")", "]", "}", "let", "for"].contains(&token) {
                    break;
                }
            }
            match token {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                _ => {}
            }
        }
        ends
    }
}

fn files(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../archs").join(folder);
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|p| p.extension().is_some_and(|e| e == "rs")).collect()
}

#[test]
fn archs_files_match_the_grammar() {
    let grammar = Grammar::documented();
    for (folder, name, rule) in [
        (".", "arch", "arch"),
        ("fragments", "fragment", "file"),
        ("encoders", "encoder", "encoder"),
        ("encoders/fragments", "fragment", "file"),
    ] {
        for path in files(folder) {
            let text = std::fs::read_to_string(&path).unwrap();
            let inside = parse::macro_tokens(TokenStream::from_str(&text).unwrap(), name)
                .unwrap()
                .unwrap();
            let mut tokens = Vec::new();
            flat(inside, &mut tokens);
            let mut recognizer = Recognizer {
                grammar: &grammar,
                tokens,
                known: BTreeMap::new(),
                reached: 0,
            };
            let ends = recognizer.rule(rule, 0);
            let n = recognizer.tokens.len();
            let near = &recognizer.tokens[recognizer.reached.saturating_sub(8)..(recognizer.reached + 2).min(n)];
            assert!(ends.contains(&n), "{}: near {}", path.display(), near.join(" "));
        }
    }
}

fn set<'a>(names: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    names.into_iter().map(str::to_owned).collect()
}

#[test]
fn grammar_keywords_match_tables() {
    let grammar = Grammar::documented();
    let mut sections = set(words::SECTIONS);
    let mut documented = grammar.first_words("section");
    documented.extend(grammar.first_words("checkpoint"));
    assert_eq!(documented, sections, "`function` is a separate rule");
    let steps = words::FRACTION_STEPS.iter().chain(&words::NUMBER_STEPS);
    let steps = steps.chain(&words::PLAIN_STEPS).chain(&["rows"]);
    assert_eq!(grammar.first_words("step"), set(steps.copied()));
    sections.insert("fn".into());
    let mut types = grammar.first_words("type");
    types.extend(grammar.first_words("scalar"));
    types.remove("[");
    assert_eq!(types, set(words::TYPES));
    assert_eq!(grammar.first_words("kind"), set(RopeKind::ALL.iter().map(|k| k.0)));
    assert_eq!(grammar.first_words("use"), set(Kind::ALL.iter().map(|k| k.0)));
    assert_eq!(grammar.first_words("pooling"), set(words::POOLING.iter().map(|p| p.0)));
    let mut parts = grammar.first_words("file");
    parts.extend(
        ["options", "needs", "function"]
            .iter()
            .flat_map(|rule| grammar.first_words(rule)),
    );
    assert_eq!(parts, set(words::FRAGMENT_PARTS));
    for text in words::ATTENTION.iter().map(|(word, _)| format!("attention : {word} ;")) {
        assert!(grammar.sentences(&grammar.0["section"], &[]).contains(&text), "{text}");
    }
    for text in words::RESULT.iter().map(|(word, _)| format!("result : {word} ;")) {
        assert!(grammar.sentences(&grammar.0["section"], &[]).contains(&text), "{text}");
    }
}

/// Returns the inline code spans of a Markdown text.
fn in_code(text: &str) -> BTreeSet<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Returns a section of the language reference by its heading.
fn reference_section(title: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/architecture-language-reference.md");
    let text = std::fs::read_to_string(path).unwrap();
    let found = text.split("\n## ").find_map(|s| s.strip_prefix(&format!("{title}\n")));
    found.unwrap_or_else(|| panic!("no section {title}")).to_owned()
}

#[test]
fn reference_lists_every_word_of_the_language() {
    let symbols = in_code(&reference_section("Symbols"));
    let builtin = BUILTINS.iter().map(|b| b.name).chain(EPSILONS.iter().map(|e| e.name));
    assert_eq!(symbols, set(builtin), "builtin symbols");
    let lists = |title: &str, words: &mut dyn Iterator<Item = &'static str>| {
        let code = in_code(&reference_section(title))
            .into_iter()
            .collect::<Vec<_>>()
            .join(" ");
        let listed: BTreeSet<&str> = code.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
        for word in words {
            assert!(listed.contains(word), "{word} in the section {title}");
        }
    };
    let head = ["name", "like", "rope", "attention", "result"].into_iter();
    lists(
        "Head lines",
        &mut head
            .chain(RopeKind::ALL.iter().map(|k| k.0))
            .chain(words::ATTENTION.iter().map(|a| a.0))
            .chain(words::RESULT.iter().map(|r| r.0)),
    );
    lists("Hyperparameters", &mut words::TYPES.into_iter());
    lists("Tensors", &mut Kind::ALL.iter().map(|k| k.0));
    lists(
        "Heads",
        &mut ["embedding", "rank", "mtp"]
            .into_iter()
            .chain(words::POOLING.iter().map(|p| p.0)),
    );
}
