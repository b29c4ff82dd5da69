//! Parser of `audio { … }`, the audio preprocessing.
//!
//! ```ebnf
//! sound     = "rate" ":" EXPR ";"                                     (* samples per second *)
//!           | "mel" ":" spectrum "(" EXPR ")" ";"                     (* log-mel spectrogram; number of filters *)
//!           | "frames" ":" EXPR "every" EXPR [ "in" "pieces" "(" EXPR ")" ] ";"
//!                                              (* frames of a position; frames between positions; frames of a piece *)
//!           | "chunk" ":" silence "(" EXPR ")" ";" ;                  (* positions of a chunk *)
//! spectrum  = "whisper" | "normalized" | "gemma4" | "granite" | "conformer" | "samples" ;
//! silence   = "filled" | "masked" | "bare" | "cut" | "ended" | "trimmed" | "whole" ;
//! ```

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Expr, Ident, Token, braced, parenthesized};

use crate::ast::audio::{AudioSyntax, FramesSyntax};
use crate::diag::Errors;

use super::ranges::{set, unknown};
use super::{end_of, items};

/// Settings of the section `audio`.
const SETTINGS: [&str; 4] = ["rate", "mel", "frames", "chunk"];

/// Parses the braces of a section.
pub fn audio(span: Span, input: ParseStream<'_>, errors: &mut Errors) -> syn::Result<AudioSyntax> {
    let content;
    braced!(content in input);
    let mut audio = AudioSyntax {
        span,
        rate: None,
        mel: None,
        frames: None,
        chunk: None,
    };
    items(&content, errors, |input, _| setting(input, &mut audio));
    Ok(audio)
}

fn setting(input: ParseStream<'_>, audio: &mut AudioSyntax) -> syn::Result<()> {
    let word = input.call(Ident::parse_any)?;
    match word.to_string().as_str() {
        "rate" => set(&mut audio.rate, &word, input, |input| input.parse()),
        "mel" => set(&mut audio.mel, &word, input, word_of),
        "frames" => set(&mut audio.frames, &word, input, frames),
        "chunk" => set(&mut audio.chunk, &word, input, word_of),
        _ => unknown(&word, &SETTINGS),
    }
}

/// Parses `size every step in pieces(n)`. The pieces are optional.
fn frames(input: ParseStream<'_>) -> syn::Result<FramesSyntax> {
    let window = input.parse()?;
    let word: Ident = input.parse()?;
    if word != "every" {
        return Err(syn::Error::new(
            word.span(),
            format!("expected `every`, found `{word}`"),
        ));
    }
    let (step, mut piece) = (input.parse()?, None);
    if input.parse::<Option<Token![in]>>()?.is_some() {
        let (word, frames) = word_of(input)?;
        if word != "pieces" {
            return Err(syn::Error::new(
                word.span(),
                format!("expected `pieces(…)`, found `{word}`"),
            ));
        }
        piece = Some(frames);
    }
    Ok(FramesSyntax { window, step, piece })
}

/// Parses `word(expression)`.
fn word_of(input: ParseStream<'_>) -> syn::Result<(Ident, Expr)> {
    let word = input.parse()?;
    let content;
    parenthesized!(content in input);
    let argument = content.parse()?;
    end_of(&content, ")")?;
    Ok((word, argument))
}
