//! Integration tests of the crate with a tiny model of random weights.

mod chat;
mod common;
mod completion;
mod drafts;
mod embed;
mod encoder_pixels;
mod images;
mod open;
mod public_api;
