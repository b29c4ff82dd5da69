//! Serves a model to many clients at once. Modules stand in the order in which a request goes through them, from the inside out:
//!
//! - [`scheduler`]: prompts to texts, many at a time in one context; [`metrics`]: what it counts
//! - [`embedder`]: texts to vectors
//! - [`api`]: fields of requests, and what is wrong with them
//! - [`messages`], [`served`]: messages to prompts, for the model as it is served
//! - [`tools`]: functions that a model may call, and calls of them
//! - [`parser`]: reasoning and calls, told from answers; [`answer`]: what is told of a request, piece by piece
//! - [`openai`], [`anthropic`], [`ollama`], [`native`]: the interfaces of OpenAI, Anthropic, Ollama and llama-server
//! - [`web`]: the page for browsers
//! - [`http`], [`routes`], [`openapi`]: connections, and what can be asked for
//! - [`fleet`]: several models behind one address; [`batch`]: requests from lines of a file

pub mod answer;
pub mod anthropic;
pub mod api;
pub mod batch;
pub mod embedder;
pub mod fleet;
pub mod http;
pub mod messages;
pub mod metrics;
pub mod native;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod parser;
pub mod routes;
pub mod scheduler;
pub mod served;
pub mod tools;
pub mod web;
