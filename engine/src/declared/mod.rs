//! Architectures declared at run time: a checked declaration as plain data, and its interpreter.
//!
//! A [`Program`] has the content of the code that `arch!` generates: hyperparameters, tensors, and the statements of
//! the graphs. Two readers interpret it. `load` reads the keys of a file and declares its tensors, and `build` calls
//! the methods of [`Builder`](crate::builder::Builder) that generated code calls. [`operations::OPERATIONS`] maps the
//! operations of the language to these methods.
//!
//! A program comes from an untrusted file. Names and types in it are resolved, and the interpreter bounds its work:
//! arithmetic saturates, and the size of graphs is limited.

mod arguments;
mod build;
mod load;
mod media;
pub mod operations;
mod program;
mod scalar;
mod scope;
mod state;

pub use media::{MediaRules, Numbers};
pub use operations::Operation;
pub use program::{
    Arg, Arithmetic, Block, DeclaredTensor, Group, Head, Item, Kind, Operand, Presence, Program, Read, Stmt,
    TensorExpr, WeightUse,
};
pub use scalar::{BinaryOp, Builtin, Expr, Function, ListFunction, Scalar};
