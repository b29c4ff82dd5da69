//! Attributes an error in a function to its body or to the call that passed an argument of the wrong shape.
//!
//! Functions do not declare the shapes of their parameters. If the body checks without errors once one
//! argument has another shape, the parameter requires that shape and the error is moved to the call. Only
//! calls that produced errors are retried.

use proc_macro2::Ident;
use syn::Expr;

use super::expr::Lowered;
use super::function::Call;
use super::{Bound, Checker, VarSym};
use crate::model::{Kind, VarId};
use crate::source::Range;
use crate::sym::{Dim, Shape};

/// Argument bound to a parameter, as known to the body.
#[derive(Clone)]
pub(super) struct Given(Bound);

impl Given {
    pub(super) fn of(operand: &Lowered) -> Given {
        Given(match operand {
            Lowered::Tensor(v) => Bound::Tensor(v.shape.clone()),
            Lowered::Scalar(s) => Bound::Scalar(s.clone()),
        })
    }

    fn describe(&self) -> String {
        match &self.0 {
            Bound::Tensor(shape) => shape.to_string(),
            Bound::Scalar(s) => format!("the number `{}`", s.text),
            Bound::Broken => "nothing".to_owned(),
        }
    }
}

impl Checker<'_> {
    /// Moves the errors of a call's body (index `faults` and later) to the argument that caused them, if one
    /// did.
    pub(super) fn blame(&mut self, call: &Call<'_>, args: &[&Expr], given: &[Given], faults: usize) {
        if self.trying || self.errors.len() == faults {
            return;
        }
        self.trying = true;
        let wanted = (0..given.len()).find_map(|i| Some((i, self.wanted(call, given, i)?)));
        self.trying = false;
        let Some((i, shape)) = wanted else { return };
        let notes = self.errors.take_from(faults);
        let (name, param) = (call.name, &call.f.params[i]);
        let message = format!(
            "`{name}` expects shape {shape} for `{param}`, found {}",
            given[i].describe()
        );
        self.errors.note(Range::of(args[i]), message, notes);
    }

    /// Returns the shape of argument `i` that makes the body valid, with all other arguments
    /// unchanged.
    fn wanted(&mut self, call: &Call<'_>, given: &[Given], i: usize) -> Option<Shape> {
        let mut bounds: Vec<Bound> = given.iter().map(|g| g.0.clone()).collect();
        bounds[i] = Bound::Broken;
        if !self.is_faultless(call, &bounds) {
            return None;
        }
        self.likely_shapes().into_iter().find(|shape| {
            bounds[i] = Bound::Tensor(shape.clone());
            self.is_faultless(call, &bounds)
        })
    }

    /// Returns common shapes: residual stream, inputs and outputs of tensors, and heads.
    fn likely_shapes(&self) -> Vec<Shape> {
        let mut sizes = vec![Dim::symbol("n_embd")];
        let mut counts = vec![Dim::symbol("n_head"), Dim::symbol("n_head_kv"), Dim::constant(1)];
        for t in self.tensors.iter().filter(|t| !t.broken).map(|t| &t.tensor) {
            sizes.extend(t.dims.iter().take(2).cloned());
            if *t.kind == Kind::PerHead {
                counts.extend(t.dims.get(2).cloned());
            }
        }
        sizes.push(Dim::symbol("head_dim"));
        let tokens = Dim::n_tokens;
        let rows = sizes.iter().map(|d| Shape(vec![d.clone(), tokens()]));
        let heads = sizes
            .iter()
            .flat_map(|d| counts.iter().map(|n| Shape(vec![d.clone(), n.clone(), tokens()])));
        let mut shapes: Vec<Shape> = Vec::new();
        for shape in rows.chain(heads) {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }

    /// Returns true if the body has no errors with these parameters. Restores the checker's state afterwards.
    fn is_faultless(&mut self, call: &Call<'_>, bounds: &[Bound]) -> bool {
        let before = (self.errors.len(), self.vars.len());
        // Errors that are normally reported only once must be found again.
        let told = (
            std::mem::take(&mut self.wrong_ifs),
            std::mem::take(&mut self.unknown_names),
        );
        let assigned = self.assigned_in_loop.clone();
        let params = call
            .f
            .params
            .iter()
            .zip(bounds)
            .map(|(p, b)| self.try_param(p, b.clone()))
            .collect();
        let outer = std::mem::replace(&mut self.scopes, vec![call.visible.to_vec(), params]);
        self.enter(call.name);
        self.value_block(call.body);
        self.leave();
        self.scopes = outer;
        let is_faultless = self.errors.len() == before.0;
        self.errors.take_from(before.0);
        self.vars.truncate(before.1);
        (self.wrong_ifs, self.unknown_names) = told;
        self.assigned_in_loop = assigned;
        is_faultless
    }

    fn try_param(&mut self, name: &Ident, bound: Bound) -> (String, VarId) {
        self.vars.push(VarSym {
            name: name.clone(),
            bound,
            used: true,
            assigned: false,
        });
        (name.to_string(), VarId(self.vars.len() - 1))
    }
}
