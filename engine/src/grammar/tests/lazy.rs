//! Tests of lazy grammars.

use super::*;

const NONE: [usize; 0] = [];

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// Calls between `<<` and `>>`, or starting with a special token.
fn marked() -> Constraint {
    let grammar = "%llguidance {}\nstart: (\"<<\" | <[3]>) /[ab]{2,3}/ \">>\"";
    let trigger = Trigger {
        marks: texts(&["<<", "<tool>"]),
        ..Trigger::default()
    };
    gbnf(grammar).lazily(trigger).unwrap()
}

/// Feeds a string byte by byte. Returns the offsets at which the output was constrained.
fn kept(constraint: &mut Constraint, text: &str) -> Vec<usize> {
    let mut places = Vec::new();
    for (at, b) in text.bytes().enumerate() {
        if !constraint.is_free() {
            places.push(at);
            assert!(allows(constraint, byte(b)), "byte {at} of {text:?}");
        }
        constraint.accept(byte(b)).unwrap();
    }
    places
}

fn places(start: &Constraint, text: &str) -> Vec<usize> {
    kept(&mut start.clone(), text)
}

#[test]
fn lazy_grammar_constrains_from_marker_to_end() {
    let mut calls = marked();
    assert_eq!(
        places(&calls, "a<b> <<ab>> c < <<aab>> <"),
        [7, 8, 9, 10, 18, 19, 20, 21, 22]
    );
    assert_eq!(kept(&mut calls, "x<<"), NONE);
    assert!(!calls.is_free() && allows(&mut calls, byte(b'a')) && !allows(&mut calls, byte(b'c')));
    assert!(!allows(&mut calls, END), "output cannot end inside a part");
    assert_eq!(kept(&mut calls, "ab>>"), [0, 1, 2, 3]);
    assert!(calls.is_free());
    // The result is equal after a reset and for clones.
    kept(&mut calls, "<<a");
    let copy = calls.clone();
    calls.reset();
    assert_eq!(places(&calls, "<a<<ab>>"), [4, 5, 6, 7]);
    assert_eq!(places(&copy, "b>>c"), [0, 1, 2]);
}

#[test]
fn lazy_marker_may_span_or_split_tokens() {
    let mut calls = marked();
    calls.accept(TOOL).unwrap();
    assert!(!calls.is_free() && allows(&mut calls, byte(b'b')));
    // The name of a special token as plain text is not a marker.
    assert_eq!(places(&marked(), "<tool>xy"), NONE);
    // "</" is one token, and "ab" after the marker another. The "<" before the marker belongs to neither.
    let token = |text: &str| VOCAB.find(text).unwrap();
    let grammar = "%llguidance {}\nstart: \"/<\" \"ab\" \"c\"";
    let trigger = Trigger {
        marks: texts(&["/<"]),
        ..Trigger::default()
    };
    let mut parts = gbnf(grammar).lazily(trigger.clone()).unwrap();
    for token in [token("</"), byte(b'<')] {
        assert!(parts.is_free());
        parts.accept(token).unwrap();
    }
    assert!(allows(&mut parts, token("abc")) && allows(&mut parts, token("ab")) && !allows(&mut parts, byte(b'c')));
    parts.accept(token("abc")).unwrap();
    assert!(parts.is_free());
    // The marker is ignored, because the text after it does not match.
    let mut other = gbnf("%llguidance {}\nstart: \"s!\"")
        .lazily(Trigger {
            marks: texts(&["s"]),
            ..trigger
        })
        .unwrap();
    other.accept(token("s>")).unwrap();
    assert!(other.is_free());
    other.accept(byte(b's')).unwrap();
    assert!(!other.is_free() && allows(&mut other, byte(b'!')));
}

#[test]
fn lazy_markers_in_prefix_are_ignored() {
    let trigger = Trigger {
        marks: texts(&["<<"]),
        prefix: Some(("[t]".to_owned(), "[/t]".to_owned())),
        ..Trigger::default()
    };
    let grammar = "%llguidance {}\nstart: \"<<\" /[ab]{2}/ \">>\"";
    let from = |starts_in_prefix: bool| {
        gbnf(grammar)
            .lazily(Trigger {
                starts_in_prefix,
                ..trigger.clone()
            })
            .unwrap()
    };
    let begun = from(false);
    assert_eq!(places(&begun, " [t]<<x[/t]<<ab>>"), [13, 14, 15, 16]);
    assert_eq!(places(&begun, "[t <<ab>>"), [5, 6, 7, 8]);
    assert_eq!(places(&begun, "a [t]<<ab>>"), [7, 8, 9, 10], "only at the start");
    assert_eq!(places(&from(true), "<<x[/t]<<ab>>"), [9, 10, 11, 12]);
}

#[test]
fn lazy_parts_without_markers_follow_start_or_part() {
    let grammar = r#"%llguidance {}
start: "{" (" "? "name: " /[a-z]{1,9}/ ":") ("f:" | "ff:") /[0-9]{2}/ "}""#;
    let names = texts(&["f:", "ff:"]);
    let calls = gbnf(grammar)
        .lazily(Trigger {
            names,
            ..Trigger::default()
        })
        .unwrap();
    assert_eq!(places(&calls, "\n{name: x:f:12}, {name: x:ff:12}"), [13, 14, 30, 31]);
    for text in ["a {name: x:f:12}", "{ name: 7", "{name: x:g:12}", "", "{", "  "] {
        assert_eq!(places(&calls, text), NONE, "{text:?}");
    }
    // The search for a part is bounded.
    let mut long = calls.clone();
    for _ in 0..3000 {
        long.accept(byte(b' ')).unwrap();
    }
    assert!(long.is_free());
    assert_eq!(places(&long, "{name: x:f:12}"), NONE);
}

/// Returns a grammar for all output after optional reasoning.
fn covered(open: &str, starts_in_prefix: bool) -> Constraint {
    let trigger = Trigger {
        prefix: Some((open.to_owned(), "</t>".to_owned())),
        starts_in_prefix,
        covers_rest: true,
        ..Trigger::default()
    };
    gbnf("root ::= \"<a\" [0-9]").lazily(trigger).unwrap()
}

#[test]
fn covering_grammar_starts_behind_optional_prefix() {
    let start = covered("<t>", false);
    let mut constraint = start.clone();
    assert!(!constraint.is_free() && constraint.covers_end());
    assert!(allows(&mut constraint, byte(b'<')) && !allows(&mut constraint, byte(b'x')));
    assert!(!allows(&mut constraint, END));
    assert_eq!(kept(&mut constraint, "<"), [0]);
    assert!(allows(&mut constraint, byte(b't')) && allows(&mut constraint, byte(b'a')));
    assert!(!allows(&mut constraint, byte(b'b')));
    // Without the prefix.
    let mut plain = constraint.clone();
    assert_eq!(kept(&mut plain, "a7"), [0, 1]);
    assert!(!plain.is_free() && allows(&mut plain, END) && !allows(&mut plain, byte(b'7')));
    // With the prefix.
    assert_eq!(kept(&mut constraint, "t>x <a </t"), [0, 1]);
    assert!(constraint.is_free());
    assert_eq!(kept(&mut constraint, ">"), NONE);
    assert!(!constraint.is_free() && !allows(&mut constraint, byte(b't')));
    assert_eq!(kept(&mut constraint, "<a1"), [0, 1, 2]);
    assert!(!constraint.is_free() && allows(&mut constraint, END) && !allows(&mut constraint, byte(b'<')));
    constraint.reset();
    assert!(allows(&mut constraint, byte(b'<')) && !allows(&mut constraint, byte(b'x')));
}

#[test]
fn covering_grammar_starts_inside_prefix_of_prompt() {
    let mut constraint = covered("<t>", true);
    assert!(constraint.is_free() && constraint.covers_end());
    assert_eq!(kept(&mut constraint, "thought</t>"), NONE);
    assert!(!constraint.is_free() && !allows(&mut constraint, byte(b'x')) && !allows(&mut constraint, END));
    // A special token opens the prefix by its name.
    let mut special = covered("<tool>", false);
    assert!(allows(&mut special, TOOL));
    special.accept(TOOL).unwrap();
    assert!(special.is_free());
}
