//! HTTP tests of the server with a tiny model.

mod anthropic;
mod audio;
mod batch;
mod chat;
mod clients;
mod combined;
mod common;
mod completions;
mod connections;
mod defaults;
mod deploy;
mod docs;
mod hostile;
mod hostile_media;
mod images;
mod model_pool;
mod native;
mod ollama;
mod operations;
mod peer;
mod responses;
mod speech;
mod structured;
mod tools;
mod web;
