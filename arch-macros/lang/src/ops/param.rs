//! Parameters of operations: kinds of arguments, and how they are passed.

/// A parameter of an operation.
#[derive(Debug)]
pub struct Param {
    /// Name of the parameter, the named argument, and the field of the argument struct.
    pub name: &'static str,
    pub kind: ParamKind,
    /// Position or name, and whether the argument is required.
    pub given: Given,
    /// The generated code wraps the argument in `Some`, and passes `None` if it is omitted.
    pub some: bool,
}

/// Kind of argument that a parameter accepts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ParamKind {
    /// Computed tensor, or a vector used as an operand.
    Tensor,
    /// Declared `vector`.
    RmsWeight,
    /// Declared `norm` or `vector`, passed as a norm.
    NormWeight,
    /// Declared `vector` or `raw`; may be an optional tensor.
    Vector,
    /// Declared `experts`; may be an optional tensor if the parameter is optional.
    Experts,
    Linear,
    /// Declared `embed` table.
    Embed,
    /// List of `hparams`.
    List,
    /// Declared layer `vector`, taken from the first layer; may be an optional tensor.
    OfFirstLayer,
    Int,
    Float,
    /// Number that defaults to the [`Epsilon`](crate::builtins::Epsilon) of this name.
    Epsilon(&'static str),
    Bool,
    /// Unary operation, passed by name.
    Activation,
    /// Keyword: the generated type, and pairs of keyword and variant. An integer is also accepted: the code
    /// stored in files.
    Word(&'static str, &'static [(&'static str, &'static str)]),
    /// Window: `sliding(n, cond)`, `chunked(n, cond)`, or `symmetric(n, cond)`.
    Window,
}

/// Passing convention of an argument: by position or by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Given {
    Position,
    OptionalPosition,
    Keyword,
    OptionalKeyword,
}

pub(super) const fn tensor(name: &'static str) -> Param {
    Param {
        name,
        kind: ParamKind::Tensor,
        given: Given::Position,
        some: false,
    }
}

pub(super) const fn positional(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::Position,
        some: false,
    }
}

pub(super) const fn maybe(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::OptionalPosition,
        some: true,
    }
}

pub(super) const fn required(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::Keyword,
        some: false,
    }
}

pub(super) const fn keyword(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::OptionalKeyword,
        some: false,
    }
}

pub(super) const fn keyword_some(name: &'static str, kind: ParamKind) -> Param {
    Param {
        name,
        kind,
        given: Given::OptionalKeyword,
        some: true,
    }
}

/// Returns the positional epsilon of a norm, with the file's value as the default.
pub(super) const fn epsilon(of_norm: &'static str) -> Param {
    Param {
        name: "eps",
        kind: ParamKind::Epsilon(of_norm),
        given: Given::OptionalPosition,
        some: false,
    }
}

impl Param {
    pub(crate) fn is_by_name(&self) -> bool {
        matches!(self.given, Given::Keyword | Given::OptionalKeyword)
    }

    pub(super) fn is_optional(&self) -> bool {
        matches!(self.given, Given::OptionalPosition | Given::OptionalKeyword)
    }
}

impl ParamKind {
    /// Describes the kind of argument in a message.
    pub fn describe(self) -> &'static str {
        match self {
            ParamKind::Tensor => "a tensor",
            ParamKind::NormWeight => "a declared norm or vector",
            ParamKind::RmsWeight | ParamKind::Vector => "a declared vector",
            ParamKind::Experts => "declared experts",
            ParamKind::Linear => "a declared linear",
            ParamKind::Embed => "a declared embed",
            ParamKind::List => "a list",
            ParamKind::OfFirstLayer => "a declared layer vector",
            ParamKind::Int => "an integer",
            ParamKind::Float | ParamKind::Epsilon(_) => "a number",
            ParamKind::Bool => "a condition",
            ParamKind::Activation => "an activation",
            ParamKind::Word(..) => "a gating",
            ParamKind::Window => "a window",
        }
    }
}
