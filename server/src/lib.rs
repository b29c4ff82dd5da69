//! HTTP server that runs one or more models for many concurrent clients.
//!
//! The modules, from the scheduler outward to the network:
//!
//! - [`scheduler`]: continuous batching of sequences in one context; [`metrics`]: its counters
//! - [`embedder`]: embeddings and reranking
//! - [`api`]: request fields, validation and errors; [`constraints`]: compiled grammars
//! - [`messages`], [`service`]: chat messages, prompts and the per-model service
//! - [`tools`]: tool definitions, tool-call grammars and tool-call parsing
//! - [`parser`]: splits model output into reasoning, content and tool calls; [`output`]: turns scheduler
//!   events into output deltas
//! - [`openai`], [`anthropic`], [`ollama`], [`native`]: the APIs of OpenAI, Anthropic, Ollama and
//!   llama-server
//! - [`web`]: the browser UI
//! - [`http`], [`routes`], [`openapi`]: connections, the route table and its OpenAPI document
//! - [`model_pool`]: several models behind one address; [`batch`]: offline requests from a JSONL file

pub mod anthropic;
pub mod api;
pub mod batch;
pub mod constraints;
pub mod embedder;
pub mod http;
pub mod messages;
pub mod metrics;
pub mod model_pool;
pub mod native;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod output;
pub mod parser;
pub mod routes;
pub mod scheduler;
pub mod service;
pub mod tools;
pub mod web;
