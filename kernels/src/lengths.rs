//! Checks of the lengths of rows.

use crate::GgmlType;

/// Panics unless `n` elements of type `ty` have `n_bytes` bytes. Other lengths are a bug of the caller, because sizes
/// in files are checked when files are opened.
pub(crate) fn check_lengths(ty: GgmlType, n_bytes: usize, n: usize) {
    assert!(
        ty.row_bytes(n) == Some(n_bytes),
        "{ty}: expected whole rows, found {n_bytes} bytes for {n} elements"
    );
}

/// Panics if two rows differ in length.
pub(crate) fn same_length(a: usize, b: usize) {
    assert!(a == b, "rows must have the same length, found {a} and {b} elements");
}
