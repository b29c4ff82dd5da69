//! The server over HTTP, with a tiny model: what clients are told, and that nothing they do harms others.

mod anthropic;
mod batch;
mod chat;
mod common;
mod completions;
mod defaults;
mod deploy;
mod docs;
mod fleet;
mod hostile;
mod native;
mod ollama;
mod operations;
mod responses;
mod structured;
mod tools;
mod web;
