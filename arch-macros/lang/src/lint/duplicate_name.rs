//! Finds an architecture name that several files declare.

use std::collections::BTreeSet;

use super::{Finding, Subject};
use crate::library::{Source, declared_name, is_encoder};

/// Finds a name that a second file declares. A model file could not be assigned to one of them.
pub fn find(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let (name, is_an_encoder) = (&subject.arch.name, subject.arch.media.is_some());
    // An encoder may have the name of an architecture.
    let is_same = |s: &Source| declared_name(&s.text) == Some(name) && is_encoder(&s.text) == is_an_encoder;
    let same = subject.library.files().filter(is_same);
    // A library may list a file twice.
    let files: BTreeSet<String> = same.map(|s| format!("`{}`", s.file)).collect();
    if files.len() > 1 {
        let files: Vec<String> = files.into_iter().collect();
        let message = format!(
            "the name {name:?} is declared in {}; names must be unique",
            files.join(" and ")
        );
        found.push((subject.arch.name_span.into(), message));
    }
}
