//! Compares GGUF keys with the keys of all other declarations and fragments.

use std::collections::BTreeSet;

use super::unknown_tensor::is_slip;
use super::{Finding, Subject};
use crate::builtins::{BUILTINS, EPSILONS};
use crate::library::declared_name;
use crate::model::Hparam;
use crate::source::{Origin, Range};

/// Finds keys of the declaration that occur in no other file and are likely a typo of a known key.
pub fn find(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let arch = subject.arch;
    let own: Vec<_> = (arch.hparams.iter())
        .filter_map(|h| match h {
            Hparam::Key { name, key, .. } if subject.sources.origin(name.span()) == Origin::Own => Some((name, key)),
            _ => None,
        })
        .collect();
    let of_language = BUILTINS
        .iter()
        .filter_map(|b| b.key)
        .chain(EPSILONS.iter().map(|e| e.key));
    let mut known: BTreeSet<String> = of_language.map(str::to_owned).collect();
    let is_unknown = |known: &BTreeSet<String>| own.iter().any(|(_, key)| !known.contains(*key));
    for source in subject.library.files() {
        if !is_unknown(&known) {
            return;
        }
        if declared_name(&source.text) != Some(&arch.name) {
            known.extend(keys(&source.text).map(str::to_owned));
        }
    }
    for (name, key) in own.iter().filter(|(_, key)| !known.contains(*key)) {
        if let Some(other) = known.iter().find(|k| is_slip(key, k)) {
            let message = format!("no other architecture reads the key {key:?}; did you mean {other:?}?");
            found.push((Range::of(name), message));
        }
    }
}

/// Returns the keys that a file reads, determined line by line: `name: type = "key" …`.
fn keys(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter_map(|line| {
        let (head, rest) = line.split_once('=')?;
        let (name, _) = head.split_once(':')?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let key = rest.trim_start().strip_prefix('"')?.split_once('"')?.0;
        name.trim().chars().all(is_name).then_some(key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_by_line() {
        let text = "hparams {\n    n_swa: usize = \"attention.sliding_window\" or 0;\n    let a = b == \"c\";\n    x: [bool] = \"y\";\n}\n//! see: a = \"b\"";
        assert_eq!(keys(text).collect::<Vec<_>>(), ["attention.sliding_window", "y"]);
    }
}
