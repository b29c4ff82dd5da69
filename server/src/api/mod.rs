//! What interfaces have in common: fields and errors.

mod error;
mod fields;
mod generating;
mod others;
mod structure;

pub use error::{ApiError, ApiResult};
pub use fields::{Field, Fields, Form, integer_of, name_of, shown, text_of};
pub use generating::{Defaults, GENERATING, NO_LIMIT, between, generating, ignored, limit, max_tokens};
pub use others::{Known, lenient};
pub use structure::{Constraints, STRUCTURE, structure};
