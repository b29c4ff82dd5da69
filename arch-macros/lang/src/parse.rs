//! Parser: tokens to syntax tree. After an error in an item, parsing continues with the next item.
//!
//! The grammar, with `IDENT`, `STRING`, `INT`, `FLOAT`, and `EXPR` as in Rust:
//!
//! ```ebnf
//! arch      = { section } ;                                          (* a `parent!` has the same sections *)
//! section   = "name" ":" STRING ";"
//!           | "like" ":" STRING ";"                                (* parent: provides all sections not given here *)
//!           | "rope" ":" kind [ "or" kind ] ";"                      (* "or": for files with sections; not for "none" *)
//!           | "attention" ":" ( "causal" | "bidirectional" ) ";"    (* default: causal *)
//!           | "result" ":" ( "logits" | "embeddings" ) ";"          (* embeddings: without the output projection *)
//!           | "models" "{" { STRING ":" EXPR ";" } "}"              (* conditions of `model_is(STRING)` *)
//!           | "hparams" "{" { hparam } "}"
//!           | "audio" "{" { sound } "}"                             (* see `parse/audio.rs` *)
//!           | "tensors" "{" { tensor | without | group | layers } "}"
//!           | ( "graph" | "encoder" ) "{" { stmt | loop } [ EXPR ] "}"
//!           | "mtp" "{" { stmt } EXPR "}"                           (* one layer of multi-token prediction *)
//!           | "embedding" "{" { stmt } EXPR "}"                     (* applied to the rows `pooled` *)
//!           | "rank" [ "(" pooling ")" ] "{" { stmt } EXPR "}"
//!           | function                                              (* see `fragment` *)
//!           | checkpoint                                            (* any number; see `parse/checkpoint.rs` *)
//!           | "test" "{" [ size { "," size } [ "," ] ] "}" ;
//!
//! kind      = "norm" | "neox" | "mrope" | "imrope" | "none" ;
//! pooling   = "mean" | "cls" | "last" ;
//!
//! hparam    = IDENT ":" type "=" STRING [ "or" EXPR ] ";"
//!           | "let" IDENT "=" EXPR ";"
//!           | ( "check" | "warn" ) EXPR "," STRING ";"              (* a file without the property: error, warning *)
//!           | "without" "check" STRING ";"                          (* the message of an inherited check *)
//!           | without ;
//! without   = "without" IDENT { "," IDENT } ";" ;                   (* with "like" only *)
//! type      = scalar | "[" scalar [ ";" EXPR ".." ] "]" | "pattern" | "dense_first" | "listed" | IDENT ;     (* IDENT: an option of a fragment *)
//! scalar    = "usize" | "f32" | "bool" | "string" ;
//!
//! layers    = "layer" [ IDENT STRING EXPR ] "{" { tensor | without | group } "}" ;      (* name, GGUF prefix, count *)
//! group     = "if" EXPR "{" { tensor | group } "}" [ "else" ( group | "{" { tensor | group } "}" ) ] ;
//! tensor    = [ "override" ] name { "," name } ":" use [ STRING { "," STRING } ] "[" dims "]" [ "or" ( IDENT | STRING ) ] ";"
//!           | "use" fragment { "," fragment } ";"
//!           | "ignore" STRING { "," STRING } ";" ;
//! name      = IDENT [ "?" ] ;                                       (* also the GGUF name, unless each has a STRING *)
//! fragment  = IDENT [ "(" [ IDENT "=" EXPR { "," IDENT "=" EXPR } ] ")" ] ;
//! use       = "embed" | "vector" | "norm" | "linear" | "experts" | "per_head" | "raw" | IDENT ;     (* IDENT: an option of a fragment *)
//! dims      = EXPR { "," EXPR } [ ".." ] | EXPR "->" EXPR [ ";" EXPR ] ;            (* `..`: or more *)
//!
//! loop      = "for" ( "layer" | IDENT | "_" ) [ "in" EXPR ".." EXPR ] "{" { stmt | loop } "}" ;
//! stmt      = "let" IDENT "=" EXPR ";"
//!           | IDENT ( "=" | "+=" | "-=" | "*=" | "/=" ) EXPR ";"
//!           | branch ;
//! branch    = "if" EXPR "{" { stmt } "}" [ "else" ( branch | "{" { stmt } "}" ) ] ;
//! size      = IDENT ":" ( [ "-" ] ( INT | FLOAT ) | BOOL ) ;
//! ```
//!
//! `EXPR` is a subset of Rust expressions: names, literals, `+ - * / %`, comparisons, `&& || !`, calls with
//! `name = value` arguments, `w[tokens]`, `w[positions + n]`, `x[a..b]`, and `if` expressions. As an argument or as
//! the value of a `let`, an `if` has no `else`. `rust!([dims] => expression)` and, in `hparams`, `rust!(usize =>
//! expression)` are Rust code, which is not available at run time.

mod audio;
mod checkpoint;
mod encoder;
mod fragment;
mod graph;
mod ranges;
mod tiles;

use proc_macro2::{Span, TokenStream};
use quote::ToTokens;
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, ExprRange, Ident, Lit, LitStr, RangeLimits, Token, braced, bracketed, parenthesized, token};

use crate::ast::{
    Decl, Dims, Graph, GroupDecl, HparamItem, Instead, ModelDecl, RankHead, TensorDecl, TensorItem, Test, Use,
};
use crate::diag::{Errors, did_you_mean, one_of};
use crate::words::{POOLING, SECTIONS};

pub use checkpoint::mapping_items;
pub use encoder::encoder;
pub use fragment::{fragment, needs, sizes};
pub use graph::{block_of, statements};

use graph::graph_block;

/// Parses the contents of one `arch!`. Errors are added to `errors`.
pub fn parse(input: TokenStream, errors: &mut Errors) -> Decl {
    let mut decl = Decl::default();
    let parser = |input: ParseStream<'_>| {
        items(input, &mut *errors, |input, errors| section(input, &mut decl, errors));
        Ok(())
    };
    let parsed = parser.parse2(input);
    // `syn` reports tokens left unread after an earlier error again.
    if let Err(e) = parsed
        && errors.is_empty()
    {
        errors.syntax(&e);
    }
    decl
}

/// Returns the contents of the first macro call `name! { … }` in a file.
pub fn macro_tokens(file: TokenStream, name: &str) -> syn::Result<Option<TokenStream>> {
    let file: syn::File = syn::parse2(file)?;
    Ok(file.items.into_iter().find_map(|item| match item {
        syn::Item::Macro(m) if m.mac.path.segments.last().is_some_and(|s| s.ident == name) => Some(m.mac.tokens),
        _ => None,
    }))
}

/// Checks that a file has at most one declaration.
///
/// # Errors
/// Returns an error at the second declaration.
pub fn single_declaration(file: TokenStream) -> syn::Result<()> {
    let file: syn::File = syn::parse2(file)?;
    let declares = |item: &syn::Item| match item {
        syn::Item::Macro(m) => {
            let name = m.mac.path.segments.last()?.ident.clone();
            DECLARATIONS.iter().any(|known| name == known).then_some(name)
        }
        _ => None,
    };
    match file.items.iter().filter_map(declares).nth(1) {
        Some(second) => Err(syn::Error::new(
            second.span(),
            format!("a second declaration, `{second}! {{ … }}`; put each declaration into a separate file"),
        )),
        None => Ok(()),
    }
}

/// Names of the macros with a declaration or a part of one.
const DECLARATIONS: [&str; 4] = ["arch", "encoder", "parent", "fragment"];

/// Parser of a declaration's contents.
pub type DeclParser = fn(TokenStream, &mut Errors) -> Decl;

/// Returns the contents of the `arch! { … }`, `encoder! { … }`, or `parent! { … }` in a file, and their parser.
pub fn declaration(file: TokenStream) -> syn::Result<Option<(DeclParser, TokenStream)>> {
    let kinds: [(&str, DeclParser); 3] = [("arch", parse), ("encoder", encoder), ("parent", parse)];
    for (name, parser) in kinds {
        if let Some(tokens) = macro_tokens(file.clone(), name)? {
            return Ok(Some((parser, tokens)));
        }
    }
    Ok(None)
}

/// Parses items to the end of the input. After an error, the rest of the item is skipped.
fn items(
    input: ParseStream<'_>,
    errors: &mut Errors,
    mut item: impl FnMut(ParseStream<'_>, &mut Errors) -> syn::Result<()>,
) {
    while !input.is_empty() {
        let block = input.peek(Token![if]) || input.peek(Token![for]) || input.peek2(token::Brace);
        if let Err(e) = item(input, errors) {
            errors.syntax(&e);
            skip_item(input, block);
        }
    }
}

/// Skips past the next `;`, or past the next `{ … }` for items that end in a block.
fn skip_item(input: ParseStream<'_>, block: bool) {
    while !input.is_empty() {
        let last = input.peek(Token![;]) || (block && input.peek(token::Brace));
        // Any token tree parses while the input is not empty.
        if input.parse::<proc_macro2::TokenTree>().is_err() || last {
            return;
        }
    }
}

fn section(input: ParseStream<'_>, decl: &mut Decl, errors: &mut Errors) -> syn::Result<()> {
    if input.peek(Token![fn]) {
        decl.functions.push(fragment::function(input)?);
        return Ok(());
    }
    let word = input.call(Ident::parse_any)?;
    let (text, span) = (word.to_string(), word.span());
    if is_there(decl, &text) {
        return Err(syn::Error::new(span, format!("duplicate section `{text}`")));
    }
    match text.as_str() {
        "name" => decl.name = Some(line(input, |input| input.parse())?),
        "like" => {
            decl.like = Some(line(input, |input| {
                string(input, "the name of another architecture, in quotes")
            })?)
        }
        "rope" => {
            let kinds = |input: ParseStream<'_>| Ok((input.parse()?, after_or(input, |input| input.parse())?));
            decl.rope = Some(line(input, kinds)?);
        }
        "attention" => decl.attention = Some(line(input, |input| input.parse())?),
        "result" => decl.result = Some(line(input, |input| input.parse())?),
        "models" => decl.models = model_items(input, errors)?,
        "hparams" => decl.hparams = hparam_items(input, errors)?,
        "audio" => decl.audio = Some(audio::audio(span, input, errors)?),
        "tensors" => decl.tensors = tensor_items(input, true, errors)?,
        "encoder" => decl.encoder = Some(graph(span, input, errors)?),
        "graph" => decl.graph = Some(graph(span, input, errors)?),
        "mtp" => decl.mtp = Some(graph(span, input, errors)?),
        "embedding" => decl.embedding = Some(graph(span, input, errors)?),
        "rank" => decl.rank = Some(rank_head(span, input, errors)?),
        "checkpoint" => decl.checkpoints.push(checkpoint::checkpoint(span, input, errors)?),
        "test" => decl.test = Some(test(span, input)?),
        _ => {
            let hint = did_you_mean(&text, SECTIONS);
            let message = format!("expected `{}`, or `fn`, found `{text}`{hint}", SECTIONS.join("`, `"));
            return Err(syn::Error::new(span, message));
        }
    }
    Ok(())
}

/// Returns true if the declaration already has a section.
fn is_there(decl: &Decl, section: &str) -> bool {
    match section {
        "name" => decl.name.is_some(),
        "like" => decl.like.is_some(),
        "rope" => decl.rope.is_some(),
        "attention" => decl.attention.is_some(),
        "result" => decl.result.is_some(),
        "models" => !decl.models.is_empty(),
        "hparams" => !decl.hparams.is_empty(),
        "tensors" => !decl.tensors.is_empty(),
        "audio" => decl.audio.is_some(),
        "encoder" => decl.encoder.is_some(),
        "graph" => decl.graph.is_some(),
        "mtp" => decl.mtp.is_some(),
        "embedding" => decl.embedding.is_some(),
        "rank" => decl.rank.is_some(),
        "test" => decl.test.is_some(),
        _ => false,
    }
}

/// Parses `: content ;`.
fn line<T>(input: ParseStream<'_>, content: impl FnOnce(ParseStream<'_>) -> syn::Result<T>) -> syn::Result<T> {
    input.parse::<Token![:]>()?;
    let content = content(input)?;
    input.parse::<Token![;]>()?;
    Ok(content)
}

fn graph(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Graph> {
    let body = graph_block(input, errors)?;
    Ok(Graph { span, body })
}

fn rank_head(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<RankHead> {
    let mut pooling = None;
    if input.peek(token::Paren) {
        let content;
        parenthesized!(content in input);
        let poolings = one_of(POOLING.iter().map(|&(name, _)| name));
        pooling = Some(word(&content, &format!("a pooling type: {poolings}"))?);
        end_of(&content, ")")?;
    }
    let graph = graph(span, input, errors)?;
    Ok(RankHead { pooling, graph })
}

fn test(span: Span, input: ParseStream<'_>) -> syn::Result<Test> {
    let content;
    braced!(content in input);
    let mut sizes = Vec::new();
    while !content.is_empty() {
        let name: Ident = content.parse()?;
        content.parse::<Token![:]>()?;
        sizes.push((name, content.parse::<Lit>()?));
        if !content.is_empty() {
            content.parse::<Token![,]>()?;
        }
    }
    Ok(Test { span, sizes })
}

/// Parses `or` and its operand, if present.
fn after_or<T>(input: ParseStream<'_>, rest: impl FnOnce(ParseStream<'_>) -> syn::Result<T>) -> syn::Result<Option<T>> {
    if input.peek(Ident) && input.fork().parse::<Ident>()? == "or" {
        input.parse::<Ident>()?;
        return rest(input).map(Some);
    }
    Ok(None)
}

/// Parses the braced items of `models`.
fn model_items(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Vec<ModelDecl>> {
    let content;
    braced!(content in input);
    let mut list = Vec::new();
    items(&content, errors, |input, _| {
        let name = string(input, "the name of a model, in quotes")?;
        let cond = line(input, |input| input.parse())?;
        list.push(ModelDecl {
            name,
            cond,
            inherited: false,
        });
        Ok(())
    });
    Ok(list)
}

/// Parses the braced items of `hparams`.
pub fn hparam_items(input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<Vec<HparamItem>> {
    let content;
    braced!(content in input);
    let mut list = Vec::new();
    items(&content, errors, |input, _| hparam(input).map(|item| list.push(item)));
    Ok(list)
}

fn hparam(input: ParseStream<'_>) -> syn::Result<HparamItem> {
    if input.peek(Token![let]) {
        input.parse::<Token![let]>()?;
        let name = input.parse()?;
        input.parse::<Token![=]>()?;
        let value = input.parse()?;
        input.parse::<Token![;]>()?;
        return Ok(HparamItem::Let { name, value });
    }
    let name: Ident = input.parse()?;
    if (name == "check" || name == "warn") && !input.peek(Token![:]) {
        let cond = input.parse()?;
        input.parse::<Token![,]>()?;
        let text = input.parse()?;
        input.parse::<Token![;]>()?;
        let only_warns = name == "warn";
        return Ok(HparamItem::Check { cond, text, only_warns });
    }
    if name == "without" && !input.peek(Token![:]) {
        if input.peek(Ident) && input.peek2(LitStr) {
            return removed_check(input);
        }
        return names(input).map(HparamItem::Without);
    }
    input.parse::<Token![:]>()?;
    let list = input.peek(token::Bracket);
    let mut at_least = None;
    let ty = if list {
        let content;
        bracketed!(content in input);
        let ty: Ident = content.parse()?;
        if content.peek(Token![;]) {
            content.parse::<Token![;]>()?;
            let n = open_range(content.parse()?, "a minimum length, as in `[usize; 4..]`")?;
            at_least = Some(Box::new(n));
        }
        end_of(&content, "]")?;
        ty
    } else {
        word(input, "a type such as `f32`")?
    };
    if input.peek(Token![;]) {
        let shown = if list { format!("[{ty}]") } else { ty.to_string() };
        return Err(syn::Error::new(
            name.span(),
            format!(
                "`{name}` has no key; write `{name}: {shown} = \"key.in.the.file\";`, or `let {name} = …;` for a derived value"
            ),
        ));
    }
    input.parse::<Token![=]>()?;
    let key = string(input, "the GGUF key, in quotes")?;
    let default = after_or(input, |input| input.parse())?;
    input.parse::<Token![;]>()?;
    Ok(HparamItem::Key {
        name,
        ty,
        list,
        at_least,
        key,
        default,
    })
}

/// Parses `check "text";` after `without`.
fn removed_check(input: ParseStream<'_>) -> syn::Result<HparamItem> {
    let word: Ident = input.parse()?;
    if word != "check" {
        return Err(syn::Error::new(
            word.span(),
            "expected `check` before the message of a check",
        ));
    }
    let text = input.parse()?;
    input.parse::<Token![;]>()?;
    Ok(HparamItem::WithoutCheck(text))
}

/// Parses `n..` and returns `n`; `what` describes the expected input.
fn open_range(expr: Expr, what: &str) -> syn::Result<Expr> {
    match expr {
        Expr::Range(ExprRange {
            start: Some(start),
            end: None,
            limits: RangeLimits::HalfOpen(_),
            ..
        }) => Ok(*start),
        other => Err(syn::Error::new_spanned(other, format!("expected {what}"))),
    }
}

/// Parses comma-separated names and a semicolon.
fn names(input: ParseStream<'_>) -> syn::Result<Vec<Ident>> {
    let names = syn::punctuated::Punctuated::<Ident, Token![,]>::parse_separated_nonempty(input)?;
    input.parse::<Token![;]>()?;
    Ok(names.into_iter().collect())
}

/// Parses an identifier; `what` describes the expected input.
fn word(input: ParseStream<'_>, what: &str) -> syn::Result<Ident> {
    if input.peek(Ident) {
        input.parse()
    } else {
        Err(input.error(format!("expected {what}")))
    }
}

/// Parses a string; `what` describes the expected input.
fn string(input: ParseStream<'_>, what: &str) -> syn::Result<LitStr> {
    if input.peek(LitStr) {
        input.parse()
    } else {
        Err(input.error(format!("expected {what}")))
    }
}

/// Checks that a bracketed or braced group has been parsed completely.
fn end_of(content: ParseStream<'_>, closing: &str) -> syn::Result<()> {
    if content.is_empty() {
        Ok(())
    } else {
        Err(content.error(format!("expected `{closing}`")))
    }
}

/// Parses the braced items of `tensors` (`top`), a `layer` block, a group, or a fragment.
pub fn tensor_items(input: ParseStream<'_>, top: bool, errors: &mut Errors) -> syn::Result<Vec<TensorItem>> {
    let content;
    braced!(content in input);
    let mut list = Vec::new();
    items(&content, errors, |input, errors| {
        list.extend(tensor_item(input, top, errors)?);
        Ok(())
    });
    Ok(list)
}

fn tensor_item(input: ParseStream<'_>, top: bool, errors: &mut Errors) -> syn::Result<Vec<TensorItem>> {
    if input.peek(Token![if]) {
        return tensor_group(input, top, errors).map(|group| vec![group]);
    }
    if input.peek(Token![use]) {
        return uses(input);
    }
    let overrides = input.parse::<Option<Token![override]>>()?.is_some();
    let name: Ident = input.parse()?;
    if overrides {
        return tensor(name, input, overrides);
    }
    if name == "layer" && !input.peek(Token![:]) {
        return Ok(layer_block(name.span(), input, top, errors)?.into_iter().collect());
    }
    if name == "ignore" && input.peek(LitStr) {
        let names = syn::punctuated::Punctuated::<LitStr, Token![,]>::parse_separated_nonempty(input)?;
        input.parse::<Token![;]>()?;
        return Ok(vec![TensorItem::Ignore(names.into_iter().collect())]);
    }
    if name == "without" && input.peek(Ident) {
        return names(input).map(|names| vec![TensorItem::Without(names)]);
    }
    tensor(name, input, overrides)
}

/// Parses a declaration of one tensor, or of several with the same kind and shape. `first` has already been
/// parsed.
fn tensor(first: Ident, input: ParseStream<'_>, overrides: bool) -> syn::Result<Vec<TensorItem>> {
    let mut names = vec![(first, optional_mark(input)?)];
    while input.peek(Token![,]) {
        input.parse::<Token![,]>()?;
        names.push((input.parse()?, optional_mark(input)?));
    }
    input.parse::<Token![:]>()?;
    let kind = word(input, "the kind of the tensor, such as `linear`")?;
    let own = |(name, _): &(Ident, bool)| LitStr::new(&name.to_string(), name.span());
    let mut gguf: Vec<LitStr> = Vec::new();
    if !input.peek(token::Bracket) {
        gguf.push(string(input, "the GGUF name in quotes, or the sizes in brackets")?);
        while input.peek(Token![,]) {
            input.parse::<Token![,]>()?;
            gguf.push(string(input, "another GGUF name, in quotes")?);
        }
        if gguf.len() != names.len() {
            let message = format!("found {} GGUF names for {} tensors", gguf.len(), names.len());
            return Err(syn::Error::new(gguf[0].span(), message));
        }
    } else {
        gguf.extend(names.iter().map(own));
    }
    let dims = dims(input)?;
    let instead = after_or(input, |input| {
        if input.peek(LitStr) {
            input.parse().map(Instead::Name)
        } else {
            input.parse().map(Instead::Tensor)
        }
    })?;
    input.parse::<Token![;]>()?;
    let tensor = |((name, optional), gguf)| {
        TensorItem::Tensor(Box::new(TensorDecl {
            name,
            overrides,
            optional,
            kind: kind.clone(),
            gguf,
            dims: dims.clone(),
            instead: instead.clone(),
        }))
    };
    Ok(names.into_iter().zip(gguf).map(tensor).collect())
}

/// Parses the optional `?` after a name.
fn optional_mark(input: ParseStream<'_>) -> syn::Result<bool> {
    input.parse::<Option<Token![?]>>().map(|mark| mark.is_some())
}

/// Parses `use swiglu, experts(width = n_ff_exp);`.
fn uses(input: ParseStream<'_>) -> syn::Result<Vec<TensorItem>> {
    input.parse::<Token![use]>()?;
    let mut list = Vec::new();
    loop {
        let name = word(input, "the name of a fragment")?;
        let mut args = Vec::new();
        if input.peek(token::Paren) {
            let content;
            parenthesized!(content in input);
            let pair = |input: ParseStream<'_>| {
                let key = input.parse()?;
                input.parse::<Token![=]>()?;
                Ok((key, input.parse::<Expr>()?.into_token_stream()))
            };
            args.extend(content.parse_terminated(pair, Token![,])?);
        }
        list.push(TensorItem::Use(Use { name, args }));
        if input.peek(Token![;]) {
            input.parse::<Token![;]>()?;
            return Ok(list);
        }
        input.parse::<Token![,]>()?;
    }
}

fn tensor_group(input: ParseStream<'_>, top: bool, errors: &mut Errors) -> syn::Result<TensorItem> {
    input.parse::<Token![if]>()?;
    let cond = input.call(Expr::parse_without_eager_brace)?;
    let then = tensor_items(input, top, errors)?;
    let mut otherwise = Vec::new();
    if input.peek(Token![else]) {
        input.parse::<Token![else]>()?;
        otherwise = if input.peek(Token![if]) {
            vec![tensor_group(input, top, errors)?]
        } else {
            tensor_items(input, top, errors)?
        };
    }
    for item in then.iter().chain(&otherwise) {
        if let TensorItem::Without(names) = item {
            let message = "`without` must be at the top level of `tensors` or `layer`, not under a condition";
            errors.at(&names[0], message);
        }
    }
    Ok(TensorItem::If {
        cond: Box::new(cond),
        then,
        otherwise,
    })
}

fn layer_block(span: Span, input: ParseStream<'_>, top: bool, errors: &mut Errors) -> syn::Result<Option<TensorItem>> {
    let group = if input.peek(Ident) {
        Some(Box::new(GroupDecl {
            name: input.parse()?,
            prefix: string(input, "the GGUF prefix of the layers, in quotes")?,
            count: input.call(Expr::parse_without_eager_brace)?,
        }))
    } else {
        None
    };
    let items = tensor_items(input, false, errors)?;
    if !top {
        return Err(syn::Error::new(
            span,
            "`layer` blocks must be at the top level of `tensors`, not in another block",
        ));
    }
    Ok(Some(TensorItem::Layer { span, group, items }))
}

fn dims(input: ParseStream<'_>) -> syn::Result<Dims> {
    let content;
    let bracket = bracketed!(content in input);
    let mut dims = Dims {
        span: bracket.span.join(),
        first: Vec::new(),
        output: None,
        count: None,
        or_more: false,
    };
    if content.is_empty() {
        return Err(syn::Error::new(bracket.span.join(), "expected a size"));
    }
    dims.first.push(content.parse()?);
    if content.peek(Token![->]) {
        content.parse::<Token![->]>()?;
        dims.output = Some(content.parse()?);
        if content.peek(Token![;]) {
            content.parse::<Token![;]>()?;
            dims.count = Some(content.parse()?);
        }
    } else {
        while content.peek(Token![,]) {
            content.parse::<Token![,]>()?;
            dims.first.push(content.parse()?);
        }
        if matches!(dims.first.last(), Some(Expr::Range(_)))
            && let Some(last) = dims.first.pop()
        {
            dims.first
                .push(open_range(last, "a size, or `n..` if files may have more rows")?);
            dims.or_more = true;
        }
    }
    end_of(&content, "]")?;
    Ok(dims)
}

/// Removes the parentheses around an expression.
pub fn bare(expr: &Expr) -> &Expr {
    match expr {
        Expr::Paren(p) => bare(&p.expr),
        Expr::Group(g) => bare(&g.expr),
        other => other,
    }
}

/// Returns the identifier if the expression is a plain name.
pub fn plain_name(expr: &Expr) -> Option<Ident> {
    match expr {
        Expr::Path(p) if p.qself.is_none() => p.path.get_ident().cloned(),
        _ => None,
    }
}
