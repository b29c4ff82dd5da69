//! Parser of `encoder!`, the declaration of a media encoder. It shares most sections with `arch!`.
//!
//! ```ebnf
//! encoder   = { part | section } ;                                     (* without the sections about tokens *)
//! part      = "of" ":" medium ";"
//!           | "image" "{" { setting } "}"
//!           | "tiles" "{" { split } "}"                                (* images that are split *)
//!           | "text" "{" piece { "," piece } "}" ;                      (* the prompt around a medium *)
//! setting   = "size" ":" sizing ";"
//!           | "resize" ":" filter ";"
//!           | "patches" ":" EXPR [ "in" "blocks" "(" EXPR ")" [ "of" ( "windows" | "blocks" ) "(" EXPR ")" ] ] ";"
//!                               (* sides of a patch, of a block in patches, of a window or a larger block in blocks *)
//!           | "class" ":" ( "first" | "last" ) ";"                     (* position of a learned column *)
//!           | "between_rows" ":" STRING ";"                            (* text between the rows of blocks *)
//!           | "positions" ":" ( "sequence" | "axes" | "xd" ) ";" ;     (* of the rows; default: sequence *)
//! sizing    = "fixed" "(" EXPR ")"                                     (* squares of this side *)
//!           | "padded" "(" EXPR ")"                                    (* squares, with borders *)
//!           | "contained" "(" EXPR [ "," "min" "=" EXPR ] ")"
//!                               (* squares, with borders after resizing; minimum of both sides before the borders *)
//!           | "area" "(" EXPR "," EXPR ")"                             (* side of a square; divisor of the sides *)
//!           | "longest" "(" EXPR "," EXPR ")"                          (* longest side; divisor of the sides *)
//!           | "within" "(" EXPR "," "rows" "=" EXPR ")"                (* divisor of the sides; number of rows *)
//!           | "fitting" "(" EXPR "," "rows" "=" EXPR ".." EXPR ")"     (* divisor of the sides; number of rows *)
//!           | "closest" "(" EXPR "," "rows" "=" EXPR ")"               (* divisor of the sides; number of rows *)
//!           | "stepped" "(" EXPR "," "rows" "=" EXPR ")"               (* divisor of the sides; number of rows *)
//!           | "bordered" "(" EXPR "," "rows" "=" EXPR ")"              (* divisor of the sides; number of rows *)
//!           | "extended" "(" EXPR "," "rows" "=" EXPR ".." EXPR ")"    (* divisor of the sides; number of rows *)
//!           | "multiple" "(" EXPR "," "rows" "=" EXPR ".." EXPR ")" ;   (* divisor of the sides; number of rows *)
//! split     = "grid" ":" "ratio" "(" EXPR "," "tiles" "=" EXPR ".." EXPR ")" ";"   (* side of a tile; tiles *)
//!           | "grid" ":" "lines" "(" EXPR "," "tiles" "=" EXPR ".." EXPR [ "," "newline" "=" STRING ] "," "end" "=" STRING ")" ";"
//!                               (* side of a tile; number of tiles; tensors with the row after each line and with the last row *)
//!           | "grid" ":" "area" "(" EXPR "," EXPR "," "tiles" "=" EXPR ")" ";"
//!                                                       (* side of a square; divisor of the sides; number of tiles *)
//!           | "grid" ":" "longest" "(" EXPR "," EXPR ")" ";"           (* side of a tile; longest side *)
//!           | "grid" ":" "canvas" "(" EXPR "," "tiles" "=" EXPR ")" ";"  (* side of a tile; number of tiles *)
//!           | "grid" ":" "windows" "(" EXPR "," EXPR "," EXPR ")" ";"  (* side of a tile; side of the whole image; longest side *)
//!           | "grid" ":" "listed" "(" EXPR "," STRING "," "newline" "=" STRING [ "," "widths_first" ] ")" ";"
//!                          (* side of a tile; key of a list; tensor after each row of patches; order of the list *)
//!           | "above" ":" EXPR ";"                                     (* of the largest image *)
//!           | "tile" ":" around ";"                                    (* texts before and after a tile *)
//!           | "between" ":" STRING ";"                                 (* text between the tiles of a row *)
//!           | "between_rows" ":" STRING ";"                            (* text between rows of tiles *)
//!           | "overview" ":" ( "first" | "last" ) around ";"           (* the whole image, and the texts around it *)
//!           | "whole" ":" around ";" ;                                 (* texts around an image without tiles *)
//! around    = STRING [ "," "image" "," STRING ] ;
//! filter    = "bilinear" | "bicubic" | "lanczos" ;
//! piece     = STRING | medium ;
//! medium    = "image" | "audio" ;
//! ```

use proc_macro2::{Span, TokenStream};
use syn::ext::IdentExt;
use syn::parse::{ParseStream, Parser};
use syn::{Expr, Ident, LitStr, Token, braced, parenthesized};

use crate::ast::Decl;
use crate::ast::media::{ImageSyntax, MediaSyntax, PatchesSyntax, SizeSyntax, TextPiece, TextSyntax};
use crate::diag::{Errors, did_you_mean};

use super::ranges::{limits, named, set, unknown};
use super::tiles::tiles;
use super::{end_of, items, line, section};

/// Sections of an `encoder!`, in addition to `fn`.
const PARTS: [&str; 11] = [
    "name", "of", "like", "hparams", "image", "audio", "tiles", "text", "tensors", "graph", "test",
];

/// Settings of the section `image`.
const SETTINGS: [&str; 6] = ["size", "resize", "patches", "class", "between_rows", "positions"];

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
        "tiles" => media.tiles.is_some(),
        "text" => media.text.is_some(),
        other if PARTS.contains(&other) => return section(input, decl, errors),
        _ => {
            let hint = did_you_mean(&text, PARTS);
            let message = format!("expected `{}`, or `fn`, found `{text}`{hint}", PARTS.join("`, `"));
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
        "tiles" => media.tiles = Some(tiles(span, input, errors)?),
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
        class: None,
        between_rows: None,
        positions: None,
    };
    items(&content, errors, |input, _| setting(input, &mut image));
    Ok(image)
}

fn setting(input: ParseStream<'_>, image: &mut ImageSyntax) -> syn::Result<()> {
    let word = input.call(Ident::parse_any)?;
    match word.to_string().as_str() {
        "size" => set(&mut image.size, &word, input, size),
        "resize" => set(&mut image.resize, &word, input, |input| input.parse()),
        "patches" => set(&mut image.patches, &word, input, patches),
        "class" => set(&mut image.class, &word, input, |input| input.parse()),
        "between_rows" => set(&mut image.between_rows, &word, input, |input| input.parse()),
        "positions" => set(&mut image.positions, &word, input, |input| input.parse()),
        _ => unknown(&word, &SETTINGS),
    }
}

fn size(input: ParseStream<'_>) -> syn::Result<SizeSyntax> {
    let word: Ident = input.fork().parse()?;
    match word.to_string().as_str() {
        "fixed" => return argument_of(input, "fixed").map(SizeSyntax::Fixed),
        "padded" => return argument_of(input, "padded").map(SizeSyntax::Padded),
        "contained" | "area" | "longest" | "within" | "fitting" | "closest" | "stepped" | "bordered" | "extended"
        | "multiple" => {}
        _ => {
            let message = format!(
                "expected `fixed(…)`, `padded(…)`, `contained(…)`, `area(…)`, `longest(…)`, `within(…, rows = …)`, \
                 `fitting(…, rows = …)`, `closest(…, rows = …)`, `stepped(…, rows = …)`, `bordered(…, rows = …)`, \
                 `extended(…, rows = …)`, or `multiple(…, rows = …)`, found `{word}`"
            );
            return Err(syn::Error::new(word.span(), message));
        }
    }
    input.parse::<Ident>()?;
    let content;
    parenthesized!(content in input);
    let first = content.parse()?;
    if word == "contained" && content.is_empty() {
        return Ok(SizeSyntax::Contained {
            side: first,
            least: None,
        });
    }
    content.parse::<Token![,]>()?;
    if word == "contained" {
        let least = Some(named(&content, "min")?);
        end_of(&content, ")")?;
        return Ok(SizeSyntax::Contained { side: first, least });
    }
    if word == "longest" || word == "area" {
        let unit = content.parse()?;
        end_of(&content, ")")?;
        let side = first;
        return Ok(if word == "area" {
            SizeSyntax::Area { side, unit }
        } else {
            SizeSyntax::Longest { side, unit }
        });
    }
    let rows = named(&content, "rows")?;
    end_of(&content, ")")?;
    if word == "within" {
        return Ok(SizeSyntax::Within { unit: first, max: rows });
    }
    if word == "bordered" {
        return Ok(SizeSyntax::Bordered { unit: first, max: rows });
    }
    if word == "closest" {
        return Ok(SizeSyntax::Closest { unit: first, max: rows });
    }
    if word == "stepped" {
        return Ok(SizeSyntax::Stepped { unit: first, max: rows });
    }
    let (min, max) = limits(rows)?;
    let unit = first;
    Ok(match word.to_string().as_str() {
        "fitting" => SizeSyntax::Fitting { unit, min, max },
        "extended" => SizeSyntax::Extended { unit, min, max },
        _ => SizeSyntax::Multiple { unit, min, max },
    })
}

fn patches(input: ParseStream<'_>) -> syn::Result<PatchesSyntax> {
    let side = input.parse()?;
    let (mut block, mut window, mut has_whole_windows) = (None, None, false);
    if input.peek(Token![in]) {
        input.parse::<Token![in]>()?;
        block = Some(argument_of(input, "blocks")?);
        if input.peek(Ident) {
            let word: Ident = input.parse()?;
            if word != "of" {
                return Err(syn::Error::new(
                    word.span(),
                    format!("expected `of windows(…)` or `of blocks(…)`, found `{word}`"),
                ));
            }
            let word: Ident = input.fork().parse()?;
            has_whole_windows = word == "blocks";
            window = Some(argument_of(
                input,
                if has_whole_windows { "blocks" } else { "windows" },
            )?);
        }
    }
    Ok(PatchesSyntax {
        side,
        block,
        window,
        has_whole_windows,
    })
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
