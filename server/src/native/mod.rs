//! llama-server's API: completions, infill, reranking, tokenization, templates, slots, and server state.

mod answer;
mod completion;
mod embedding;
mod indent;
mod infill;
mod rerank;
mod settings;
mod slots;
mod state;
mod tokenize;

pub use answer::verbose_json;
pub use completion::{FIELDS as COMPLETION_FIELDS, completion, infill};
pub use embedding::{FIELDS as EMBEDDING_FIELDS, embedding, embeddings};
pub use infill::INFILL_FIELDS;
pub use rerank::{FIELDS as RERANK_FIELDS, rerank};
pub use settings::settings_json;
pub use slots::{SLOT_FIELDS, adapters, set_adapter_scales, slot, slots};
pub use state::{Measured, check_health, exposition, health, metrics, metrics_of, props, props_json, readiness, ready};
pub use tokenize::{
    DETOKENIZE_FIELDS, TEMPLATE_FIELDS, TOKENIZE_FIELDS, apply_template, detokenize, tokenize, tokenizer_info,
};
