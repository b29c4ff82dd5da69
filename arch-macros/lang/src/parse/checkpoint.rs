//! Parses `checkpoint` sections.
//!
//! ```ebnf
//! checkpoint = "checkpoint" [ STRING { "," STRING } [ "like" STRING ] ] "{" { mapping } "}" ;     (* without classes: for all sections *)
//! mapping    = ( IDENT | STRING ) "=" EXPR { "or" EXPR } ";"        (* STRING: a key that no symbol reads *)
//!            | "check" EXPR "," STRING ";"
//!            | IDENT [ "." IDENT ] "<-" origin { "or" origin } ";"
//!            | "without" IDENT { "," IDENT } STRING ";"               (* the reason *)
//!            | "ignore" STRING { "," STRING } ";"
//!            | ( "layer" [ IDENT ] | "mtp" ) [ STRING ] "{" { mapping } "}" ;     (* STRING: prefix of names that begin with a dot *)
//! origin     = [ "stack" ] STRING { step } [ "and" origin ] ;       (* stack: the last {} counts matrices; and: more rows *)
//! step       = ( "split" | "every" ) INT "/" INT
//!            | "rows" EXPR ".." EXPR
//!            | ( "pairs" | "heads" | "tile" | "plus" | "times" ) EXPR
//!            | "merge" | "squeeze" | "exp" | "neg" | "transpose" ;
//! ```

use proc_macro2::{Span, TokenStream};
use syn::parse::{ParseStream, Parser};
use syn::{Expr, ExprRange, Ident, LitInt, LitStr, RangeLimits, Token, braced};

use super::{after_or, items, string};
use crate::ast::checkpoint::{CheckpointDecl, CheckpointItem, OriginDecl, SettingName, SourceDecl, StepDecl};
use crate::diag::{Errors, one_of};
use crate::words::{FRACTION_STEPS, MTP, NUMBER_STEPS, PLAIN_STEPS};

/// Parses a `checkpoint` section after its keyword.
pub fn checkpoint(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<CheckpointDecl> {
    let (mut classes, mut like) = (Vec::new(), None);
    if input.peek(LitStr) {
        classes.push(input.parse()?);
        while input.peek(Token![,]) {
            input.parse::<Token![,]>()?;
            classes.push(string(input, "another class, in quotes")?);
        }
        if input.peek(syn::Ident) && input.fork().parse::<Ident>()? == "like" {
            input.parse::<Ident>()?;
            like = Some(string(input, "the class of another section, in quotes")?);
        }
    }
    Ok(CheckpointDecl {
        span,
        classes,
        like,
        items: mappings(input, errors)?,
    })
}

/// Parses the items of a section without its keyword and braces.
pub fn mapping_items(tokens: TokenStream, errors: &mut Errors) -> syn::Result<Vec<CheckpointItem>> {
    let mut list = Vec::new();
    let parser = |input: ParseStream<'_>| {
        items(input, errors, |input, errors| mapping(input, errors, &mut list));
        Ok(())
    };
    parser.parse2(tokens)?;
    Ok(list)
}

fn mappings(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Vec<CheckpointItem>> {
    let content;
    braced!(content in input);
    let mut list = Vec::new();
    items(&content, errors, |input, errors| mapping(input, errors, &mut list));
    Ok(list)
}

fn mapping(input: ParseStream<'_>, errors: &mut Errors, list: &mut Vec<CheckpointItem>) -> syn::Result<()> {
    if input.peek(LitStr) {
        let name = SettingName::Key(input.parse()?);
        list.push(setting(name, input)?);
        return Ok(());
    }
    let name: Ident = input.parse()?;
    if input.peek(Token![=]) {
        list.push(setting(SettingName::Symbol(name), input)?);
    } else if input.peek(Token![<-]) || input.peek(Token![.]) {
        list.push(CheckpointItem::Source(source(name, input)?));
    } else if name == "check" {
        let cond = input.parse()?;
        input.parse::<Token![,]>()?;
        let text = input.parse()?;
        input.parse::<Token![;]>()?;
        list.push(CheckpointItem::Check { cond, text });
    } else if name == "without" {
        let mut names = vec![input.parse()?];
        while input.peek(Token![,]) {
            input.parse::<Token![,]>()?;
            names.push(input.parse()?);
        }
        let reason = string(input, "the reason, in quotes")?;
        input.parse::<Token![;]>()?;
        list.push(CheckpointItem::Without { names, reason });
    } else if name == "ignore" {
        let names = syn::punctuated::Punctuated::<LitStr, Token![,]>::parse_separated_nonempty(input)?;
        input.parse::<Token![;]>()?;
        list.push(CheckpointItem::Ignore(names.into_iter().collect()));
    } else if name == "layer" {
        let group = if input.peek(Ident) {
            input.parse::<Ident>()?.to_string()
        } else {
            "layer".to_owned()
        };
        if input.peek(LitStr) {
            let prefix = input.parse()?;
            list.push(CheckpointItem::Prefix { group, prefix });
        }
        list.extend(mappings(input, errors)?);
    } else if name == MTP {
        if input.peek(LitStr) {
            let (group, prefix) = (MTP.to_owned(), input.parse()?);
            list.push(CheckpointItem::Prefix { group, prefix });
        }
        let of_mtp = |item| match item {
            CheckpointItem::Source(source) => CheckpointItem::Source(SourceDecl { of_mtp: true, ..source }),
            other => other,
        };
        list.extend(mappings(input, errors)?.into_iter().map(of_mtp));
    } else {
        let message = format!("expected `=` for a setting or `<-` for a tensor after `{name}`");
        return Err(input.error(message));
    }
    Ok(())
}

fn setting(name: SettingName, input: ParseStream<'_>) -> syn::Result<CheckpointItem> {
    input.parse::<Token![=]>()?;
    let mut value = vec![input.parse()?];
    while let Some(next) = after_or(input, |input| input.parse())? {
        value.push(next);
    }
    input.parse::<Token![;]>()?;
    Ok(CheckpointItem::Setting { name, value })
}

fn source(target: Ident, input: ParseStream<'_>) -> syn::Result<SourceDecl> {
    let mut suffix = None;
    if input.peek(Token![.]) {
        input.parse::<Token![.]>()?;
        suffix = Some(input.parse()?);
    }
    input.parse::<Token![<-]>()?;
    let mut origins = vec![origin(input)?];
    while let Some(next) = after_or(input, origin)? {
        origins.push(next);
    }
    input.parse::<Token![;]>()?;
    Ok(SourceDecl {
        target,
        suffix,
        origins,
        of_mtp: false,
    })
}

fn origin(input: ParseStream<'_>) -> syn::Result<OriginDecl> {
    let mut stack = false;
    if input.peek(Ident) {
        let word: Ident = input.parse()?;
        if word != "stack" {
            return Err(syn::Error::new(
                word.span(),
                "expected `stack` or the name of a tensor, in quotes",
            ));
        }
        stack = true;
    }
    let name = string(input, "the name of a tensor of the checkpoint, in quotes")?;
    let mut steps = Vec::new();
    let mut and = None;
    while input.peek(Ident) {
        let word: Ident = input.fork().parse()?;
        if word == "or" {
            break;
        }
        if word == "and" {
            input.parse::<Ident>()?;
            and = Some(Box::new(origin(input)?));
            break;
        }
        steps.push(step(input)?);
    }
    Ok(OriginDecl {
        stack,
        name,
        steps,
        and,
    })
}

fn step(input: ParseStream<'_>) -> syn::Result<StepDecl> {
    let word: Ident = input.parse()?;
    let text = word.to_string();
    let mut args: Vec<Expr> = Vec::new();
    if FRACTION_STEPS.contains(&text.as_str()) {
        let part: LitInt = input.parse()?;
        input.parse::<Token![/]>()?;
        let parts: LitInt = input.parse()?;
        args.extend([syn::parse_quote!(#part), syn::parse_quote!(#parts)]);
    } else if text == "rows" {
        let range: Expr = input.parse()?;
        let Expr::Range(ExprRange {
            start: Some(start),
            end: Some(end),
            limits: RangeLimits::HalfOpen(_),
            ..
        }) = range
        else {
            return Err(syn::Error::new_spanned(range, "expected rows, as in `0..n_ff`"));
        };
        args.extend([*start, *end]);
    } else if NUMBER_STEPS.contains(&text.as_str()) {
        args.push(input.parse()?);
    } else if !PLAIN_STEPS.contains(&text.as_str()) {
        let words = FRACTION_STEPS
            .iter()
            .chain(&["rows"])
            .chain(&NUMBER_STEPS)
            .chain(&PLAIN_STEPS);
        let message = format!("expected {}, found `{text}`", one_of(words.copied()));
        return Err(syn::Error::new(word.span(), message));
    }
    Ok(StepDecl { word, args })
}
