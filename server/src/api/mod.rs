//! Request fields and errors shared by all APIs.

mod compat;
mod error;
mod field;
mod fields;
mod generation;
mod structure;
mod value;

pub use compat::KnownFields;
pub use error::{ApiError, ApiResult};
pub use field::{Field, FieldType, name_of};
pub use fields::Fields;
pub use generation::{Defaults, GENERATION_FIELDS, NO_LIMIT, between, generating, limit, max_tokens};
pub use structure::{STRUCTURE_FIELDS, structure};
pub use value::{adapter_scales, integer_of, shown, text_of};
