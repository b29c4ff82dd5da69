//! The interface of llama-server: completions, gaps in code, ranks, tokens, templates, slots, and how things stand.

mod completion;
mod embedding;
mod gap;
mod indent;
mod rerank;
mod slots;
mod state;
mod text;

pub use completion::{FIELDS as COMPLETION_FIELDS, completion, infill};
pub use embedding::{FIELDS as EMBEDDING_FIELDS, embedding};
pub use gap::{Gap, INFILL_FIELDS};
pub use rerank::{FIELDS as RERANK_FIELDS, rerank};
pub use slots::{SLOT_FIELDS, adapters, rescale, slot, slots};
pub use state::{check_health, exposition, health, metrics, props, readiness, ready};
pub use text::{
    DETOKENIZE_FIELDS, TEMPLATE_FIELDS, TOKENIZE_FIELDS, apply_template, detokenize, tokenize, tokenizer_info,
};
