//! Properties that determine the type of a tensor in a mixture.

use super::role::Role;

/// Facts about a tensor and its model that the rules use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    pub role: Role,
    /// Length of a row.
    pub n_in: usize,
    /// Whether the tensor holds one matrix per expert.
    pub is_experts: bool,
    /// Index of the tensor's layer among the layers that have this tensor, and the number of these layers.
    pub turn: (usize, usize),
    /// Whether the token embedding is also the output projection.
    pub is_tied: bool,
    /// Whether the architecture is Falcon.
    pub is_falcon: bool,
    pub n_expert: usize,
    /// Query heads per key head.
    pub n_gqa: usize,
    pub n_layer: usize,
    /// Whether errors are weighted by an importance matrix.
    pub has_importance: bool,
}

/// Returns true for the first and last eighth of the layers, and every third layer between them.
pub(super) fn is_sensitive((i, n): (usize, usize)) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}
