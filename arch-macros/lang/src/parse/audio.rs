//! Parser of `audio { … }`, the preprocessing of audio.
//!
//! ```ebnf
//! sound     = "rate" ":" EXPR ";"                                     (* samples per second *)
//!           | "mel" ":" "whisper" "(" EXPR ")" ";"                   (* log-mel spectrogram; number of filters *)
//!           | "frames" ":" EXPR "every" EXPR ";"                      (* frames of a position; frames between positions *)
//!           | "chunk" ":" silence "(" EXPR ")" ";" ;                  (* positions of a chunk *)
//! silence   = "filled" | "masked" | "bare" ;
//! ```

use proc_macro2::Span;
use syn::ext::IdentExt;
use syn::parse::ParseStream;
use syn::{Expr, Ident, braced, parenthesized};

use crate::ast::audio::AudioSyntax;
use crate::diag::{Errors, did_you_mean};

use super::{end_of, items, line};

/// Facts of the section.
const FACTS: [&str; 4] = ["rate", "mel", "frames", "chunk"];

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
    items(&content, errors, |input, _| fact(input, &mut audio));
    Ok(audio)
}

fn fact(input: ParseStream<'_>, audio: &mut AudioSyntax) -> syn::Result<()> {
    let word = input.call(Ident::parse_any)?;
    let text = word.to_string();
    let is_there = match text.as_str() {
        "rate" => audio.rate.is_some(),
        "mel" => audio.mel.is_some(),
        "frames" => audio.frames.is_some(),
        "chunk" => audio.chunk.is_some(),
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
        "rate" => audio.rate = Some(line(input, |input| input.parse())?),
        "mel" => audio.mel = Some(line(input, word_of)?),
        "frames" => audio.frames = Some(line(input, frames)?),
        _ => audio.chunk = Some(line(input, word_of)?),
    }
    Ok(())
}

/// Parses `size every step`.
fn frames(input: ParseStream<'_>) -> syn::Result<(Expr, Expr)> {
    let size = input.parse()?;
    let word: Ident = input.parse()?;
    if word != "every" {
        return Err(syn::Error::new(
            word.span(),
            format!("expected `every`, found `{word}`"),
        ));
    }
    Ok((size, input.parse()?))
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
