//! Parser of `tiles { … }`; see the grammar in `encoder.rs`.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Expr, Ident, LitStr, Token, braced, parenthesized};

use crate::ast::tiles::{Around, GridSyntax, TilesSyntax};
use crate::diag::Errors;

use super::ranges::{limits, named, set, unknown};
use super::{end_of, items};

/// Settings of the section `tiles`.
const SETTINGS: [&str; 7] = ["grid", "above", "tile", "between", "between_rows", "overview", "whole"];

pub(super) fn tiles(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<TilesSyntax> {
    let content;
    braced!(content in input);
    let mut tiles = TilesSyntax {
        span,
        grid: None,
        above: None,
        tile: None,
        between: None,
        between_rows: None,
        overview: None,
        whole: None,
    };
    items(&content, errors, |input, _| setting(input, &mut tiles));
    Ok(tiles)
}

fn setting(input: ParseStream<'_>, tiles: &mut TilesSyntax) -> syn::Result<()> {
    let word = input.call(Ident::parse_any)?;
    let pair = |input: ParseStream<'_>| Ok((input.parse()?, around(input)?));
    match word.to_string().as_str() {
        "grid" => set(&mut tiles.grid, &word, input, grid),
        "above" => set(&mut tiles.above, &word, input, |input| input.parse()),
        "tile" => set(&mut tiles.tile, &word, input, around),
        "between" => set(&mut tiles.between, &word, input, |input| input.parse()),
        "between_rows" => set(&mut tiles.between_rows, &word, input, |input| input.parse()),
        "overview" => set(&mut tiles.overview, &word, input, pair),
        "whole" => set(&mut tiles.whole, &word, input, around),
        _ => unknown(&word, &SETTINGS),
    }
}

/// Parses the text before an image, and the text after it if `image` is given.
fn around(input: ParseStream<'_>) -> syn::Result<Around> {
    let before: LitStr = input.parse()?;
    if !input.peek(Token![,]) {
        return Ok([Some(before), None]);
    }
    input.parse::<Token![,]>()?;
    let word: Ident = input.parse()?;
    if word != "image" {
        return Err(syn::Error::new(
            word.span(),
            format!("expected `image`, found `{word}`"),
        ));
    }
    input.parse::<Token![,]>()?;
    Ok([Some(before), Some(input.parse()?)])
}

/// Parses the order of the sides in a list, if it is given.
fn widths_first(input: ParseStream<'_>) -> syn::Result<bool> {
    if !input.peek(Token![,]) {
        return Ok(false);
    }
    input.parse::<Token![,]>()?;
    let word: Ident = input.parse()?;
    if word == "widths_first" {
        return Ok(true);
    }
    let message = format!("expected `widths_first`, found `{word}`");
    Err(syn::Error::new(word.span(), message))
}

fn grid(input: ParseStream<'_>) -> syn::Result<GridSyntax> {
    let word: Ident = input.parse()?;
    if !["ratio", "lines", "area", "longest", "windows", "canvas", "listed"]
        .iter()
        .any(|form| word == form)
    {
        let forms = "`ratio(…, tiles = …)`, `lines(…, tiles = …, end = …)`, `area(…, tiles = …)`, `longest(…)`, `windows(…)`, `canvas(…, tiles = …)`, or `listed(…, newline = …)`";
        let message = format!("expected {forms}, found `{word}`");
        return Err(syn::Error::new(word.span(), message));
    }
    let content;
    parenthesized!(content in input);
    let side = content.parse()?;
    content.parse::<Token![,]>()?;
    if word == "longest" {
        let longest = content.parse()?;
        end_of(&content, ")")?;
        return Ok(GridSyntax::Longest { side, longest });
    }
    if word == "windows" {
        let whole = content.parse()?;
        content.parse::<Token![,]>()?;
        let longest = content.parse()?;
        end_of(&content, ")")?;
        return Ok(GridSyntax::Windows { side, whole, longest });
    }
    if word == "listed" {
        let key = content.parse()?;
        content.parse::<Token![,]>()?;
        let newline = named(&content, "newline")?;
        let widths_first = widths_first(&content)?;
        end_of(&content, ")")?;
        return Ok(GridSyntax::Listed {
            side,
            key,
            newline,
            widths_first,
        });
    }
    if word == "area" {
        let unit = content.parse()?;
        content.parse::<Token![,]>()?;
        let max = named(&content, "tiles")?;
        end_of(&content, ")")?;
        return Ok(GridSyntax::Area { side, unit, max });
    }
    let tiles = named(&content, "tiles")?;
    if word == "lines" {
        return lines(&content, side, tiles);
    }
    end_of(&content, ")")?;
    if word == "canvas" {
        return Ok(GridSyntax::Canvas { side, max: tiles });
    }
    let (min, max) = limits(tiles)?;
    Ok(GridSyntax::Ratio { side, min, max })
}

/// Parses the rest of `lines(side, tiles = min..max, newline = "tensor", end = "tensor")` after the number of tiles.
fn lines(content: ParseStream<'_>, side: Expr, tiles: Expr) -> syn::Result<GridSyntax> {
    let (min, max) = limits(tiles)?;
    content.parse::<Token![,]>()?;
    let has_newline = content.fork().parse::<Ident>()? == "newline";
    let newline = if has_newline {
        let newline = named(content, "newline")?;
        content.parse::<Token![,]>()?;
        Some(newline)
    } else {
        None
    };
    let end = named(content, "end")?;
    end_of(content, ")")?;
    Ok(GridSyntax::Lines {
        side,
        min,
        max,
        newline,
        end,
    })
}
