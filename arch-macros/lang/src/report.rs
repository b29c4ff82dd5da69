//! Errors of invalid declarations during a build. One process compiles all declarations in sequence. An error
//! in a fragment is reported by the first declaration that uses the fragment. An error in a parent is
//! reported by the parent. All other declarations print one line that refers to it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::diag::Diagnostic;
use crate::source::{Origin, Range};

/// File, line, and column of an error.
type Key = (String, usize, usize);

/// Declarations that reported errors of fragments. A declaration that is expanded again, as in an editor,
/// reports the error again.
static TOLD_BY: Mutex<BTreeMap<Key, String>> = Mutex::new(BTreeMap::new());

/// Returns the messages of the declaration `name` with their locations. `is_faulty` returns true if an
/// architecture has errors in its own file.
pub fn for_build(name: &str, faults: &[Diagnostic], is_faulty: impl Fn(&str) -> bool) -> Vec<(Range, String)> {
    let mut messages = Vec::new();
    let mut elsewhere: Option<(Range, String)> = None;
    for fault in faults {
        match teller(name, fault, &is_faulty) {
            None => messages.push((fault.anchor, fault.text())),
            Some(teller) => {
                let file = &fault.place.file;
                let line = format!("{file} has errors; see `{teller}`");
                elsewhere.get_or_insert((fault.anchor, line));
            }
        }
    }
    messages.extend(elsewhere);
    messages
}

/// Returns the other declaration that reports this error.
fn teller(name: &str, fault: &Diagnostic, is_faulty: impl Fn(&str) -> bool) -> Option<String> {
    match &fault.origin {
        Origin::Own => None,
        Origin::Parent(parent) => is_faulty(parent).then(|| parent.clone()),
        Origin::Fragment => {
            let key = (fault.place.file.clone(), fault.place.line, fault.place.column);
            let mut told = TOLD_BY.lock().unwrap_or_else(PoisonError::into_inner);
            let by = told.entry(key).or_insert_with(|| name.to_owned());
            (by != name).then(|| by.clone())
        }
    }
}
