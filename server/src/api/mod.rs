//! Request fields and errors shared by all APIs.

mod compat;
mod error;
mod fields;
mod generation;
mod structure;

pub use compat::{KnownFields, lenient};
pub use error::{ApiError, ApiResult};
pub use fields::{Field, FieldType, Fields, integer_of, name_of, shown, text_of};
pub use generation::{Defaults, GENERATION_FIELDS, NO_LIMIT, between, generating, ignored, limit, max_tokens};
pub use structure::{Constraints, STRUCTURE_FIELDS, structure};
