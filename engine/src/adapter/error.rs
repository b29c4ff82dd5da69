//! Errors that can occur when loading an adapter.

use std::fmt;
use std::path::PathBuf;

use kernels::GgmlType;

use crate::backend::BackendError;
use crate::gguf::{FileKind, GgufError, GgufFile};

/// An error that can occur when loading an adapter.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum AdapterError {
    /// The file is not a valid GGUF file, or a key is missing.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is a model or another kind of adapter.
    #[error("{}: the file is {found}, not {expected}", .path.display())]
    FileKind {
        path: PathBuf,
        expected: FileKind,
        found: FileKind,
    },
    /// A metadata key has an unexpected value.
    #[error("{}: key `{key}`: expected `{expected}`, found `{found}`", .path.display())]
    Kind {
        path: PathBuf,
        key: &'static str,
        expected: String,
        found: String,
    },
    /// A metadata value is NaN or infinite.
    #[error("{}: key `{key}`: expected a finite number, found {found}", .path.display())]
    NotFinite {
        path: PathBuf,
        key: &'static str,
        found: f32,
    },
    /// The file has no adapter tensors.
    #[error("{}: no adapter tensors found; expected {expected}", .path.display())]
    Empty { path: PathBuf, expected: &'static str },
    /// Tensors do not match the model.
    #[error("{}: tensors do not match the model: {}", .path.display(), join(.problems))]
    Tensors {
        path: PathBuf,
        /// All mismatches found between the adapter and the model.
        problems: Vec<AdapterMismatch>,
    },
    /// Allocating or uploading the tensors failed.
    #[error("{}: {source}", .path.display())]
    Backend { path: PathBuf, source: BackendError },
}

/// Checks the kind of a file. Without this check, errors would name keys and tensors of the wrong kind.
pub(super) fn check_file_kind(file: &GgufFile, expected: FileKind) -> Result<(), AdapterError> {
    let header = file.header();
    match FileKind::of(&header.metadata, header.tensors().len()) {
        found if found == expected => Ok(()),
        found => Err(AdapterError::FileKind {
            path: file.path().to_owned(),
            expected,
            found,
        }),
    }
}

/// Mismatch between a tensor of an adapter and the model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AdapterMismatch {
    /// The name of an adapter tensor has an unknown form.
    Name { name: String, expected: &'static str },
    /// The model has no matching weight or layer.
    Unknown { name: String, expected: String },
    /// A factor of a pair is missing.
    Half { missing: String },
    /// The weight is used elementwise, so low-rank adaptation does not apply.
    NotAMatrix { name: String },
    /// The shape of a factor does not match the weight.
    Shape {
        name: String,
        /// Required shape, innermost dimension first; unknown sizes are marked as such.
        expected: String,
        found: Vec<usize>,
    },
    /// The type of an adapter tensor is not supported.
    Type {
        name: String,
        expected: &'static str,
        found: GgmlType,
    },
    /// A value of an adapter tensor is NaN or infinite.
    NotFinite { name: String, index: usize },
}

impl fmt::Display for AdapterMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AdapterMismatch::Name { name, expected } => {
                write!(f, "unexpected name of tensor `{name}`; expected {expected}")
            }
            AdapterMismatch::Unknown { name, expected } => write!(f, "tensor `{name}`: the model has no {expected}"),
            AdapterMismatch::Half { missing } => write!(f, "tensor `{missing}` is missing"),
            AdapterMismatch::NotAMatrix { name } => {
                write!(
                    f,
                    "cannot adapt `{name}`: the weight is used elementwise, not as a matrix"
                )
            }
            AdapterMismatch::Shape { name, expected, found } => {
                write!(f, "tensor `{name}` has shape {found:?}, expected {expected}")
            }
            AdapterMismatch::Type { name, expected, found } => {
                write!(f, "tensor `{name}` has type {found}, expected {expected}")
            }
            AdapterMismatch::NotFinite { name, index } => {
                write!(f, "value {index} of tensor `{name}` is not a finite number")
            }
        }
    }
}

/// Maximum number of mismatches listed in a message.
const MAX_LISTED: usize = 8;

fn join(problems: &[AdapterMismatch]) -> String {
    let listed: Vec<String> = problems.iter().take(MAX_LISTED).map(ToString::to_string).collect();
    let mut text = listed.join("; ");
    if problems.len() > MAX_LISTED {
        text += &format!("; and {} more", problems.len() - MAX_LISTED);
    }
    text
}
