//! The checked declaration: typed, resolved, free of faults. Code generation and the drawings read it and cannot fail.

use std::ops::Deref;

use proc_macro2::{Ident, Span, TokenStream};

use crate::builtins::{Builtin, Ty};
use crate::ops::OpSpec;
use crate::sym::{Dim, Shape};

/// A whole architecture.
#[derive(Debug)]
pub struct Arch {
    /// `general.architecture` of the files it loads.
    pub name: String,
    /// What it is `like`, nearest first.
    pub ancestors: Vec<Ancestor>,
    /// Files of the fragments in it, relative to the manifest of the crate.
    pub fragments: Vec<String>,
    /// Pairing of rotary positions.
    pub rope: RopeKind,
    /// Pairing in files whose positions have several axes, if another.
    pub rope_with_sections: Option<RopeKind>,
    /// Tokens see later ones too; there is no KV memory.
    pub bidirectional: bool,
    /// The result is what the graph's last projection is applied to.
    pub embeddings: bool,
    /// Keys, derived values and checks, in order.
    pub hparams: Vec<Hparam>,
    /// Groups of layers; the first is `layer`, whether or not tensors are declared for it.
    pub groups: Vec<Group>,
    /// Tensors outside the layers, then those of a layer, each in the order of the declaration.
    pub tensors: Vec<Tensor>,
    /// Tensors that a file may hold and this graph does not use: (name, in each layer).
    pub ignored: Vec<(String, bool)>,
    /// Names bound in the graphs.
    pub vars: Vec<Var>,
    /// The graph of the encoder, whose result the graph sees as `encoded`.
    pub encoder: Option<Block>,
    /// Its functions and those of its fragments.
    pub functions: Vec<Function>,
    /// The graph.
    pub graph: Block,
    /// The graph of a layer of multi-token prediction, which sees the model's hidden rows as `hidden`.
    pub mtp: Option<Block>,
    /// What becomes of the pooled rows of an embedding.
    pub embedding: Option<Head>,
    /// Scores of the pooled rows.
    pub rank: Option<Head>,
    /// How rows are pooled for `rank` where a file does not say: the engine's variant.
    pub rank_pooling: Option<&'static str>,
    /// Sizes for tests, in the order of the declaration.
    pub test: Vec<(String, TestSize)>,
}

impl Arch {
    /// True if the graph ends in logits.
    pub fn projects(&self) -> bool {
        self.graph
            .result
            .as_ref()
            .is_some_and(|v| v.shape.same(&Shape::logits()))
    }
}

/// Statements over the rows `pooled`.
#[derive(Debug)]
pub struct Head {
    /// The name `pooled`.
    pub pooled: VarId,
    /// The statements and their result.
    pub block: Block,
}

/// Layers of one kind.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of its loop.
    pub name: Ident,
    /// GGUF prefix before the layer's number.
    pub prefix: String,
    /// Number of layers; `None` stands for `n_layer`.
    pub count: Option<Scalar>,
}

/// An architecture that another one inherits from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ancestor {
    /// Its `general.architecture`.
    pub name: String,
    /// Its file, relative to the manifest of the crate.
    pub file: String,
}

/// Which elements of a head a rotation pairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RopeKind {
    /// No rotary positions.
    None,
    /// Neighbours.
    Norm,
    /// Halves.
    Neox,
    /// Halves, each axis of a position turning a section of them.
    Mrope,
    /// Halves, the axes of a position taking turns.
    Imrope,
}

impl RopeKind {
    /// All kinds with their names.
    pub const ALL: [(&'static str, RopeKind); 5] = [
        ("norm", RopeKind::Norm),
        ("neox", RopeKind::Neox),
        ("mrope", RopeKind::Mrope),
        ("imrope", RopeKind::Imrope),
        ("none", RopeKind::None),
    ];

    /// True if positions have several axes.
    pub fn has_axes(self) -> bool {
        matches!(self, RopeKind::Mrope | RopeKind::Imrope)
    }
}

/// A value of a `test` block.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum TestSize {
    /// A count.
    Int(u64),
    /// A switch.
    Bool(bool),
    /// Another number.
    Float(f64),
}

impl TestSize {
    /// As a number; switches are 0 and 1.
    pub fn number(self) -> f64 {
        match self {
            TestSize::Int(n) => n as f64,
            TestSize::Bool(b) => f64::from(u8::from(b)),
            TestSize::Float(x) => x,
        }
    }
}

/// One item of `hparams`.
#[derive(Debug)]
pub enum Hparam {
    /// Read from the file.
    Key {
        /// The symbol.
        name: Ident,
        /// How it is read.
        read: Read,
        /// Key without the architecture's prefix.
        key: String,
        /// Value when the key is absent; without it the key is required.
        default: Option<Scalar>,
        /// Of a list: how many values it has at least. It may be absent where that is 0.
        at_least: Option<Scalar>,
        /// Read by the graph, and so kept in the model.
        kept: bool,
    },
    /// Computed from others.
    Let {
        /// The symbol.
        name: Ident,
        /// Its value.
        value: Scalar,
        /// Read by the graph, and so kept in the model.
        kept: bool,
    },
    /// A condition on the file's values.
    Check {
        /// Must hold; per layer: in every layer.
        cond: Scalar,
        /// The error text when it does not.
        text: String,
    },
}

/// How a key is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Read {
    /// One value.
    One(Ty),
    /// One value per layer; a single value in the file stands for all.
    PerLayer(Ty),
    /// Any number of integers, for `rust!` expressions.
    List,
    /// Per layer, true or false: an array, or a period `n` that means `il % n < n - 1`.
    Pattern,
    /// The same, a period `n` meaning `il % n != 0`.
    LatePattern,
}

impl Read {
    /// Type of one value.
    pub fn ty(self) -> Ty {
        match self {
            Read::One(ty) | Read::PerLayer(ty) => ty,
            Read::List => Ty::List,
            Read::Pattern | Read::LatePattern => Ty::Bool,
        }
    }

    /// As written in the declaration.
    pub fn name(self) -> String {
        match self {
            Read::One(ty) => ty.name().to_string(),
            Read::PerLayer(ty) => format!("[{}]", ty.name()),
            Read::List => Ty::List.name().to_string(),
            Read::Pattern => "pattern".to_string(),
            Read::LatePattern => "late_pattern".to_string(),
        }
    }
}

/// What a tensor is for, which decides its parts, its shape's notation and where it may be placed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A table whose rows are looked up.
    Embed,
    /// A few values, `.weight`.
    Vector,
    /// `.weight` and an optional `.bias`.
    Norm,
    /// A projection: `.weight [in, out]`, optional `.bias [out]` and `.scale [1]`.
    Linear,
    /// One projection per expert: `.weight [in, out, n]`, optional `.bias [out, n]` and `.scale [n]`.
    Experts,
    /// One projection per head: `.weight [in, out, n_head]`.
    PerHead,
    /// A tensor whose name has no suffix.
    Raw,
}

impl Kind {
    /// All kinds with their names.
    pub const ALL: [(&'static str, Kind); 7] = [
        ("embed", Kind::Embed),
        ("vector", Kind::Vector),
        ("norm", Kind::Norm),
        ("linear", Kind::Linear),
        ("experts", Kind::Experts),
        ("per_head", Kind::PerHead),
        ("raw", Kind::Raw),
    ];

    /// As written in the declaration.
    pub fn name(self) -> &'static str {
        Kind::ALL.iter().find(|(_, k)| *k == self).map_or("", |(n, _)| n)
    }
}

/// One declared tensor.
#[derive(Debug)]
pub struct Tensor {
    /// Field name.
    pub name: Ident,
    /// What it is for.
    pub kind: Named<Kind>,
    /// GGUF name without layer prefix and suffix.
    pub gguf: String,
    /// Sizes, innermost first.
    pub sizes: Vec<Scalar>,
    /// The same, symbolically.
    pub dims: Vec<Dim>,
    /// The sizes as written.
    pub shape_text: String,
    /// Files may have more rows than the last size.
    pub or_more: bool,
    /// May be absent from a file.
    pub optional: bool,
    /// Used instead when absent: index of an `embed`.
    pub tie: Option<usize>,
    /// GGUF name that some files have instead.
    pub other_name: Option<String>,
    /// Part of every layer of this group: index into [`Arch::groups`].
    pub group: Option<usize>,
    /// Conditions under which it exists: (condition, must be true).
    pub conditions: Vec<(Scalar, bool)>,
}

impl Tensor {
    /// True if files hold this tensor or the other, told apart by the shape.
    pub fn is_other_form_of(&self, other: &Tensor) -> bool {
        let instead_of = |a: &Tensor, b: &Tensor| {
            let lacks = |(c, _): &(Scalar, bool)| c.asks_for(&b.name);
            b.optional && (a.optional || a.conditions.iter().any(lacks))
        };
        let same_name = self.gguf == other.gguf && self.group == other.group;
        let linear = *self.kind == Kind::Linear && *other.kind == Kind::Linear;
        same_name && linear && self.dims != other.dims && (instead_of(self, other) || instead_of(other, self))
    }

    /// True if the model's field is an `Option`.
    pub fn may_be_absent(&self) -> bool {
        self.optional || !self.conditions.is_empty()
    }

    /// The conditions for a sentence: "if `a` and not `b`".
    pub fn condition_words(&self) -> String {
        let words: Vec<_> = self
            .conditions
            .iter()
            .map(|(c, truth)| format!("{}`{}`", if *truth { "" } else { "not " }, c.text))
            .collect();
        format!("if {}", words.join(" and "))
    }

    /// The conditions as text, if there are any.
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

/// A name bound by `let` in the graph.
#[derive(Debug)]
pub struct Var {
    /// The name.
    pub name: Ident,
    /// Assigned to after its `let`.
    pub assigned: bool,
}

/// A number or condition known when the graph is built.
#[derive(Clone, Debug)]
pub struct Scalar {
    /// What it is.
    pub kind: ScalarKind,
    /// Its type.
    pub ty: Ty,
    /// Differs by layer.
    pub per_layer: bool,
    /// Normal form of the source text.
    pub text: String,
    /// As a size, for integers.
    pub dim: Dim,
}

impl Scalar {
    /// True if `has(tensor)` stands in it.
    pub fn asks_for(&self, tensor: &Ident) -> bool {
        match &self.kind {
            ScalarKind::Has(name) => name == tensor,
            ScalarKind::ToFloat(a) | ScalarKind::Neg(a) | ScalarKind::Not(a) => a.asks_for(tensor),
            ScalarKind::Binary(_, a, b) => a.asks_for(tensor) || b.asks_for(tensor),
            ScalarKind::If(c, a, b) => [c, a, b].iter().any(|s| s.asks_for(tensor)),
            ScalarKind::Call(_, args) => args.iter().any(|a| a.asks_for(tensor)),
            _ => false,
        }
    }

    /// The value of a literal `true` or `false`.
    pub fn truth(&self) -> Option<bool> {
        match self.kind {
            ScalarKind::Bool(b) => Some(b),
            _ => None,
        }
    }

    /// The text of the opposite condition: a comparison turns around.
    pub(crate) fn negated_text(&self) -> String {
        let opposite = match &self.kind {
            ScalarKind::Binary(op, a, b) => op.opposite().map(|op| format!("{} {} {}", a.text, op.symbol(), b.text)),
            ScalarKind::Not(a) => Some(a.text.clone()),
            ScalarKind::Hparam(_) | ScalarKind::Has(_) => Some(format!("!{}", self.text)),
            _ => None,
        };
        opposite.unwrap_or_else(|| format!("!({})", self.text))
    }
}

/// Forms of [`Scalar`]. Operands of one operator have one type: the checker inserts [`ScalarKind::ToFloat`].
#[derive(Clone, Debug)]
pub enum ScalarKind {
    /// A literal.
    Int(u64),
    /// A literal.
    Float(f64),
    /// A literal.
    Bool(bool),
    /// A literal.
    Str(String),
    /// A builtin symbol.
    Builtin(Named<&'static Builtin>),
    /// A hyper-parameter or derived value, by name.
    Hparam(Ident),
    /// A scalar `let` of the graph.
    Var(Ident),
    /// An integer as `f32`.
    ToFloat(Box<Scalar>),
    /// `-a` (floats only).
    Neg(Box<Scalar>),
    /// `!a`
    Not(Box<Scalar>),
    /// `a op b`
    Binary(ScalarOp, Box<Scalar>, Box<Scalar>),
    /// A function of numbers.
    Call(Named<&'static ScalarFn>, Vec<Scalar>),
    /// `if c { a } else { b }`
    If(Box<Scalar>, Box<Scalar>, Box<Scalar>),
    /// `has(tensor)`; per layer if the tensor is.
    Has(Ident),
    /// `rust!(expression)` over hyper-parameters.
    Rust(TokenStream),
}

/// Operators of scalars.
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
    /// As written.
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

    /// The comparison that holds exactly when this one does not.
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

    /// True for operators that yield a number.
    pub fn is_arithmetic(self) -> bool {
        matches!(
            self,
            ScalarOp::Add | ScalarOp::Sub | ScalarOp::Mul | ScalarOp::Div | ScalarOp::Rem
        )
    }
}

/// A function of numbers.
#[derive(Debug, PartialEq, Eq)]
pub struct ScalarFn {
    /// Name in declarations.
    pub name: &'static str,
    /// The method of `f32` (and of `usize`, where integers stay integers) that computes it.
    pub method: &'static str,
    /// Number of arguments.
    pub arity: usize,
    /// Integers give an integer.
    pub keeps_ints: bool,
}

/// Every function of numbers.
pub static SCALAR_FNS: &[ScalarFn] = &[
    ScalarFn {
        name: "sqrt",
        method: "sqrt",
        arity: 1,
        keeps_ints: false,
    },
    ScalarFn {
        name: "ln",
        method: "ln",
        arity: 1,
        keeps_ints: false,
    },
    ScalarFn {
        name: "exp",
        method: "exp",
        arity: 1,
        keeps_ints: false,
    },
    ScalarFn {
        name: "pow",
        method: "powf",
        arity: 2,
        keeps_ints: false,
    },
    ScalarFn {
        name: "min",
        method: "min",
        arity: 2,
        keeps_ints: true,
    },
    ScalarFn {
        name: "max",
        method: "max",
        arity: 2,
        keeps_ints: true,
    },
];

/// Something where the declaration names it: what it becomes in the expansion stands at the same place.
#[derive(Clone, Copy, Debug)]
pub struct Named<T> {
    /// What is named.
    pub it: T,
    /// The place of the name.
    pub at: Span,
}

impl<T> Named<T> {
    /// `it`, named by a token at `at`.
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

/// An operation where it is called.
#[derive(Clone, Debug)]
pub struct Operation {
    /// The operation.
    pub op: &'static OpSpec,
    /// The place of its name.
    pub at: Span,
    /// Places of the names that arguments are given by.
    pub keys: Vec<(&'static str, Span)>,
}

impl Operation {
    /// An operation that is named at `at`, without arguments by name.
    pub fn new(op: &'static OpSpec, at: Span) -> Operation {
        Operation {
            op,
            at,
            keys: Vec::new(),
        }
    }

    /// The place of an argument's name.
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

/// Statements and the value they end in.
#[derive(Debug)]
pub struct Block {
    /// In order.
    pub stmts: Vec<Stmt>,
    /// The value, if the block has one.
    pub result: Option<Value>,
}

/// One statement.
#[derive(Debug)]
pub enum Stmt {
    /// Binds or assigns a tensor.
    Tensor {
        /// The name.
        var: Named<VarId>,
        /// A new name, not an assignment.
        is_let: bool,
        /// The value.
        value: Value,
    },
    /// Binds a scalar.
    Scalar {
        /// The name.
        var: VarId,
        /// The value.
        value: Scalar,
    },
    /// Assignments under a condition.
    If {
        /// The condition.
        cond: Box<Scalar>,
        /// When it holds.
        then: Box<Block>,
        /// When it does not.
        otherwise: Option<Box<Block>>,
    },
    /// A layer loop.
    Layers {
        /// Index into [`Arch::groups`].
        group: Named<usize>,
        /// First layer and the one after the last, if not all.
        range: Option<(Scalar, Scalar)>,
        /// Its statements.
        body: Block,
        /// The value that each layer hands to the next.
        carried: VarId,
    },
    /// A loop over numbers.
    Repeat {
        /// The number, if it has a name.
        var: Option<VarId>,
        /// First number and the one after the last.
        range: (Scalar, Scalar),
        /// Its statements.
        body: Block,
    },
}

/// A tensor-valued expression.
#[derive(Debug)]
pub struct Value {
    /// What it is.
    pub kind: ValueKind,
    /// Its shape.
    pub shape: Shape,
}

/// What chooses the rows of an `embed`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RowsBy {
    /// `w[tokens]`
    Tokens,
    /// `w[positions]`
    Positions,
}

impl RowsBy {
    /// The input's name.
    pub fn name(self) -> &'static str {
        match self {
            RowsBy::Tokens => "tokens",
            RowsBy::Positions => "positions",
        }
    }
}

/// Forms of [`Value`]. Tensors are given by index into [`Arch::tensors`].
#[derive(Debug)]
pub enum ValueKind {
    /// A bound name.
    Var(Named<VarId>),
    /// Rows of an `embed`: `w[tokens]`
    Embed(Named<usize>, Named<RowsBy>),
    /// `encoded`, the encoder's result.
    Encoded(Span),
    /// `hidden`, the hidden rows before the tokens.
    Hidden(Span),
    /// `w(x)`
    Linear(Named<usize>, Box<Value>),
    /// A vector as an operand.
    Weight(Named<usize>),
    /// An op of the table.
    Op(Operation, Vec<Arg>),
    /// `a op b` over tensors; `b` is repeated to the shape of `a`.
    Binary(ScalarOp, Box<Value>, Box<Value>),
    /// `x * factor`
    Scale(Box<Value>, Scalar),
    /// `x / divisor`
    Divide(Box<Value>, Scalar),
    /// `x + offset`
    Shift(Box<Value>, Scalar),
    /// `act(a) * b`: one gated unit; the op is the activation.
    Glu(Operation, Box<Value>, Box<Value>),
    /// `x[from..to]` of dimension 0; a missing end is the end of the dimension.
    Slice(Box<Value>, Option<Scalar>, Option<Scalar>),
    /// `if c { … } else { … }`
    If(Scalar, Box<Block>, Box<Block>),
    /// `rust!([dims] => expression)`
    Rust(TokenStream),
    /// A function of the declaration or a fragment, or a block: its parameters with their arguments, then what it does.
    Call(Option<Callee>, Vec<(VarId, Operand)>, Box<Block>),
}

/// The names of a function: calls have its body in their place, and refer to these.
#[derive(Debug)]
pub struct Function {
    /// Where it is defined.
    pub name: Ident,
    /// Its options, where they are defined.
    pub options: Vec<Ident>,
    /// Where its body speaks of its options; empty for functions of other files.
    pub uses: Vec<Ident>,
}

/// Names of a function in a call.
#[derive(Clone, Debug)]
pub struct Callee {
    /// The function.
    pub called: Ident,
    /// The options that are given.
    pub options: Vec<Ident>,
    /// The file that defines it, by some place in it, if that is another than the declaration's.
    pub elsewhere: Option<Span>,
}

/// What a function is given.
#[derive(Debug)]
pub enum Operand {
    /// A tensor.
    Tensor(Value),
    /// A number or condition.
    Scalar(Scalar),
}

/// An argument of an op, in the order of its parameters.
#[derive(Debug)]
pub enum Arg {
    /// A computed tensor.
    Tensor(Value),
    /// A declared tensor.
    Weight(Named<usize>),
    /// A number or condition.
    Scalar(Scalar),
    /// An op of one operand, by name.
    Activation(Operation),
    /// A word of a fixed set.
    Word(Named<&'static str>),
    /// `standard(n, cond)`: kind, size, condition.
    Window(Named<&'static str>, Scalar, Option<Scalar>),
    /// `if cond { value }`: given where the condition holds.
    If(Scalar, Box<Arg>),
    /// Not given.
    Default,
}
