//! Keywords of the language that are not part of another table ([`BUILTINS`](crate::builtins::BUILTINS),
//! [`OPS`](crate::ops::OPS), [`Kind::ALL`](crate::model::Kind::ALL),
//! [`RopeKind::ALL`](crate::model::RopeKind::ALL)).

/// Sections of an `arch!`, in addition to `fn`.
pub const SECTIONS: [&str; 16] = [
    "name",
    "like",
    "rope",
    "attention",
    "result",
    "models",
    "hparams",
    "audio",
    "tensors",
    "encoder",
    "graph",
    "mtp",
    "embedding",
    "rank",
    "checkpoint",
    "test",
];

/// Sections of a `fragment!`.
pub const FRAGMENT_PARTS: [&str; 6] = ["options", "needs", "hparams", "tensors", "checkpoint", "fn"];

/// Types of hyperparameters.
pub const TYPES: [&str; 7] = ["usize", "f32", "bool", "string", "pattern", "dense_first", "listed"];

/// Values of `attention:`, each with true if tokens attend to later tokens.
pub const ATTENTION: [(&str, bool); 2] = [("causal", false), ("bidirectional", true)];

/// Values of `result:`, each with true if the output projection is excluded.
pub const RESULT: [(&str, bool); 2] = [("logits", false), ("embeddings", true)];

/// Values of `rank(…)`, each with the engine's variant.
pub const POOLING: [(&str, &str); 3] = [("mean", "Mean"), ("cls", "Cls"), ("last", "Last")];

/// Part of a `checkpoint` section about layers of multi-token prediction.
pub const MTP: &str = "mtp";

/// Steps of a checkpoint's tensor with a part and a number of parts.
pub const FRACTION_STEPS: [&str; 2] = ["split", "every"];

/// Steps of a checkpoint's tensor with one number.
pub const NUMBER_STEPS: [&str; 5] = ["pairs", "heads", "tile", "plus", "times"];

/// Steps of a checkpoint's tensor without operands.
pub const PLAIN_STEPS: [&str; 5] = ["merge", "squeeze", "exp", "neg", "transpose"];
