//! The interface of llama-server: completions, tokens, templates, and how things stand.

mod completion;
mod state;
mod text;

pub use completion::{FIELDS as COMPLETION_FIELDS, completion};
pub use state::{health, metrics, props, ready, slots};
pub use text::{DETOKENIZE_FIELDS, TEMPLATE_FIELDS, TOKENIZE_FIELDS, apply_template, detokenize, tokenize};
