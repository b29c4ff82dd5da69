//! File contents that are computed when they are read, such as tensors of a checkpoint in a different order.

use std::fmt::Debug;
use std::ops::Range;

use super::GgufError;

/// Source of bytes that no file contains.
pub trait ComputedBytes: Debug + Send + Sync {
    /// Returns the number of bytes.
    fn n_bytes(&self) -> usize;

    /// Computes the bytes starting at `start`. All of `out` is written, even if an error is returned.
    ///
    /// # Errors
    /// Returns an error if a source of the bytes contains invalid values.
    fn compute(&self, start: usize, out: &mut [u8]) -> Result<(), GgufError>;

    /// Releases the memory of the sources of these bytes, which are read again if needed.
    fn release(&self, range: Range<usize>);
}
