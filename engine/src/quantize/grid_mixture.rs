//! Rules of the mixtures whose base type is IQ1, IQ2, or IQ3. Types equal the types of llama.cpp b11434.

use kernels::GgmlType::{self, *};

use super::facts::{Facts, is_sensitive};
use super::role::Role;

/// Rules for sensitive tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GridKind {
    /// Types below 2.4 bits.
    Low,
    /// IQ2_S and IQ2_M.
    Medium,
    /// IQ3_XXS.
    ThreeXxs,
    /// IQ3_XS.
    ThreeXs,
    /// IQ3_S.
    ThreeS,
    /// IQ3_M.
    ThreeM,
}

impl GridKind {
    /// Returns the type of the output projection.
    pub(super) fn output(self) -> GgmlType {
        match self {
            GridKind::Low | GridKind::Medium | GridKind::ThreeXxs => Q5_K,
            GridKind::ThreeXs | GridKind::ThreeS | GridKind::ThreeM => Q6_K,
        }
    }

    /// Returns the type of sensitive tensors of small types.
    fn better(self) -> GgmlType {
        if self == GridKind::Medium { IQ3_S } else { Q2_K }
    }

    fn is_two_bits(self) -> bool {
        matches!(self, GridKind::Low | GridKind::Medium)
    }

    /// Returns the type of a tensor other than the output projection.
    pub(super) fn type_of(self, base: GgmlType, facts: &Facts) -> GgmlType {
        let (i, n) = facts.turn;
        match (facts.role, self) {
            (Role::Embedding, GridKind::ThreeXxs) => IQ3_S,
            (Role::Embedding, kind) if kind.is_two_bits() => self.better(),
            (Role::Value | Role::QueryKeyValue | Role::KeyValue, _) => self.value(base, facts),
            (Role::Key, kind) if facts.n_expert == 8 => {
                if kind.is_two_bits() {
                    Q4_K
                } else {
                    Q8_0
                }
            }
            (Role::Key | Role::Query, GridKind::ThreeXs) => IQ3_XXS,
            (Role::Key | Role::Query, GridKind::ThreeXxs) => IQ2_S,
            (Role::Down, kind) if kind.is_two_bits() && i < n / 8 => self.better(),
            (Role::Down, GridKind::ThreeXxs) if !facts.has_importance => {
                if i < n / 8 {
                    Q4_K
                } else {
                    Q3_K
                }
            }
            (Role::Down, GridKind::ThreeM) if i < n / 8 || facts.n_expert == 8 && is_sensitive(facts.turn) => Q4_K,
            (Role::AttentionOutput, _) => self.attention_output(base, facts),
            (Role::Gate | Role::Up, GridKind::ThreeXs) if i >= n / 8 && i < 7 * n / 8 => IQ3_XXS,
            _ => base,
        }
    }

    fn value(self, base: GgmlType, facts: &Facts) -> GgmlType {
        let shares = facts.n_gqa >= 4;
        if self.is_two_bits() {
            return if shares || facts.n_expert >= 4 {
                Q4_K
            } else {
                self.better()
            };
        }
        if facts.n_expert == 8 {
            return Q8_0;
        }
        let ty = match self {
            GridKind::ThreeM => Q4_K,
            _ if shares => Q4_K,
            GridKind::ThreeXxs if !facts.has_importance => IQ3_S,
            _ => base,
        };
        // In 70B models, eight query heads share each value head, so value matrices are small.
        if facts.n_layer == 80 && facts.n_gqa > 1 && ty == Q4_K {
            Q5_K
        } else {
            ty
        }
    }

    fn attention_output(self, base: GgmlType, facts: &Facts) -> GgmlType {
        if facts.is_falcon && !self.is_two_bits() {
            return base;
        }
        if facts.n_expert == 8 {
            return Q5_K;
        }
        match self {
            GridKind::Low if matches!(base, IQ1_S | IQ1_M) => IQ2_XXS,
            GridKind::Medium | GridKind::ThreeXxs => IQ3_S,
            GridKind::ThreeM => Q4_K,
            _ => base,
        }
    }
}
