//! Lookup of declared items by name. A declaration may have thousands of items.

use std::collections::{HashMap, HashSet};

use proc_macro2::Ident;

/// Positions of items in a list, by name.
#[derive(Default)]
pub struct Names(HashMap<String, Vec<usize>>);

impl Names {
    /// Adds the position of an item.
    pub fn add(&mut self, name: &str, at: usize) {
        self.0.entry(name.to_owned()).or_default().push(at);
    }

    /// Returns the positions of all items with a name, in order.
    pub fn all(&self, name: &str) -> &[usize] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    /// Returns the position of the first item with a name.
    pub fn first(&self, name: &str) -> Option<usize> {
        self.all(name).first().copied()
    }
}

/// Returns a set of names.
pub fn set<'a>(names: impl IntoIterator<Item = &'a Ident>) -> HashSet<Ident> {
    names.into_iter().cloned().collect()
}
