//! Serves a model to many clients at once. Modules stand in the order in which a request meets them, from the inside out:
//!
//! - [`scheduler`]: prompts to texts, many at a time in one context
//! - [`metrics`]: what it counts

pub mod metrics;
pub mod scheduler;
