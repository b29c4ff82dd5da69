//! Parser of `tiles { … }`; see the grammar in `encoder.rs`.

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Ident, Token, braced, parenthesized};

use crate::ast::tiles::{GridSyntax, TilesSyntax};
use crate::diag::{Errors, did_you_mean};

use super::ranges::{limits, named};
use super::{end_of, items, line};

/// Facts of the section `tiles`.
const FACTS: [&str; 6] = ["grid", "above", "tile", "between_rows", "overview", "whole"];

pub(super) fn tiles(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<TilesSyntax> {
    let content;
    braced!(content in input);
    let mut tiles = TilesSyntax {
        span,
        grid: None,
        above: None,
        tile: None,
        between_rows: None,
        overview: None,
        whole: None,
    };
    items(&content, errors, |input, _| fact(input, &mut tiles));
    Ok(tiles)
}

fn fact(input: ParseStream<'_>, tiles: &mut TilesSyntax) -> syn::Result<()> {
    let word = input.call(Ident::parse_any)?;
    let text = word.to_string();
    let is_there = match text.as_str() {
        "grid" => tiles.grid.is_some(),
        "above" => tiles.above.is_some(),
        "tile" => tiles.tile.is_some(),
        "between_rows" => tiles.between_rows.is_some(),
        "overview" => tiles.overview.is_some(),
        "whole" => tiles.whole.is_some(),
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
        "grid" => tiles.grid = Some(line(input, grid)?),
        "above" => tiles.above = Some(line(input, |input| input.parse())?),
        "tile" => tiles.tile = Some(line(input, |input| input.parse())?),
        "between_rows" => tiles.between_rows = Some(line(input, |input| input.parse())?),
        "overview" => tiles.overview = Some(line(input, |input| Ok((input.parse()?, input.parse()?)))?),
        _ => tiles.whole = Some(line(input, |input| input.parse())?),
    }
    Ok(())
}

fn grid(input: ParseStream<'_>) -> syn::Result<GridSyntax> {
    let word: Ident = input.parse()?;
    if word != "ratio" && word != "longest" {
        let message = format!("expected `ratio(…, tiles = …)` or `longest(…)`, found `{word}`");
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
    let (min, max) = limits(named(&content, "tiles")?)?;
    end_of(&content, ")")?;
    Ok(GridSyntax::Ratio { side, min, max })
}
