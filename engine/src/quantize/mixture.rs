//! Mixtures: named assignments of types to the tensors of a model.

use std::fmt;

use kernels::GgmlType::{self, *};

use super::facts::{Facts, is_sensitive};
use super::grid_mixture::GridKind;
use super::role::Role;

/// Named assignment of types to the tensors of a model. Names and types equal those of llama.cpp, or of
/// ik_llama.cpp for its types, so that files of one name are comparable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixture(&'static Row);

#[derive(Debug, PartialEq, Eq)]
struct Row {
    name: &'static str,
    alias: Option<&'static str>,
    /// Value of `general.file_type`.
    file_type: u32,
    base: GgmlType,
    kind: Kind,
}

/// Rules of a mixture for sensitive tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Equal types for all tensors.
    Plain,
    /// Base type except for the embedding and the output.
    Base,
    Small,
    Medium,
    Large,
    /// MXFP4 for experts and Q8_0 elsewhere.
    Experts,
    /// IQ1, IQ2, and IQ3.
    Grid(GridKind),
}

const fn row(name: &'static str, file_type: u32, base: GgmlType, kind: Kind) -> Row {
    Row {
        name,
        alias: None,
        file_type,
        base,
        kind,
    }
}

const fn alias(mut row: Row, alias: &'static str) -> Row {
    row.alias = Some(alias);
    row
}

static MIXTURES: [Row; 38] = [
    row("f32", 0, F32, Kind::Plain),
    row("f16", 1, F16, Kind::Plain),
    row("bf16", 32, BF16, Kind::Plain),
    row("q8_0", 7, Q8_0, Kind::Base),
    row("q6_k", 18, Q6_K, Kind::Base),
    row("q5_k_s", 16, Q5_K, Kind::Small),
    alias(row("q5_k_m", 17, Q5_K, Kind::Medium), "q5_k"),
    row("q5_0", 8, Q5_0, Kind::Base),
    row("q5_1", 9, Q5_1, Kind::Base),
    row("q4_k_s", 14, Q4_K, Kind::Small),
    alias(row("q4_k_m", 15, Q4_K, Kind::Medium), "q4_k"),
    row("q4_0", 2, Q4_0, Kind::Base),
    row("q4_1", 3, Q4_1, Kind::Base),
    row("iq4_nl", 25, IQ4_NL, Kind::Base),
    row("iq4_xs", 30, IQ4_XS, Kind::Base),
    row("q3_k_s", 11, Q3_K, Kind::Small),
    alias(row("q3_k_m", 12, Q3_K, Kind::Medium), "q3_k"),
    row("q3_k_l", 13, Q3_K, Kind::Large),
    row("q2_k", 10, Q2_K, Kind::Medium),
    row("q2_k_s", 21, Q2_K, Kind::Small),
    row("iq3_m", 27, IQ3_S, Kind::Grid(GridKind::ThreeM)),
    row("iq3_s", 26, IQ3_S, Kind::Grid(GridKind::ThreeS)),
    row("iq3_xs", 22, IQ3_S, Kind::Grid(GridKind::ThreeXs)),
    row("iq3_xxs", 23, IQ3_XXS, Kind::Grid(GridKind::ThreeXxs)),
    row("iq2_m", 29, IQ2_S, Kind::Grid(GridKind::Medium)),
    row("iq2_s", 28, IQ2_XS, Kind::Grid(GridKind::Medium)),
    row("iq2_xs", 20, IQ2_XS, Kind::Grid(GridKind::Low)),
    row("iq2_xxs", 19, IQ2_XXS, Kind::Grid(GridKind::Low)),
    row("iq1_m", 31, IQ1_M, Kind::Grid(GridKind::Low)),
    row("iq1_s", 24, IQ1_S, Kind::Grid(GridKind::Low)),
    row("tq1_0", 36, TQ1_0, Kind::Base),
    row("tq2_0", 37, TQ2_0, Kind::Base),
    alias(row("mxfp4_moe", 38, MXFP4, Kind::Experts), "mxfp4"),
    row("nvfp4", 39, NVFP4, Kind::Base),
    row("q1_0", 40, Q1_0, Kind::Base),
    row("q2_0", 41, Q2_0, Kind::Base),
    row("iq4_k", 140, IQ4_K, Kind::Base),
    row("iq4_ks", 145, IQ4_KS, Kind::Base),
];

impl Mixture {
    /// Returns the mixture with this name, ignoring case, or with this value of `general.file_type`.
    pub fn find(name: &str) -> Option<Mixture> {
        let is = |known: &str| known.eq_ignore_ascii_case(name);
        MIXTURES
            .iter()
            .find(|row| is(row.name) || row.alias.is_some_and(is) || row.file_type.to_string() == name)
            .map(Mixture)
    }

    /// Returns the first mixture whose base is this type.
    pub fn of_type(ty: GgmlType) -> Option<Mixture> {
        MIXTURES.iter().find(|row| row.base == ty).map(Mixture)
    }

    /// Yields the names of all mixtures.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MIXTURES.iter().map(|row| row.name)
    }

    /// Returns the type of most matrices.
    pub fn base(self) -> GgmlType {
        self.0.base
    }

    /// Returns the value of the metadata key `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.0.file_type
    }

    /// Returns the type of a tensor, regardless of whether its rows are whole blocks.
    pub(super) fn type_of(self, facts: &Facts) -> GgmlType {
        let base = self.0.base;
        match (self.0.kind, facts.role) {
            (Kind::Plain, _) => base,
            (_, Role::Output) => self.output(facts),
            (_, Role::Embedding) if facts.is_tied => self.output(facts),
            (Kind::Grid(kind), _) => kind.type_of(base, facts),
            (Kind::Experts, _) => {
                if facts.is_experts {
                    MXFP4
                } else {
                    Q8_0
                }
            }
            (_, Role::Embedding) if matches!(base, TQ1_0 | TQ2_0 | Q2_0) => Q4_K,
            (_, Role::Value | Role::QueryKeyValue | Role::KeyValue) => self.value(facts),
            (_, Role::Key) if facts.n_expert == 8 => Q8_0,
            (_, Role::Down) => self.down(facts),
            (_, Role::AttentionOutput) => self.attention_output(facts),
            _ => base,
        }
    }

    fn output(self, facts: &Facts) -> GgmlType {
        let base = self.0.base;
        let fits = facts.n_in.is_multiple_of(base.block_size());
        if base == Q8_0 || self.0.kind == Kind::Experts || facts.is_falcon || !fits {
            return Q8_0;
        }
        match self.0.kind {
            Kind::Grid(kind) => kind.output(),
            _ => Q6_K,
        }
    }

    fn value(self, facts: &Facts) -> GgmlType {
        let (base, kind, (i, _)) = (self.0.base, self.0.kind, facts.turn);
        if facts.n_expert == 8 {
            return Q8_0;
        }
        let ty = match (base, kind) {
            (Q2_K, Kind::Medium) => {
                if facts.n_gqa >= 4 {
                    Q4_K
                } else {
                    Q3_K
                }
            }
            (Q2_K, Kind::Small) if facts.n_gqa >= 4 => Q4_K,
            (Q3_K, Kind::Medium) => {
                if i < 2 {
                    Q5_K
                } else {
                    Q4_K
                }
            }
            (Q3_K, Kind::Large) => Q5_K,
            (IQ4_NL | IQ4_XS | IQ4_KS, _) if facts.n_gqa >= 4 => Q5_K,
            (IQ4_K, _) if facts.n_gqa >= 2 => Q5_K,
            (Q4_K | Q5_K, Kind::Medium) if is_sensitive(facts.turn) => Q6_K,
            (Q4_K, Kind::Small) if i < 4 => Q5_K,
            _ => base,
        };
        // In 70B models, eight query heads share each value head, so value matrices are small.
        let is_70b = facts.n_layer == 80 && facts.n_gqa > 1;
        if is_70b && matches!(ty, Q3_K | Q4_K) { Q5_K } else { ty }
    }

    fn down(self, facts: &Facts) -> GgmlType {
        let (base, (i, n)) = (self.0.base, facts.turn);
        match (base, self.0.kind) {
            (Q2_K, Kind::Medium) => Q3_K,
            (Q2_K, Kind::Small) if i < n / 8 => Q4_K,
            (Q3_K, Kind::Medium) if i < n / 16 => Q5_K,
            (Q3_K, Kind::Medium) if facts.is_falcon && !is_sensitive(facts.turn) => Q3_K,
            (Q3_K, Kind::Medium) => Q4_K,
            (Q3_K, Kind::Large) => {
                if facts.is_falcon {
                    Q4_K
                } else {
                    Q5_K
                }
            }
            (Q4_K, Kind::Medium) if facts.is_falcon && i >= n / 16 => {
                if is_sensitive(facts.turn) {
                    Q5_K
                } else {
                    Q4_K
                }
            }
            (Q4_K | Q5_K, Kind::Medium) if is_sensitive(facts.turn) => Q6_K,
            (Q4_K, Kind::Small) if !facts.is_falcon && i < n / 8 => Q5_K,
            (IQ4_NL | IQ4_XS | IQ4_KS, _) if i < n / 8 => Q5_K,
            _ => base,
        }
    }

    fn attention_output(self, facts: &Facts) -> GgmlType {
        match (self.0.base, self.0.kind) {
            (Q3_K, Kind::Large) if facts.is_falcon => Q4_K,
            (base, _) if facts.is_falcon => base,
            (Q3_K, Kind::Large) if facts.n_expert == 8 => Q3_K,
            (Q2_K, Kind::Medium) | (Q3_K | Q4_K | IQ4_NL | IQ4_XS | IQ4_K | IQ4_KS, _) if facts.n_expert == 8 => Q5_K,
            (Q2_K, Kind::Medium) => Q3_K,
            (Q3_K, Kind::Medium) => Q4_K,
            (Q3_K, Kind::Large) => Q5_K,
            (base, _) => base,
        }
    }
}

impl fmt::Display for Mixture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name)
    }
}

/// Returns the type for rows that are not whole blocks of `ty`: one with smaller blocks, or F16.
pub(super) fn fitting(ty: GgmlType, n_in: usize) -> GgmlType {
    let fits = |ty: GgmlType| ty.row_bytes(n_in).is_some();
    if fits(ty) {
        return ty;
    }
    let smaller = match ty {
        Q2_K | Q3_K | TQ1_0 | TQ2_0 | Q2_0 | Q1_0 | NVFP4 => Q4_0,
        IQ4_XS | IQ4_K | IQ4_KS | IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ3_XXS | IQ3_S => IQ4_NL,
        Q4_K => Q5_0,
        Q5_K | IQ5_K => Q5_1,
        Q6_K | IQ6_K => Q8_0,
        _ => F16,
    };
    if fits(smaller) { smaller } else { F16 }
}
