//! A call of an operation as seen by its shape rule.

use proc_macro2::TokenStream;

use super::OpSpec;
use crate::diag::Errors;
use crate::sym::{Dim, Multiple, Shape};

/// A call whose shape is being computed.
pub struct Call<'a> {
    pub op: &'static OpSpec,
    /// Operands of the call, one per parameter.
    pub operands: Vec<OpOperand>,
    /// Tokens of the operation's name.
    pub at: TokenStream,
    /// Sizes that the declaration makes multiples of others.
    pub multiples: &'a [Multiple],
    /// Collects errors.
    pub errors: &'a mut Errors,
}

/// An argument as seen by shape rules.
#[derive(Clone, Debug, Default)]
pub struct OpOperand {
    /// Shape of the argument, if it is a tensor.
    pub shape: Option<Shape>,
    /// Symbolic value of the argument, if it is an integer.
    pub dim: Option<Dim>,
    /// Tokens of the argument; empty if omitted.
    pub at: TokenStream,
}

impl Call<'_> {
    pub(super) fn operand(&self, name: &str) -> Option<&OpOperand> {
        let i = self.op.params.iter().position(|p| p.name == name)?;
        self.operands.get(i)
    }

    pub(super) fn shape(&self, name: &str) -> Option<Shape> {
        self.operand(name)?.shape.clone()
    }

    pub(super) fn dim(&self, name: &str) -> Option<Dim> {
        self.operand(name)?.dim.clone()
    }

    /// Records an error at an argument.
    pub(super) fn fail(&mut self, name: &str, message: String) {
        let at = self.operand(name).map_or_else(|| self.at.clone(), |o| o.at.clone());
        self.errors.at(at, message);
    }

    /// Checks the size of one dimension of an argument.
    pub(super) fn want(&mut self, name: &str, i: usize, want: &Dim, why: &str) {
        let Some(shape) = self.shape(name) else { return };
        let found = shape.dim(i);
        if found != *want {
            let op = self.op.name;
            self.fail(
                name,
                format!("`{op}`: dimension {i} of `{name}` must be {want} ({why}), found {found} in {shape}"),
            );
        }
    }

    /// Checks the number of dimensions of an argument.
    pub(super) fn rank(&mut self, name: &str, rank: usize, form: &str, hint: &str) -> bool {
        let Some(shape) = self.shape(name) else { return false };
        if shape.rank() != rank {
            let op = self.op.name;
            self.fail(
                name,
                format!("`{op}` expects `{name}` of shape {form}, found {shape}{hint}"),
            );
        }
        shape.rank() == rank
    }
}
