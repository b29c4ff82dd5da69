//! The checked declaration: typed, resolved, and free of errors. Code generation and the diagrams read it and
//! cannot fail.

mod audio;
pub mod checkpoint;
mod functions;
mod loading;
mod media;
mod text;
mod tiles;

use std::ops::Deref;

use proc_macro2::{Ident, Span, TokenStream};

use crate::builtins::{Builtin, Ty};
use crate::ops::OpSpec;
use crate::sym::{Dim, Shape};

pub use audio::Audio;
pub use functions::{ListFn, SCALAR_FNS, ScalarFn};
pub use loading::Presence;
pub use media::{Image, ImageSize, Media, MediaUse, Medium, TextPart};
pub use text::HparamText;
pub use tiles::{TileGrid, Tiles};

/// A checked declaration of an architecture.
#[derive(Debug)]
pub struct Arch {
    /// Value of `general.architecture` in matching files.
    pub name: String,
    /// Location of the name in the declaration.
    pub name_span: Span,
    /// Ancestors of the declaration (`like:`), nearest first.
    pub ancestors: Vec<Ancestor>,
    /// Files of the fragments used, relative to the crate's manifest.
    pub fragments: Vec<String>,
    /// Pairing of dimensions for rotary positions.
    pub rope: RopeKind,
    /// Pairing for files with multi-axis positions, if different.
    pub rope_with_sections: Option<RopeKind>,
    /// Tokens attend to later tokens, and no KV cache is used.
    pub bidirectional: bool,
    /// True if the result excludes the output projection of the graph.
    pub embeddings: bool,
    /// Published models that their sizes identify: name and condition.
    pub models: Vec<(String, Scalar)>,
    /// Keys, derived values, and checks, in source order.
    pub hparams: Vec<Hparam>,
    /// Groups of layers. The first is `layer`, even if it has no tensors.
    pub groups: Vec<Group>,
    /// Tensors outside the layers, followed by the tensors of the layers, in source order.
    pub tensors: Vec<Tensor>,
    /// Unused tensors that files may contain: GGUF name, and whether each layer has one.
    pub ignored: Vec<(String, bool)>,
    /// Variables of all graphs.
    pub vars: Vec<Var>,
    /// Graph of the encoder. Its result is available to the main graph as `encoded`.
    pub encoder: Option<Block>,
    /// Functions of the declaration and its fragments.
    pub functions: Vec<FunctionNames>,
    /// Statements of the main graph.
    pub graph: Block,
    /// Graph of a multi-token prediction layer. It reads the hidden states as `hidden`.
    pub mtp: Option<Block>,
    /// Projection of the pooled rows of an embedding.
    pub embedding: Option<Head>,
    /// Graph that scores the pooled rows.
    pub rank: Option<Head>,
    /// The engine's pooling variant for `rank`, used if the file specifies none.
    pub rank_pooling: Option<&'static str>,
    /// Sources of keys and tensors in published checkpoints.
    pub checkpoints: Vec<checkpoint::Checkpoint>,
    /// Sizes of the test model, in source order.
    pub test: Vec<(String, TestSize)>,
    /// Audio preprocessing.
    pub audio: Option<Audio>,
    /// Preprocessing and prompt of an `encoder!`; `None` for an architecture.
    pub media: Option<Media>,
    /// Treatment of media rows by the graph.
    pub media_use: MediaUse,
}

impl Arch {
    /// Returns true if the graph produces logits.
    pub fn projects(&self) -> bool {
        self.graph
            .result
            .as_ref()
            .is_some_and(|v| v.shape.same(&Shape::logits()))
    }
}

/// Statements that compute on the pooled rows.
#[derive(Debug)]
pub struct Head {
    /// Variable `pooled`.
    pub pooled: VarId,
    /// Statements of the graph and its result.
    pub block: Block,
}

/// A group of layers with the same tensors.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of the group in `for` loops.
    pub name: Ident,
    /// GGUF prefix of the group, before the layer number.
    pub prefix: String,
    /// Number of layers; `None` means `n_layer`.
    pub count: Option<Scalar>,
}

/// A declaration that another one inherits from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// Value of `general.architecture` of the ancestor.
    pub name: String,
    /// Source file, relative to the crate's manifest.
    pub file: String,
}

/// Pairing of the dimensions of a head for RoPE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopeKind {
    /// The architecture has no rotary positions.
    None,
    /// RoPE rotates adjacent dimensions, `(2i, 2i + 1)`.
    Norm,
    /// Dimension `i` with `i + d / 2`.
    Neox,
    /// NeoX pairing with multi-axis positions; each axis rotates a contiguous section.
    Mrope,
    /// NeoX pairing with multi-axis positions; the axes are interleaved.
    Imrope,
}

impl RopeKind {
    /// All RoPE kinds with their names in declarations.
    pub const ALL: [(&'static str, RopeKind); 5] = [
        ("norm", RopeKind::Norm),
        ("neox", RopeKind::Neox),
        ("mrope", RopeKind::Mrope),
        ("imrope", RopeKind::Imrope),
        ("none", RopeKind::None),
    ];

    /// Returns true for multi-axis positions.
    pub fn has_axes(self) -> bool {
        matches!(self, RopeKind::Mrope | RopeKind::Imrope)
    }
}

/// A value of a `test` block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TestSize {
    Int(u64),
    Bool(bool),
    Float(f64),
}

impl TestSize {
    /// Returns the value as a number; booleans become 0 or 1.
    pub fn number(self) -> f64 {
        match self {
            TestSize::Int(n) => n as f64,
            TestSize::Bool(b) => f64::from(u8::from(b)),
            TestSize::Float(x) => x,
        }
    }
}

/// An item of the `hparams` section.
#[derive(Debug)]
pub enum Hparam {
    /// Value read from the file's metadata.
    Key {
        name: Ident,
        read: Read,
        /// GGUF key without the architecture prefix.
        key: String,
        /// Value used if the key is absent; `None` if the key is required.
        default: Option<Scalar>,
        /// Minimum length of a list. If it is 0, the key may be absent.
        at_least: Option<Scalar>,
        /// The graph reads the value, so the model stores it.
        kept: bool,
    },
    /// Value computed from other symbols.
    Let {
        name: Ident,
        value: Scalar,
        /// The graph reads the value, so the model stores it.
        kept: bool,
    },
    /// Condition on the file's values.
    Check {
        /// Condition; a per-layer condition must hold in every layer.
        cond: Scalar,
        /// Message shown if the condition is false.
        text: String,
        /// The message is a warning.
        only_warns: bool,
    },
}

/// Form of the value stored under a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// A single value for all layers.
    One(Ty),
    /// Per-layer values; a single value applies to all layers.
    PerLayer(Ty),
    /// Any number of integers, for functions and operations of lists.
    List,
    /// Per-layer booleans. A single integer `n` is a period: true if `il % n < n - 1`.
    Pattern,
    /// Per-layer booleans. A single integer `n` is a period: true if `il % n != 0`.
    DenseFirst,
    /// Per-layer booleans from an array of layer numbers: true if `il` is in the array.
    Listed,
}

impl Read {
    /// Returns the type of one value.
    pub fn ty(self) -> Ty {
        match self {
            Read::One(ty) | Read::PerLayer(ty) => ty,
            Read::List => Ty::List,
            Read::Pattern | Read::DenseFirst | Read::Listed => Ty::Bool,
        }
    }

    /// Returns the type as written in the declaration.
    pub fn name(self) -> String {
        match self {
            Read::One(ty) => ty.name().to_string(),
            Read::PerLayer(ty) => format!("[{}]", ty.name()),
            Read::List => Ty::List.name().to_string(),
            Read::Pattern => "pattern".to_string(),
            Read::DenseFirst => "dense_first".to_string(),
            Read::Listed => "listed".to_string(),
        }
    }
}

/// Kind of a tensor. Determines its GGUF suffixes, the notation of its shape, and the operations that accept
/// it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Lookup table that is indexed by row.
    Embed,
    /// Vector with a GGUF name that ends in `.weight`.
    Vector,
    /// Norm with `.weight` and an optional `.bias`.
    Norm,
    /// Projection with `.weight [in, out]`, optional `.bias [out]`, and optional `.scale [1]`.
    Linear,
    /// Per-expert projections: `.weight [in, out, n]`, optional `.bias [out, n]`, and optional `.scale
    /// [n]`.
    Experts,
    /// Per-head projections: `.weight [in, out, n_head]`.
    PerHead,
    /// Tensor whose GGUF name has no suffix.
    Raw,
}

impl Kind {
    /// All tensor kinds with their names in declarations.
    pub const ALL: [(&'static str, Kind); 7] = [
        ("embed", Kind::Embed),
        ("vector", Kind::Vector),
        ("norm", Kind::Norm),
        ("linear", Kind::Linear),
        ("experts", Kind::Experts),
        ("per_head", Kind::PerHead),
        ("raw", Kind::Raw),
    ];

    /// Returns the kind as written in the declaration.
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, k)| *k == self).map_or("", |(n, _)| n)
    }
}

/// A declared tensor.
#[derive(Debug)]
pub struct Tensor {
    /// Name of the tensor in the graph.
    pub name: Ident,
    pub kind: Named<Kind>,
    /// GGUF name without the layer prefix and the suffix.
    pub gguf: String,
    /// Sizes of the tensor, innermost dimension first.
    pub sizes: Vec<Scalar>,
    /// Sizes of the tensor in symbolic form.
    pub dims: Vec<Dim>,
    /// Shape as written in the declaration.
    pub shape_text: String,
    /// Files may have more rows than the last size.
    pub or_more: bool,
    /// True if files may lack the tensor.
    pub optional: bool,
    /// Index of the `embed` tensor used if this one is absent.
    pub tie: Option<usize>,
    /// Alternative tensor name in GGUF files.
    pub other_name: Option<String>,
    /// Group of layers, an index into [`Arch::groups`]; `None` outside the layers.
    pub group: Option<usize>,
    /// Conditions for the tensor's existence, each with its required value.
    pub conditions: Vec<(Scalar, bool)>,
}

impl Tensor {
    /// Returns true if a file contains either this tensor or `other`, distinguished by shape.
    pub fn is_other_form_of(&self, other: &Tensor) -> bool {
        let instead_of = |a: &Tensor, b: &Tensor| {
            let lacks = |(c, _): &(Scalar, bool)| c.asks_for(&b.name);
            b.optional && (a.optional || a.conditions.iter().any(lacks))
        };
        let same_name = self.gguf == other.gguf && self.group == other.group;
        let linear = *self.kind == Kind::Linear && *other.kind == Kind::Linear;
        same_name && linear && self.dims != other.dims && (instead_of(self, other) || instead_of(other, self))
    }

    /// Returns true if the model's field is an `Option`.
    pub fn may_be_absent(&self) -> bool {
        self.optional || !self.conditions.is_empty()
    }

    /// Formats the conditions for a message: "if `a` and not `b`".
    pub fn condition_words(&self) -> String {
        let words: Vec<_> = self
            .conditions
            .iter()
            .map(|(c, truth)| format!("{}`{}`", if *truth { "" } else { "not " }, c.text))
            .collect();
        format!("if {}", words.join(" and "))
    }

    /// Formats the conditions, or returns `None` if there are none.
    pub fn condition_text(&self) -> Option<String> {
        let texts: Vec<_> = self
            .conditions
            .iter()
            .map(|(c, truth)| if *truth { c.text.clone() } else { c.negated_text() })
            .collect();
        (!texts.is_empty()).then(|| texts.join(" && "))
    }
}

/// Index into [`Arch::vars`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VarId(pub usize);

/// A variable of the graph, bound by `let`.
#[derive(Debug)]
pub struct Var {
    pub name: Ident,
    /// The variable is assigned to after its `let`.
    pub assigned: bool,
}

/// A number, condition, or string known when the graph is built.
#[derive(Clone, Debug)]
pub struct Scalar {
    pub kind: ScalarKind,
    pub ty: Ty,
    /// True if the value differs by layer.
    pub per_layer: bool,
    /// Source text of the expression in normal form.
    pub text: String,
    /// Symbolic value of an integer expression.
    pub dim: Dim,
}

impl Scalar {
    /// Returns the operands of the expression.
    pub fn parts(&self) -> Vec<&Scalar> {
        match &self.kind {
            ScalarKind::ToFloat(a) | ScalarKind::Neg(a) | ScalarKind::Not(a) | ScalarKind::Model(a) => vec![a],
            ScalarKind::Binary(_, a, b) => vec![a, b],
            ScalarKind::If(c, a, b) => vec![c, a, b],
            ScalarKind::Call(_, args) => args.iter().collect(),
            ScalarKind::OfLists(_, _, n) => n.as_deref().into_iter().collect(),
            _ => Vec::new(),
        }
    }

    /// Returns true if the expression contains a variable of the graph.
    pub fn has_variable(&self) -> bool {
        matches!(self.kind, ScalarKind::Var(_)) || self.parts().iter().any(|part| part.has_variable())
    }

    /// Returns true if the expression contains `has(tensor)`.
    pub fn asks_for(&self, tensor: &Ident) -> bool {
        match &self.kind {
            ScalarKind::Has(name) => name == tensor,
            _ => self.parts().iter().any(|part| part.asks_for(tensor)),
        }
    }

    /// Returns the value of a literal `true` or `false`.
    pub fn truth(&self) -> Option<bool> {
        match self.kind {
            ScalarKind::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// Returns the text of the negated condition; comparisons are inverted.
    pub(crate) fn negated_text(&self) -> String {
        let opposite = match &self.kind {
            ScalarKind::Binary(op, a, b) => op.opposite().map(|op| format!("{} {} {}", a.text, op.symbol(), b.text)),
            ScalarKind::Not(a) => Some(a.text.clone()),
            ScalarKind::Hparam(_)
            | ScalarKind::Has(_)
            | ScalarKind::Model(_)
            | ScalarKind::Given(_)
            | ScalarKind::FileRows(_) => Some(format!("!{}", self.text)),
            _ => None,
        };
        opposite.unwrap_or_else(|| format!("!({})", self.text))
    }
}

/// Kinds of [`Scalar`]. Operands of an operator have the same type: the checker inserts
/// [`ScalarKind::ToFloat`].
#[derive(Clone, Debug)]
pub enum ScalarKind {
    /// Integer literal.
    Int(u64),
    /// Float literal.
    Float(f64),
    /// Boolean literal.
    Bool(bool),
    /// String literal.
    Str(String),
    /// Builtin symbol.
    Builtin(Named<&'static Builtin>),
    /// Hyperparameter or value derived from hyperparameters.
    Hparam(Ident),
    /// Scalar variable of the graph, defined with `let`.
    Var(Ident),
    /// Conversion of an integer to `f32`.
    ToFloat(Box<Scalar>),
    /// Negation `-a`, for floats only.
    Neg(Box<Scalar>),
    /// `!a`
    Not(Box<Scalar>),
    /// Binary operation `a op b`.
    Binary(ScalarOp, Box<Scalar>, Box<Scalar>),
    /// Call of a numeric function.
    Call(Named<&'static ScalarFn>, Vec<Scalar>),
    /// `if c { a } else { b }`
    If(Box<Scalar>, Box<Scalar>, Box<Scalar>),
    /// `count(condition)`: the number of layers with a true condition.
    Layers(Box<Scalar>),
    /// Call of a function of lists: the lists, and the number of elements that count.
    OfLists(Named<ListFn>, Vec<Ident>, Option<Box<Scalar>>),
    /// `has(tensor)`; differs by layer if the tensor does.
    Has(Ident),
    /// `model_is("27B")`, with the condition of the model.
    Model(Box<Scalar>),
    /// `given(n_swa)`: true if the file has the key.
    Given(String),
    /// `file_rows("output.weight")`: the number of rows of a matrix in the file.
    FileRows(String),
    /// Rust code over hyperparameters: `rust!(expression)`.
    Rust(TokenStream),
}

/// Binary operators on scalars.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScalarOp {
    Add,
    Sub,
    Mul,
    Div,
    Rem,
    Eq,
    Ne,
    Lt,
    Le,
    Gt,
    Ge,
    And,
    Or,
}

impl ScalarOp {
    /// Returns the operator as written in the declaration.
    pub fn symbol(self) -> &'static str {
        match self {
            ScalarOp::Add => "+",
            ScalarOp::Sub => "-",
            ScalarOp::Mul => "*",
            ScalarOp::Div => "/",
            ScalarOp::Rem => "%",
            ScalarOp::Eq => "==",
            ScalarOp::Ne => "!=",
            ScalarOp::Lt => "<",
            ScalarOp::Le => "<=",
            ScalarOp::Gt => ">",
            ScalarOp::Ge => ">=",
            ScalarOp::And => "&&",
            ScalarOp::Or => "||",
        }
    }

    /// Returns the complementary comparison, such as `>=` for `<`.
    fn opposite(self) -> Option<ScalarOp> {
        Some(match self {
            ScalarOp::Eq => ScalarOp::Ne,
            ScalarOp::Ne => ScalarOp::Eq,
            ScalarOp::Lt => ScalarOp::Ge,
            ScalarOp::Ge => ScalarOp::Lt,
            ScalarOp::Gt => ScalarOp::Le,
            ScalarOp::Le => ScalarOp::Gt,
            _ => return None,
        })
    }

    /// Returns true for operators that yield a number.
    pub fn is_arithmetic(self) -> bool {
        matches!(
            self,
            ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul | ScalarOp::Div | ScalarOp::Rem
        )
    }
}

/// An item together with the span of the name that refers to it.
#[derive(Clone, Copy, Debug)]
pub struct Named<T> {
    /// Item that the name refers to.
    pub it: T,
    /// Span of the name.
    pub at: Span,
}

impl<T> Named<T> {
    /// Creates a reference to `it` at the span `at`.
    pub fn new(it: T, at: Span) -> Named<T> {
        Named { it, at }
    }
}

impl<T> Deref for Named<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.it
    }
}

/// A call of an operation.
#[derive(Clone, Debug)]
pub struct Operation {
    pub op: &'static OpSpec,
    /// Span of the operation's name.
    pub at: Span,
    /// Spans of the names of named arguments.
    pub keys: Vec<(&'static str, Span)>,
}

impl Operation {
    /// Creates a call at `at` without named arguments.
    pub fn new(op: &'static OpSpec, at: Span) -> Operation {
        Operation {
            op,
            at,
            keys: Vec::new(),
        }
    }

    /// Returns the span of an argument's name.
    pub fn key(&self, name: &str) -> Option<Span> {
        self.keys.iter().find(|(key, _)| *key == name).map(|&(_, at)| at)
    }
}

impl Deref for Operation {
    type Target = OpSpec;

    fn deref(&self) -> &OpSpec {
        self.op
    }
}

/// Statements, followed by an optional result.
#[derive(Debug)]
pub struct Block {
    pub stmts: Vec<Stmt>,
    pub result: Option<Value>,
}

/// A statement of a graph.
#[derive(Debug)]
pub enum Stmt {
    /// `let` or assignment of a tensor.
    Tensor {
        var: Named<VarId>,
        /// True for `let`; false for an assignment.
        is_let: bool,
        value: Value,
    },
    /// Definition of a scalar variable with `let`.
    Scalar { var: VarId, value: Scalar },
    /// Conditional assignments.
    If {
        cond: Box<Scalar>,
        /// Statements executed if the condition holds.
        then: Box<Block>,
        /// Statements executed if the condition does not hold.
        otherwise: Option<Box<Block>>,
    },
    /// A layer loop.
    Layers {
        /// Group of layers, an index into [`Arch::groups`].
        group: Named<usize>,
        /// Half-open range of layers; `None` for all layers.
        range: Option<(Scalar, Scalar)>,
        body: Block,
        /// Variable carried from one layer to the next.
        carried: VarId,
    },
    /// A loop over integers.
    Repeat {
        /// Loop variable, if it has a name.
        var: Option<VarId>,
        /// Half-open range of integers.
        range: (Scalar, Scalar),
        body: Block,
    },
}

/// A tensor-valued expression.
#[derive(Debug)]
pub struct Value {
    pub kind: ValueKind,
    pub shape: Shape,
}

/// Input that selects the rows of an `embed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowsBy {
    /// `w[tokens]`
    Tokens,
    /// `w[positions]`, or `w[positions + n]` with the number of skipped rows
    Positions,
}

impl RowsBy {
    /// Returns the name of the input.
    pub fn name(self) -> &'static str {
        match self {
            RowsBy::Tokens => "tokens",
            RowsBy::Positions => "positions",
        }
    }
}

/// Kinds of [`Value`]. Declared tensors are indices into [`Arch::tensors`].
#[derive(Debug)]
pub enum ValueKind {
    /// Variable.
    Var(Named<VarId>),
    /// Rows of an `embed`, such as `w[tokens]`, and the number of leading rows that the input skips.
    Embed(Named<usize>, Named<RowsBy>, Option<Scalar>),
    /// `encoded`, the result of the encoder.
    Encoded(Span),
    /// `hidden`, the hidden states of the preceding tokens.
    Hidden(Span),
    /// `patches`, the patches of an image, and the number of values in each.
    Patches(Span, Scalar),
    /// `frames`, the frames of audio, and the number of values in each column.
    Frames(Span, Scalar),
    /// `w(x)`
    Linear(Named<usize>, Box<Value>),
    /// Declared vector used as an operand.
    Weight(Named<usize>),
    /// Operation of [`OPS`](crate::ops::OPS).
    Op(Operation, Vec<Arg>),
    /// `a op b` over tensors; `b` is broadcast to the shape of `a`.
    Binary(ScalarOp, Box<Value>, Box<Value>),
    /// Multiplication by a scalar, `x * factor`.
    Scale(Box<Value>, Scalar),
    /// Division by a scalar, `x / divisor`.
    Divide(Box<Value>, Scalar),
    /// Addition of a scalar, `x + offset`.
    Shift(Box<Value>, Scalar),
    /// `act(a) * b`, a gated linear unit. The operation is the activation.
    Glu(Operation, Box<Value>, Box<Value>),
    /// `x[from..to]` along dimension 0; a missing end is the end of the dimension.
    Slice(Box<Value>, Option<Scalar>, Option<Scalar>),
    /// `if c { … } else { … }`
    If(Scalar, Box<Block>, Box<Block>),
    /// Value of `if c { … }` without `else` if the condition does not hold. No code uses the value.
    Absent,
    /// Rust code with its result shape: `rust!([dims] => expression)`.
    Rust(TokenStream),
    /// Inlined function or block: parameters with their arguments, and the body.
    Call(Option<Callee>, Vec<(VarId, Operand)>, Box<Block>),
}

/// Names of a function. Calls are inlined and only refer to these names.
#[derive(Debug)]
pub struct FunctionNames {
    /// Name of the function at its definition.
    pub name: Ident,
    /// Names of the function's options at its definition.
    pub options: Vec<Ident>,
    /// Uses of the options in the body; empty for functions of other files.
    pub uses: Vec<Ident>,
}

/// Names of a function at a call.
#[derive(Clone, Debug)]
pub struct Callee {
    /// Name of the function.
    pub called: Ident,
    /// Names of the given options.
    pub options: Vec<Ident>,
    /// A span in the file that defines the function, if that is not the declaration's file.
    pub elsewhere: Option<Span>,
}

/// Argument of a function.
#[derive(Debug)]
pub enum Operand {
    Tensor(Value),
    /// Scalar argument: a number or condition.
    Scalar(Scalar),
}

/// Argument of an operation, in the order of its parameters.
#[derive(Debug)]
pub enum Arg {
    /// Computed tensor.
    Tensor(Value),
    /// Declared tensor.
    Weight(Named<usize>),
    /// Scalar argument: a number or condition.
    Scalar(Scalar),
    /// Unary operation, passed by name.
    Activation(Operation),
    /// Keyword.
    Word(Named<&'static str>),
    /// `sliding(n, cond)`: kind, size, and condition.
    Window(Named<&'static str>, Scalar, Option<Scalar>),
    /// `if cond { value }`: passed only if the condition holds.
    If(Scalar, Box<Arg>),
    /// Omitted argument.
    Default,
}
