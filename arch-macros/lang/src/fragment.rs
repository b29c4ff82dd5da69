//! Fragments: pieces of hyper-parameters, tensors and functions that unrelated declarations share, one file each.
//!
//! `use gated_ffn(width = n_ff_exp);` puts the fragment's tensors where it stands, its hyper-parameters before those of the
//! declaration, which may say the same names differently, and makes its functions known to the graph. What comes from the fragment
//! carries the span of its name behind `use`; arguments keep their own.
//!
//! ```ebnf
//! fragment  = { options | "hparams" "{" { hparam } "}" | "tensors" "{" { tensor | group } "}" | function } ;
//! function  = "fn" IDENT "(" [ IDENT { "," IDENT } ] { "," option } [ "," ".." ] ")" "{" { stmt } EXPR "}" ;
//! options   = "options" "(" option { "," option } ")" ";" ;
//! option    = IDENT "=" EXPR | IDENT "?" ;
//! ```
//!
//! A fragment may use others, and then gives what they give; its own functions go before theirs. A tensor that stands beside `use`
//! under the name of one of the fragment's takes that one's place, and so does one of a fragment beside the `use` of another.
//!
//! An option is replaced by its argument, or by what stands after `=`, wherever its name stands, except before a `=`, where a
//! name is that of an argument. `name?` may be left out, and then `…, key = name` or `or name` is left out as well.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Token, braced, parenthesized};

use crate::ast::{Decl, Function, HparamItem, Opt, TensorItem, Use};
use crate::diag::{Errors, did_you_mean};
use crate::inherit::{merge_hparams, tensor_name, tensor_names};
use crate::library::Library;
use crate::parse;

/// A fragment's file, parsed as far as its parts.
#[derive(Default)]
struct Fragment {
    options: Vec<Opt>,
    /// With its braces.
    hparams: TokenStream,
    /// With its braces.
    tensors: TokenStream,
    functions: Vec<Function>,
}

/// A fragment that a declaration uses.
#[derive(Clone)]
pub struct Used {
    /// Its name, where it is used.
    pub name: Ident,
    /// Its file, relative to the manifest of the crate.
    pub file: String,
}

/// Puts tensors in the place of every `use`, and adds the functions.
pub fn expand(decl: &mut Decl, library: &dyn Library, errors: &mut Errors) {
    let mut expander = Expander {
        library,
        errors,
        used: Vec::new(),
        hparams: Vec::new(),
        functions: Vec::new(),
        inside: Vec::new(),
    };
    expander.items(&mut decl.tensors);
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
        *items = replace_given(placed);
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
        let fragment = match read(&source.text, u.name.span()) {
            Ok(fragment) => fragment,
            Err(e) => {
                let message = format!("the fragment `{name}` ({}) has a fault of its own: {e}", source.file);
                self.errors.at(&u.name, message);
                return None;
            }
        };
        let given = bind(&name, &fragment.options, &u.args, self.errors)?;
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
        match tensor_name(&placed.item) {
            Some(name)
                if !placed.given
                    && given.iter().any(|n| name == n)
                    && !own.iter().any(|o| tensor_name(o) == Some(name)) =>
            {
                own.push(placed.item);
            }
            _ => rest.push(placed),
        }
    }
    for tensor in own {
        let mut among_given = rest.iter_mut().filter(|p| p.given);
        if let Some(place) = among_given.find_map(|p| place_of(&mut p.item, tensor_name(&tensor)?)) {
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
    (tensor_name(item) == Some(name)).then_some(item)
}

/// The parts of a fragment's file, all tokens at one place.
fn read(text: &str, at: Span) -> syn::Result<Fragment> {
    let file = syn::parse_file(text)?;
    let tokens = file.items.into_iter().find_map(|item| match item {
        syn::Item::Macro(m) if m.mac.path.segments.last().is_some_and(|s| s.ident == "fragment") => Some(m.mac.tokens),
        _ => None,
    });
    let tokens = tokens.ok_or_else(|| syn::Error::new(at, "the file holds no `fragment!`"))?;
    let parser = |input: ParseStream<'_>| {
        let mut fragment = Fragment {
            hparams: quote::quote!({}),
            tensors: quote::quote!({}),
            ..Fragment::default()
        };
        while !input.is_empty() {
            if input.peek(Token![fn]) {
                fragment.functions.push(function(input)?);
                continue;
            }
            let word = input.call(Ident::parse_any)?;
            match word.to_string().as_str() {
                "options" => {
                    let content;
                    parenthesized!(content in input);
                    let Parameters { required, options, .. } = parameters(&content)?;
                    let required = required.into_iter().map(|name| Opt { name, default: None });
                    fragment.options = required.chain(options).collect();
                    input.parse::<Token![;]>()?;
                }
                "hparams" => fragment.hparams = input.parse::<Group>()?.to_token_stream(),
                "tensors" => fragment.tensors = input.parse::<Group>()?.to_token_stream(),
                other => {
                    let message = format!("expected `options`, `hparams`, `tensors` or `fn`, found `{other}`");
                    return Err(syn::Error::new(word.span(), message));
                }
            }
        }
        for f in &mut fragment.functions {
            f.inherited = true;
        }
        Ok(fragment)
    };
    parser.parse2(placed_at(tokens, at))
}

/// `fn name(x, width = n_ff, scale?, ..) { … }`
pub fn function(input: ParseStream<'_>) -> syn::Result<Function> {
    input.parse::<Token![fn]>()?;
    let name = input.parse()?;
    let content;
    parenthesized!(content in input);
    let parameters = parameters(&content)?;
    let content;
    braced!(content in input);
    Ok(Function {
        name,
        params: parameters.required,
        options: parameters.options,
        forwards: parameters.forwards,
        body: content.parse()?,
        inherited: false,
    })
}

/// What stands in the parentheses of a function or of `options`.
#[derive(Default)]
struct Parameters {
    /// Names without a default.
    required: Vec<Ident>,
    options: Vec<Opt>,
    /// `..` at the end.
    forwards: bool,
}

fn parameters(input: ParseStream<'_>) -> syn::Result<Parameters> {
    let mut all = Parameters::default();
    let Parameters { required, options, .. } = &mut all;
    while !input.is_empty() {
        if input.peek(Token![..]) {
            input.parse::<Token![..]>()?;
            all.forwards = true;
            break;
        }
        let name: Ident = input.parse()?;
        if input.peek(Token![?]) {
            input.parse::<Token![?]>()?;
            options.push(Opt { name, default: None });
        } else if input.peek(Token![=]) {
            input.parse::<Token![=]>()?;
            let default = Some(input.parse::<Expr>()?.to_token_stream());
            options.push(Opt { name, default });
        } else if options.is_empty() {
            required.push(name);
        } else {
            let message = format!("`{name}` stands behind options: give it a default, or move it to the front");
            return Err(syn::Error::new(name.span(), message));
        }
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(all)
}

/// What stands for each option; `None` for one that is left out.
pub type Given = Vec<(String, Option<TokenStream>)>;

/// Arguments by name, put in for the options of `callee`.
pub fn bind(callee: &str, options: &[Opt], args: &[(Ident, TokenStream)], errors: &mut Errors) -> Option<Given> {
    let before = errors.len();
    for (i, (key, _)) in args.iter().enumerate() {
        if args[..i].iter().any(|(k, _)| k == key) {
            errors.at(key, format!("`{key}` is given twice"));
        } else if !options.iter().any(|o| o.name == *key) {
            let names: Vec<String> = options.iter().map(|o| o.name.to_string()).collect();
            let hint = did_you_mean(&key.to_string(), names.iter().map(String::as_str));
            let list = if names.is_empty() {
                "none".to_string()
            } else {
                names.join(", ")
            };
            errors.at(key, format!("`{callee}` has no option `{key}` (it has: {list}){hint}"));
        }
    }
    let value = |o: &Opt| {
        let given = args.iter().find(|(key, _)| *key == o.name).map(|(_, v)| v.clone());
        (o.name.to_string(), given.or_else(|| o.default.clone()))
    };
    (errors.len() == before).then(|| options.iter().map(value).collect())
}

/// The tokens with arguments in the place of options.
pub fn substitute(tokens: TokenStream, given: &Given) -> TokenStream {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let is = |i: usize, c: char| matches!(tokens.get(i), Some(TokenTree::Punct(p)) if p.as_char() == c);
    // `name: type = …` has no key.
    let is_key = |i: usize| is(i + 1, '=') && !is(i + 2, '=') && !(i > 0 && is(i - 1, ':'));
    let mut out: Vec<TokenTree> = Vec::new();
    let mut i = 0;
    while i < tokens.len() {
        match &tokens[i] {
            TokenTree::Group(g) => {
                let mut group = Group::new(g.delimiter(), substitute(g.stream(), given));
                group.set_span(g.span());
                out.push(TokenTree::Group(group));
            }
            TokenTree::Ident(name) if !is_key(i) => match given.iter().find(|(n, _)| name == n) {
                Some((_, Some(value))) => out.extend(operand(value.clone(), name.span())),
                // `or name` and `, key = name` go as a whole; a name that stands elsewhere stays, and is unknown to the checker.
                Some((_, None)) if matches!(out.last(), Some(TokenTree::Ident(word)) if word == "or") => {
                    out.pop();
                }
                Some((_, None)) if matches!(&out[..], [.., TokenTree::Ident(_), TokenTree::Punct(p)] if p.as_char() == '=') =>
                {
                    out.truncate(out.len() - 2);
                    if matches!(out.last(), Some(TokenTree::Punct(p)) if p.as_char() == ',') {
                        out.pop();
                    } else if is(i + 1, ',') {
                        i += 1;
                    }
                }
                _ => out.push(tokens[i].clone()),
            },
            other => out.push(other.clone()),
        }
        i += 1;
    }
    out.into_iter().collect()
}

/// An argument as one operand: in parentheses unless it is a single token or a call.
fn operand(value: TokenStream, span: Span) -> TokenStream {
    let plain = match syn::parse2::<Expr>(value.clone()) {
        Ok(e) => matches!(e, Expr::Path(_) | Expr::Lit(_) | Expr::Call(_) | Expr::Paren(_)),
        Err(_) => true,
    };
    if plain {
        return value;
    }
    let mut group = Group::new(Delimiter::Parenthesis, value);
    group.set_span(span);
    TokenTree::Group(group).into()
}

/// The same tokens, all at one place.
pub fn placed_at(tokens: TokenStream, span: Span) -> TokenStream {
    let place = |token| match token {
        TokenTree::Group(g) => {
            let mut group = Group::new(g.delimiter(), placed_at(g.stream(), span));
            group.set_span(span);
            TokenTree::Group(group)
        }
        mut other => {
            other.set_span(span);
            other
        }
    };
    tokens.into_iter().map(place).collect()
}
