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
    /// A `test` block cannot give it: it follows from other values, or from keys that test models do not have.
    pub computed: bool,
    /// Where it comes from, for the documentation.
    pub doc: &'static str,
}

const fn int(name: &'static str, derived: bool, doc: &'static str) -> Builtin {
    Builtin {
        name,
        ty: Ty::Int,
        per_layer: false,
        alias_of: None,
        derived,
        computed: false,
        doc,
    }
}

const fn per_layer(name: &'static str, derived: bool, doc: &'static str) -> Builtin {
    Builtin {
        name,
        ty: Ty::Int,
        per_layer: true,
        alias_of: None,
        derived,
        computed: false,
        doc,
    }
}

const fn computed(builtin: Builtin) -> Builtin {
    Builtin {
        computed: true,
        ..builtin
    }
}

const fn float(name: &'static str, doc: &'static str) -> Builtin {
    Builtin {
        name,
        ty: Ty::Float,
        per_layer: false,
        alias_of: None,
        derived: true,
        computed: true,
        doc,
    }
}

/// Every builtin. The order is the order of factors when a shape is printed.
pub static BUILTINS: &[Builtin] = &[
    int(
        "n_vocab",
        false,
        "`vocab_size`, else the number of the tokenizer's tokens",
    ),
    int("n_ctx_train", true, "`context_length`"),
    int("n_embd", false, "`embedding_length`"),
    int("n_layer", false, "`block_count` without `nextn_predict_layers`"),
    computed(int(
        "n_labels",
        true,
        "length of `classifier.output_labels`, 1 when absent",
    )),
    int("n_expert", true, "`expert_count`, 0 when absent"),
    per_layer("n_expert_used", true, "`expert_used_count`, 0 when absent"),
    per_layer("n_head", false, "`attention.head_count`"),
    computed(int("n_head_max", true, "the largest `attention.head_count` of a layer")),
    per_layer("n_head_kv", true, "`attention.head_count_kv`, `n_head` when absent"),
    per_layer("n_ff", false, "`feed_forward_length`"),
    int(
        "head_dim",
        true,
        "`attention.key_length`, `n_embd / n_head` when absent",
    ),
    Builtin {
        name: "head_dim_k",
        ty: Ty::Int,
        per_layer: false,
        alias_of: Some("head_dim"),
        derived: true,
        computed: false,
        doc: "the same as `head_dim`",
    },
    int(
        "head_dim_v",
        true,
        "`attention.value_length`, `n_embd / n_head` when absent",
    ),
    int("n_rot", true, "`rope.dimension_count`, `head_dim` when absent"),
    computed(per_layer("il", true, "number of the layer, from 0")),
    float("rope_freq_base", "`rope.freq_base`, 10000 when absent"),
    float("rope_freq_scale", "1 / `rope.scaling.factor`, 1 when absent"),
    Builtin {
        name: "rope_yarn",
        ty: Ty::Bool,
        per_layer: false,
        alias_of: None,
        derived: true,
        computed: true,
        doc: "whether positions are extended by YaRN: `rope.scaling.type` or `rope.scaling.yarn_ext_factor` says so",
    },
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
