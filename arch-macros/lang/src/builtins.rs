//! The symbols that every declaration has without declaring them: ONE table.

/// Type of a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ty {
    /// A count or size (`usize` in the expansion).
    Int,
    /// `f32`.
    Float,
    /// `bool`.
    Bool,
    /// A string of the file's metadata.
    Str,
    /// Integers (`Vec<usize>`) that `rust!` expressions look at.
    List,
}

impl Ty {
    /// As written in an `hparams` block.
    pub fn name(self) -> &'static str {
        match self {
            Ty::Int => "usize",
            Ty::Float => "f32",
            Ty::Bool => "bool",
            Ty::Str => "string",
            Ty::List => "[usize; ..]",
        }
    }
}

/// A symbol known without declaration.
#[derive(Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Name in declarations; also the accessor's name on the engine's `Base`.
    pub name: &'static str,
    /// Type of the value.
    pub ty: Ty,
    /// Differs by layer: usable inside the layer block and the layer loop only.
    pub per_layer: bool,
    /// The symbol that this is another name of; both count as equal in shapes.
    pub alias_of: Option<&'static str>,
    /// A `test` block need not give it: other sizes or the file format's defaults determine it.
    pub derived: bool,
    /// The key that it is read from; a `test` block cannot give what has none, which follows from other values or from keys that test
    /// models do not have.
    pub key: Option<&'static str>,
}

/// A size that files may have under `key`.
const fn read(name: &'static str, key: &'static str) -> Builtin {
    Builtin {
        key: Some(key),
        ..computed(name, Ty::Int)
    }
}

const fn computed(name: &'static str, ty: Ty) -> Builtin {
    Builtin {
        name,
        ty,
        per_layer: false,
        alias_of: None,
        derived: true,
        key: None,
    }
}

/// A `test` block gives it.
const fn given(builtin: Builtin) -> Builtin {
    Builtin {
        derived: false,
        ..builtin
    }
}

const fn per_layer(builtin: Builtin) -> Builtin {
    Builtin {
        per_layer: true,
        ..builtin
    }
}

/// Every builtin. The order is the order of factors when a shape is printed.
pub static BUILTINS: &[Builtin] = &[
    // Where the key is absent the number of the tokenizer's tokens.
    given(read("n_vocab", "vocab_size")),
    read("n_ctx_train", "context_length"),
    given(read("n_embd", "embedding_length")),
    // Without `nextn_predict_layers`.
    given(read("n_layer", "block_count")),
    // Layers of multi-token prediction behind those, 0 when absent.
    read("n_mtp", "nextn_predict_layers"),
    // Length of `classifier.output_labels`, 1 when absent.
    computed("n_labels", Ty::Int),
    // 0 when absent, and so is the number of those used.
    read("n_expert", "expert_count"),
    per_layer(read("n_expert_used", "expert_used_count")),
    per_layer(given(read("n_head", "attention.head_count"))),
    // Of all layers.
    computed("n_head_max", Ty::Int),
    // `n_head` when absent.
    per_layer(read("n_head_kv", "attention.head_count_kv")),
    per_layer(given(read("n_ff", "feed_forward_length"))),
    // `n_embd / n_head` when absent, as is `head_dim_v`.
    read("head_dim", "attention.key_length"),
    Builtin {
        alias_of: Some("head_dim"),
        ..read("head_dim_k", "attention.key_length")
    },
    read("head_dim_v", "attention.value_length"),
    // `head_dim` when absent.
    read("n_rot", "rope.dimension_count"),
    // Number of the layer, from 0.
    per_layer(computed("il", Ty::Int)),
    // The layer is one of multi-token prediction (MTP): it predicts tokens beyond the next, in `mtp` and no other graph.
    per_layer(computed("is_mtp", Ty::Bool)),
    // `rope.freq_base`, 10000 when absent.
    computed("rope_freq_base", Ty::Float),
    // 1 / `rope.scaling.factor`, 1 when absent.
    computed("rope_freq_scale", Ty::Float),
    // Whether positions are extended by YaRN: `rope.scaling.type` or `rope.scaling.yarn_ext_factor` says so.
    computed("rope_yarn", Ty::Bool),
];

/// The builtin with this name.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|b| b.name == name)
}

/// Position of a symbol in [`BUILTINS`], for ordering the factors of a printed shape; other symbols come after.
pub fn rank(name: &str) -> usize {
    BUILTINS.iter().position(|b| b.name == name).unwrap_or(BUILTINS.len())
}

/// What names of the expansion's own begin with, and others do not.
pub const OWN_PREFIX: &str = "__";

/// Names that mean something else inside a declaration or in its expansion, and what.
pub static RESERVED: &[(&str, &str)] = &[
    ("b", "the graph builder in `rust!` expressions"),
    ("m", "the model in `rust!` expressions"),
    ("l", "the layer's weights in `rust!` expressions"),
    ("tokens", "the input token ids"),
    ("pooled", "the rows of sequences in `embedding` and `rank`"),
    ("positions", "the input positions"),
    ("encoded", "the encoder's result"),
    ("hidden", "the hidden rows before the tokens in `mtp`"),
    ("T", "the number of tokens in shapes"),
    ("T_encoded", "the number of encoded tokens in shapes"),
    ("layer", "the layer block"),
    ("layers", "the list of layers in the expansion"),
    ("has", "the question whether an optional tensor is there"),
];

/// What a reserved name means, if `name` is one.
pub fn reserved(name: &str) -> Option<&'static str> {
    if name.starts_with(OWN_PREFIX) {
        return Some("something of the expansion's own");
    }
    RESERVED.iter().find(|(n, _)| *n == name).map(|&(_, why)| why)
}
