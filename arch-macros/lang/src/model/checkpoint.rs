//! Checked `checkpoint` sections: the source of each key and tensor in a published checkpoint, as plain data.

use crate::builtins::Ty;

/// A checked section.
#[derive(Debug)]
pub struct Checkpoint {
    /// Values of `architectures` in `config.json`.
    pub classes: Vec<String>,
    /// Keys of the file with their values.
    pub settings: Vec<Setting>,
    /// Conditions on the configuration, each with the message shown if it is false.
    pub checks: Vec<(Term, String)>,
    /// Sources of tensors.
    pub sources: Vec<TensorSource>,
    /// Tensors of the checkpoint that are not converted.
    pub ignored: Vec<String>,
    /// Prefix of the names of layers, and the prefix in layers of multi-token prediction; `None` if they are equal.
    pub mtp: Option<[String; 2]>,
}

/// A key of the file and its value.
#[derive(Debug)]
pub struct Setting {
    /// Symbol that other settings use; empty for a key that the declaration does not read.
    pub symbol: String,
    /// GGUF key without the architecture prefix.
    pub key: String,
    /// Type of the value; `None` keeps the value of the configuration.
    pub ty: Option<Ty>,
    /// The file must have the key.
    pub required: bool,
    /// Alternatives; the value is the first alternative that the configuration contains.
    pub value: Vec<Term>,
}

/// An expression over a configuration. Operators apply to each element of a list.
#[derive(Clone, Debug)]
pub enum Term {
    /// Value of the configuration, by its path.
    Path(String),
    Int(u64),
    Float(f64),
    Bool(bool),
    /// `text("silu")`
    Text(String),
    /// Value of a setting.
    Symbol(String),
    /// Operator or function.
    Call(&'static str, Vec<Term>),
}

/// Source of one tensor of the file.
#[derive(Debug)]
pub struct TensorSource {
    /// Declared name of the tensor.
    pub field: String,
    /// GGUF name without the layer prefix and the suffix.
    pub gguf: String,
    /// `bias` or `scale` for a source of that part only; otherwise empty.
    pub part: String,
    /// Kind of the tensor as written in the declaration.
    pub kind: &'static str,
    /// Prefix of the group of layers, such as `blk`.
    pub group: Option<String>,
    /// The declaration falls back to another tensor if this one is absent.
    pub tied: bool,
    /// Only layers of multi-token prediction have the tensor.
    pub mtp: bool,
    /// Alternatives; the first that the checkpoint has is the source.
    pub origins: Vec<NamedSource>,
}

/// Name of a tensor in the checkpoint, with the steps that change its data.
#[derive(Debug)]
pub struct NamedSource {
    /// Name without `.weight`. The first `{}` is the layer.
    pub name: String,
    /// The last `{}` counts the matrices of a stack.
    pub stack: bool,
    /// Word and operands of each step.
    pub steps: Vec<(&'static str, Vec<Term>)>,
    /// Source of the rows that follow.
    pub and: Option<Box<NamedSource>>,
}
