//! Mapping of published checkpoints to keys and tensors of GGUF files, as declared in architecture files.

/// Declared `checkpoint` section, emitted by `arch!`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Checkpoint {
    /// Values of `architectures` in `config.json`.
    pub classes: &'static [&'static str],
    /// Keys of the file and their values.
    pub settings: &'static [CheckpointSetting],
    /// Conditions on the configuration, each with the message shown if it is false.
    pub checks: &'static [(ConfigTerm, &'static str)],
    /// Sources of tensors.
    pub sources: &'static [CheckpointSource],
    /// Patterns of tensors that are not converted. A leading dot matches the end of a name, a trailing dot the
    /// start.
    pub ignored: &'static [&'static str],
    /// Prefix of the names of layers, and the prefix in layers of multi-token prediction; `None` if they are equal.
    pub mtp: Option<[&'static str; 2]>,
}

/// Key of the file and its value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointSetting {
    /// Symbol that other settings use; empty for a key that the declaration does not read.
    pub symbol: &'static str,
    /// GGUF key without the architecture prefix.
    pub key: &'static str,
    /// Type of the value.
    pub ty: SettingType,
    /// True if the file must have the key.
    pub required: bool,
    /// Alternatives; the first that the configuration has is the value.
    pub value: &'static [ConfigTerm],
}

/// Type of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SettingType {
    Int,
    Float,
    Bool,
    Text,
    /// The type of the value in the configuration.
    Any,
}

/// Expression over a configuration. Operators apply to each element of a list.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ConfigTerm {
    /// Value in `config.json`, by its path.
    Path(&'static str),
    /// Integer constant.
    Int(u64),
    /// Float constant.
    Float(f64),
    /// Boolean constant.
    Bool(bool),
    /// String constant.
    Text(&'static str),
    /// Value of another setting.
    Symbol(&'static str),
    /// Operator or function with its operands.
    Call(&'static str, &'static [ConfigTerm]),
}

/// Source of one tensor of the file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointSource {
    /// Declared name of the tensor.
    pub field: &'static str,
    /// GGUF name without the layer prefix and the suffix.
    pub gguf: &'static str,
    /// `bias` or `scale` for a source of that part only; otherwise empty.
    pub part: &'static str,
    /// Kind of the tensor, as in [`TensorDecl`](super::TensorDecl).
    pub kind: &'static str,
    /// Prefix of the layer group, such as `blk`.
    pub group: Option<&'static str>,
    /// The graph uses another tensor if this one is absent.
    pub tied: bool,
    /// Only layers of multi-token prediction have the tensor.
    pub mtp: bool,
    /// Alternatives; the first that the checkpoint has is the source.
    pub origins: &'static [CheckpointOrigin],
}

/// Name of a tensor in the checkpoint, with the steps that change its data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CheckpointOrigin {
    /// Name without `.weight`. The first `{}` is the layer.
    pub name: &'static str,
    /// The last `{}` counts the matrices of a stack.
    pub stack: bool,
    /// Word and operands of each step.
    pub steps: &'static [(&'static str, &'static [ConfigTerm])],
    /// Source of the rows that follow.
    pub and: Option<&'static CheckpointOrigin>,
}
