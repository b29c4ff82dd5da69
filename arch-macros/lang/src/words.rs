//! The words of the language that stand in no other table ([`BUILTINS`](crate::builtins::BUILTINS), [`OPS`](crate::ops::OPS),
//! [`Kind::ALL`](crate::model::Kind::ALL), [`RopeKind::ALL`](crate::model::RopeKind::ALL), [`LINTS`](crate::lint::LINTS)).

/// What the parts of an `arch!` begin with, beside `fn`.
pub const SECTIONS: [&str; 14] = [
    "name",
    "like",
    "rope",
    "attention",
    "result",
    "allow",
    "hparams",
    "tensors",
    "encoder",
    "graph",
    "mtp",
    "embedding",
    "rank",
    "test",
];

/// What the parts of a `fragment!` begin with.
pub const FRAGMENT_PARTS: [&str; 5] = ["options", "needs", "hparams", "tensors", "fn"];

/// Types of hyper-parameters.
pub const TYPES: [&str; 6] = ["usize", "f32", "bool", "string", "pattern", "late_pattern"];

/// What stands behind `attention:`, and whether tokens see later ones.
pub const ATTENTION: [(&str, bool); 2] = [("causal", false), ("bidirectional", true)];

/// What stands behind `result:`, and whether the graph's last projection is left out.
pub const RESULT: [(&str, bool); 2] = [("logits", false), ("embeddings", true)];

/// What stands behind `rank` in parentheses, and the engine's variant.
pub const POOLING: [(&str, &str); 3] = [("mean", "Mean"), ("cls", "Cls"), ("last", "Last")];
