//! Symbols that every declaration can use without declaring them.

/// Type of a scalar expression.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ty {
    /// Integer for counts and sizes; `usize` in the expansion.
    Int,
    /// Single-precision number; `f32` in the expansion.
    Float,
    /// Condition; `bool` in the expansion.
    Bool,
    /// String from the file's metadata.
    Str,
    /// List of integers (`Vec<usize>`), for functions and operations of lists.
    List,
}

impl Ty {
    /// Returns the type's name in an `hparams` block.
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

/// A symbol that the language predefines.
#[derive(Debug, PartialEq, Eq)]
pub struct Builtin {
    /// Name in declarations and of the accessor on the engine's `Base`.
    pub name: &'static str,
    pub ty: Ty,
    /// The value differs by layer, so it is usable only in the layer block and the layer loop.
    pub per_layer: bool,
    /// Symbol that this one is an alias of. Shapes treat both as equal.
    pub alias_of: Option<&'static str>,
    /// The value follows from other sizes or from defaults of the file format, so a `test` block may omit it.
    pub derived: bool,
    /// GGUF key of the value. A `test` block cannot set a symbol without a key, because its value is
    /// computed.
    pub key: Option<&'static str>,
}

/// Returns a builtin that is read from `key` and has a default.
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

/// Marks a builtin that every `test` block must set.
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

/// All builtins. Printed shapes list their factors in this order.
pub static BUILTINS: &[Builtin] = &[
    // Defaults to the number of tokens in the tokenizer.
    given(read("n_vocab", "vocab_size")),
    read("n_ctx_train", "context_length"),
    given(read("n_embd", "embedding_length")),
    // The layer count excludes the `nextn_predict_layers` layers.
    given(read("n_layer", "block_count")),
    // Layers for multi-token prediction, stored after the first `n_layer`. Defaults to 0.
    read("n_mtp", "nextn_predict_layers"),
    // Number of entries in `classifier.output_labels`; 1 if absent.
    computed("n_labels", Ty::Int),
    // `n_expert` and `n_expert_used` default to 0.
    read("n_expert", "expert_count"),
    per_layer(read("n_expert_used", "expert_used_count")),
    per_layer(given(read("n_head", "attention.head_count"))),
    // Maximum of `n_head` over all layers.
    computed("n_head_max", Ty::Int),
    // The KV head count defaults to `n_head`.
    per_layer(read("n_head_kv", "attention.head_count_kv")),
    per_layer(given(read("n_ff", "feed_forward_length"))),
    // `head_dim` and `head_dim_v` default to `n_embd / n_head`.
    read("head_dim", "attention.key_length"),
    Builtin {
        alias_of: Some("head_dim"),
        ..read("head_dim_k", "attention.key_length")
    },
    read("head_dim_v", "attention.value_length"),
    // The rotated dimension count defaults to `head_dim`.
    read("n_rot", "rope.dimension_count"),
    // Index of the layer, starting at 0.
    per_layer(computed("il", Ty::Int)),
    // True for a layer of multi-token prediction (MTP). Such a layer is computed only in `mtp`.
    per_layer(computed("is_mtp", Ty::Bool)),
    // Value of `rope.freq_base`; 10000 if absent.
    computed("rope_freq_base", Ty::Float),
    // Reciprocal of `rope.scaling.factor`; 1 if absent.
    computed("rope_freq_scale", Ty::Float),
    // True if `rope.scaling.type` or `rope.scaling.yarn_ext_factor` selects YaRN.
    computed("rope_yarn", Ty::Bool),
];

/// Returns the builtin named `name`.
pub fn builtin(name: &str) -> Option<&'static Builtin> {
    BUILTINS.iter().find(|b| b.name == name)
}

/// Returns the index of a symbol in [`BUILTINS`], which orders the factors of printed shapes. Other symbols
/// sort last.
pub fn rank(name: &str) -> usize {
    BUILTINS.iter().position(|b| b.name == name).unwrap_or(BUILTINS.len())
}

/// The epsilon of a norm. Its key is required in every declaration that uses the name; the declaration need not list
/// the key. A hyperparameter of the declaration that reads the key, for example with a default, takes precedence.
#[derive(Debug, PartialEq, Eq)]
pub struct Epsilon {
    pub name: &'static str,
    pub key: &'static str,
}

pub const RMS_NORM_EPS: &str = "rms_norm_eps";
pub const LAYER_NORM_EPS: &str = "layer_norm_eps";

/// All epsilons.
pub static EPSILONS: [Epsilon; 2] = [
    Epsilon {
        name: RMS_NORM_EPS,
        key: "attention.layer_norm_rms_epsilon",
    },
    Epsilon {
        name: LAYER_NORM_EPS,
        key: "attention.layer_norm_epsilon",
    },
];

/// Returns the epsilon named `name`.
pub fn epsilon(name: &str) -> Option<&'static Epsilon> {
    EPSILONS.iter().find(|e| e.name == name)
}

/// Prefix reserved for names that the expansion generates.
pub const OWN_PREFIX: &str = "__";

/// Reserved names and their meaning in a declaration or its expansion.
pub static RESERVED: &[(&str, &str)] = &[
    ("b", "the graph builder in `rust!` expressions"),
    ("m", "the model in `rust!` expressions"),
    ("l", "the layer's weights in `rust!` expressions"),
    ("tokens", "the input token ids"),
    ("pooled", "the pooled rows of each sequence in `embedding` and `rank`"),
    ("positions", "the input positions"),
    ("patches", "the patches of the image in `encoder!`"),
    ("frames", "the frames of audio"),
    ("encoded", "the result of the encoder"),
    ("hidden", "the hidden state of the preceding token in `mtp`"),
    ("T", "the number of tokens in shapes"),
    ("T_patches", "the number of patches in shapes"),
    ("T_encoded", "the number of encoded tokens in shapes"),
    ("n_banked", "the number of values in a bank in shapes"),
    ("layer", "the layer block"),
    ("layers", "the list of layers in the expansion"),
    ("has", "the test for the presence of an optional tensor"),
    ("model_is", "the test for a published model"),
    ("given", "the test for a key of the file"),
    ("file_rows", "the number of rows of a matrix in the file"),
];

/// Returns the meaning of `name` if it is reserved.
pub fn reserved(name: &str) -> Option<&'static str> {
    if name.starts_with(OWN_PREFIX) {
        return Some("an internal name of the expansion");
    }
    RESERVED.iter().find(|(n, _)| *n == name).map(|&(_, why)| why)
}
