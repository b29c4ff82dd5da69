//! Fragments: pieces of hyper-parameters, tensors and functions that unrelated declarations share, one file each.
//!
//! `use gated_ffn(width = n_ff_exp);` puts the fragment's tensors where it stands, its hyper-parameters before those of the
//! declaration, which may say the same names differently, and makes its functions known to the graph. Every token keeps its place in
//! the fragment's file; the file is parsed once per `use`, so that a place also tells which `use` it came by.
//!
//! ```ebnf
//! file      = { options | needs | "hparams" "{" { hparam } "}" | "tensors" "{" { tensor | group } "}" | function } ;
//! function  = "fn" IDENT "(" [ params ] ")" "{" { stmt | loop } EXPR "}" ;
//! params    = option { "," option } [ "," ".." ] | ".." ;               (* those with a default, or a `?`, behind the others *)
//! option    = IDENT [ "=" EXPR | "?" ] ;
//! options   = "options" "(" option { "," option } ")" ";" ;
//! needs     = "needs" "(" need { "," need } ")" ";" ;
//! need      = IDENT ":" ( scalar | use "[" dims "]" ) | IDENT "(" [ IDENT { "," IDENT } ] ")" ;
//! ```
//!
//! A fragment may use others, and then gives what they give; its own functions go before theirs. A tensor `override name: …` that stands
//! beside `use` takes the place of the fragment's tensor of this name, and so does one of a fragment beside the `use` of another.
//!
//! An option is replaced by its argument, or by what stands after `=`, wherever its name stands, except before a `=`, where a
//! name is that of an argument. `name?` may be left out, and then `…, key = name` or `or name` is left out as well.
//! An argument that computes a tensor is computed once, however often the function uses it.

use proc_macro2::Ident;
use syn::parse::{ParseStream, Parser};

use crate::ast::{Decl, Fragment, Function, HparamItem, Need, TensorItem, Use, Used, tensor_names};
use crate::diag::{Errors, did_you_mean};
use crate::library::{Library, Source};
use crate::merge::merge_hparams;
use crate::options::{Given, bind, substitute};
use crate::parse;
use crate::source::{Origin, Range};

/// Puts tensors in the place of every `use`, and adds the functions.
pub fn expand(decl: &mut Decl, library: &dyn Library, errors: &mut Errors) {
    let mut expander = Expander {
        library,
        errors,
        used: Vec::new(),
        needs: Vec::new(),
        hparams: Vec::new(),
        functions: Vec::new(),
        inside: Vec::new(),
    };
    expander.items(&mut decl.tensors);
    decl.needs.append(&mut expander.needs);
    decl.fragments.append(&mut expander.used);
    let (removals, own) = std::mem::take(&mut decl.hparams)
        .into_iter()
        .partition(|item| matches!(item, HparamItem::Without(_)));
    decl.hparams = removals;
    decl.given_hparams = not_own(&expander.hparams, &own);
    decl.hparams
        .extend(merge_hparams(expander.hparams, own, expander.errors));
    // Functions of the declaration itself go before those of the same name in a fragment.
    let added = expander.functions.into_iter().map(|(_, f)| f);
    let own: Vec<String> = decl.functions.iter().map(|f| f.name.to_string()).collect();
    decl.functions
        .extend(added.filter(|f| !own.iter().any(|n| f.name == n)));
}

/// Names of given hyper-parameters that are not the declaration's own.
fn not_own(given: &[HparamItem], own: &[HparamItem]) -> Vec<String> {
    let is_own = |name: &&Ident| own.iter().any(|item| item.name() == Some(name));
    let names = given.iter().filter_map(HparamItem::name).filter(|n| !is_own(n));
    names.map(Ident::to_string).collect()
}

struct Expander<'a> {
    library: &'a dyn Library,
    errors: &'a mut Errors,
    used: Vec<Used>,
    needs: Vec<Need>,
    hparams: Vec<HparamItem>,
    /// Each with the fragment that it comes from.
    functions: Vec<(String, Function)>,
    /// The fragments that are being put in, outermost first.
    inside: Vec<String>,
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
                TensorItem::Layer { items, .. } => self.items(items),
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

    /// A tensor that takes the place of a fragment's says `override`, and no other does.
    fn overrides(&mut self, placed: &[Placed]) {
        let given: Vec<&TensorItem> = placed.iter().filter(|p| p.given).map(|p| &p.item).collect();
        let given = tensor_names(given);
        for p in placed.iter().filter(|p| !p.given) {
            let TensorItem::Tensor(t) = &p.item else { continue };
            let name = &t.name;
            match (given.contains(&name), t.overrides) {
                (true, false) => {
                    let message = format!(
                        "`{name}` would take the place of a fragment's tensor: if that is meant, `override {name}: …`"
                    );
                    self.errors.at(name, message);
                }
                (false, true) => {
                    let names: Vec<String> = given.iter().map(ToString::to_string).collect();
                    let hint = did_you_mean(&name.to_string(), names.iter().map(String::as_str));
                    self.errors.at(
                        name,
                        format!("no fragment beside this line gives a tensor `{name}`{hint}"),
                    );
                }
                _ => {}
            }
        }
    }

    /// The tensors of one `use`; its hyper-parameters and functions are noted.
    fn fragment(&mut self, u: &Use) -> Option<Vec<TensorItem>> {
        let name = u.name.to_string();
        if self.inside.contains(&name) {
            let chain: Vec<_> = self.inside.iter().map(|n| format!("`{n}` uses ")).collect();
            self.errors.at(&u.name, format!("{}`{name}`: a circle", chain.concat()));
            return None;
        }
        let Some(source) = self.library.fragment(&name) else {
            let all = self.library.fragments();
            let hint = did_you_mean(&name, all.iter().map(String::as_str));
            self.errors.at(&u.name, format!("no fragment is called `{name}`{hint}"));
            return None;
        };
        let fragment = self.read(u, &source)?;
        let given = bind(&name, &fragment.options, &u.args, self.errors)?;
        match parse::needs(substitute(fragment.needs, &given), &u.name) {
            Ok(needs) => self.needs.extend(needs),
            Err(e) => self.errors.syntax(&e),
        }
        self.functions(u, fragment.functions, &given);
        self.used.push(Used {
            name: u.name.clone(),
            file: source.file,
        });
        let errors = &mut *self.errors;
        let parser = |input: ParseStream<'_>| {
            let (hparams, tensors) = (
                parse::hparam_items(input, errors)?,
                parse::tensor_items(input, false, errors)?,
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
                let known: Vec<_> = self.hparams.iter().filter_map(HparamItem::name).cloned().collect();
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

    /// The parts of a fragment's file.
    fn read(&mut self, u: &Use, source: &Source) -> Option<Fragment> {
        let by = Range::of(&u.name);
        let tokens = self
            .errors
            .sources
            .parse_other(&source.file, &source.text, Origin::Fragment, by);
        let read = tokens.map_err(syn::Error::from).and_then(|tokens| {
            let Some(tokens) = parse::macro_tokens(tokens, "fragment")? else {
                let message = format!("{} holds no `fragment! {{ … }}`", source.file);
                return Err(syn::Error::new(u.name.span(), message));
            };
            parse::fragment(tokens)
        });
        read.map_err(|e| self.errors.syntax(&e)).ok()
    }

    /// Notes the functions of one `use`, but for those that a fragment around it has itself.
    fn functions(&mut self, u: &Use, functions: Vec<Function>, given: &Given) {
        for mut f in functions {
            f.body = substitute(f.body, given);
            for option in &mut f.options {
                option.default = option.default.take().map(|d| substitute(d, given));
            }
            match self.functions.iter().find(|(_, known)| known.name == f.name) {
                Some((from, _)) if self.inside.contains(from) => {}
                Some((_, known)) if known.body.to_string() != f.body.to_string() => {
                    let message = format!(
                        "`{}` is used twice with different arguments: `{}` would be two",
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

/// An item of a block, or one that a `use` in it gave.
struct Placed {
    item: TensorItem,
    given: bool,
}

/// The items, where a tensor of the block's own stands in the place of a given one of its name.
fn replace_given(items: Vec<Placed>) -> Vec<TensorItem> {
    let given: Vec<&TensorItem> = items.iter().filter(|p| p.given).map(|p| &p.item).collect();
    let given: Vec<String> = tensor_names(given).iter().map(ToString::to_string).collect();
    // A name that the block says twice replaces once; the checker refuses the second.
    let mut own: Vec<TensorItem> = Vec::new();
    let mut rest = Vec::new();
    for placed in items {
        match placed.item.name() {
            Some(name)
                if !placed.given && given.iter().any(|n| name == n) && !own.iter().any(|o| o.name() == Some(name)) =>
            {
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

/// Where a tensor stands in an item.
fn place_of<'a>(item: &'a mut TensorItem, name: &Ident) -> Option<&'a mut TensorItem> {
    if let TensorItem::If { then, otherwise, .. } = item {
        return then.iter_mut().chain(otherwise).find_map(|i| place_of(i, name));
    }
    (item.name() == Some(name)).then_some(item)
}
