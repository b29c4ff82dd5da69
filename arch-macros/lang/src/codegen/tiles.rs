//! Generates the rules of images that are split into tiles.

use proc_macro2::TokenStream;
use quote::quote;

use super::scalar::{Scope, emit};
use crate::model::{TileGrid, Tiles};
use crate::paths::runtime;

/// Generates the texts before and after an image.
fn around([before, after]: &[String; 2]) -> TokenStream {
    quote!([#before, #after])
}

/// Generates the choice of the grid.
fn grid(grid: &TileGrid) -> TokenStream {
    let grids = runtime("TileGrid");
    match grid {
        TileGrid::Ratio { side, min, max } => {
            let [side, min, max] = [side, min, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#grids::Ratio { side: #side, min: #min, max: #max })
        }
        TileGrid::Lines {
            side,
            min,
            max,
            newline,
            end,
        } => {
            let [side, min, max] = [side, min, max].map(|scalar| emit(scalar, Scope::Build));
            let newline = match newline {
                Some(newline) => quote!(::core::option::Option::Some(#newline)),
                None => quote!(::core::option::Option::None),
            };
            quote!(#grids::Lines { side: #side, min: #min, max: #max, newline: #newline, end: #end })
        }
        TileGrid::Area { side, unit, max } => {
            let [side, unit, max] = [side, unit, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#grids::Area { side: #side, unit: #unit, max: #max })
        }
        TileGrid::Longest { side, longest } => {
            let [side, longest] = [side, longest].map(|scalar| emit(scalar, Scope::Build));
            quote!(#grids::Longest { side: #side, longest: #longest })
        }
        TileGrid::Listed {
            side,
            key,
            newline,
            widths_first,
        } => {
            let side = emit(side, Scope::Build);
            let list = runtime("GridList");
            quote!(#grids::Listed {
                side: #side,
                key: #key,
                newline: #newline,
                widths_first: #widths_first,
                grids: #list::EMPTY,
            })
        }
        TileGrid::Windows { side, whole, longest } => {
            let [side, whole, longest] = [side, whole, longest].map(|scalar| emit(scalar, Scope::Build));
            quote!(#grids::Windows { side: #side, whole: #whole, longest: #longest })
        }
        TileGrid::Canvas { side, max } => {
            let [side, max] = [side, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#grids::Canvas { side: #side, max: #max })
        }
    }
}

/// Generates an `Option` of the rules.
pub fn rules(tiles: Option<&Tiles>) -> TokenStream {
    let Some(tiles) = tiles else {
        return quote!(::core::option::Option::None);
    };
    let ty = runtime("TileRules");
    let grid = grid(&tiles.grid);
    let above = tiles
        .above
        .as_ref()
        .map_or(quote!(0.0), |above| emit(above, Scope::Build));
    let overview = match &tiles.overview {
        None => quote!(::core::option::Option::None),
        Some((first, text)) => {
            let ty = runtime("Overview");
            let text = around(text);
            quote!(::core::option::Option::Some(#ty { first: #first, text: #text }))
        }
    };
    let (tile, whole) = (around(&tiles.tile), around(&tiles.whole));
    let (between, between_rows) = (&tiles.between, &tiles.between_rows);
    quote!(::core::option::Option::Some(#ty {
        grid: #grid,
        above: #above,
        tile: #tile,
        between: #between,
        between_rows: #between_rows,
        overview: #overview,
        whole: #whole,
    }))
}
