//! The tests of the binary `llama`, in one binary: linking the engine once is much faster than once a file.

mod common;

mod bench;
mod chat;
mod chat_commands;
#[cfg(target_os = "linux")]
mod cpus;
mod cuda;
#[cfg(unix)]
mod deploy;
mod doctor;
mod embed;
#[cfg(unix)]
mod faults;
mod habits;
mod hub;
mod instruction_sets;
mod llama_cpp;
mod loading;
mod run;
#[cfg(unix)]
mod serve;
mod structured;
mod tools;
