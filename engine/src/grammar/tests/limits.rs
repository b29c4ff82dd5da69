//! Time limits of grammars, with grammars that would take minutes without them.

use std::time::{Duration, Instant};

use super::*;

/// Each text has exponentially many derivations.
const AMBIGUOUS: &str = "root ::= s\ns ::= s s | s s s | s s s s | s s s s s | [a-z ] | \"\"";
/// The first mask needs a table of 2000 × 12,000 optional parts.
const SLOW: &str = "root ::= s{1,2000}\ns ::= [a-z ]* [a-z ]* [a-z ]* [a-z ]* [a-z ]* [a-z ]*";
/// Maximum time of a call on a busy machine; the limits are 20 ms.
const MAX_CALL: Duration = Duration::from_millis(700);

/// Waits until the mask is known and returns the longest call.
fn wait(constraint: &mut Constraint) -> Duration {
    let mut longest = Duration::ZERO;
    loop {
        let start = Instant::now();
        let is_ready = constraint.is_ready();
        longest = longest.max(start.elapsed());
        if is_ready {
            return longest;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn ambiguous_grammar_never_blocks_its_caller_and_fails_in_time() {
    let mut constraint = gbnf(AMBIGUOUS);
    let begun = Instant::now();
    for n in 0..2000 {
        let longest = wait(&mut constraint);
        assert!(longest < MAX_CALL, "token {n}: {longest:?}");
        match constraint.allowed() {
            Ok(allowed) => assert!(allowed.has(byte(b'a')) && allowed.has(END) && !allowed.has(byte(b'A'))),
            Err(error) => {
                assert!(
                    matches!(error, GrammarError::TooSlow { .. } | GrammarError::Refused(_)),
                    "{error}"
                );
                assert!(constraint.allowed().is_err(), "a failed constraint remains failed");
                break;
            }
        }
        let start = Instant::now();
        let accepted = constraint.accept(byte(b'a'));
        assert!(start.elapsed() < MAX_CALL, "token {n}");
        if accepted.is_err() {
            break;
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", begun.elapsed());
}

#[test]
fn slow_compilation_is_rejected_in_time() {
    let start = Instant::now();
    let compiled = compile(Grammar::Gbnf(SLOW.to_owned())).map(drop);
    assert!(
        start.elapsed() < compilation::LIMIT + Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    // A small vocabulary may compile within the limit.
    if let Err(error) = compiled {
        assert!(
            matches!(error, GrammarError::TooSlow { .. } | GrammarError::Refused(_)),
            "{error}"
        );
    }
}

#[test]
fn compilation_beyond_limit_is_rejected() {
    let start = Instant::now();
    let endless = |_: &compilation::Cancel| {
        std::thread::sleep(Duration::from_secs(3));
        Ok(())
    };
    let refused = compilation::run_within(Duration::from_millis(100), endless, &|| true);
    assert!(matches!(refused, Err(GrammarError::TooSlow { .. })), "{refused:?}");
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(compilation::run(|_| Ok(1), &|| true), Ok(1));
    let panicking = |_: &compilation::Cancel| -> Result<(), GrammarError> { panic!("a bug") };
    assert!(compilation::run(panicking, &|| true).is_err());
}

#[test]
fn compilation_ends_soon_after_its_result_is_not_wanted() {
    let start = Instant::now();
    let is_wanted = || start.elapsed() < Duration::from_millis(50);
    let compiler = Compiler::new(&VOCAB, VOCAB.n_tokens() as usize).unwrap();
    let compiled = compiler.compile_while(&Grammar::Gbnf(SLOW.to_owned()), &VOCAB, &is_wanted);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    // A fast machine may finish before.
    assert!(
        matches!(
            compiled.map(drop),
            Ok(()) | Err(GrammarError::Abandoned | GrammarError::Refused(_))
        ),
        "the grammar is not at fault"
    );
    let endless = |_: &compilation::Cancel| {
        std::thread::sleep(Duration::from_secs(2));
        Ok(())
    };
    let start = Instant::now();
    let abandoned = compilation::run(endless, &|| false);
    assert_eq!(abandoned, Err(GrammarError::Abandoned));
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
}

/// A regular expression whose automaton has 2^20 states.
#[test]
fn lexer_states_of_a_grammar_are_bounded() {
    let mut constraint = compile(Grammar::Regex("[ab]*a[ab]{20}".to_owned())).unwrap();
    let mut state = 1_u32;
    for n in 0..2 * MAX_LEXER_STATES {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        let token = if state & 1 == 0 { b'a' } else { b'b' };
        let refused = constraint
            .allowed()
            .map(drop)
            .and_then(|()| constraint.accept(byte(token)));
        if let Err(error) = refused {
            assert!(n > 1000 && error.to_string().contains("states"), "token {n}: {error}");
            return;
        }
    }
    panic!("the automaton has more states than the limit");
}

#[test]
fn slow_constraint_gives_the_same_masks_as_a_fast_one() {
    let text = "the quick brown fox jumps over the lazy dog";
    let mut fast = gbnf("root ::= [a-z ]*");
    let mut slow = gbnf("root ::= [a-z ]*");
    slow.always_on_a_thread();
    for b in text.bytes() {
        let expected: Vec<bool> = (0..VOCAB.n_tokens()).map(|token| allows(&mut fast, token)).collect();
        let copy = slow.clone();
        assert!(!slow.is_ready(), "a thread has to compute the mask");
        for mut constraint in [copy, slow.clone(), std::mem::replace(&mut slow, copy_of(&fast))] {
            let allowed = constraint.allowed().unwrap();
            let found: Vec<bool> = (0..VOCAB.n_tokens()).map(|token| allowed.has(token)).collect();
            assert_eq!(found, expected);
            slow = constraint;
        }
        slow.always_on_a_thread();
        slow.accept(byte(b)).unwrap();
        fast.accept(byte(b)).unwrap();
    }
    // The thread detects a token that the grammar does not allow.
    slow.accept(byte(b'A')).unwrap();
    assert!(slow.allowed().is_err() && slow.allowed().is_err() && slow.accept(byte(b'a')).is_err());
    slow.reset();
    assert!(allows(&mut slow, byte(b'a')));
}

fn copy_of(constraint: &Constraint) -> Constraint {
    constraint.clone()
}

#[test]
fn lazy_part_with_slow_masks_ends_like_a_fast_one() {
    let trigger = Trigger {
        marks: vec!["<".to_owned()],
        ..Trigger::default()
    };
    let mut lazy = gbnf("root ::= \"<\" [a-z]+ \">\"").lazily(trigger).unwrap();
    for b in b"some text<ab" {
        lazy.accept(byte(*b)).unwrap();
    }
    assert!(!lazy.is_free());
    lazy.always_on_a_thread();
    lazy.accept(byte(b'>')).unwrap();
    wait(&mut lazy);
    assert!(lazy.is_free());
}

#[test]
fn dropped_constraint_cancels_its_thread() {
    let mut constraint = gbnf(AMBIGUOUS);
    constraint.always_on_a_thread();
    for _ in 0..400 {
        constraint.accept(byte(b'a')).unwrap();
    }
    assert!(!constraint.is_ready());
    drop(constraint);
    // The thread would hold its permit for a second.
    let start = Instant::now();
    let mut other = gbnf("root ::= \"a\"");
    other.always_on_a_thread();
    wait(&mut other);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn deeply_linked_rules_are_analyzed_in_time() {
    let chain: String = (0..20_000).map(|i| format!("r{i} ::= r{}\n", i + 1)).collect();
    let chain = format!("root ::= r0\n{chain}r20000 ::= [a-z]+ \"x\"*");
    let wide: String = (0..8)
        .map(|i| format!("r{i} ::= {}\n", vec![format!("r{}", i + 1); 12].join(" | ")))
        .collect();
    let wide = format!("root ::= r0*\n{wide}r8 ::= [a-z]");
    for text in [chain, wide] {
        let start = Instant::now();
        let _ = compile(Grammar::Gbnf(text));
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }
}
