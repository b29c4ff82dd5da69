//! Reasons why a node is not planned.

use crate::backend::BackendError;
use crate::backend::rules::Unsupported;

/// Reason why a node was not planned.
#[derive(Debug)]
pub(in super::super) enum Unplanned {
    /// No kernel supports the node.
    Unsupported(Unsupported),
    /// Planning failed.
    Error(BackendError),
}

impl From<Unsupported> for Unplanned {
    fn from(error: Unsupported) -> Unplanned {
        Unplanned::Unsupported(error)
    }
}

impl From<BackendError> for Unplanned {
    fn from(error: BackendError) -> Unplanned {
        Unplanned::Error(error)
    }
}

/// Converts a size or count to the type that kernels take.
pub(super) fn size(n: usize) -> Result<u32, Unplanned> {
    match i32::try_from(n) {
        Ok(n) => Ok(n.unsigned_abs()),
        Err(_) => Err("sizes below 2^31".into()),
    }
}
