//! Generates the method that returns the audio preprocessing.

use proc_macro2::TokenStream;
use quote::quote;

use super::scalar::{Scope, emit};
use super::shared;
use crate::model::Audio;
use crate::paths::runtime;

/// Generates the method of `BuildGraph` that returns the audio preprocessing.
pub fn rules(audio: &Audio) -> TokenStream {
    let (rules, mels, silences, m) = (
        runtime("AudioRules"),
        runtime("Spectrogram"),
        runtime("Silence"),
        shared("m"),
    );
    let number = |scalar| emit(scalar, Scope::Build);
    let (rate, n_mel, window) = (number(&audio.rate), number(&audio.n_mel), number(&audio.window));
    let (step, chunk) = (number(&audio.step), number(&audio.chunk));
    let piece = audio.piece.as_ref().map_or_else(|| quote!(0), number);
    let (mel, silence) = (shared(audio.mel), shared(audio.silence));
    quote! {
        fn audio(&self) -> ::core::option::Option<#rules> {
            let #m = self;
            ::core::option::Option::Some(#rules {
                rate: #rate,
                mel: #mels::#mel,
                n_mel: #n_mel,
                window: #window,
                step: #step,
                piece: #piece,
                silence: #silences::#silence,
                chunk: #chunk,
            })
        }
    }
}
