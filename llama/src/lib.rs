//! Runs language models from GGUF files on CPUs and NVIDIA GPUs: chat, completion, structured output, and
//! embeddings. All architectures are built in.
//!
//! ```standalone_crate
//! # let directory = tempfile::tempdir()?;
//! # let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
//! # std::fs::write(directory.path().join("qwen3:0.6b"), tests::text_model("gpt2", Some(template)))?;
//! # std::env::set_current_dir(&directory)?;
//! let model = llama::Model::open("qwen3:0.6b")?;
//! let mut chat = model.chat().system("Be brief.").temperature(0.7).start()?;
//! for piece in chat.ask("Why is the sky blue?")? {
//!     print!("{}", piece?);
//! }
//! let schema = r#"{"type": "array", "items": {"type": "string"}}"#;
//! let mut chat = model.chat().json_schema(schema).start()?;
//! let names = chat.ask("Name three colors.")?.text()?;
//! let vectors = model.embed(&["a cat", "a kitten"])?;
//! # assert!(names.starts_with('[') && vectors.len() == 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - [`Model`] opens a file, or a name such as `qwen3:0.6b`, which is downloaded on first use.
//! - [`Chat`] is a conversation. Sampling parameters default to the recommendations for the model, and a
//!   question computes only the new part of the conversation. [`Chat::ask_with`] asks about images or audio.
//! - [`Completion`] continues plain text.
//! - [`Response`] is an iterator of [`Piece`]s with [statistics](Stats). A [`CancelHandle`] stops the response
//!   from another thread.
//! - [`Drafts`] are sources of drafts for speculative decoding.
//! - [`Model::embed`] computes embeddings.
//! - [`hub`] downloads and lists models.
//!
//! # Features
//!
//! `hub` (default): models are opened by name and downloaded. Without the feature, the crate opens only files
//! and needs no HTTP client.
//!
//! # Logging
//!
//! The crate and the engine emit `tracing` events for models, placements, warnings, and downloads. Without a
//! subscriber, events are discarded. Generating tokens emits none.
//!
//! # Stability
//!
//! Releases follow semantic versioning, with two exceptions: the crate [`engine`] and the module [`parts`] may
//! change in any release. They are for programs that need more control, such as a server with its own
//! scheduler.

#![warn(missing_docs)]

mod builder;
mod cancel;
mod chat;
mod chat_media;
mod completion;
mod constraint;
mod drafts;
mod embed;
mod error;
mod generator;
#[cfg(feature = "hub")]
pub mod hub;
mod image_parts;
mod images;
mod load;
mod model;
mod options;
pub mod parts;
mod projectors;
mod response;
mod sampling;
mod saved;
mod session;
mod sounds;
mod stats;
mod template;
mod template_names;
mod transcribe;

pub use builder::Builder;
pub use cancel::CancelHandle;
pub use chat::{Chat, ChatBuilder};
pub use completion::{Completion, CompletionBuilder};
pub use drafts::Drafts;
#[doc(no_inline)]
pub use engine;
pub use engine::chat::Message;
pub use error::{Error, Result};
pub use model::Model;
pub use options::{CacheType, GpuLayers, ModelOptions, Precision};
pub use response::{Piece, Response};
pub use stats::{Finish, Stats};
