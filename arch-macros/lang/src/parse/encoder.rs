//! Parser of `encoder!`, the declaration of an encoder of media. It shares most sections with `arch!`.
//!
//! ```ebnf
//! encoder   = { part | section } ;                                     (* without the sections about tokens *)
//! part      = "of" ":" medium ";"
//!           | "image" "{" { fact } "}"
//!           | "text" "{" piece { "," piece } "}" ;                      (* the prompt around a medium *)
//! fact      = "size" ":" sizing ";"
//!           | "resize" ":" filter ";"
//!           | "patches" ":" EXPR [ "in" "blocks" "(" EXPR ")" [ "of" "windows" "(" EXPR ")" ] ] ";"
//!                                                  (* sides of a patch, of a block in patches, of a window in blocks *)
//!           | "positions" ":" ( "sequence" | "axes" ) ";" ;            (* of the rows; default: sequence *)
//! sizing    = "fixed" "(" EXPR ")"                                     (* squares of this side *)
//!           | "multiple" "(" EXPR "," "rows" "=" EXPR ".." EXPR ")" ;   (* divisor of the sides; number of rows *)
//! filter    = "bilinear" | "bicubic" | "lanczos" ;
//! piece     = STRING | medium ;
//! medium    = "image" | "audio" ;
//! ```

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, ExprRange, Ident, LitStr, Token, braced, parenthesized};

use crate::ast::Decl;
use crate::ast::media::{ImageSyntax, MediaSyntax, PatchesSyntax, SizeSyntax, TextPiece, TextSyntax};
use crate::diag::{Errors, did_you_mean};

use super::{end_of, items, line, section};

/// Sections of an `encoder!`, in addition to `fn`.
const PARTS: [&str; 10] = [
    "name", "of", "like", "hparams", "image", "audio", "text", "tensors", "graph", "test",
];

/// Facts of the section `image`.
const FACTS: [&str; 4] = ["size", "resize", "patches", "positions"];

/// Parses the contents of one `encoder!`. Errors are added to `errors`.
pub fn encoder(input: TokenStream, errors: &mut Errors) -> Decl {
    let word = |text| Ident::new(text, Span::call_site());
    let mut decl = Decl {
        // Patches have no order, and nothing is cached.
        rope: Some((word("none"), None)),
        attention: Some(word("bidirectional")),
        ..Decl::default()
    };
    let mut media = MediaSyntax::default();
    let parser = |input: ParseStream<'_>| {
        items(input, &mut *errors, |input, errors| {
            part(input, &mut decl, &mut media, errors)
        });
        Ok(())
    };
    let parsed = parser.parse2(input);
    // `syn` reports tokens left unread after an earlier error again.
    if let Err(e) = parsed
        && errors.is_empty()
    {
        errors.syntax(&e);
    }
    decl.media = Some(media);
    decl
}

fn part(input: ParseStream<'_>, decl: &mut Decl, media: &mut MediaSyntax, errors: &mut Errors) -> syn::Result<()> {
    if input.peek(Token![fn]) {
        return section(input, decl, errors);
    }
    let word = input.fork().call(Ident::parse_any)?;
    let (text, span) = (word.to_string(), word.span());
    let is_there = match text.as_str() {
        "of" => media.of.is_some(),
        "image" => media.image.is_some(),
        "text" => media.text.is_some(),
        other if PARTS.contains(&other) => return section(input, decl, errors),
        _ => {
            let hint = did_you_mean(&text, PARTS);
            let message = format!("expected `{}` or `fn`, found `{text}`{hint}", PARTS.join("`, `"));
            return Err(syn::Error::new(span, message));
        }
    };
    if is_there {
        return Err(syn::Error::new(span, format!("duplicate section `{text}`")));
    }
    input.call(Ident::parse_any)?;
    match text.as_str() {
        "of" => media.of = Some(line(input, |input| input.parse())?),
        "image" => media.image = Some(image(span, input, errors)?),
        _ => media.text = Some(prompt(span, input)?),
    }
    Ok(())
}

fn image(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<ImageSyntax> {
    let content;
    braced!(content in input);
    let mut image = ImageSyntax {
        span,
        size: None,
        resize: None,
        patches: None,
        positions: None,
    };
    items(&content, errors, |input, _| fact(input, &mut image));
    Ok(image)
}

fn fact(input: ParseStream<'_>, image: &mut ImageSyntax) -> syn::Result<()> {
    let word = input.call(Ident::parse_any)?;
    let text = word.to_string();
    let is_there = match text.as_str() {
        "size" => image.size.is_some(),
        "resize" => image.resize.is_some(),
        "patches" => image.patches.is_some(),
        "positions" => image.positions.is_some(),
        _ => {
            let hint = did_you_mean(&text, FACTS);
            let message = format!("expected `{}`, found `{text}`{hint}", FACTS.join("`, `"));
            return Err(syn::Error::new(word.span(), message));
        }
    };
    if is_there {
        return Err(syn::Error::new(word.span(), format!("`{text}` is given twice")));
    }
    match text.as_str() {
        "size" => image.size = Some(line(input, size)?),
        "resize" => image.resize = Some(line(input, |input| input.parse())?),
        "positions" => image.positions = Some(line(input, |input| input.parse())?),
        _ => image.patches = Some(line(input, patches)?),
    }
    Ok(())
}

fn size(input: ParseStream<'_>) -> syn::Result<SizeSyntax> {
    let word: Ident = input.fork().parse()?;
    if word == "fixed" {
        return argument_of(input, "fixed").map(SizeSyntax::Fixed);
    }
    if word != "multiple" {
        let message = format!("expected `fixed(…)` or `multiple(…, rows = …)`, found `{word}`");
        return Err(syn::Error::new(word.span(), message));
    }
    input.parse::<Ident>()?;
    let content;
    parenthesized!(content in input);
    let unit = content.parse()?;
    content.parse::<Token![,]>()?;
    let rows: Ident = content.parse()?;
    if rows != "rows" {
        return Err(syn::Error::new(
            rows.span(),
            format!("expected `rows = …`, found `{rows}`"),
        ));
    }
    content.parse::<Token![=]>()?;
    let range: Expr = content.parse()?;
    end_of(&content, ")")?;
    let Expr::Range(ExprRange {
        start: Some(min),
        end: Some(max),
        ..
    }) = range
    else {
        return Err(syn::Error::new_spanned(range, "expected a range, such as `4..1024`"));
    };
    Ok(SizeSyntax::Multiple {
        unit,
        min: *min,
        max: *max,
    })
}

fn patches(input: ParseStream<'_>) -> syn::Result<PatchesSyntax> {
    let side = input.parse()?;
    let (mut block, mut window) = (None, None);
    if input.peek(Token![in]) {
        input.parse::<Token![in]>()?;
        block = Some(argument_of(input, "blocks")?);
        if input.peek(Ident) {
            let word: Ident = input.parse()?;
            if word != "of" {
                return Err(syn::Error::new(
                    word.span(),
                    format!("expected `of windows(…)`, found `{word}`"),
                ));
            }
            window = Some(argument_of(input, "windows")?);
        }
    }
    Ok(PatchesSyntax { side, block, window })
}

/// Parses `name(expression)`.
fn argument_of(input: ParseStream<'_>, name: &str) -> syn::Result<Expr> {
    let word: Ident = input.parse()?;
    if word != name {
        let message = format!("expected `{name}(…)`, found `{word}`");
        return Err(syn::Error::new(word.span(), message));
    }
    let content;
    parenthesized!(content in input);
    let argument = content.parse()?;
    end_of(&content, ")")?;
    Ok(argument)
}

fn prompt(span: Span, input: ParseStream<'_>) -> syn::Result<TextSyntax> {
    let content;
    braced!(content in input);
    let piece = |input: ParseStream<'_>| {
        if input.peek(LitStr) {
            input.parse().map(TextPiece::Text)
        } else {
            input.parse().map(TextPiece::Medium)
        }
    };
    let pieces = content.parse_terminated(piece, Token![,])?;
    Ok(TextSyntax {
        span,
        pieces: pieces.into_iter().collect(),
    })
}
