//! Whose fault a fault in a function is: the function's, or that of an argument of another shape than the function takes.
//!
//! Functions do not declare shapes. What a parameter takes is found by trying: if the body is without fault once one argument has
//! another shape, that is the shape it takes, and the call is wrong. This is done for calls that have faults only.

use proc_macro2::Ident;
use syn::Expr;

use super::expr::Lowered;
use super::function::Call;
use super::{Bound, Checker, VarSym};
use crate::model::{Kind, VarId};
use crate::source::Range;
use crate::sym::{Dim, Shape};

/// What a parameter is given, as far as the body can tell.
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
    /// Moves the faults of a call's body, those from `faults` on, to the argument that they come from, if there is one.
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
        let message = format!("`{name}` takes {shape} as `{param}`, got {}", given[i].describe());
        self.errors.note(Range::of(args[i]), message, notes);
    }

    /// The shape that argument `i` must have for the body to be without fault, all else being as it is.
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

    /// Shapes that graphs have: of the residual stream, of what tensors take and give, and of heads.
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

    /// True if the body has no fault with these parameters. Nothing of it is kept.
    fn is_faultless(&mut self, call: &Call<'_>, bounds: &[Bound]) -> bool {
        let before = (self.errors.len(), self.vars.len());
        // Faults that are told once are to be found again.
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
