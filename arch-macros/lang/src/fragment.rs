//! Fragments: reusable hyperparameters, tensors, and functions, one file each.
//!
//! `use gated_ffn(width = n_ff_exp);` inserts the fragment's tensors at that position. Its hyperparameters
//! are inserted before those of the declaration, which may redefine them. Its functions become available to
//! the graph. Every token keeps its span in the fragment's file. The file is parsed once per `use`, so a span
//! also identifies the `use`.
//!
//! ```ebnf
//! file      = { options | needs | "hparams" "{" { hparam } "}" | "tensors" "{" { tensor | group | layers } "}"
//!           | "checkpoint" "{" { mapping } "}" | function } ;
//! function  = "fn" IDENT "(" [ params ] ")" "{" { stmt | loop } EXPR "}" ;
//! params    = param { "," param } [ "," ".." ] | ".." ;                 (* optional parameters follow required ones *)
//! param     = IDENT ":" "[" extent { "," extent } "]" | option ;
//! extent    = "_" | EXPR ;                                              (* `_`: any size *)
//! option    = IDENT [ "=" EXPR | "?" ] ;
//! options   = "options" "(" option { "," option } ")" ";" ;
//! needs     = "needs" "(" need { "," need } ")" ";" ;
//! need      = IDENT ":" ( scalar | use "[" dims "]" ) | IDENT "(" [ IDENT { "," IDENT } ] ")" ;
//! ```
//!
//! A fragment can use other fragments, and then also provides their items. Its own functions take precedence. A tensor
//! `override name: …` next to a `use` replaces the fragment's tensor of that name.
//!
//! An option is replaced by its argument or default wherever its name occurs, except before `=`, where a name
//! denotes an argument. If `name?` is omitted, `…, key = name` and `or name` are omitted as well. An argument
//! that computes a tensor is evaluated once, even if the function uses it several times.

use std::collections::HashSet;

use proc_macro2::Ident;
use syn::parse::{ParseStream, Parser};

use crate::ast::checkpoint::CheckpointItem;
use crate::ast::{Decl, Fragment, Function, HparamItem, Need, TensorItem, Use, Used, tensor_names};
use crate::diag::Errors;
use crate::library::{Library, Source};
use crate::limits::{MAX_NESTING, MAX_TOKENS, n_substituted};
use crate::merge::merge_hparams;
use crate::names;
use crate::options::{Bindings, bind, substitute};
use crate::parse;
use crate::source::{Origin, Range};

/// Replaces every `use` by the fragment's tensors and adds its functions.
pub fn expand(decl: &mut Decl, library: &dyn Library, errors: &mut Errors) {
    let mut expander = Expander {
        library,
        errors,
        used: Vec::new(),
        needs: Vec::new(),
        hparams: Vec::new(),
        mappings: Vec::new(),
        functions: Vec::new(),
        inside: Vec::new(),
        in_layer: false,
        n_tokens: 0,
    };
    expander.items(&mut decl.tensors);
    decl.needs.append(&mut expander.needs);
    decl.fragments.append(&mut expander.used);
    let (of_all, own): (Vec<_>, Vec<_>) = std::mem::take(&mut decl.checkpoints)
        .into_iter()
        .partition(|section| section.classes.is_empty());
    decl.checkpoints = own;
    decl.given_mappings
        .extend(of_all.into_iter().flat_map(|section| section.items));
    decl.given_mappings.append(&mut expander.mappings);
    let (removals, own) = std::mem::take(&mut decl.hparams)
        .into_iter()
        .partition(|item| matches!(item, HparamItem::Without(_) | HparamItem::WithoutCheck(_)));
    decl.hparams = removals;
    decl.given_hparams = not_own(&expander.hparams, &own);
    decl.hparams
        .extend(merge_hparams(expander.hparams, own, expander.errors));
    // Functions of the declaration take precedence over functions of fragments.
    let added = expander.functions.into_iter().map(|(_, f)| f);
    let own = names::set(decl.functions.iter().map(|f| &f.name));
    decl.functions.extend(added.filter(|f| !own.contains(&f.name)));
}

/// Returns the names of inherited hyperparameters that the declaration does not define.
fn not_own(given: &[HparamItem], own: &[HparamItem]) -> Vec<String> {
    let own = names::set(own.iter().filter_map(HparamItem::name));
    let is_own = |name: &&Ident| own.contains(*name);
    let names = given.iter().filter_map(HparamItem::name).filter(|n| !is_own(n));
    names.map(Ident::to_string).collect()
}

struct Expander<'a> {
    library: &'a dyn Library,
    errors: &'a mut Errors,
    used: Vec<Used>,
    needs: Vec<Need>,
    hparams: Vec<HparamItem>,
    /// Items for `checkpoint` sections. Those of a fragment precede those of the fragments that it uses.
    mappings: Vec<CheckpointItem>,
    /// Functions with the fragment that defines them.
    functions: Vec<(String, Function)>,
    /// Fragments being expanded, outermost first.
    inside: Vec<String>,
    /// True inside a `layer` block, which contains no other one.
    in_layer: bool,
    /// Number of tokens of all fragments.
    n_tokens: usize,
}

impl Expander<'_> {
    fn items(&mut self, items: &mut Vec<TensorItem>) {
        let mut placed: Vec<Placed> = Vec::new();
        for mut item in std::mem::take(items) {
            match &mut item {
                TensorItem::Use(u) => {
                    let given = self.fragment(u).unwrap_or_default();
                    placed.extend(given.into_iter().map(|item| Placed { item, given: true }));
                    continue;
                }
                TensorItem::Layer { items, .. } => {
                    let outside = std::mem::replace(&mut self.in_layer, true);
                    self.items(items);
                    self.in_layer = outside;
                }
                TensorItem::If { then, otherwise, .. } => {
                    self.items(then);
                    self.items(otherwise);
                }
                _ => {}
            }
            placed.push(Placed { item, given: false });
        }
        self.overrides(&placed);
        *items = replace_given(placed);
    }

    /// Checks that a tensor is marked `override` exactly if it replaces a fragment's tensor.
    fn overrides(&mut self, placed: &[Placed]) {
        let given: Vec<&TensorItem> = placed.iter().filter(|p| p.given).map(|p| &p.item).collect();
        let given = names::set(tensor_names(given));
        for p in placed.iter().filter(|p| !p.given) {
            let TensorItem::Tensor(t) = &p.item else { continue };
            let name = &t.name;
            match (given.contains(name), t.overrides) {
                (true, false) => {
                    let message = format!(
                        "`{name}` replaces a tensor of a fragment; write `override {name}: …` if this is intended"
                    );
                    self.errors.at(name, message);
                }
                (false, true) => {
                    let names = || given.iter().map(ToString::to_string).collect();
                    let hint = self.errors.hint(&name.to_string(), names);
                    self.errors.at(
                        name,
                        format!("no fragment in this block declares a tensor `{name}`{hint}"),
                    );
                }
                _ => {}
            }
        }
    }

    /// Returns the tensors of one `use` and records its hyperparameters and functions.
    fn fragment(&mut self, u: &Use) -> Option<Vec<TensorItem>> {
        let name = u.name.to_string();
        if self.inside.contains(&name) {
            let chain: Vec<_> = self.inside.iter().map(|n| format!("`{n}` uses ")).collect();
            self.errors
                .at(&u.name, format!("cyclic use of fragments: {}`{name}`", chain.concat()));
            return None;
        }
        let Some(source) = self.library.fragment(&name) else {
            let hint = self.errors.hint(&name, || self.library.fragments());
            self.errors.at(&u.name, format!("no fragment named `{name}`{hint}"));
            return None;
        };
        let fragment = self.read(u, &source)?;
        let given = bind(&name, &fragment.options, &u.args, self.errors)?;
        self.admit(u, &fragment, &given)?;
        match parse::needs(substitute(fragment.needs, &given), &u.name) {
            Ok(needs) => self.needs.extend(needs),
            Err(e) => self.errors.syntax(&e),
        }
        self.functions(u, fragment.functions, &given);
        match parse::mapping_items(substitute(fragment.checkpoint, &given), self.errors) {
            Ok(items) => self.mappings.extend(items),
            Err(e) => self.errors.syntax(&e),
        }
        self.used.push(Used {
            name: u.name.clone(),
            file: source.file,
        });
        let (errors, top) = (&mut *self.errors, !self.in_layer);
        let parser = |input: ParseStream<'_>| {
            let (hparams, tensors) = (
                parse::hparam_items(input, errors)?,
                parse::tensor_items(input, top, errors)?,
            );
            Ok((hparams, tensors))
        };
        let (hparams, tensors) = (fragment.hparams, fragment.tensors);
        match parser.parse2(substitute(quote::quote!(#hparams #tensors), &given)) {
            Ok((hparams, mut tensors)) => {
                let outside = std::mem::take(&mut self.hparams);
                self.inside.push(name);
                self.items(&mut tensors);
                self.inside.pop();
                let used = std::mem::replace(&mut self.hparams, outside);
                let known = names::set(self.hparams.iter().filter_map(HparamItem::name));
                let new = |item: &HparamItem| item.name().is_none_or(|n| !known.contains(n));
                let hparams = merge_hparams(used, hparams, self.errors);
                self.hparams.extend(hparams.into_iter().filter(new));
                Some(tensors)
            }
            Err(e) => {
                self.errors.syntax(&e);
                None
            }
        }
    }

    /// Counts the tokens of a fragment, so that fragments of fragments cannot grow without a bound.
    fn admit(&mut self, u: &Use, fragment: &Fragment, given: &Bindings) -> Option<()> {
        let functions = fragment.functions.iter().map(|f| &f.body);
        let sections = [
            &fragment.needs,
            &fragment.hparams,
            &fragment.tensors,
            &fragment.checkpoint,
        ];
        for body in sections.into_iter().chain(functions) {
            let n = n_substituted(body, given).unwrap_or(usize::MAX);
            self.n_tokens = self.n_tokens.saturating_add(n);
        }
        let problem = if self.inside.len() >= MAX_NESTING {
            "fragments are nested too deeply".to_owned()
        } else if self.n_tokens > MAX_TOKENS {
            format!("the fragments expand to more than {MAX_TOKENS} tokens")
        } else {
            return Some(());
        };
        self.errors.at(&u.name, problem);
        None
    }

    /// Parses a fragment's file into its sections.
    fn read(&mut self, u: &Use, source: &Source) -> Option<Fragment> {
        let by = Range::of(&u.name);
        let tokens = self
            .errors
            .sources
            .parse_other(&source.file, &source.text, Origin::Fragment, by);
        let read = tokens.and_then(|tokens| {
            let Some(tokens) = parse::macro_tokens(tokens, "fragment")? else {
                let message = format!("{} contains no `fragment! {{ … }}`", source.file);
                return Err(syn::Error::new(u.name.span(), message));
            };
            parse::fragment(tokens)
        });
        read.map_err(|e| self.errors.syntax(&e)).ok()
    }

    /// Records the functions of one `use`, except those that an enclosing fragment defines.
    fn functions(&mut self, u: &Use, functions: Vec<Function>, given: &Bindings) {
        for mut f in functions {
            f.body = substitute(f.body, given);
            for param in &mut f.params {
                param.shape = param.shape.take().map(|shape| substitute(shape, given));
            }
            for option in &mut f.options {
                option.default = option.default.take().map(|d| substitute(d, given));
            }
            match self.functions.iter().find(|(_, known)| known.name == f.name) {
                Some((from, _)) if self.inside.contains(from) => {}
                Some((_, known)) if known.body.to_string() != f.body.to_string() => {
                    let message = format!(
                        "`{}` is used twice with different arguments, which defines `{}` twice",
                        u.name, f.name
                    );
                    self.errors.at(&u.name, message);
                }
                Some(_) => {}
                None => self.functions.push((u.name.to_string(), f)),
            }
        }
    }
}

/// An item of a block; `given` if a `use` in the block inserted it.
struct Placed {
    item: TensorItem,
    given: bool,
}

/// Replaces inserted tensors by the block's own tensors of the same name.
fn replace_given(items: Vec<Placed>) -> Vec<TensorItem> {
    let given: Vec<&TensorItem> = items.iter().filter(|p| p.given).map(|p| &p.item).collect();
    let given = names::set(tensor_names(given));
    // A name declared twice in the block replaces only once; the checker reports the second.
    let mut own: Vec<TensorItem> = Vec::new();
    let mut replaced = HashSet::new();
    let mut rest = Vec::new();
    for placed in items {
        match placed.item.name() {
            Some(name) if !placed.given && given.contains(name) && replaced.insert(name.clone()) => {
                own.push(placed.item);
            }
            _ => rest.push(placed),
        }
    }
    for tensor in own {
        let mut among_given = rest.iter_mut().filter(|p| p.given);
        if let Some(place) = among_given.find_map(|p| place_of(&mut p.item, tensor.name()?)) {
            *place = tensor;
        }
    }
    rest.into_iter().map(|p| p.item).collect()
}

/// Returns the position of a tensor within an item.
fn place_of<'a>(item: &'a mut TensorItem, name: &Ident) -> Option<&'a mut TensorItem> {
    if let TensorItem::If { then, otherwise, .. } = item {
        return then.iter_mut().chain(otherwise).find_map(|i| place_of(i, name));
    }
    (item.name() == Some(name)).then_some(item)
}
