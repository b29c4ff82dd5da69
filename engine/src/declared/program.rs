//! A checked declaration as plain data. Names are resolved to indices, and types match.

use crate::builder::{AudioRules, Builder, ImageRules};
use crate::graph::{TensorId, Unary, Window};

use super::media::MediaRules;
use super::operations::Operation;
use super::scalar::Expr;

/// Program of an architecture.
#[derive(Debug, Default)]
pub struct Program {
    /// Digest of the declaration and of the files that it uses.
    pub digest: u64,
    /// Names of matrices whose number of rows in the file the items use.
    pub file_rows: Vec<&'static str>,
    /// Keys, derived values, and checks, in order.
    pub items: Vec<Item>,
    /// Groups of layers.
    pub groups: Vec<Group>,
    /// Declared tensors.
    pub tensors: Vec<DeclaredTensor>,
    /// Indices of the tensors outside of layers, in the order of declaration.
    pub globals: Vec<usize>,
    /// Names of tensors that files may contain in addition.
    pub ignored: Vec<&'static str>,
    /// Number of variables of the graphs.
    pub n_vars: usize,
    /// Graph of the encoder.
    pub encoder: Option<Block>,
    /// Main graph.
    pub graph: Block,
    /// Graph of a multi-token prediction layer.
    pub mtp: Option<Block>,
    /// Projection of pooled rows.
    pub embedding: Option<Head>,
    /// Scores of pooled rows.
    pub rank: Option<Head>,
    /// Image preprocessing.
    pub image: Option<MediaRules<ImageRules>>,
    /// Audio preprocessing.
    pub audio: Option<MediaRules<AudioRules>>,
}

/// Item of the `hparams` section. Expressions refer to items by their index.
#[derive(Debug)]
pub enum Item {
    /// Value of a key.
    Key {
        /// Form of the value.
        read: Read,
        /// GGUF key without the architecture prefix.
        key: &'static str,
        /// Value used if the key is absent; `None` if the key is required.
        default: Option<Expr>,
        /// Minimum length of a list.
        at_least: Option<Expr>,
    },
    /// Value computed from other values.
    Let {
        /// Defining expression.
        value: Expr,
        /// True if the value differs by layer.
        per_layer: bool,
    },
    /// Condition on the values.
    Check {
        /// Condition.
        cond: Expr,
        /// True if the condition must hold in each layer.
        per_layer: bool,
        /// Requirement, as shown in messages.
        text: &'static str,
        /// Keys and values that the condition depends on, for error messages.
        found: Vec<(&'static str, Expr)>,
        /// True if a violation is a warning.
        only_warns: bool,
    },
}

/// Form of the value of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Read {
    Int,
    Float,
    Bool,
    Text,
    Ints,
    Floats,
    Bools,
    List,
    Pattern,
    DenseFirst,
    Listed,
}

impl Read {
    /// Returns true if each layer has a value.
    pub(super) fn is_per_layer(self) -> bool {
        match self {
            Read::Int | Read::Float | Read::Bool | Read::Text | Read::List => false,
            Read::Ints | Read::Floats | Read::Bools | Read::Pattern | Read::DenseFirst | Read::Listed => true,
        }
    }
}

/// Group of layers with the same tensors.
#[derive(Debug)]
pub struct Group {
    /// GGUF prefix before the layer number.
    pub prefix: &'static str,
    /// Number of layers; `None` for the layers of the model.
    pub count: Option<Expr>,
    /// Indices of the tensors, in the order of declaration.
    pub tensors: Vec<usize>,
}

/// Declared tensor.
#[derive(Debug)]
pub struct DeclaredTensor {
    /// Kind of the tensor.
    pub kind: Kind,
    /// GGUF name without the layer prefix and the suffix.
    pub gguf: &'static str,
    /// Alternative name in GGUF files.
    pub other_name: Option<&'static str>,
    /// Sizes, innermost first.
    pub sizes: Vec<Expr>,
    /// Treatment of files without the tensor.
    pub presence: Presence,
    /// Conditions, each with its required value.
    pub conditions: Vec<(Expr, bool)>,
    /// Index in the tensors of its layer, or among the tensors outside of layers.
    pub slot: usize,
    /// True if the tensor belongs to a group of layers.
    pub in_layer: bool,
    /// True if other tensors depend on the presence of this optional tensor.
    pub decides: bool,
}

impl DeclaredTensor {
    /// Returns true if a loaded model may lack the tensor.
    pub fn may_be_absent(&self) -> bool {
        matches!(self.presence, Presence::Optional | Presence::Form) || !self.conditions.is_empty()
    }
}

/// Kind of a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Kind {
    Embed,
    Vector,
    Raw,
    Norm,
    Linear,
    Experts,
    PerHead,
}

/// Treatment of files without a tensor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Presence {
    /// The tensor is required.
    Required,
    /// The tensor is required and may have more rows than declared.
    OrMore,
    /// The tensor is optional.
    Optional,
    /// The tensor is absent if its shape differs.
    Form,
    /// Without the tensor, the `embed` with this index is used.
    Tied(usize),
}

/// Statements with an optional result.
#[derive(Debug, Default)]
pub struct Block {
    /// Statements, in order.
    pub stmts: Vec<Stmt>,
    /// Value of the block.
    pub result: Option<TensorExpr>,
}

/// Statements that compute on pooled rows.
#[derive(Debug)]
pub struct Head {
    /// Variable of the pooled rows.
    pub pooled: usize,
    /// Statements and result.
    pub block: Block,
}

/// Statement of a graph. Variables are indices.
#[derive(Debug)]
pub enum Stmt {
    /// Definition of a tensor, or assignment to it.
    Tensor {
        /// Variable to set.
        var: usize,
        /// Name of the variable.
        name: &'static str,
        /// New value.
        value: TensorExpr,
    },
    /// Definition of a scalar.
    Scalar {
        /// Variable to set.
        var: usize,
        /// New value.
        value: Expr,
    },
    /// Conditional statements.
    If {
        /// Condition.
        cond: Expr,
        /// Statements if the condition holds.
        then: Block,
        /// Statements otherwise.
        otherwise: Option<Block>,
    },
    /// Loop over layers.
    Layers {
        /// Group of the layers.
        group: usize,
        /// Half-open range of layers; `None` for all layers.
        range: Option<(Expr, Expr)>,
        /// True inside of another loop: the iterations count towards the limit of the graph.
        nested: bool,
        /// Statements of a layer.
        body: Block,
        /// Variable that carries the hidden states from layer to layer.
        carried: usize,
    },
    /// Loop over integers.
    Repeat {
        /// Variable of the integer.
        var: Option<usize>,
        /// Half-open range of integers.
        range: (Expr, Expr),
        /// Statements of an iteration.
        body: Block,
    },
}

/// Tensor-valued expression. Declared tensors are indices into [`Program::tensors`].
#[derive(Debug)]
pub enum TensorExpr {
    /// Variable.
    Var(usize),
    /// Embeddings of the tokens.
    Embed(usize),
    /// Embeddings of the positions, after a number of skipped rows.
    EmbedPositions(usize, Option<Expr>),
    /// Result of the encoder.
    Encoded,
    /// Hidden states of the preceding tokens.
    Hidden,
    /// Patches of an image, with the number of values in each.
    Patches(Expr),
    /// Frames of audio, with the number of values at each position.
    Frames(Expr),
    /// Projection.
    Linear(usize, Box<TensorExpr>),
    /// Declared tensor as an operand.
    Weight(usize),
    /// Operation with one argument per parameter.
    Op(&'static Operation, Vec<Arg>),
    /// Elementwise operator.
    Binary(Arithmetic, Box<TensorExpr>, Box<TensorExpr>),
    /// Product with a number.
    Scale(Box<TensorExpr>, Expr),
    /// Quotient by a number.
    Divide(Box<TensorExpr>, Expr),
    /// Sum with a number.
    Shift(Box<TensorExpr>, Expr),
    /// Gated linear unit: the function of the first operand times the second.
    Glu(Unary, Box<TensorExpr>, Box<TensorExpr>),
    /// Range of dimension 0; a missing end is the end of the dimension.
    Slice(Box<TensorExpr>, Option<Expr>, Option<Expr>),
    /// Value that does not exist under the present condition.
    Absent,
    /// Block that the condition selects.
    If(Expr, Box<Block>, Box<Block>),
    /// Inlined function: parameters with their arguments, and the body.
    Call(Vec<(usize, Operand)>, Box<Block>),
}

/// Operators on tensors: methods of the builder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Arithmetic {
    Add,
    Sub,
    Mul,
    Div,
}

impl Arithmetic {
    /// Adds the operation to a graph.
    pub(super) fn build(self, b: &mut Builder<'_>, x: TensorId, y: TensorId) -> TensorId {
        match self {
            Arithmetic::Add => b.add(x, y),
            Arithmetic::Sub => b.sub(x, y),
            Arithmetic::Mul => b.mul(x, y),
            Arithmetic::Div => b.div(x, y),
        }
    }
}

/// Argument of an inlined function.
#[derive(Debug)]
pub enum Operand {
    /// Tensor.
    Tensor(TensorExpr),
    /// Number or condition.
    Scalar(Expr),
}

/// Argument of an operation.
#[derive(Debug)]
pub enum Arg {
    /// Omitted argument.
    Omitted,
    /// Computed tensor.
    Tensor(TensorExpr),
    /// Declared tensor.
    Weight(usize, WeightUse),
    /// Number or condition.
    Scalar(Expr),
    /// List: an index into [`Program::items`].
    List(usize),
    /// Elementwise function.
    Activation(Unary),
    /// Name of a variant of an engine type.
    Word(&'static str),
    /// Function, size, and condition of a window.
    Window(fn(usize, bool) -> Window, Expr, Option<Expr>),
    /// Argument that is passed only if the condition holds.
    If(Expr, Box<Arg>),
}

/// Use of a declared tensor as an argument.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WeightUse {
    /// An absent tensor is an error of the graph.
    Required,
    /// The operation accepts an absent tensor.
    Optional,
    /// The tensor of the first layer is used.
    OfFirstLayer,
}
