//! Numbers and conditions of a program: values, expressions, and operators. Integers come from files, so their
//! arithmetic saturates.

use std::fmt;
use std::sync::Arc;

use crate::model::Base;

/// Value of an expression.
#[derive(Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Scalar {
    Int(usize),
    Float(f32),
    Bool(bool),
    Text(Arc<str>),
    List(Arc<[usize]>),
}

/// Formats the value like the Rust type that generated code uses.
impl fmt::Debug for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Int(n) => n.fmt(f),
            Scalar::Float(x) => x.fmt(f),
            Scalar::Bool(b) => b.fmt(f),
            Scalar::Text(text) => text.fmt(f),
            Scalar::List(list) => list.fmt(f),
        }
    }
}

/// The checker rejects values of other types, so the fallback values are unreachable.
impl Scalar {
    pub(super) fn int(&self) -> usize {
        if let Scalar::Int(n) = self { *n } else { 0 }
    }

    pub(super) fn float(&self) -> f32 {
        if let Scalar::Float(x) = self { *x } else { 0.0 }
    }

    pub(super) fn bool(&self) -> bool {
        matches!(self, Scalar::Bool(true))
    }

    pub(super) fn list(&self) -> &[usize] {
        if let Scalar::List(list) = self { list } else { &[] }
    }

    pub(super) fn text(&self) -> &str {
        if let Scalar::Text(text) = self { text } else { "" }
    }
}

/// Expression over hyperparameters and variables. Operands of an operator have the same type.
#[derive(Clone, Debug)]
pub enum Expr {
    /// Literal.
    Const(Scalar),
    /// Builtin symbol.
    Builtin(Builtin),
    /// Index of the layer.
    Layer,
    /// Hyperparameter: an index into the [items](super::Program::items).
    Hparam(usize),
    /// Variable of the graph.
    Var(usize),
    /// Conversion of an integer.
    ToFloat(Box<Expr>),
    /// Negation of a number.
    Neg(Box<Expr>),
    /// Negation of a condition.
    Not(Box<Expr>),
    /// Binary operation.
    Binary(BinaryOp, Box<Expr>, Box<Expr>),
    /// Numeric function.
    Call(Function, Vec<Expr>),
    /// Condition with the values if it holds and otherwise.
    If(Box<[Expr; 3]>),
    /// Number of layers with a true condition.
    Layers(Box<Expr>),
    /// Function of lists: items with the lists, and the number of elements that count.
    OfLists(ListFunction, Vec<usize>, Option<Box<Expr>>),
    /// True if the file has the declared tensor with this index.
    Has(usize),
    /// True if the file has the key.
    Given(&'static str),
    /// Number of rows of a matrix in the file: an index into [`file_rows`](super::Program::file_rows).
    FileRows(usize),
}

/// Binary operators.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum BinaryOp {
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

/// Numeric functions, named after their methods.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum Function {
    Sqrt,
    Ln,
    Exp,
    Powf,
    Min,
    Max,
}

/// Functions of lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum ListFunction {
    Count,
    First,
    MaxSum,
}

impl Function {
    /// Returns the function of a method of `f32`.
    pub fn of_method(name: &str) -> Option<Function> {
        Some(match name {
            "sqrt" => Function::Sqrt,
            "ln" => Function::Ln,
            "exp" => Function::Exp,
            "powf" => Function::Powf,
            "min" => Function::Min,
            "max" => Function::Max,
            _ => return None,
        })
    }
}

/// Builtin symbol: an accessor of [`Base`].
#[derive(Clone, Copy, Debug)]
pub struct Builtin(fn(&Base, usize) -> Scalar);

/// Accessors of the builtin symbols; the second argument is the layer.
const BUILTINS: &[(&str, Builtin)] = &[
    ("n_vocab", Builtin(|b, _| Scalar::Int(b.n_vocab()))),
    ("n_ctx_train", Builtin(|b, _| Scalar::Int(b.n_ctx_train()))),
    ("n_embd", Builtin(|b, _| Scalar::Int(b.n_embd()))),
    ("n_layer", Builtin(|b, _| Scalar::Int(b.n_layer()))),
    ("n_mtp", Builtin(|b, _| Scalar::Int(b.n_mtp()))),
    ("n_labels", Builtin(|b, _| Scalar::Int(b.n_labels()))),
    ("n_expert", Builtin(|b, _| Scalar::Int(b.n_expert()))),
    ("n_expert_used", Builtin(|b, il| Scalar::Int(b.n_expert_used(il)))),
    ("n_head", Builtin(|b, il| Scalar::Int(b.n_head(il)))),
    ("n_head_max", Builtin(|b, _| Scalar::Int(b.n_head_max()))),
    ("n_head_kv", Builtin(|b, il| Scalar::Int(b.n_head_kv(il)))),
    ("n_ff", Builtin(|b, il| Scalar::Int(b.n_ff(il)))),
    ("head_dim", Builtin(|b, _| Scalar::Int(b.head_dim()))),
    ("head_dim_k", Builtin(|b, _| Scalar::Int(b.head_dim_k()))),
    ("head_dim_v", Builtin(|b, _| Scalar::Int(b.head_dim_v()))),
    ("n_rot", Builtin(|b, _| Scalar::Int(b.n_rot()))),
    ("is_mtp", Builtin(|b, il| Scalar::Bool(b.is_mtp(il)))),
    ("rope_freq_base", Builtin(|b, _| Scalar::Float(b.rope_freq_base()))),
    ("rope_freq_scale", Builtin(|b, _| Scalar::Float(b.rope_freq_scale()))),
    ("rope_yarn", Builtin(|b, _| Scalar::Bool(b.rope_yarn()))),
];

impl Builtin {
    /// Returns the value in a layer.
    pub(super) fn value(self, base: &Base, il: usize) -> Scalar {
        (self.0)(base, il)
    }

    /// Returns the accessor of a builtin symbol.
    pub fn named(name: &str) -> Option<Builtin> {
        BUILTINS.iter().find(|(known, _)| *known == name).map(|&(_, b)| b)
    }
}

impl BinaryOp {
    /// Applies an operator other than `&&` and `||` to values of one type.
    pub(super) fn apply(self, a: &Scalar, b: &Scalar) -> Scalar {
        match (self, a, b) {
            (BinaryOp::Eq, a, b) => Scalar::Bool(a == b),
            (BinaryOp::Ne, a, b) => Scalar::Bool(a != b),
            (op, Scalar::Int(a), Scalar::Int(b)) => op.apply_to_ints(*a, *b),
            (op, a, b) => op.apply_to_floats(a.float(), b.float()),
        }
    }

    /// A zero divisor from a file yields size 0, which the tensor table then reports as a shape mismatch.
    fn apply_to_ints(self, a: usize, b: usize) -> Scalar {
        Scalar::Int(match self {
            BinaryOp::Add => a.saturating_add(b),
            BinaryOp::Sub => a.saturating_sub(b),
            BinaryOp::Mul => a.saturating_mul(b),
            BinaryOp::Div => a.checked_div(b).unwrap_or(0),
            BinaryOp::Rem => a.checked_rem(b).unwrap_or(0),
            op => return Scalar::Bool(op.compares(&a, &b)),
        })
    }

    fn apply_to_floats(self, a: f32, b: f32) -> Scalar {
        Scalar::Float(match self {
            BinaryOp::Add => a + b,
            BinaryOp::Sub => a - b,
            BinaryOp::Mul => a * b,
            BinaryOp::Div => a / b,
            BinaryOp::Rem => a % b,
            op => return Scalar::Bool(op.compares(&a, &b)),
        })
    }

    fn compares<T: PartialOrd>(self, a: &T, b: &T) -> bool {
        match self {
            BinaryOp::Lt => a < b,
            BinaryOp::Le => a <= b,
            BinaryOp::Gt => a > b,
            BinaryOp::Ge => a >= b,
            _ => false,
        }
    }
}
