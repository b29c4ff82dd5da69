//! Evaluates the expressions of a program.

use crate::model::{Base, HparamReader, max_sum};

use super::media::Numbers;
use super::program::DeclaredTensor;
use super::scalar::{BinaryOp, Expr, Function, ListFunction, Scalar};
use super::state::{Handle, Stored};

/// Values that an expression may refer to.
#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub base: &'a Base,
    /// Values of the items, up to the current one during loading.
    pub items: &'a [Stored],
    pub vars: &'a [Scalar],
    pub tensors: &'a [DeclaredTensor],
    pub globals: &'a [Handle],
    /// Handles of the current layer.
    pub layer: &'a [Handle],
    pub il: usize,
    /// Numbers of rows of matrices in the file during loading.
    pub file_rows: &'a [usize],
    /// Reader of the file during loading.
    pub reader: Option<&'a HparamReader<'a>>,
}

impl Numbers for Scope<'_> {
    fn int(&self, expr: &Expr) -> usize {
        self.eval(expr).int()
    }

    fn float(&self, expr: &Expr) -> f32 {
        self.eval(expr).float()
    }
}

impl Scope<'_> {
    /// Evaluates an expression.
    pub fn eval(&self, expr: &Expr) -> Scalar {
        match expr {
            Expr::Const(value) => value.clone(),
            Expr::Builtin(builtin) => builtin.value(self.base, self.il),
            Expr::Layer => Scalar::Int(self.il),
            Expr::Hparam(index) => self.items[*index].at(self.il),
            Expr::Var(var) => self.vars[*var].clone(),
            Expr::ToFloat(a) => Scalar::Float(self.int(a) as f32),
            Expr::Neg(a) => Scalar::Float(-self.float(a)),
            Expr::Not(a) => Scalar::Bool(!self.bool(a)),
            Expr::Binary(BinaryOp::And, a, b) => Scalar::Bool(self.bool(a) && self.bool(b)),
            Expr::Binary(BinaryOp::Or, a, b) => Scalar::Bool(self.bool(a) || self.bool(b)),
            Expr::Binary(op, a, b) => op.apply(&self.eval(a), &self.eval(b)),
            Expr::Call(f, args) => self.call(*f, args),
            Expr::If(parts) => {
                let [cond, then, otherwise] = &**parts;
                self.eval(if self.bool(cond) { then } else { otherwise })
            }
            Expr::Layers(cond) => {
                let holds = |il: &usize| Scope { il: *il, ..*self }.bool(cond);
                Scalar::Int((0..self.base.n_layer_loaded()).filter(holds).count())
            }
            Expr::OfLists(f, lists, n) => Scalar::Int(self.of_lists(*f, lists, n.as_deref())),
            Expr::Has(tensor) => Scalar::Bool(self.handle(*tensor) != Handle::Absent),
            Expr::FileRows(index) => Scalar::Int(self.file_rows.get(*index).copied().unwrap_or(0)),
            Expr::Given(key) => Scalar::Bool(self.reader.is_some_and(|r| r.has(key))),
        }
    }

    pub fn int(&self, expr: &Expr) -> usize {
        self.eval(expr).int()
    }

    pub fn float(&self, expr: &Expr) -> f32 {
        self.eval(expr).float()
    }

    pub fn bool(&self, expr: &Expr) -> bool {
        self.eval(expr).bool()
    }

    /// Returns the handle of a declared tensor in the current layer.
    pub fn handle(&self, tensor: usize) -> Handle {
        let tensor = &self.tensors[tensor];
        let handles = if tensor.in_layer { self.layer } else { self.globals };
        handles.get(tensor.slot).copied().unwrap_or(Handle::Absent)
    }

    fn of_lists(&self, f: ListFunction, lists: &[usize], n: Option<&Expr>) -> usize {
        let list = |i: usize| lists.get(i).map_or(&[][..], |&item| self.items[item].list());
        match f {
            ListFunction::Count => list(0).len(),
            ListFunction::First => list(0).first().copied().unwrap_or(0),
            ListFunction::MaxSum => max_sum(list(0), list(1), n.map_or(0, |n| self.int(n))),
        }
    }

    fn call(&self, f: Function, args: &[Expr]) -> Scalar {
        let first = args.first().map_or(Scalar::Float(0.0), |a| self.eval(a));
        let second = args.get(1).map(|a| self.eval(a));
        match (f, first, second) {
            (Function::Min, Scalar::Int(a), Some(Scalar::Int(b))) => Scalar::Int(a.min(b)),
            (Function::Max, Scalar::Int(a), Some(Scalar::Int(b))) => Scalar::Int(a.max(b)),
            (f, a, b) => {
                let (a, b) = (a.float(), b.map_or(0.0, |b| b.float()));
                Scalar::Float(match f {
                    Function::Sqrt => a.sqrt(),
                    Function::Ln => a.ln(),
                    Function::Exp => a.exp(),
                    Function::Powf => a.powf(b),
                    Function::Min => a.min(b),
                    Function::Max => a.max(b),
                })
            }
        }
    }
}
