//! Compares GGUF tensor names with the names in all other declarations and fragments.

use std::collections::BTreeSet;

use super::{Finding, Subject};
use crate::diag::distance;
use crate::library::declared_name;
use crate::model::Kind;
use crate::source::{Origin, Range};

/// Finds tensors of the declaration whose name occurs in no other file and is likely a typo of a known name.
pub fn find(subject: &Subject<'_>, found: &mut Vec<Finding>) {
    let arch = subject.arch;
    let is_own = |name: &proc_macro2::Ident| subject.sources.origin(name.span()) == Origin::Own;
    let own: Vec<_> = arch.tensors.iter().filter(|t| is_own(&t.name)).collect();
    let mut unknown: BTreeSet<&str> = own.iter().map(|t| t.gguf.as_str()).collect();
    let mut known: BTreeSet<String> = BTreeSet::new();
    for source in subject.library.files() {
        if unknown.is_empty() {
            return;
        }
        if declared_name(&source.text) != Some(&arch.name) {
            for name in tensor_names(&source.text) {
                unknown.remove(name);
                known.insert(name.to_owned());
            }
        }
    }
    for tensor in own.iter().filter(|t| unknown.contains(t.gguf.as_str())) {
        if let Some(other) = known.iter().find(|k| is_slip(&tensor.gguf, k)) {
            let message = format!(
                "no other architecture has a tensor {:?}; did you mean {other:?}?",
                tensor.gguf
            );
            found.push((Range::of(&tensor.name), message));
        }
    }
}

/// Returns the GGUF names that a file declares or ignores, determined line by line.
fn tensor_names(text: &str) -> Vec<&str> {
    let mut names = Vec::new();
    for line in text.lines() {
        let line = line.trim_start();
        if line.starts_with("ignore ") {
            names.extend(in_quotes(line));
        }
        let Some((head, rest)) = line.split_once(':') else {
            continue;
        };
        let rest = rest.trim_start();
        let end = rest
            .find(|c: char| !c.is_ascii_lowercase() && c != '_')
            .unwrap_or(rest.len());
        let (kind, behind) = rest.split_at(end);
        if !Kind::ALL.iter().any(|(name, _)| *name == kind) {
            continue;
        }
        if !behind.trim_start().starts_with('"') {
            let head = head.strip_prefix("override ").unwrap_or(head);
            names.extend(head.split(',').map(|n| n.trim().trim_end_matches('?')));
        }
        names.extend(in_quotes(behind));
    }
    names
}

/// Returns the quoted strings of a line.
fn in_quotes(line: &str) -> impl Iterator<Item = &str> {
    line.split('"').skip(1).step_by(2)
}

/// Returns true if `name` is likely a typo of `known`. Parts that a letter or number distinguishes (`attn_q`,
/// `attn_k`) count as different names.
pub(super) fn is_slip(name: &str, known: &str) -> bool {
    let is_break = |c: char| c == '_' || c == '.';
    let unbroken = |name: &str| {
        name.chars()
            .filter(|c| !is_break(*c))
            .eq(known.chars().filter(|c| !is_break(*c)))
    };
    if unbroken(name) {
        return name != known;
    }
    let n_differing = name.split(is_break).zip(known.split(is_break)).filter(|(a, b)| a != b);
    if name.len().abs_diff(known.len()) > 4 || n_differing.take(2).count() != 1 {
        return false;
    }
    let (a, b): (Vec<&str>, Vec<&str>) = (name.split(is_break).collect(), known.split(is_break).collect());
    let mut differing = a.iter().zip(&b).filter(|(a, b)| a != b);
    let (Some((a_part, b_part)), None) = (differing.next(), differing.next()) else {
        return false;
    };
    let letters = |part: &str| part.replace(|c: char| c.is_ascii_digit(), "");
    let is_word = a_part.len().min(b_part.len()) > 2;
    a.len() == b.len() && is_word && letters(a_part) != letters(b_part) && distance(a_part, b_part, 1).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_by_line() {
        let text = "//! a: \"b\"\n  a, b?: vector [n];\n override c: raw \"c.bias\" [n] or \"d\";\n ignore \"e\", \"f\";\n name: \"x\";";
        assert_eq!(tensor_names(text), ["a", "b", "c.bias", "d", "e", "f"]);
    }

    #[test]
    fn typos_are_distinguished_from_new_names() {
        for (name, known) in [
            ("attn_nrom", "attn_norm"),
            ("ffn_gateinp", "ffn_gate_inp"),
            ("ffn_gate_exp", "ffn_gate_exps"),
        ] {
            assert!(is_slip(name, known), "{name}");
        }
        for (name, known) in [
            ("attn_q", "attn_k"),
            ("conv1d", "conv2d"),
            ("attn_q_norm", "attn_k_norm"),
            ("a_b", "a_b"),
            ("ffn_up", "ffn_gate"),
            ("ffn_up_chexps", "ffn_up_exps"),
        ] {
            assert!(!is_slip(name, known), "{name}");
        }
    }
}
