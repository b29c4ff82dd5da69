//! What can be wrong with an adapter.

use std::fmt;
use std::path::PathBuf;

use kernels::GgmlType;

use crate::backend::BackendError;
use crate::gguf::GgufError;

/// An adapter that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// The file is damaged or is no GGUF, or lacks a key.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// A key says that the file is something else.
    #[error("{}: {key} is `{found}`, expected `{expected}`", .path.display())]
    Kind {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// What it must be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A value that cannot be computed with.
    #[error("{}: {key} is {found}, expected a finite number", .path.display())]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The key.
        key: &'static str,
        /// Its value.
        found: f32,
    },
    /// Nothing in it.
    #[error("{}: holds no tensors named {expected}", .path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// What should be there.
        expected: &'static str,
    },
    /// Its tensors do not fit the model.
    #[error("{}: does not fit the model: {}", .path.display(), join(.flaws))]
    Tensors {
        /// The file.
        path: PathBuf,
        /// All that is wrong.
        flaws: Vec<AdapterFlaw>,
    },
    /// No memory for it.
    #[error("{}: {source}", .path.display())]
    Backend {
        /// The file.
        path: PathBuf,
        /// What failed.
        source: BackendError,
    },
}

/// How a tensor of an adapter does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdapterFlaw {
    /// The name is not of a known form.
    Name {
        /// The tensor.
        name: String,
        /// What names look like.
        expected: &'static str,
    },
    /// The model has no such weight.
    Unknown {
        /// The tensor.
        name: String,
        /// What the model should have.
        expected: String,
    },
    /// Only one of two factors is there.
    Half {
        /// The factor that is missing.
        missing: String,
    },
    /// The weight is used element by element.
    NotAMatrix {
        /// The weight.
        name: String,
    },
    /// The shape does not fit the weight's.
    Shape {
        /// The tensor.
        name: String,
        /// The shape it must have, innermost first, as far as it is known.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// The type cannot be computed with.
    Type {
        /// The tensor.
        name: String,
        /// What is taken.
        expected: &'static str,
        /// Its type.
        found: GgmlType,
    },
}

impl fmt::Display for AdapterFlaw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterFlaw::Name { name, expected } => write!(f, "tensor `{name}` is not named {expected}"),
            AdapterFlaw::Unknown { name, expected } => write!(f, "tensor `{name}`: the model has no {expected}"),
            AdapterFlaw::Half { missing } => write!(f, "tensor `{missing}` is missing"),
            AdapterFlaw::NotAMatrix { name } => {
                write!(f, "`{name}` is used element by element and has no low-rank form")
            }
            AdapterFlaw::Shape { name, expected, found } => {
                write!(f, "tensor `{name}` has shape {found:?}, expected {expected}")
            }
            AdapterFlaw::Type { name, expected, found } => {
                write!(f, "tensor `{name}` has type {found}, expected {expected}")
            }
        }
    }
}

/// At most this many flaws are listed in a message; the error holds all.
const MAX_LISTED: usize = 8;

fn join(flaws: &[AdapterFlaw]) -> String {
    let listed: Vec<String> = flaws.iter().take(MAX_LISTED).map(ToString::to_string).collect();
    let mut text = listed.join("; ");
    if flaws.len() > MAX_LISTED {
        text += &format!("; and {} more", flaws.len() - MAX_LISTED);
    }
    text
}
