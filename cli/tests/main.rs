//! Integration tests of the `llama` binary, in one test binary to link the engine only once.

mod common;

mod audio;
mod bench;
mod chat;
mod chat_commands;
mod checkpoints;
mod conventions;
#[cfg(target_os = "linux")]
mod cpus;
#[cfg(unix)]
mod crash_safety;
mod cuda;
mod cvector;
mod declared;
#[cfg(unix)]
mod deploy;
mod doctor;
mod documents;
mod embed;
mod gguf;
mod hub;
mod images;
mod imatrix;
mod instruction_sets;
mod llama_cpp;
mod loading;
mod lora;
#[cfg(unix)]
mod media_clients;
mod perplexity;
mod quantize;
mod run;
#[cfg(unix)]
mod serve;
mod serve_models;
mod structured;
mod tools;
