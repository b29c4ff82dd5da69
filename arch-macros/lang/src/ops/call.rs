//! A call of an operation as its shape rule sees it.

use proc_macro2::TokenStream;

use super::OpSpec;
use crate::diag::Errors;
use crate::sym::{Dim, Shape};

/// A call whose shape is asked for: the operands by parameter name, and where faults go.
pub struct Call<'a> {
    /// The operation.
    pub op: &'static OpSpec,
    /// One per parameter.
    pub operands: Vec<Operand>,
    /// Tokens of the operation's name.
    pub at: TokenStream,
    /// Receives faults.
    pub errors: &'a mut Errors,
}

/// What the shape rules see of an argument.
#[derive(Clone, Debug, Default)]
pub struct Operand {
    /// For tensors, computed or declared.
    pub shape: Option<Shape>,
    /// For integers.
    pub dim: Option<Dim>,
    /// Where it stands; empty if not given.
    pub at: TokenStream,
}

impl Call<'_> {
    pub(super) fn operand(&self, name: &str) -> Option<&Operand> {
        let i = self.op.params.iter().position(|p| p.name == name)?;
        self.operands.get(i)
    }

    pub(super) fn shape(&self, name: &str) -> Option<Shape> {
        self.operand(name)?.shape.clone()
    }

    pub(super) fn dim(&self, name: &str) -> Option<Dim> {
        self.operand(name)?.dim.clone()
    }

    /// Notes a fault under an argument.
    pub(super) fn fail(&mut self, name: &str, message: String) {
        let at = self.operand(name).map_or_else(|| self.at.clone(), |o| o.at.clone());
        self.errors.at(at, message);
    }

    /// Checks one dimension of an argument.
    pub(super) fn want(&mut self, name: &str, i: usize, want: &Dim, why: &str) {
        let Some(shape) = self.shape(name) else { return };
        let found = shape.dim(i);
        if found != *want {
            let op = self.op.name;
            self.fail(
                name,
                format!("`{op}`: dimension {i} of `{name}` must be {want} ({why}), got {found} in {shape}"),
            );
        }
    }

    /// Checks the number of dimensions of an argument.
    pub(super) fn rank(&mut self, name: &str, rank: usize, form: &str, hint: &str) -> bool {
        let Some(shape) = self.shape(name) else { return false };
        if shape.rank() != rank {
            let op = self.op.name;
            self.fail(name, format!("`{op}` takes `{name}` as {form}, got {shape}{hint}"));
        }
        shape.rank() == rank
    }
}
