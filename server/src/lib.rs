//! HTTP server that runs one or more models for many concurrent clients.
//!
//! The modules, from the scheduler outward to the network:
//!
//! - [`scheduler`]: continuous batching of sequences in one context; [`metrics`]: its counters
//! - [`api`]: request fields, validation, and errors; [`constraints`]: compiled grammars
//! - [`chat`]: prompts and parsed output of chats, with tool calls; [`infill`]: fill-in-the-middle prompts
//! - [`media_encoder`]: the image and audio encoder; [`encoding`]: requests that wait for the encoder
//! - [`service`]: completions and chats of one model; [`capabilities`]: its features
//! - [`embedder`]: embeddings and reranking; [`speech`]: speech recognition;
//!   [`response_store`]: stored responses; [`timestamp`]: formatted times
//! - [`app`]: the state of the handlers, made of the above
//! - [`http`]: connections, bodies, and streams; [`wanted`]: end of the work for clients that have disconnected
//! - [`openai`], [`anthropic`], [`ollama`], [`native`]: the APIs of OpenAI, Anthropic, Ollama, and llama-server;
//!   [`web`]: the browser UI
//! - [`routes`]: the route table; [`openapi`]: its OpenAPI document
//! - [`guard`]: authentication and other checks of every request; [`router`]: routes and guard together
//! - [`vertex`]: Vertex AI's route for several requests
//! - [`model_pool`]: several models behind one address; [`batch`]: offline requests from a JSONL file

pub mod anthropic;
pub mod api;
pub mod app;
pub mod batch;
pub mod capabilities;
pub mod chat;
pub mod constraints;
pub mod embedder;
pub mod encoding;
pub mod guard;
pub mod http;
pub mod infill;
pub mod media_encoder;
pub mod metrics;
pub mod model_pool;
pub mod native;
pub mod ollama;
pub mod openai;
pub mod openapi;
pub mod response_store;
pub mod router;
pub mod routes;
pub mod scheduler;
pub mod service;
pub mod speech;
pub mod timestamp;
pub mod vertex;
pub mod wanted;
pub mod web;
