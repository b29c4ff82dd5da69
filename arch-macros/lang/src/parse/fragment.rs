//! Parses the sections of a fragment's file, and functions.

use proc_macro2::{Group, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::Parse;
use syn::parse::{ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::{Expr, Ident, Token, braced, bracketed, parenthesized, token};

use super::dims;
use crate::ast::{Fragment, Function, Need, Needed, Opt, Parameter};
use crate::diag::one_of;
use crate::words::FRAGMENT_PARTS;

/// Parses the sections of `fragment! { … }`.
pub fn fragment(tokens: TokenStream) -> syn::Result<Fragment> {
    let parser = |input: ParseStream<'_>| {
        let mut fragment = Fragment {
            hparams: quote::quote!({}),
            tensors: quote::quote!({}),
            ..Fragment::default()
        };
        while !input.is_empty() {
            part(input, &mut fragment)?;
        }
        Ok(fragment)
    };
    parser.parse2(tokens)
}

fn part(input: ParseStream<'_>, fragment: &mut Fragment) -> syn::Result<()> {
    if input.peek(Token![fn]) {
        let function = function(input)?;
        fragment.functions.push(Function {
            inherited: true,
            ..function
        });
        return Ok(());
    }
    let word = input.call(Ident::parse_any)?;
    match word.to_string().as_str() {
        "options" => {
            let content;
            parenthesized!(content in input);
            let Parameters { required, options, .. } = parameters(&content)?;
            if let Some(shape) = required.iter().find_map(|p| p.shape.as_ref()) {
                return Err(syn::Error::new_spanned(shape, "an option has no shape"));
            }
            let required = required.into_iter().map(|p| Opt {
                name: p.name,
                default: None,
            });
            fragment.options = required.chain(options).collect();
            input.parse::<Token![;]>()?;
        }
        "needs" => {
            let content;
            parenthesized!(content in input);
            fragment.needs = content.parse()?;
            input.parse::<Token![;]>()?;
        }
        "hparams" => fragment.hparams = input.parse::<Group>()?.to_token_stream(),
        "checkpoint" => fragment.checkpoint = input.parse::<Group>()?.stream(),
        "tensors" => fragment.tensors = input.parse::<Group>()?.to_token_stream(),
        other => {
            let message = format!("expected {}, found `{other}`", one_of(FRAGMENT_PARTS));
            return Err(syn::Error::new(word.span(), message));
        }
    }
    Ok(())
}

/// Parses the requirements of the fragment `by`: `eps: f32, router: linear [n_embd -> n_expert],
/// limited_glu(gate, up)`.
pub fn needs(tokens: TokenStream, by: &Ident) -> syn::Result<Vec<Need>> {
    let parser = |input: ParseStream<'_>| {
        let mut list = Vec::new();
        while !input.is_empty() {
            let (by, name) = (by.clone(), input.parse()?);
            let what = needed(input)?;
            list.push(Need { by, name, what });
            if !input.is_empty() {
                input.parse::<Token![,]>()?;
            }
        }
        Ok(list)
    };
    parser.parse2(tokens)
}

/// Parses a requirement after its name.
fn needed(input: ParseStream<'_>) -> syn::Result<Needed> {
    if input.peek(token::Paren) {
        let content;
        parenthesized!(content in input);
        let params = content.parse_terminated(Ident::parse, Token![,])?;
        return Ok(Needed::Function(params.into_iter().collect()));
    }
    input.parse::<Token![:]>()?;
    let kind = input.parse()?;
    Ok(if input.peek(token::Bracket) {
        Needed::Tensor(kind, Box::new(dims(input)?))
    } else {
        Needed::Hparam(kind)
    })
}

/// Parses `fn name(x: [n_embd, T], width = n_ff, scale?, ..) { … }`.
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

/// Parenthesized parameters of a function or of `options`.
#[derive(Default)]
struct Parameters {
    /// Parameters without a default.
    required: Vec<Parameter>,
    options: Vec<Opt>,
    /// True if the list ends with `..`.
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
            let shape = shape(input)?;
            required.push(Parameter { name, shape });
        } else {
            let message =
                format!("required parameter `{name}` after an optional one; add a default, or move it to the front");
            return Err(syn::Error::new(name.span(), message));
        }
        if !input.is_empty() {
            input.parse::<Token![,]>()?;
        }
    }
    Ok(all)
}

/// Parses `: [n_embd, T]` after a parameter, if present.
fn shape(input: ParseStream<'_>) -> syn::Result<Option<TokenStream>> {
    if !input.peek(Token![:]) {
        return Ok(None);
    }
    input.parse::<Token![:]>()?;
    let content;
    let bracket = bracketed!(content in input);
    let tokens: TokenStream = content.parse()?;
    let sizes = sizes(tokens.clone())?;
    match sizes.len() {
        1..=4 => Ok(Some(tokens)),
        n => {
            let message = format!("a shape has one to four sizes, found {n}");
            Err(syn::Error::new(bracket.span.join(), message))
        }
    }
}

/// Parses the sizes of a parameter's shape.
pub fn sizes(tokens: TokenStream) -> syn::Result<Vec<Expr>> {
    let sizes = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(tokens)?;
    Ok(sizes.into_iter().collect())
}
