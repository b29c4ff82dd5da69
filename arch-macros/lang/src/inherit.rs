//! Inheritance between declarations: `like: "…";`.
//!
//! The result is a single syntax tree, as if the author had written out every section, and is checked like
//! any other. Tokens of the parent keep their spans. An error in them is reported at the string after `like:`
//! in the child.

use syn::LitStr;

use crate::ast::Decl;
use crate::diag::{Errors, did_you_mean};
use crate::fragment;
use crate::library::{Library, Source};
use crate::limits::MAX_NESTING;
use crate::merge::{merge, removed_checks, removed_hparams, removed_tensors};
use crate::model::Ancestor;
use crate::parse;
use crate::source::{Origin, Range};

/// Merges a declaration with all its ancestors. Returns the ancestors, nearest first, or `None` if there were
/// errors.
pub fn resolve(child: Decl, library: &dyn Library, errors: &mut Errors) -> Option<(Decl, Vec<Ancestor>)> {
    let mut names: Vec<String> = child.name.iter().map(LitStr::value).collect();
    resolve_from(child, library, &mut names, errors)
}

/// Resolves a declaration. `names` lists the architectures from the first child to this one, inclusive.
fn resolve_from(
    mut child: Decl,
    library: &dyn Library,
    names: &mut Vec<String>,
    errors: &mut Errors,
) -> Option<(Decl, Vec<Ancestor>)> {
    let before = errors.len();
    fragment::expand(&mut child, library, errors);
    let Some(like) = child.like.clone() else {
        nothing_inherited(&child, errors);
        return (errors.len() == before).then_some((child, Vec::new()));
    };
    let name = like.value();
    if names.contains(&name) {
        let chain: Vec<_> = names.iter().map(|n| format!("`{n}` is like ")).collect();
        errors.at(&like, format!("cyclic inheritance: {}`{name}`", chain.concat()));
        return None;
    }
    if names.len() >= MAX_NESTING {
        errors.at(&like, "declarations inherit from each other too deeply");
        return None;
    }
    let Some(source) = library.find(&name) else {
        let all = library.names();
        let hint = did_you_mean(&name, all.iter().map(String::as_str));
        errors.at(&like, format!("no architecture named `{name}`{hint}"));
        return None;
    };
    let same = library.ambiguous(&name);
    if !same.is_empty() {
        let files: Vec<String> = same.iter().map(|file| format!("`{file}`")).collect();
        let message = format!(
            "the name `{name}` is declared in {}; rename all but one of them",
            files.join(" and ")
        );
        errors.at(&like, message);
        return None;
    }
    names.push(name.clone());
    let (parent, mut ancestors) = parent(&like, &source, library, names, errors)?;
    let file = source.file;
    ancestors.insert(0, Ancestor { name, file });
    let merged = merge(parent, child, errors);
    (errors.len() == before).then_some((merged, ancestors))
}

/// Parses and resolves a parent. Returns `None` if there were errors.
fn parent(
    like: &LitStr,
    source: &Source,
    library: &dyn Library,
    names: &mut Vec<String>,
    errors: &mut Errors,
) -> Option<(Decl, Vec<Ancestor>)> {
    let origin = Origin::Parent(like.value());
    let tokens = errors
        .sources
        .parse_other(&source.file, &source.text, origin, Range::of(like));
    let (parser, tokens) = match tokens.and_then(parse::declaration) {
        Ok(Some(found)) => found,
        Ok(None) => {
            let message = format!("{} contains no `arch! {{ … }}` or `parent! {{ … }}`", source.file);
            errors.at(like, message);
            return None;
        }
        Err(e) => {
            errors.syntax(&e);
            return None;
        }
    };
    let before = errors.len();
    let decl = parser(tokens, errors);
    if errors.len() > before {
        return None;
    }
    resolve_from(decl, library, names, errors)
}

/// Reports `without` in a declaration that inherits nothing.
fn nothing_inherited(decl: &Decl, errors: &mut Errors) {
    let mut names = removed_hparams(&decl.hparams);
    names.extend(removed_tensors(&decl.tensors));
    for text in removed_checks(&decl.hparams) {
        errors.at(
            text,
            "`without check` has no effect: the declaration inherits nothing; add `like: \"…\";`",
        );
    }
    for name in names {
        errors.at(
            name,
            format!("`without {name}` has no effect: the declaration inherits nothing; add `like: \"…\";`"),
        );
    }
}
