//! What a build says of faulty declarations. All of them are compiled by one process, one after the other: a fault of a fragment is told
//! by the first declaration that uses it, a fault of a parent by the parent itself, and the others say in one line that they use it.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::diag::Diagnostic;
use crate::source::{Origin, Range};

/// File, line and column of a fault.
type Key = (String, usize, usize);

/// Which declaration told a fault of a fragment. Asked by that declaration again, as editors do, the fault is its own still.
static TOLD_BY: Mutex<BTreeMap<Key, String>> = Mutex::new(BTreeMap::new());

/// The messages of the declaration `name`, and where each is shown. `is_faulty` tells whether an architecture has faults of its own.
pub fn for_build(name: &str, faults: &[Diagnostic], is_faulty: impl Fn(&str) -> bool) -> Vec<(Range, String)> {
    let mut messages = Vec::new();
    let mut elsewhere: Option<(Range, String)> = None;
    for fault in faults {
        match teller(name, fault, &is_faulty) {
            None => messages.push((fault.anchor, fault.text())),
            Some(teller) => {
                let file = &fault.place.file;
                let line = format!("{file} has errors, which are shown for `{teller}`");
                elsewhere.get_or_insert((fault.anchor, line));
            }
        }
    }
    messages.extend(elsewhere);
    messages
}

/// The other declaration that tells this fault.
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
