//! Generates the static description of an encoder's medium and the method that returns its preprocessing.

use proc_macro2::TokenStream;
use quote::quote;

use super::scalar::{Scope, emit};
use super::shared;
use crate::model::{ImageSize, Media, MediaUse, Scalar, TextPart};
use crate::paths::runtime;

/// Generates the field `media` of an architecture.
pub fn declared(media: Option<&Media>) -> TokenStream {
    let Some(media) = media else {
        return quote!(::core::option::Option::None);
    };
    let (decl, part) = (runtime("MediaDecl"), runtime("TextPart"));
    let text = media.text.iter().map(|piece| match piece {
        TextPart::Text(text) => quote!(#part::Text(#text)),
        TextPart::Medium => quote!(#part::Medium),
    });
    let medium = shared(&format!("{:?}", media.medium));
    let mediums = runtime("Medium");
    quote!(::core::option::Option::Some(#decl { medium: #mediums::#medium, text: &[#(#text),*] }))
}

/// Generates the field `media_use` of an architecture.
pub fn media_use(used: MediaUse) -> TokenStream {
    let (ty, variant) = (runtime("MediaUse"), shared(&format!("{used:?}")));
    quote!(#ty::#variant)
}

fn size(size: &ImageSize) -> TokenStream {
    let ty = runtime("ImageSize");
    match size {
        ImageSize::Fixed(side) => {
            let side = emit(side, Scope::Build);
            quote!(#ty::Fixed(#side))
        }
        ImageSize::Padded(side) => {
            let side = emit(side, Scope::Build);
            quote!(#ty::Padded(#side))
        }
        ImageSize::Contained { side, least } => {
            let side = emit(side, Scope::Build);
            let least = match least {
                Some(least) => {
                    let least = emit(least, Scope::Build);
                    quote!(::core::option::Option::Some(#least))
                }
                None => quote!(::core::option::Option::None),
            };
            quote!(#ty::Contained { side: #side, least: #least })
        }
        ImageSize::Area { side, unit } => {
            let [side, unit] = [side, unit].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Area { side: #side, unit: #unit, max: usize::MAX })
        }
        ImageSize::Longest { side, unit } => {
            let [side, unit] = [side, unit].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Longest { side: #side, unit: #unit, max: usize::MAX })
        }
        ImageSize::Within { unit, max } => {
            let [unit, max] = [unit, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Within { unit: #unit, max: #max })
        }
        ImageSize::Bordered { unit, max } => {
            let [unit, max] = [unit, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Bordered { unit: #unit, area: #max, max: usize::MAX })
        }
        ImageSize::Closest { unit, max } => {
            let [unit, max] = [unit, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Closest { unit: #unit, max: #max })
        }
        ImageSize::Stepped { unit, max } => {
            let [unit, max] = [unit, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Stepped { unit: #unit, max: #max })
        }
        ImageSize::Extended { unit, min, max } => {
            let [unit, min, max] = [unit, min, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Extended { unit: #unit, min: #min, max: #max })
        }
        ImageSize::Fitting { unit, min, max } => {
            let [unit, min, max] = [unit, min, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Fitting { unit: #unit, min: #min, max: #max })
        }
        ImageSize::Multiple { unit, min, max } => {
            let [unit, min, max] = [unit, min, max].map(|scalar| emit(scalar, Scope::Build));
            quote!(#ty::Multiple { unit: #unit, min: #min, max: #max })
        }
    }
}

/// Generates the method of `BuildGraph` that returns the image preprocessing.
pub fn rules(media: &Media) -> Option<TokenStream> {
    let image = media.image.as_ref()?;
    let (rules, filter, m) = (runtime("ImageRules"), runtime("Filter"), shared("m"));
    let number = |scalar: &Scalar| emit(scalar, Scope::Build);
    let (size, patch) = (size(&image.size), number(&image.patch));
    let (kinds, positions) = (runtime("RowPositions"), shared(image.positions));
    let block = image.block.as_ref().map_or_else(|| quote!(1), number);
    let window = image.window.as_ref().map_or_else(|| quote!(0), number);
    let resize = shared(image.resize);
    let (classes, class, between_rows) = (runtime("ClassColumn"), shared(image.class), &image.between_rows);
    let tiles = super::tiles::rules(image.tiles.as_ref());
    Some(quote! {
        fn image(&self) -> ::core::option::Option<#rules> {
            let #m = self;
            ::core::option::Option::Some(#rules {
                size: #size,
                resize: #filter::#resize,
                patch: #patch,
                block: #block,
                window: #window,
                positions: #kinds::#positions,
                class: #classes::#class,
                between_rows: #between_rows,
                tiles: #tiles,
            })
        }
    })
}
