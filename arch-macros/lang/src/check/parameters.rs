//! Checks the arguments of a call against the shapes that the function's parameters declare.

use syn::Expr;

use super::Checker;
use super::expr::Lowered;
use super::scopes::Scopes;
use crate::ast::{Function, Parameter};
use crate::builtins::Ty;
use crate::model::VarId;
use crate::options::{Bindings, substitute};
use crate::parse::{plain_name, sizes};
use crate::sym::{Dim, Shape};

/// Sizes of a declared shape; `None` for `_`, which matches any size.
struct Pattern(Vec<Option<Dim>>);

impl Pattern {
    fn fits(&self, shape: &Shape) -> bool {
        (0..4).all(|i| match self.0.get(i) {
            Some(Some(size)) => shape.dim(i) == *size,
            Some(None) => true,
            None => shape.dim(i).is_one(),
        })
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sizes = self.0.iter().map(|size| match size {
            Some(size) => size.to_string(),
            None => "_".to_owned(),
        });
        write!(f, "[{}]", sizes.collect::<Vec<_>>().join(", "))
    }
}

impl Checker<'_> {
    /// Reports each argument whose shape differs from the shape of its parameter. `visible` lists the caller's
    /// values that the options refer to.
    pub(super) fn shapes_fit(
        &mut self,
        f: &Function,
        options: &Bindings,
        visible: &[(String, VarId)],
        operands: &[Lowered],
        args: &[&Expr],
    ) -> Option<()> {
        let mut fits = Some(());
        for ((param, operand), arg) in f.params.iter().zip(operands).zip(args) {
            let Some(pattern) = self.pattern(param, options, visible)? else {
                continue;
            };
            let found = match operand {
                Lowered::Tensor(v) if pattern.fits(&v.shape) => continue,
                Lowered::Tensor(v) => v.shape.to_string(),
                Lowered::Scalar(s) => format!("the number `{}`", s.text),
            };
            let (name, param) = (&f.name, &param.name);
            fits = self.error(
                arg,
                format!("`{name}` expects shape {pattern} for `{param}`, found {found}"),
            );
        }
        fits
    }

    /// Returns the shape that a parameter declares, if any. The sizes may refer to the options of the function,
    /// but not to values of the caller.
    fn pattern(
        &mut self,
        param: &Parameter,
        options: &Bindings,
        visible: &[(String, VarId)],
    ) -> Option<Option<Pattern>> {
        let Some(shape) = &param.shape else { return Some(None) };
        let sizes = match sizes(substitute(shape.clone(), options)) {
            Ok(sizes) => sizes,
            Err(e) => {
                self.errors.syntax(&e);
                return None;
            }
        };
        let outer = std::mem::replace(&mut self.scopes, Scopes::of(visible));
        // A size that only a shape uses is not a value of the graph.
        let kept: Vec<bool> = self.hparams.iter().map(|h| h.kept).collect();
        let sizes: Option<Vec<Option<Dim>>> = sizes.iter().map(|e| self.size(e)).collect();
        for (h, kept) in self.hparams.iter_mut().zip(kept) {
            h.kept = kept;
        }
        self.scopes = outer;
        Some(Some(Pattern(sizes?)))
    }

    /// Returns a size of a shape: `Some(None)` for `_`, and `None` if the expression is invalid.
    fn size(&mut self, expr: &Expr) -> Option<Option<Dim>> {
        if matches!(expr, Expr::Infer(_)) {
            return Some(None);
        }
        match plain_name(expr) {
            Some(name) if name == "T" || name == "T_encoded" => Some(Some(Dim::symbol(&name.to_string()))),
            _ => Some(Some(self.scalar_of(expr, Ty::Int)?.dim)),
        }
    }
}
