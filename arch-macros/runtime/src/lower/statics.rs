//! Static data: declarations stay in memory until the process ends, like built-in ones.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// Distinct texts of all declarations.
static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// Returns a static copy of a text. Equal texts share a copy.
pub fn text(text: &str) -> &'static str {
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.get(text) {
        return known;
    }
    let copy: &'static str = Box::leak(text.into());
    texts.insert(copy);
    copy
}

/// Returns a static copy of an optional text.
pub fn option(value: Option<&str>) -> Option<&'static str> {
    value.map(text)
}

/// Returns a static list.
pub fn list<T>(items: impl IntoIterator<Item = T>) -> &'static [T] {
    Box::leak(items.into_iter().collect())
}

/// Returns a static list of texts.
pub fn texts<'a>(items: impl IntoIterator<Item = &'a String>) -> &'static [&'static str] {
    list(items.into_iter().map(|item| text(item)))
}
