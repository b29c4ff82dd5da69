//! Tests of grammars with matching and non-matching strings, against an exhaustive matcher, and with hostile
//! grammars.

mod lazy;
mod limits;
mod peer;
mod schemas;

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::LazyLock;

use super::gbnf::{Node, Rules};
use super::*;
use crate::random::SplitMix64;
use crate::vocab::{Special, Token, VocabSource};

const END: Token = 2;
const TOOL: Token = 3;

/// Returns a vocabulary with one token per byte, some words, an end token, and a special token.
fn vocab() -> Vocab {
    let bytes: Vec<String> = (0..=255).map(|b| format!("<0x{b:02X}>")).collect();
    let mut tokens = vec![("<unk>", 2), ("<s>", 3), ("</s>", 3), ("<tool>", 3)];
    tokens.extend(bytes.iter().map(|text| (text.as_str(), 6)));
    tokens.extend(["ab", "abc", "\":", "{\"", "true", "▁▁", "</", "s>"].map(|text| (text, 1)));
    let source = VocabSource {
        model: "llama",
        tokens: Some(Cow::Owned(tokens.iter().map(|(text, _)| text).collect())),
        scores: Some(tokens.iter().map(|_| 0.0).collect()),
        token_types: Some(tokens.iter().map(|token| token.1).collect()),
        special_ids: vec![("eos", Special::Eos, i64::from(END))],
        ..VocabSource::default()
    };
    Vocab::from_source(&source).unwrap()
}

static VOCAB: LazyLock<Vocab> = LazyLock::new(vocab);
static COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::new(&VOCAB, VOCAB.n_tokens() as usize).unwrap());

fn byte(b: u8) -> Token {
    4 + Token::from(b)
}

fn compile(grammar: Grammar) -> Result<Constraint, GrammarError> {
    COMPILER.compile(&grammar, &VOCAB)
}

fn gbnf(text: &str) -> Constraint {
    compile(Grammar::Gbnf(text.to_owned())).unwrap_or_else(|e| panic!("{e}: {text}"))
}

fn allows(constraint: &mut Constraint, token: Token) -> bool {
    constraint.allowed().unwrap().has(token)
}

/// Returns, for each prefix of `text` up to the first mismatch, whether the output may end there.
fn walk(start: &Constraint, text: &str) -> Vec<bool> {
    let mut constraint = start.clone();
    let mut ends = vec![allows(&mut constraint, END)];
    for b in text.bytes() {
        if !allows(&mut constraint, byte(b)) {
            break;
        }
        constraint.accept(byte(b)).unwrap();
        ends.push(allows(&mut constraint, END));
    }
    ends
}

fn takes(start: &Constraint, text: &str) -> bool {
    let ends = walk(start, text);
    ends.len() == text.len() + 1 && ends[text.len()]
}

#[track_caller]
fn assert_takes(start: &Constraint, good: &[&str], bad: &[&str]) {
    for text in good {
        assert!(takes(start, text), "{text:?} should match");
    }
    for text in bad {
        assert!(!takes(start, text), "{text:?} should not match");
    }
}

const JSON: &str = r#"
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws # any text
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn grammar_without_finite_text_is_rejected() {
    let text = "root ::= a\na ::= b\nb ::= a";
    let refused = compile(Grammar::Gbnf(text.to_owned())).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("accepts no text"), "{refused}");
}

#[test]
fn gbnf_accepts_and_rejects_expected_strings() {
    let json = gbnf(JSON);
    assert_takes(
        &json,
        &[
            "{}",
            r#"{"a": [1, -2.5e+3, "é\n\u00e9", true, {"b": null}]}"#,
            "{\n\t \"\": [[]]}",
        ],
        &[
            "",
            "[]",
            "{",
            r#"{"a"}"#,
            r#"{"a": 01}"#,
            "{\"a\": \"\n\"}",
            "{} {}",
            r#"{"a": tru}"#,
            r#"{"a": 1,}"#,
        ],
    );
    assert_takes(
        &gbnf("root ::= [a-z]+ \"end\""),
        &["enend", "xend", "endend"],
        &["end", "xen"],
    );
    assert_takes(
        &gbnf("root ::= .{2,3} \"é\"?"),
        &["äö", "äöü", "äöé", "\n\n"],
        &["ä", "äöüxé"],
    );
    assert_takes(
        &gbnf("root ::= ( \"a\" | b\n | # or\n \"c\" )* d\nb ::= \"b\"\r\nd ::= | \"d\""),
        &["", "abcab", "abd"],
        &["da", "x"],
    );
    assert_takes(
        &gbnf("root ::= item{2,}\nitem ::= \"- \" [^\\r\\n\\x0b\\u2028]+ \"\\n\""),
        &["- a\n- b\n", "- ü x\n- -\n- -\n"],
        &["- a\n", "- \n- b\n"],
    );
    assert_takes(
        &gbnf("root ::= e\ne ::= t ([-+*/] t)*\nt ::= [0-9]+ | \"(\" e \")\""),
        &["1+2*(3-4)", "((7))"],
        &["1+", "()", "(1"],
    );
    assert_takes(
        &gbnf(r#"root ::= "\x41é\U0001F600\"\\\[" [\]\-a-]"#),
        &["Aé😀\"\\[]", "Aé😀\"\\[-", "Aé😀\"\\[a"],
        &["Aé😀\"\\[b"],
    );
    assert_takes(
        &gbnf("root ::= \"a\"{0} \"b\"{2} \"c\"{1,2}"),
        &["bbc", "bbcc"],
        &["abbc", "bc", "bb"],
    );
    assert_takes(
        &gbnf("root ::= a\na ::= \"x\" a \"y\" | \"\""),
        &["", "xy", "xxxyyy"],
        &["xxy", "yx"],
    );
    assert_takes(&gbnf("root ::= root \"x\" | \"y\""), &["y", "yxxx"], &["x"]);
}

/// Characters of a JSON string form one lexeme. Single characters would take hundreds of times as long.
#[test]
fn json_string_characters_form_one_lexeme() {
    let lark = lark_of(JSON, &VOCAB).unwrap();
    assert!(
        lark.contains(r"/[\x{20}-\x{21}\x{23}-\x{5b}\x{5d}-\x{7e}\x{80}-\x{10ffff}]+/"),
        "{lark}"
    );
}

#[test]
fn special_tokens_do_not_match_text() {
    let mut any = gbnf("root ::= .*");
    for (token, allowed) in [(END, true), (TOOL, false), (0, false), (1, false), (byte(b'<'), true)] {
        assert_eq!(allows(&mut any, token), allowed, "{token}");
    }
    let word = VOCAB.find("abc").unwrap();
    assert!(allows(&mut any, word) && !allows(&mut gbnf("root ::= \"ab\""), word));
    // A token's name as plain text does not match the token.
    let mut named = gbnf("root ::= \"</s>\" \"<tool>\"");
    assert!(!allows(&mut named, END) && allows(&mut named, VOCAB.find("</").unwrap()));
    assert!(takes(&named, "</s><tool>"));
    for text in ["root ::= <tool> \"x\"", "root ::= <[3]> \"x\""] {
        let mut tool = gbnf(text);
        assert!(allows(&mut tool, TOOL) && !allows(&mut tool, byte(b'<')) && !allows(&mut tool, END));
        tool.accept(TOOL).unwrap();
        assert!(allows(&mut tool, byte(b'x')) && !allows(&mut tool, TOOL));
    }
    let mut other = gbnf("root ::= !<tool> \"x\"");
    assert!(allows(&mut other, word) && !allows(&mut other, TOOL));
}

#[test]
fn cloned_constraints_advance_independently_and_end_is_final() {
    let mut one = gbnf("root ::= \"a\" (\"b\" | \"c\")");
    one.accept(byte(b'a')).unwrap();
    let mut two = one.clone();
    one.accept(byte(b'b')).unwrap();
    assert!(one.is_complete() && !two.is_complete());
    assert!(allows(&mut two, byte(b'c')) && !allows(&mut one, byte(b'c')) && allows(&mut one, END));
    one.accept(END).unwrap();
    assert!(allows(&mut one, END) && !allows(&mut one, byte(b'b')));
    one.reset();
    assert!(allows(&mut one, byte(b'a')) && !allows(&mut one, END));
    assert!(two.accept(byte(b'a')).is_err(), "the token was not allowed");
    assert!(two.allowed().is_err(), "no token is allowed after an error");
}

#[test]
fn upgraded_constraint_keeps_its_state() {
    let quick = Compiler::unsliced(&VOCAB, VOCAB.n_tokens() as usize).unwrap();
    let grammar = Grammar::Gbnf(JSON.to_owned());
    let text = r#"{"ab": [1, "cd\u00e9"], "x": true}"#;
    let mut sliced = compile(grammar.clone()).unwrap();
    let whole = walk(&sliced, text);
    for n_before in [0, 1, 9, text.len()] {
        let (mut constraint, faster) = quick.compile(&grammar, &VOCAB).unwrap().upgrade_when_ready();
        let mut copy = constraint.clone();
        for b in text.bytes().take(n_before) {
            assert!(allows(&mut constraint, byte(b)));
            constraint.accept(byte(b)).unwrap();
        }
        faster.put(quick.sliced().unwrap().compile(&grammar, &VOCAB).unwrap());
        assert_eq!(
            walk(&constraint, &text[n_before..]),
            whole[n_before..],
            "after {n_before}"
        );
        assert_eq!(walk(&copy, text), whole, "clone of an earlier state");
        copy.accept(byte(b'{')).unwrap();
        copy.reset();
        assert_eq!(walk(&copy, text), whole);
    }
    let all = |c: &mut Constraint| -> Vec<bool> {
        let allowed = c.allowed().unwrap();
        (0..VOCAB.n_tokens()).map(|token| allowed.has(token)).collect()
    };
    let mut unsliced = quick.compile(&grammar, &VOCAB).unwrap();
    for b in text.bytes() {
        assert_eq!(all(&mut unsliced), all(&mut sliced));
        unsliced.accept(byte(b)).unwrap();
        sliced.accept(byte(b)).unwrap();
    }
}

#[test]
fn syntax_errors_report_line_and_column() {
    for (text, place, expected) in [
        ("root ::= \"a", (1, 10), "missing closing"),
        ("root ::= [a", (1, 10), "missing closing"),
        ("root ::= (\"a\"", (1, 14), "unclosed group"),
        ("root ::= \"a\"\nroot ::= \"b\"", (2, 1), "twice"),
        ("root ::= a\n\nb ::= \"b\"", (1, 10), "undefined rule \"a\""),
        ("a ::= \"b\"", (1, 1), "missing rule \"root\""),
        ("", (1, 1), "missing rule \"root\""),
        ("root = \"a\"", (1, 6), "::="),
        ("root ::= \"a\" )", (1, 14), "end of line"),
        ("root ::= \"\\q\"", (1, 11), "unknown escape"),
        ("root ::= \"\\x4\"", (1, 11), "2 hexadecimal digits"),
        ("root ::= \"\\ud800\"", (1, 11), "4 hexadecimal digits"),
        ("root ::= \"a\"{3,2}", (1, 13), "maximum is less than minimum"),
        ("root ::= \"a\"{2001}", (1, 14), "at most 2000"),
        ("root ::= \"a\"{99999999999999999999}", (1, 14), "at most 2000"),
        ("root ::= [z-a]", (1, 11), "empty"),
        ("root ::= []", (1, 10), "class is empty"),
        ("root ::= <nobody>", (1, 10), "unknown token <nobody>"),
        ("root ::= !\"a\"", (1, 11), "after !"),
        ("root ::= é", (1, 10), "end of line"),
    ] {
        match compile(Grammar::Gbnf(text.to_owned())) {
            Err(GrammarError::Syntax { line, column, message }) => {
                assert_eq!((line, column), place, "{text:?}: {message}");
                assert!(message.contains(expected), "{expected:?} in {message:?}");
            }
            other => panic!("{text:?}: {:?}", other.err()),
        }
    }
}

#[test]
fn hostile_grammars_are_rejected() {
    let deep = |open: &str, close: &str| open.repeat(60_000) + &close.repeat(60_000);
    let bomb = "(".repeat(8) + "a" + &"{1000})".repeat(8);
    let many: String = (0..200_000).map(|_| "\"a\" ").collect();
    let refused = [
        Grammar::Gbnf(format!("root ::= {}", deep("(", ")"))),
        Grammar::Gbnf(format!("%llguidance {{}}\nstart: {}", deep("(", ")"))),
        Grammar::Gbnf(format!("root ::= {many}")),
        Grammar::Gbnf("root ::= root".to_owned()),
        Grammar::Gbnf("%llguidance {}\nstart: nobody".to_owned()),
        Grammar::Gbnf("root ::= <[99999999]>".to_owned()),
        Grammar::Regex(deep("(", ")")),
        Grammar::Regex("a(".to_owned()),
        Grammar::Regex("x".repeat(MAX_LEN + 1)),
        Grammar::JsonSchema(deep("[", "]")),
        Grammar::JsonSchema("{\"allOf\":[".repeat(200) + "true" + &"]}".repeat(200)),
        Grammar::Choice(Vec::new()),
    ];
    for grammar in refused {
        let shown = format!("{grammar:?}").chars().take(60).collect::<String>();
        assert!(compile(grammar).is_err(), "{shown}");
    }
    // Grammars within the limits either work or are rejected while computing a mask.
    let nested = (0..10).fold("\"a\"".to_owned(), |inner, _| format!("({inner})*"));
    assert!(takes(&gbnf(&format!("root ::= {nested}")), "aaaa"));
    if let Ok(bomb) = compile(Grammar::Regex(bomb)) {
        assert!(!takes(&bomb, "aaaa"));
    }
    let _ = compile(Grammar::Gbnf("root ::= ((\"a\"{2000}){2000}){2000}".to_owned()));
    let _ = compile(Grammar::Gbnf("root ::= ((((.*)*)*)* \"x\")* .* .* .*".to_owned()));
    let _ = compile(Grammar::JsonSchema(r##"{"$ref": "#"}"##.to_owned()));
    assert!(Compiler::new(&VOCAB, 1).is_err(), "no end token is among the logits");
}

#[test]
fn json_schema_accepts_and_rejects_documents() {
    let schema = |text: &str| compile(Grammar::JsonSchema(text.to_owned())).unwrap_or_else(|e| panic!("{e}: {text}"));
    let person = schema(
        r##"{"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}, "next": {"$ref": "#/$defs/next"}},
            "required": ["name", "age"], "additionalProperties": false, "$defs": {"next": {"anyOf": [{"type": "null"}, {"type": "boolean"}]}}}"##,
    );
    assert_takes(
        &person,
        &[
            r#"{"name": "x", "age": 150}"#,
            r#"{"name":"é","age":0,"tags":["a","b"],"next":null}"#,
            "{\n  \"name\": \"x\",\n  \"age\": 7\n}",
        ],
        &[
            r#"{"name": "", "age": 1}"#,
            r#"{"name": "x"}"#,
            r#"{"name": "x", "age": 151}"#,
            r#"{"name": "x", "age": 1, "tags": ["c"]}"#,
            r#"{"name": "x", "age": 1, "other": 1}"#,
            "[]",
        ],
    );
    let blank = "{".to_owned() + &" ".repeat(200) + "\"name\": \"x\", \"age\": 1}";
    assert!(!takes(&person, &blank), "unbounded white space");
    assert_takes(&schema("true"), &["1", "\"x\"", "{\"a\": [1]}"], &["x", ""]);
    assert_takes(&schema(r#"{"const": {"a": 1}}"#), &["{\"a\": 1}"], &["{\"a\": 2}"]);
}

#[test]
fn unsupported_schema_keywords_are_rejected_with_location() {
    for (text, place, expected) in [
        (r#"{"not": {"required": ["a"]}}"#, "#", "\"not\""),
        (
            r#"{"properties": {"a/b": {"uniqueItems": true}}}"#,
            "#/properties/a~1b",
            "\"uniqueItems\"",
        ),
        (
            r#"{"items": {"if": {}, "then": {"type": "null"}}}"#,
            "#/items",
            "\"if\"",
        ),
        (
            r#"{"anyOf": [{"$ref": "http://x/y"}]}"#,
            "#/anyOf/0",
            "within the schema",
        ),
        (r##"{"$ref": "#"}"##, "#", "circular"),
        (
            r##"{"items": {"$ref": "#/$defs/a"}, "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}"##,
            "#/items",
            "circular",
        ),
        (
            r#"{"oneOf": [{"minimum": 1}, {"type": "integer"}]}"#,
            "#",
            "alternatives 0 and 1",
        ),
        (
            r#"{"properties": {"a": {"type": "string", "pattern": "(a)\\1"}}}"#,
            "#/properties/a/pattern",
            "backreferences",
        ),
        (
            r#"{"items": {"pattern": "\\ba"}}"#,
            "#/items/pattern",
            "word boundaries",
        ),
        (r#"{"items": {"minLength": 3, "maxLength": 2}}"#, "#/items", "exceeds"),
        (r#"{"items": {"type": "str"}}"#, "#/items", "unknown type"),
        (r#"{"contains": {}}"#, "#", "\"contains\""),
        (
            r#"{"items": {"dependentRequired": {"a": ["b"]}}}"#,
            "#/items",
            "\"dependentRequired\"",
        ),
        (
            r##"{"$ref": "#/$defs/a", "$defs": {"a": {"items": {"contains": {}}}}}"##,
            "#/$defs/a/items",
            "\"contains\"",
        ),
        (r#"{"properties": []}"#, "#", "must be an object"),
        (r#"{"items": 5}"#, "#/items", "found a number"),
        (r#"{"x-guidance": {"lenient": true}, "not": {}}"#, "#", "\"not\""),
    ] {
        match compile(Grammar::JsonSchema(text.to_owned())) {
            Err(GrammarError::Schema { place: at, message }) => {
                assert_eq!(at, place, "{text}");
                assert!(message.contains(expected), "{expected:?} in {message:?}");
            }
            other => panic!("{text}: {:?}", other.err()),
        }
    }
}

#[test]
fn invalid_schemas_are_rejected() {
    for text in [
        "{",
        "",
        "{\"type\": \"strin\"}",
        r##"{"$ref": "#/nowhere"}"##,
        r#"{"pattern": "("}"#,
        r#"{"enum": []}"#,
        r#"{"type": "integer", "minimum": 5, "maximum": 4}"#,
    ] {
        assert!(compile(Grammar::JsonSchema(text.to_owned())).is_err(), "{text}");
    }
}

#[test]
fn regex_and_choice_match_whole_strings() {
    let regex = |text: &str| compile(Grammar::Regex(text.to_owned())).unwrap();
    assert_takes(
        &regex("[0-9]{3}-(ab|abc)"),
        &["123-ab", "123-abc"],
        &["123", "123-abd", "x123-ab", "123-ab "],
    );
    assert_takes(&regex("a/b\\d+"), &["a/b12"], &["a/b", "ab1"]);
    let choice = compile(Grammar::Choice(
        ["yes", "no", "no (really)", "ja"].map(String::from).into(),
    ))
    .unwrap();
    assert_takes(
        &choice,
        &["yes", "no", "no (really)", "ja"],
        &["", "y", "nope", "no ", "no (really"],
    );
}

/// Returns all offsets at which a match of `node` starting at `at` can end, by exhaustive search.
fn ends_of(rules: &Rules, node: &Node, text: &[char], at: usize) -> BTreeSet<usize> {
    let repeat = |inner: &Node, min: u32, max: Option<u32>| {
        let (mut ends, mut now) = (BTreeSet::new(), BTreeSet::from([at]));
        // More repetitions than characters can only be empty.
        for n in 0..=max.unwrap_or(u32::MAX).min(min + text.len() as u32 + 1) {
            if n >= min {
                ends.extend(&now);
            }
            now = now.iter().flat_map(|&at| ends_of(rules, inner, text, at)).collect();
        }
        ends
    };
    match node {
        Node::Char(set) => {
            let is_in = |c: &&char| set.ranges().iter().any(|(a, b)| a <= c && *c <= b);
            text.get(at).filter(is_in).map(|_| at + 1).into_iter().collect()
        }
        Node::Run(set, min, max) => repeat(&Node::Char(set.clone()), *min, *max),
        Node::Repeat(inner, min, max) => repeat(inner, *min, *max),
        Node::Rule(number) => ends_of(rules, &rules.bodies[*number], text, at),
        Node::Alt(nodes) => nodes.iter().flat_map(|n| ends_of(rules, n, text, at)).collect(),
        Node::Seq(nodes) => nodes.iter().fold(BTreeSet::from([at]), |starts, n| {
            starts.iter().flat_map(|&at| ends_of(rules, n, text, at)).collect()
        }),
        Node::Token(..) => BTreeSet::new(),
    }
}

/// Generates a random expression. Rule references follow a character, so that exhaustive search terminates.
fn random_text(rng: &mut SplitMix64, depth: u32, rules: u64) -> String {
    let char_class =
        |rng: &mut SplitMix64| ["[a]", "\"b\"", "[ab]", "[^a]", "[bc]", "."][(rng.next_u64() % 6) as usize].to_owned();
    let inner = |rng: &mut SplitMix64| random_text(rng, depth.saturating_sub(1), rules);
    match rng.next_u64() % if depth == 0 { 2 } else { 9 } {
        0 => char_class(rng),
        1 => "\"ab\"".to_owned(),
        2 => format!("{} {}", inner(rng), inner(rng)),
        3 => format!("({} | {})", inner(rng), inner(rng)),
        4 => format!(
            "({}){}",
            inner(rng),
            ["*", "+", "?", "{2}", "{1,2}", "{0,3}", "{2,}"][(rng.next_u64() % 7) as usize]
        ),
        5 => format!(
            "{}{}",
            char_class(rng),
            ["*", "+", "{1,2}", "{2,}"][(rng.next_u64() % 4) as usize]
        ),
        6 => format!("({} | {} {})*", char_class(rng), char_class(rng), inner(rng)),
        7 => format!("{} r{}", char_class(rng), rng.next_u64() % rules),
        _ => "( | \"c\")".to_owned(),
    }
}

#[test]
fn random_grammars_match_exhaustive_search() {
    let mut rng = SplitMix64(12);
    let (mut n_taken, mut n_runs) = (0, 0);
    for _ in 0..400 {
        let texts: Vec<String> = (0..3).map(|_| random_text(&mut rng, 3, 3)).collect();
        let text = format!(
            "root ::= r0\nr0 ::= {}\nr1 ::= {}\nr2 ::= {}\n",
            texts[0], texts[1], texts[2]
        );
        let rules = gbnf::parse(&text, &|_| None).unwrap();
        let constraint = match compile(Grammar::Gbnf(text.clone())) {
            Ok(constraint) => constraint,
            // The grammar matches no finite string.
            Err(GrammarError::Refused(_)) => continue,
            Err(e) => panic!("{e}: {text}"),
        };
        n_runs += lark_of(&text, &VOCAB).unwrap().matches("]+/").count();
        for _ in 0..30 {
            let chars: Vec<char> = (0..rng.next_u64() % 8)
                .map(|_| ['a', 'b', 'c'][(rng.next_u64() % 3) as usize])
                .collect();
            let word: String = chars.iter().collect();
            let ends = ends_of(&rules, &Node::Rule(rules.root), &chars, 0);
            let walked = walk(&constraint, &word);
            for (n, &may_end) in walked.iter().enumerate() {
                let is_match = ends_of(&rules, &Node::Rule(rules.root), &chars[..n], 0).contains(&n);
                assert_eq!(
                    may_end,
                    is_match,
                    "{:?} of\n{text}\n{}",
                    &word[..n],
                    lark_of(&text, &VOCAB).unwrap()
                );
                n_taken += usize::from(is_match);
            }
            assert!(
                walked.len() == chars.len() + 1 || !ends.contains(&chars.len()),
                "{word:?} of\n{text}\n{}",
                lark_of(&text, &VOCAB).unwrap()
            );
        }
    }
    assert!(n_taken > 1000 && n_runs > 50, "{n_taken} texts, {n_runs} runs");
}
