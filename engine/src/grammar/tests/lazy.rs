//! Parts of texts that keep to a grammar.

use super::*;

const NONE: [usize; 0] = [];

fn texts(all: &[&str]) -> Vec<String> {
    all.iter().map(|text| (*text).to_owned()).collect()
}

/// Calls between `<<` and `>>`, and ones that begin with a special token.
fn marked() -> Constraint {
    let grammar = "%llguidance {}\nstart: (\"<<\" | <[3]>) /[ab]{2,3}/ \">>\"";
    let trigger = Trigger {
        marks: texts(&["<<", "<tool>"]),
        ..Trigger::default()
    };
    gbnf(grammar).lazily(trigger).unwrap()
}

/// Takes a text byte by byte. Tells where it had to keep to the grammar: before which of its bytes.
fn kept(constraint: &mut Constraint, text: &str) -> Vec<usize> {
    let mut places = Vec::new();
    for (at, b) in text.bytes().enumerate() {
        if !constraint.is_free() {
            places.push(at);
            assert!(allows(constraint, byte(b)), "{at} of {text:?}");
        }
        constraint.accept(byte(b)).unwrap();
    }
    places
}

fn places(start: &Constraint, text: &str) -> Vec<usize> {
    kept(&mut start.clone(), text)
}

#[test]
fn a_part_keeps_to_its_grammar_from_its_mark_to_its_end() {
    let mut calls = marked();
    assert_eq!(
        places(&calls, "a<b> <<ab>> c < <<aab>> <"),
        [7, 8, 9, 10, 18, 19, 20, 21, 22]
    );
    assert_eq!(kept(&mut calls, "x<<"), NONE);
    assert!(!calls.is_free() && allows(&mut calls, byte(b'a')) && !allows(&mut calls, byte(b'c')));
    assert!(!allows(&mut calls, END), "half a part is no end");
    assert_eq!(kept(&mut calls, "ab>>"), [0, 1, 2, 3]);
    assert!(calls.is_free());
    // Again from the beginning, and copies by themselves.
    kept(&mut calls, "<<a");
    let copy = calls.clone();
    calls.reset().unwrap();
    assert_eq!(places(&calls, "<a<<ab>>"), [4, 5, 6, 7]);
    assert_eq!(places(&copy, "b>>c"), [0, 1, 2]);
}

#[test]
fn a_mark_may_be_a_token_or_parts_of_some() {
    let mut calls = marked();
    calls.accept(TOOL).unwrap();
    assert!(!calls.is_free() && allows(&mut calls, byte(b'b')));
    // The name of a special token is not it.
    assert_eq!(places(&marked(), "<tool>xy"), NONE);
    // "</" is one token, and "ab" behind the mark another; "<" before it is none of it.
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
    // What came with the mark does not fit, so it is none.
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
fn what_stands_aside_has_no_marks() {
    let trigger = Trigger {
        marks: texts(&["<<"]),
        aside: Some(("[t]".to_owned(), "[/t]".to_owned())),
        ..Trigger::default()
    };
    let grammar = "%llguidance {}\nstart: \"<<\" /[ab]{2}/ \">>\"";
    let from = |is_aside: bool| {
        gbnf(grammar)
            .lazily(Trigger {
                is_aside,
                ..trigger.clone()
            })
            .unwrap()
    };
    let begun = from(false);
    assert_eq!(places(&begun, " [t]<<x[/t]<<ab>>"), [13, 14, 15, 16]);
    assert_eq!(places(&begun, "[t <<ab>>"), [5, 6, 7, 8]);
    assert_eq!(places(&begun, "a [t]<<ab>>"), [7, 8, 9, 10], "only at the beginning");
    assert_eq!(places(&from(true), "<<x[/t]<<ab>>"), [9, 10, 11, 12]);
}

#[test]
fn parts_without_marks_begin_a_text_or_follow_each_other() {
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
    // Nothing is waited for without end.
    let mut long = calls.clone();
    for _ in 0..3000 {
        long.accept(byte(b' ')).unwrap();
    }
    assert!(long.is_free());
    assert_eq!(places(&long, "{name: x:f:12}"), NONE);
}
